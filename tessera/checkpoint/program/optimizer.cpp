#include "tessera/checkpoint/program/optimizer.h"

#include <algorithm>
#include <map>

#include <ATen/core/grad_mode.h>
#include <ATen/ops/zeros.h>
#include <ATen/ops/zeros_like.h>

#include "tessera/base/error.h"
#include "tessera/checkpoint/program/optimizer_values.h"
#include "tessera/optim/owned.h"
#include "tessera/parallel/place.h"

namespace tessera::checkpoint {
namespace {

using nlohmann::json;
using parallel::TensorVisitor;

std::string moment_name(const char* field, const std::string& parameter) {
  return std::string(field) + "/" + parameter;
}

// The name of each parameter, by its identity.
std::map<const void*, std::string> names_by_address(const NamedOptimizer& named) {
  std::map<const void*, std::string> names;
  for (const auto& tensor : named.tensors) {
    names[tensor.tensor.unsafeGetTensorImpl()] = tensor.name;
  }
  return names;
}

json names_in(const torch::optim::OptimizerParamGroup& group, const std::map<const void*, std::string>& names) {
  json list = json::array();
  for (const auto& parameter : group.params()) {
    const auto found = names.find(parameter.unsafeGetTensorImpl());
    TESSERA_CHECK_AS(DataError, found != names.end(), "[checkpoint] the optimizer has a parameter of sizes ",
                     parameter.sizes(), " that is none of the model's; accepted: an optimizer of model->parameters()");
    list.push_back(found->second);
  }
  return list;
}

torch::optim::OptimizerParamState* state_of(const NamedOptimizer& named, const at::Tensor& parameter) {
  const auto found = named.optimizer.state().find(parameter.unsafeGetTensorImpl());
  return found == named.optimizer.state().end() ? nullptr : found->second.get();
}

json value_of(const NamedOptimizer& named) {
  const auto& kind = kind_of(named.optimizer);
  const auto names = names_by_address(named);
  json value = {{"kind", kind.name}, {"groups", json::array()}, {"state", json::object()}};
  for (auto& group : named.optimizer.param_groups()) {
    FieldWriter options;
    kind.visit_options(group.options(), options);
    value["groups"].push_back({{"options", options.fields}, {"parameters", names_in(group, names)}});
  }
  for (const auto& tensor : named.tensors) {
    if (auto* state = state_of(named, tensor.tensor)) {
      FieldWriter numbers;
      kind.visit_state(*state, numbers);
      value["state"][tensor.name] = numbers.fields;
    }
  }
  return value;
}

// The names of the parameters of each group, one after the other; empty between two groups.
std::vector<std::string> names_in_order(const json& value) {
  std::vector<std::string> all;
  for (const auto& group : value.at("groups")) {
    for (const auto& name : group.at("parameters")) {
      all.push_back(name.get<std::string>());
    }
    all.emplace_back();
  }
  return all;
}

// What `read` gives; DataError where the value is not what save wrote.
template <typename Read>
auto understood(const std::string& source, Read read) {
  try {
    return read();
  } catch (const json::exception& error) {
    TESSERA_THROW(DataError, "[checkpoint] \"", source, "\": the optimizer's value cannot be read: ", error.what(),
                  "; accepted: what save wrote");
  }
}

void verify_kind(const NamedOptimizer& named, const catalogue::Catalogue& found, const std::string& source) {
  const auto value = found.values().find(kOptimizer);
  TESSERA_CHECK_AS(DataError, value != found.values().end(), "[checkpoint] \"", source,
                   "\" was saved of a job without an optimizer; accepted: a job without one (JobOptions::optimizer), "
                   "to load the model alone");
  const auto then = understood(source, [&] { return json::parse(value->second).at("kind").get<std::string>(); });
  const auto& now = kind_of(named.optimizer).name;
  TESSERA_CHECK_AS(DataError, now == then, "[checkpoint] \"", source, "\" has the state of ", then,
                   ", the optimizer is ", now, "; accepted: the same kind of optimizer");
}

}  // namespace

const parallel::OptimizerKind& kind_of(torch::optim::Optimizer& optimizer) {
  auto* owned = dynamic_cast<optim::Owned*>(&optimizer);
  const auto* kind = parallel::find_kind(owned != nullptr ? owned->optimizer() : optimizer);
  TESSERA_CHECK_AS(DataError, kind, "[checkpoint] the state of an optimizer that is none of ",
                   parallel::optimizer_names(), "; tell of it with register_optimizer (parallel/optimizer_fields.h)");
  return *kind;
}

void add_optimizer(const NamedOptimizer& named, Contents& contents) {
  contents.values[kOptimizer] = value_of(named).dump();
  const auto& kind = kind_of(named.optimizer);
  for (const auto& tensor : named.tensors) {
    TensorVisitor add([&](const char* field, const at::Tensor& value) {
      if (value.defined()) {
        contents.tensors.push_back({moment_name(field, tensor.name), catalogue::Role::kMoment, value});
      }
    });
    if (auto* state = state_of(named, tensor.tensor)) {
      kind.visit_state(*state, add);
    }
  }
}

void prepare_optimizer(const NamedOptimizer& named, const catalogue::Catalogue& found, const std::string& source) {
  const at::NoGradGuard no_grad;
  verify_kind(named, found, source);
  const auto& kind = kind_of(named.optimizer);
  for (const auto& tensor : named.tensors) {
    bool is_kept = false;
    TensorVisitor make([&](const char* field, at::Tensor& value) {
      const auto* entry = found.find(moment_name(field, tensor.name));
      is_kept |= entry != nullptr;
      if (entry == nullptr || value.defined()) {
        return;
      }
      const auto& spec = entry->spec;
      const auto options = tensor.tensor.options().dtype(spec->dtype).requires_grad(false);
      value = tensor.tensor.sizes() == at::IntArrayRef(spec->sizes)
                  ? at::zeros_like(tensor.tensor, options)
                  : parallel::placed_state(at::zeros(spec->sizes, at::TensorOptions(spec->dtype)), tensor.tensor);
    });
    if (auto* state = state_of(named, tensor.tensor)) {
      kind.visit_state(*state, make);
      continue;
    }
    auto state = kind.make_state();
    kind.visit_state(*state, make);
    if (is_kept) {
      named.optimizer.state()[tensor.tensor.unsafeGetTensorImpl()] = std::move(state);
    }
  }
}

void verify_groups(const NamedOptimizer& named, const std::string& value, const std::string& source) {
  const auto then = understood(source, [&] { return names_in_order(json::parse(value)); });
  const auto now = names_in_order(value_of(named));
  const auto [a, b] = std::mismatch(then.begin(), then.end(), now.begin(), now.end());
  const auto text = [](const auto& at, const auto& end) {
    return at == end ? std::string("nothing more") : at->empty() ? "the end of a group" : *at;
  };
  TESSERA_CHECK_AS(DataError, a == then.end() && b == now.end(), "[checkpoint] \"", source,
                   "\" has other groups of parameters: ", text(a, then.end()), " where the optimizer has ",
                   text(b, now.end()), "; accepted: the same groups");
}

void restore_optimizer(const NamedOptimizer& named, const std::string& value) {
  const json from = json::parse(value);
  const auto& kind = kind_of(named.optimizer);
  auto& groups = named.optimizer.param_groups();
  for (size_t i = 0; i < groups.size(); ++i) {
    FieldReader options(from.at("groups").at(i).at("options"));
    kind.visit_options(groups[i].options(), options);
  }
  for (const auto& tensor : named.tensors) {
    if (auto* state = state_of(named, tensor.tensor)) {
      FieldReader numbers(from.at("state").at(tensor.name));
      kind.visit_state(*state, numbers);
    }
  }
}

}  // namespace tessera::checkpoint
