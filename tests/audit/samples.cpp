#include "tests/audit/samples.h"

#include <set>

#include <ATen/ops/arange.h>

namespace tessera::audit {

using rules::testing::find_op;
using rules::testing::make_args;
using rules::testing::Named;

namespace {

int64_t& counter() {
  static int64_t count = 0;
  return count;
}

// 0, 1, ... scrambled, another sequence at every call.
at::Tensor scrambled(c10::IntArrayRef sizes, int64_t modulus) {
  const int64_t numel = c10::multiply_integers(sizes);
  return at::arange(numel, at::kLong).mul(7919).add(104729 * ++counter()).remainder(modulus).view(sizes);
}

}  // namespace

at::Tensor reals(c10::IntArrayRef sizes) { return scrambled(sizes, 997).to(at::kDouble).add(1).div(1000); }

at::Tensor integers(int64_t below, c10::IntArrayRef sizes) { return scrambled(sizes, 99991).remainder(below); }

at::Tensor bools(c10::IntArrayRef sizes) { return scrambled(sizes, 99991).remainder(2).to(at::kBool); }

Sample sample(const std::string& op, const std::vector<at::Tensor>& tensors, const Named& rest, Compare compare) {
  return {op, make_args(op, tensors, rest), compare};
}

c10::IValue indices(const std::vector<at::Tensor>& tensors) {
  c10::List<std::optional<at::Tensor>> list;
  for (const at::Tensor& tensor : tensors) {
    list.push_back(tensor.defined() ? std::optional<at::Tensor>(tensor) : std::nullopt);
  }
  return list;
}

namespace {

enum class Values : uint8_t { kReals, kIntegers, kBools };

at::Tensor values(Values kind, c10::IntArrayRef sizes) {
  return kind == Values::kReals ? reals(sizes) : kind == Values::kBools ? bools(sizes) : integers(5, sizes).add_(1);
}

// Arguments of the schema's types; nothing where a type is not one that elementwise operators take.
std::optional<std::vector<c10::IValue>> args_from_schema(const c10::FunctionSchema& schema, Values kind,
                                                         const std::vector<std::vector<int64_t>>& shapes) {
  std::vector<c10::IValue> args;
  size_t tensors = 0;
  for (const c10::Argument& argument : schema.arguments()) {
    const std::string type = argument.type()->str();
    const bool is_tensor = type == "Tensor" || (type == "Tensor?" && tensors < shapes.size() && !argument.kwarg_only());
    if (is_tensor) {
      const auto& shape = shapes[std::min(tensors++, shapes.size() - 1)];
      const bool is_mask = argument.name() == "mask" || argument.name() == "condition";
      args.emplace_back(values(is_mask ? Values::kBools : kind, shape));
    } else if (argument.default_value()) {
      args.push_back(*argument.default_value());
    } else if (type == "Scalar" || type == "number") {
      args.emplace_back(kind == Values::kReals ? c10::IValue(0.7) : c10::IValue(2));
    } else if (type == "float") {
      args.emplace_back(0.7);
    } else if (type == "int") {
      args.emplace_back(1);
    } else if (type == "bool") {
      args.emplace_back(false);
    } else if (type.ends_with("?")) {
      args.emplace_back();
    } else {
      return std::nullopt;
    }
  }
  return args;
}

}  // namespace

void add_elementwise_samples(const std::string& op, Samples& samples) {
  const c10::FunctionSchema& schema = find_op(op).schema();
  const std::vector<std::vector<std::vector<int64_t>>> shape_sets = {
      {{5, 4}}, {{5, 4}, {4}, {5, 1}}, {{5, 4}, {}, {}}, {{3}, {2, 1, 3}, {2, 4, 1}}};
  bool found = false;
  for (Values kind : {Values::kReals, Values::kIntegers, Values::kBools}) {
    for (const auto& shapes : shape_sets) {
      const auto args = args_from_schema(schema, kind, shapes);
      if (!args) {
        return;
      }
      try {
        run_whole(op, *args);
      } catch (const std::exception&) {
        continue;
      }
      samples.push_back({op, *args, Compare::kValues});
      found = true;
    }
    if (found) {
      return;
    }
  }
}

Samples all_samples() {
  Samples samples;
  add_complex_samples(samples);
  add_contraction_samples(samples);
  add_grouped_samples(samples);
  add_factory_samples(samples);
  add_image_samples(samples);
  add_indexing_samples(samples);
  add_loss_samples(samples);
  add_norm_samples(samples);
  add_reduction_samples(samples);
  add_view_samples(samples);
  std::set<std::string> sampled;
  for (const Sample& written : samples) {
    sampled.insert(written.op);
  }
  for (const std::string& op : rules::RuleTable::instance().names()) {
    const size_t dot = op.find('.');
    const bool exists = c10::Dispatcher::singleton()
                            .findOp({op.substr(0, dot), dot == std::string::npos ? "" : op.substr(dot + 1)})
                            .has_value();
    if (exists && !sampled.contains(op)) {
      add_elementwise_samples(op, samples);
    }
  }
  return samples;
}

}  // namespace tessera::audit
