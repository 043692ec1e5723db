// Operators that make a tensor from the shape of another.
#include "tessera/rules/families/families.h"

#include "tessera/rules/engine/local_args.h"

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
  table.add_all({"aten::empty_like", "aten::full_like", "aten::ones_like", "aten::zeros_like"}, {.map = like_map});
  table.add_all({"aten::new_empty", "aten::new_full", "aten::new_ones", "aten::new_zeros"}, {.map = new_map});
  table.add("aten::new_empty_strided", {.map = new_map, .local = run_new_empty_strided});
  table.add("aten::lift", {.map = [](const Call& call) {
              FactorMap map = broadcast_factors(call);
              map.partial = PartialFlow::kAny;
              return map;
            }});
}

}  // namespace tessera::rules
