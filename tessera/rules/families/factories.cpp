// Operators that make a tensor, from sizes or from the shape of another.
#include "tessera/rules/families/families.h"

#include "tessera/rules/engine/local_args.h"
#include "tessera/rules/exact/exact_kernels.h"

namespace tessera::rules {

namespace {

// Shapes are read, nothing moves; but what an out= argument receives goes where that argument is.
bool reads_shapes_only(const Call& call) { return call.operands.size() == 1; }

FactorMap like_map(const Call& call) {
  FactorMap map = broadcast_factors(call);
  map.metadata_only = reads_shapes_only(call);
  return map;
}

// Of the operand's sizes it is laid out like it, of others it is replicated.
FactorMap new_map(const Call& call) {
  FactorMap map;
  const auto& sizes = call.spec(0)->sizes;
  const auto& made = call.outputs.at(0).sizes;
  map.operands = {map.add_all(sizes)};
  map.outputs = {made == sizes ? map.operands[0] : map.add_all(made)};
  map.sizes = {{.arg = call.arg_index("size"), .output = 0}};
  map.metadata_only = reads_shapes_only(call);
  return map;
}

// The strides asked for are those of the whole; a part is contiguous.
void run_new_empty_strided(const LocalCall& call, torch::jit::Stack& stack) {
  StackArgs args(*call.op, stack);
  args.give(args.tensor("self").new_empty(
      args["size"].toIntVector(), args["dtype"].toOptional<at::ScalarType>(), args["layout"].toOptional<at::Layout>(),
      args["device"].toOptional<at::Device>(), args["pin_memory"].toOptional<bool>()));
}

}  // namespace

void add_factory_rules(RuleTable& table) {
  const auto like = [](bool needs_no_value, Makes makes = Makes::kValues) {
    return Rule{.map = like_map, .exact = exact::kMoves, .makes = makes, .needs_no_value = needs_no_value};
  };
  table.add("aten::empty_like", like(true, Makes::kNothing));
  table.add_all({"aten::full_like", "aten::ones_like", "aten::zeros_like"}, like(true));
  const Rule made = {.map = new_map, .exact = exact::kMoves};
  table.add_all({"aten::new_full", "aten::new_ones"}, made);
  table.add("aten::new_empty", {.map = new_map, .exact = exact::kMoves, .makes = Makes::kNothing});
  table.add("aten::new_empty_strided", {.map = new_map,
                                        .local = run_new_empty_strided,
                                        .exact = exact::kMoves,
                                        .makes = Makes::kNothing,
                                        .needs_no_value = true});
  table.add("aten::new_zeros", {.map = new_map, .exact = exact::kMoves, .needs_no_value = true});
  table.add("aten::_new_zeros_with_same_feature_meta", {.special = Special::kZerosLikePrimal});
  table.add("aten::lift", {.map = [](const Call& call) {
              FactorMap map = broadcast_factors(call);
              map.partial = PartialFlow::kAny;
              return map;
            }});

  table.add_all({"aten::arange", "aten::arange.start", "aten::arange.start_step", "aten::eye", "aten::eye.m",
                 "aten::linspace", "aten::logspace", "aten::scalar_tensor", "aten::tril_indices", "aten::triu_indices"},
                {.caught = Caught::kFactory});
  table.add_all({"aten::empty.memory_format", "aten::empty_strided"},
                {.caught = Caught::kFactory, .makes = Makes::kNothing});
  table.add("aten::full", {.caught = Caught::kFactory, .makes = Makes::kNumber});
  table.add("aten::ones", {.caught = Caught::kFactory, .makes = Makes::kOnes});
  table.add("aten::zeros", {.caught = Caught::kFactory, .makes = Makes::kZeros});
  table.add_all({"aten::eye.m_out", "aten::eye.out"}, {.special = Special::kEye});
}

}  // namespace tessera::rules
