#include "tessera/dtensor/dispatch/plain_operands.h"

#include "tessera/base/error.h"
#include "tessera/base/hints.h"
#include "tessera/dtensor/dispatch/same_values.h"
#include "tessera/dtensor/record/arguments.h"

namespace tessera::dtensor {

using c10::IValue;

void check_plain_operands(RankState& state, const OpInfo& info, c10::ArrayRef<IValue> args) {
  std::vector<NamedValue> values;
  const layout::Mesh* mesh = nullptr;
  for_each_tensor(args, [&](const at::Tensor& tensor, int arg, int item) {
    if (is_dtensor(tensor)) {
      mesh = &meta_of(tensor)->spec->mesh;
    } else if (!info.args[static_cast<size_t>(arg)].written) {  // what is written may have no values yet
      values.push_back({info.argument_name(arg, item), tensor});
    }
  });
  if (!mesh || values.empty()) {
    return;
  }
  const std::string difference = difference_between_ranks(state, *mesh, values);
  TESSERA_CHECK(difference.empty(), "[", info.name, "] a plain operand differs between ranks: ", difference, " (rank ",
                state.ctx.rank,
                "). Plain tensors count "
                "as replicated: every rank must compute the same value. Distribute it (from_local for parts that "
                "differ; ",
                base::in_language("ForwardPasses::more_rows(rows)", "tessera.place_rows(model, rows)"),
                " for more rows of a batch that ranks pass in parts), or draw it from the job's generator.");
}

}  // namespace tessera::dtensor
