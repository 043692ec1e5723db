// Products that sum over a shared index.
#include "tessera/rules/families.h"

#include "tessera/base/error.h"
#include "tessera/rules/local_args.h"

namespace tessera::rules {

namespace {

Rule from_notation(const char* notation, ShapeSource shape = ShapeSource::kMeta) {
  return {.map = [notation](const Call& call) { return parse_factors(notation, call); }, .shape = shape};
}

// Operand 0 is added to a product of the others, to whose result it broadcasts. The parts of a split sum must add it once:
// see add_once.
FactorMap with_addend(const char* notation, const Call& call) {
  Call product = call;
  product.operands.erase(product.operands.begin());
  FactorMap map = parse_factors(notation, product);
  const TensorFactors& result = map.outputs.at(0);
  const auto& sizes = call.spec(0)->sizes;
  TensorFactors addend(result.end() - static_cast<int64_t>(sizes.size()), result.end());
  for (size_t d = 0; d < sizes.size(); ++d) {
    if (sizes[d] == 1 && map.factors[addend[d].front()].extent != 1) {
      addend[d].clear();
    }
  }
  map.operands.insert(map.operands.begin(), std::move(addend));
  for (Factor& factor : map.factors) {
    factor.can_shard = factor.extent != 0;  // every part of an empty sum begins at 0
  }
  return map;
}

// The dims of operand 1 that the product sums over.
struct Summed {
  const char* op;
  std::vector<size_t> dims;
};

const std::vector<size_t>& summed_dims(const c10::OperatorHandle& op) {
  static const std::vector<Summed> table = {
      {"aten::addmm", {1}}, {"aten::baddbmm", {2}}, {"aten::addmv", {1}}, {"aten::addbmm", {0, 2}}};
  for (const Summed& entry : table) {
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
  if (!is_first) {
    args["beta"] = 0;
  }
  args.run();
}

Rule with_addend_rule(const char* notation, ShapeSource shape = ShapeSource::kMeta) {
  return {.map = [notation](const Call& call) { return with_addend(notation, call); }, .local = add_once, .shape = shape};
}

// tessera::contract(a, b, equation, like): an einsum of two operands. `like` gives the layout that is wanted.
FactorMap contract_map(const Call& call) {
  const std::string equation = call.arg("equation").toStringRef();
  FactorMap map;
  std::array<int, 128> factor_of{};
  factor_of.fill(-1);
  std::vector<TensorFactors> tensors(1);
  for (size_t i = 0; i < equation.size(); ++i) {
    const char c = equation[i];
    if (c == ',' || c == '-') {
      tensors.emplace_back();
      i += c == '-' ? 1 : 0;
      continue;
    }
    TESSERA_CHECK(std::isalpha(static_cast<unsigned char>(c)) != 0 && tensors.size() <= 3, "[contract] equation ", equation,
                  "; accepted: two operands and a result, one letter for each dim, such as bsk,jk->bsj");
    int& factor = factor_of[static_cast<unsigned char>(c)];
    if (factor < 0) {
      TESSERA_CHECK(tensors.size() <= 2, "[contract] equation ", equation, ": no operand has ", c);
      const auto& sizes = call.spec(tensors.size() - 1)->sizes;
      TESSERA_CHECK(tensors.back().size() < sizes.size(), "[contract] equation ", equation, " for operand ",
                    tensors.size() - 1, " of sizes ", sizes);
      factor = map.add(sizes[tensors.back().size()]);
    }
    tensors.back().push_back({factor});
  }
  TESSERA_CHECK(tensors.size() == 3, "[contract] equation ", equation, "; accepted: such as bsk,jk->bsj");
  map.outputs = {tensors[2]};
  map.like = call.operand_of("like");
  tensors.resize(map.like < 0 ? 2 : 3);
  map.operands = std::move(tensors);
  return map;
}

}  // namespace

void add_contraction_rules(RuleTable& table) {
  table.add("aten::mm", from_notation("(i,k),(k,j)->(i,j)"));
  table.add("aten::bmm", from_notation("(b,i,k),(b,k,j)->(b,i,j)"));
  table.add("aten::mv", from_notation("(i,k),(k)->(i)"));
  table.add("aten::dot", from_notation("(i),(i)->()", ShapeSource::kFactors));
  table.add("aten::addmm", with_addend_rule("(i,k),(k,j)->(i,j)"));
  table.add("aten::baddbmm", with_addend_rule("(b,i,k),(b,k,j)->(b,i,j)"));
  table.add("aten::addbmm", with_addend_rule("(b,i,k),(b,k,j)->(i,j)", ShapeSource::kFactors));
  table.add("aten::addmv", with_addend_rule("(i,k),(k)->(i)"));
  table.add("aten::addr", {.map = [](const Call& call) { return with_addend("(i),(j)->(i,j)", call); }});
  table.add_optional("tessera::contract", {.map = contract_map, .shape = ShapeSource::kFactors});
}

}  // namespace tessera::rules
