#include "tessera/dtensor/front/gather_to.h"

#include "tessera/base/error.h"
#include "tessera/base/hash.h"
#include "tessera/base/text.h"
#include "tessera/dtensor/dispatch/absent.h"
#include "tessera/dtensor/front/dtensor.h"
#include "tessera/dtensor/move/run_step.h"
#include "tessera/dtensor/record/interception.h"
#include "tessera/dtensor/state/state.h"

namespace tessera::dtensor {

namespace {

constexpr const char* kGatherTo = "gather_to";

int64_t elements_sent(const reshard::RankTransfers& transfers) {
  int64_t elements = 0;
  for (const reshard::Transfer& send : transfers.sends) {
    elements += send.to == send.from ? 0 : reshard::numel(send.box);
  }
  return elements;
}

// Of parts that lie as `spec`, which has no Partial, says.
at::Tensor gather(comm::RankContext& ctx, int64_t rank, const Spec& spec, const at::Tensor& local) {
  const Spec apart = layout::taken_apart(spec, layout::BoxForm::of(spec->placements, spec->ndim()));
  const reshard::Holdings from(apart), to(layout::Mesh({}, {rank}), {}, apart->sizes);
  const reshard::RankTransfers transfers = reshard::Exchange(from, to).transfers_of(ctx.rank);
  ctx.ledger.record("gather", spec->mesh.str(), kGatherTo, elements_sent(transfers) * local.element_size());
  const bool is_taker = ctx.rank == rank;
  Traffic traffic = compile_transfers(transfers, spec->mesh.ranks(), from.box_of(ctx.rank), to.box_of(rank));
  CompiledStep step{.action = Action::kAllToAll, .mesh = spec->mesh};
  step.result_sizes = is_taker ? apart->sizes : std::vector<int64_t>{0};
  step.sends = std::move(traffic.sends);
  step.receives = std::move(traffic.receives);
  const at::Tensor part = local.contiguous().view(apart.local_sizes(ctx.coord(spec->mesh)));
  const at::Tensor result = finish_step(step, issue_step(ctx, step, part));
  return is_taker ? result.view(spec->sizes) : at::Tensor();
}

}  // namespace

at::Tensor gather_to(int64_t rank, const at::Tensor& tensor) {
  RankState& state = RankState::require();
  const at::NoGradGuard no_grad;
  if (!is_dtensor(tensor)) {
    return state.ctx.rank == rank ? tensor.detach().clone() : at::Tensor();
  }
  const layout::Mesh mesh = spec_of(tensor)->mesh;
  TESSERA_CHECK(mesh.coord_of(rank), "[gather_to] rank ", rank, " is not on mesh {", mesh.str(),
                "} of the tensor (rank ", state.ctx.rank, "); accepted: one of ranks ", base::join(mesh.ranks(), ", "));
  const layout::Placements to = without_on(without_partial(spec_of(tensor)->placements));
  const at::Tensor merged =
      to == spec_of(tensor)->placements ? tensor.detach() : redistribute(tensor.detach(), to);  // not a copy
  const at::Tensor local = to_local(merged);  // what waits has its value then
  const Spec spec = spec_of(merged);
  state.ctx.program.note(kGatherTo, base::hash_combine(spec->hash, static_cast<uint64_t>(rank)));
  const LocalScope scope;
  const comm::Caller caller(state.ctx, kGatherTo);
  return gather(state.ctx, rank, spec, local);
}

}  // namespace tessera::dtensor
