#include "tessera/dtensor/dispatch/outside_job.h"

#include <unordered_set>

#include "tessera/base/error.h"
#include "tessera/dtensor/record/arguments.h"

namespace tessera::dtensor {

namespace {

using Parameters = std::unordered_set<const ParameterInfo*>;

const char kParametersKey = 0;

Parameters* parameters_of_jobs(comm::RankContext& context) {
  return static_cast<Parameters*>(context.slot(&kParametersKey).get());
}

bool takes_plain_values(c10::ArrayRef<c10::IValue> args) {
  bool found = false;
  for_each_tensor(args, [&](const at::Tensor& tensor, int, int) { found |= !is_dtensor(tensor) && tensor.dim() > 0; });
  return found;
}

}  // namespace

void read_by_job(const ParameterInfo& parameter) {
  auto& context = RankState::require().ctx;
  if (!parameters_of_jobs(context)) {
    context.slot(&kParametersKey) = std::make_shared<Parameters>();
  }
  parameters_of_jobs(context)->insert(&parameter);
}

void verify_in_job(const RankState& state, const OpInfo& info, c10::ArrayRef<c10::IValue> args,
                   const ParameterInfo& parameter) {
  if (state.pass.region() || !at::GradMode::is_enabled()) {
    return;
  }
  const Parameters* of_jobs = parameters_of_jobs(state.ctx);
  if (!of_jobs || !of_jobs->contains(&parameter) || !takes_plain_values(args)) {
    return;
  }
  TESSERA_CHECK(false, "[", info.name, "] `", parameter.name, "` meets a plain tensor outside of its job (rank ",
                state.ctx.rank,
                "): job(...) runs the model on a step's batch, which it cuts, labels and draws random numbers for; "
                "model(...) does none of this. accepted: "
                "job(batch...); a tensor made by tessera::distribute; or, for what trains nothing, at::NoGradGuard");
}

}  // namespace tessera::dtensor
