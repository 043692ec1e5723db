// Products that sum over a shared index.
#include "tessera/rules/families/families.h"

#include <algorithm>
#include <map>

#include <ATen/ExpandUtils.h>
#include <ATen/ops/add.h>
#include <ATen/ops/zeros.h>

#include "tessera/base/error.h"
#include "tessera/rules/engine/equation.h"
#include "tessera/rules/engine/local_args.h"
#include "tessera/rules/engine/lookups.h"
#include "tessera/rules/engine/plain_contraction.h"
#include "tessera/rules/exact/exact_kernels.h"

namespace tessera::rules {

namespace {

Rule from_notation(const char* notation, ShapeSource shape = ShapeSource::kMeta) {
  return {.map = [notation](const Call& call) { return parse_factors(notation, call); }, .shape = shape};
}

// Those of an operand that is added to the result of `map`, to which it broadcasts. Of what shares a sum, one rank adds
// it: the one that holds the beginning.
TensorFactors addend_factors(FactorMap& map, const std::vector<int64_t>& sizes) {
  const TensorFactors& result = map.outputs.at(0);
  TensorFactors addend(result.end() - static_cast<int64_t>(sizes.size()), result.end());
  for (size_t d = 0; d < sizes.size(); ++d) {
    if (sizes[d] == 1 && map.factors[addend[d].front()].extent != 1) {
      addend[d].clear();
    }
  }
  for (Factor& factor : map.factors) {
    factor.can_shard = factor.extent != 0;  // every part of an empty sum begins at 0
  }
  return addend;
}

// Operand 0 is added to a product of the others: see add_once.
FactorMap with_addend(const char* notation, const Call& call) {
  Call product = call;
  product.operands.erase(product.operands.begin());
  FactorMap map = parse_factors(notation, product);
  map.operands.insert(map.operands.begin(), addend_factors(map, call.spec(0)->sizes));
  return map;
}

// The dims of operand 1 that the product sums over.
struct SummedDims {
  const char* op;
  std::vector<size_t> dims;
};

const std::vector<size_t>& summed_dims(const c10::OperatorHandle& op) {
  static const std::vector<SummedDims> table = {
      {"aten::addmm", {1}}, {"aten::baddbmm", {2}}, {"aten::addmv", {1}}, {"aten::addbmm", {0, 2}}};
  for (const SummedDims& entry : table) {
    if (op.operator_name().name.starts_with(entry.op)) {
      return entry.dims;
    }
  }
  TESSERA_ASSERT(false, op.operator_name().name);
}

// Of the ranks that share a sum, the one that holds its beginning adds operand 0; the others take it times zero.
void add_once(const LocalCall& call, torch::jit::Stack& stack) {
  bool is_first = true;
  for (size_t dim : summed_dims(*call.op)) {
    is_first = is_first && call.operand_ranges[1][dim].begin == 0;
  }
  StackArgs args(*call.op, stack);
  std::vector<int64_t> sizes = sizes_of(call.output_ranges[0]);
  for (size_t d = 0; d < sizes.size(); ++d) {  // ranges are those of one block
    sizes[d] *= call.outputs[0]->blocks_of(static_cast<int64_t>(d));
  }
  if (c10::multiply_integers(sizes) == 0) {  // libtorch gives the addend, however many elements it has
    args.give_value(at::zeros(sizes, args.tensor("self").options()));
    return;
  }
  if (!is_first) {
    args["beta"] = 0;
  }
  args.run();
}

Rule with_addend_rule(const char* notation, ShapeSource shape = ShapeSource::kMeta) {
  return {.map = [notation](const Call& call) { return with_addend(notation, call); },
          .local = add_once,
          .takes_interleaved = true,
          .shape = shape};
}

// tessera::contract(a, b, equation, like, addend): an einsum of two operands. `like` gives the layout that is wanted.
FactorMap contract_map(const Call& call) {
  const Equation& equation = Equation::of(call.arg("equation").toStringRef());
  FactorMap map;
  std::map<char, int> factors;
  const auto add_factors = [&](const std::string& letters, size_t operand) {
    const auto& sizes = call.spec(operand)->sizes;
    TESSERA_CHECK(letters.size() == sizes.size(), "[contract] equation ", call.arg("equation").toStringRef(),
                  " for operand ", operand, " of sizes ", sizes);
    for (size_t d = 0; d < letters.size(); ++d) {
      if (!factors.contains(letters[d])) {
        factors[letters[d]] = map.add(sizes[d]);
      }
    }
  };
  const auto dims_of = [&](const std::string& letters) {
    TensorFactors dims;
    for (char letter : letters) {
      dims.push_back({factors.at(letter)});
    }
    return dims;
  };
  add_factors(equation.a, 0);
  add_factors(equation.b, 1);
  map.operands = {dims_of(equation.a), dims_of(equation.b)};
  map.outputs = {dims_of(equation.out)};
  map.like = call.operand_of("like");
  if (map.like >= 0) {
    map.operands.push_back(map.outputs[0]);
  }
  if (const int addend = call.operand_of("addend"); addend >= 0) {
    const auto& sizes = call.spec(static_cast<size_t>(addend))->sizes;
    TESSERA_CHECK(sizes.size() <= equation.out.size(), "[contract] an addend of sizes ", sizes, " to ",
                  call.arg("equation").toStringRef());
    map.operands.push_back(addend_factors(map, sizes));
  }
  return map;
}

constexpr size_t kArguments = 5, kEquation = 2;  // their number, and its place; the addend is the last one

// As add_once does it.
void contract_and_add_once(const LocalCall& call, torch::jit::Stack& stack) {
  const auto args = torch::jit::last(stack, kArguments);
  if (!args.back().isNone()) {
    const Equation& equation = Equation::of(args[kEquation].toStringView());
    const bool is_first = std::all_of(equation.summed.begin(), equation.summed.end(), [&](char letter) {
      return call.operand_ranges[0][equation.a.find(letter)].begin == 0;
    });
    if (!is_first) {
      stack.back() = c10::IValue();
    }
  }
  at::Tensor result = contract_plain(args[0].toTensor(), args[1].toTensor(), args[kEquation].toStringView(),
                                     std::nullopt, stack.back().toOptional<at::Tensor>());
  torch::jit::drop(stack, kArguments);
  stack.emplace_back(std::move(result));
}

bool has_addend(const Call& call) { return call.operand_of("addend") >= 0; }

// In `exact` it is a contraction, and a sum.
void add_afterwards(const c10::OperatorHandle& op, torch::jit::Stack& stack) {
  StackArgs args(op, stack);
  const at::Tensor product = contract(args.tensor("a"), args.tensor("b"), args["equation"].toStringRef());
  args.give_value(at::add(product, args.tensor("addend")));
}

// What the named products are contractions of, in `exact`.
constexpr exact::Product kMm = {"xy,yz->xz", "self", "mat2"};
constexpr exact::Product kBmm = {"bxy,byz->bxz", "self", "mat2"};
constexpr exact::Product kMv = {"xy,y->x", "self", "vec"};
constexpr exact::Product kDot = {"y,y->", "self", "tensor"};
constexpr exact::Product kAddmm = {"xy,yz->xz", "mat1", "mat2"};
constexpr exact::Product kBaddbmm = {"bxy,byz->bxz", "batch1", "batch2"};
constexpr exact::Product kAddmv = {"xy,y->x", "mat", "vec"};

template <const exact::Product& product>
constexpr ExactRule kAsContraction = {.decompose = exact::decompose_product<product>, .takes_narrow = exact::always};

// Distances between rows of two tensors: (b..., i, k), (b..., j, k) -> (b..., i, j). The features of a row stay whole.
struct Distances {
  TensorFactors a, b, between;

  Distances(FactorMap& map, c10::IntArrayRef a_sizes, int64_t b_rows) : a(map.add_all(a_sizes)), b(a), between(a) {
    map.block(a.back());
    b[b.size() - 2] = between.back() = {map.add(b_rows)};
  }
};

FactorMap distances_map(const Call& call) {
  FactorMap map;
  const Distances of(map, call.spec(0)->sizes, call.spec(1)->sizes.at(call.dim_of(1) - 2));
  map.operands = {of.a, of.b};
  map.outputs = {of.between};
  return map;
}

FactorMap distances_backward_map(const Call& call) {
  FactorMap map;
  map.partial = PartialFlow::kLinear;
  const Distances of(map, call.spec(1)->sizes, call.spec(0)->sizes.back());
  map.operands = {of.between, of.a, of.b, of.between};
  map.outputs = {of.a};
  return map;
}

c10::IntArrayRef batch_of(c10::IntArrayRef sizes) { return sizes.slice(0, sizes.size() - 2); }

bool broadcasts_batch(const Call& call) {
  return batch_of(call.spec(call.operand_of("x1"))->sizes) != batch_of(call.spec(call.operand_of("x2"))->sizes);
}

// Both tensors with all batch dims.
void expand_batches(const c10::OperatorHandle& op, torch::jit::Stack& stack) {
  StackArgs args(op, stack);
  const auto batch = at::infer_size_dimvector(batch_of(args.tensor("x1").sizes()), batch_of(args.tensor("x2").sizes()));
  for (const char* name : {"x1", "x2"}) {
    const at::Tensor tensor = args.tensor(name);
    std::vector<int64_t> sizes(batch.begin(), batch.end());
    sizes.insert(sizes.end(), {tensor.size(-2), tensor.size(-1)});
    args[name] = tensor.expand(sizes);
  }
  args.run();
}

// libtorch's kernels divide by the number of rows.
void run_distances(const LocalCall& call, torch::jit::Stack& stack) {
  StackArgs args(*call.op, stack);
  const at::Tensor a = args.tensor("x1");
  a.numel() == 0 || args.tensor("x2").numel() == 0
      ? args.give_value(at::zeros(sizes_of(call.output_ranges[0]), a.options()))
      : args.run();
}

}  // namespace

void add_contraction_rules(RuleTable& table) {
  const auto bilinear = [](Rule rule) {
    rule.carry = Carry::kInEither;
    return rule;
  };
  table.add("aten::mm", bilinear(from_notation("(i,k),(k,j)->(i,j)").in_exact(kAsContraction<kMm>)));
  table.add("aten::bmm", bilinear(from_notation("(b,i,k),(b,k,j)->(b,i,j)").in_exact(kAsContraction<kBmm>)));
  table.add("aten::mv", from_notation("(i,k),(k)->(i)").in_exact(kAsContraction<kMv>));
  table.add("aten::dot", from_notation("(i),(i)->()", ShapeSource::kFactors).in_exact(kAsContraction<kDot>));
  table.add("aten::addmm", with_addend_rule("(i,k),(k,j)->(i,j)").in_exact(kAsContraction<kAddmm>));
  table.add("aten::baddbmm", with_addend_rule("(b,i,k),(b,k,j)->(b,i,j)").in_exact(kAsContraction<kBaddbmm>));
  table.add("aten::addbmm", with_addend_rule("(b,i,k),(b,k,j)->(i,j)", ShapeSource::kFactors));
  table.add("aten::addmv", with_addend_rule("(i,k),(k)->(i)").in_exact(kAsContraction<kAddmv>));
  table.add("aten::addr", {.map = [](const Call& call) { return with_addend("(i),(j)->(i,j)", call); }});
  table.add("aten::_cdist_forward", {.map = distances_map,
                                     .local = run_distances,
                                     .decompose = expand_batches,
                                     .decompose_when = broadcasts_batch,
                                     .shape = ShapeSource::kFactors});
  table.add("aten::_euclidean_dist", {.map = distances_map,
                                      .decompose = expand_batches,
                                      .decompose_when = broadcasts_batch,
                                      .shape = ShapeSource::kFactors});
  table.add("aten::_cdist_backward", {.map = distances_backward_map,
                                      .local = run_distances,
                                      .decompose = expand_batches,
                                      .decompose_when = broadcasts_batch,
                                      .shape = ShapeSource::kFactors});
  table.add_optional("tessera::contract", {.map = contract_map,
                                           .local = contract_and_add_once,
                                           .takes_interleaved = true,
                                           .shape = ShapeSource::kFactors,
                                           .exact = {{.local = exact::run_outer_product,
                                                      .decompose = add_afterwards,
                                                      .decompose_when = has_addend,
                                                      .node = exact::contract_node,
                                                      .sample = exact::contract_sample,
                                                      .takes_narrow = exact::always}},
                                           .carry = Carry::kInEither,
                                           .adds_to = add_contraction});
}

}  // namespace tessera::rules
