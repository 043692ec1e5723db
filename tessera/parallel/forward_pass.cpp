#include "tessera/parallel/forward_pass.h"

#include "tessera/base/error.h"
#include "tessera/dtensor/dtensor.h"
#include "tessera/parallel/rows.h"

namespace tessera::parallel {
namespace {

using dtensor::Origin;
using dtensor::RankState;
using layout::Placements;

}  // namespace

std::vector<at::Tensor> ForwardPasses::begin(const std::vector<at::Tensor>& batch, const PassPlace& place) {
  RankState& state = RankState::require();
  TESSERA_CHECK(place.index >= 0 && place.index < place.micro_batches, "[forward] micro-batch ", place.index, " of ", place.micro_batches);
  end();
  state.gathered.clear();
  state.gathered.budget = plan_.keep_gathered_bytes;
  const auto first = std::find_if(batch.begin(), batch.end(), [](const at::Tensor& tensor) { return tensor.dim() > 0; });
  const int64_t samples = first == batch.end() ? 0 : first->size(0);
  std::vector<at::Tensor> result;
  for (const at::Tensor& tensor : batch) {
    result.push_back(distribute(tensor, samples, place));
  }
  state.sites.step = static_cast<uint64_t>(place.step);
  state.sites.begin_pass();
  state.backward_region = plan_.mesh;
  region_before_ = std::exchange(state.region, plan_.mesh);
  is_open_ = true;
  return result;
}

void ForwardPasses::end() {
  RankState* state = RankState::current();
  if (std::exchange(is_open_, false) && state) {
    state->region = region_before_;
  }
}

at::Tensor ForwardPasses::distribute(const at::Tensor& tensor, int64_t samples, const PassPlace& place) const {
  if (!tensor.defined() || dtensor::is_dtensor(tensor)) {
    return tensor;
  }
  Placements placements(static_cast<size_t>(plan_.mesh.ndim()));
  if (tensor.dim() == 0 || tensor.size(0) != samples) {
    return dtensor::distribute(tensor, plan_.mesh, placements);
  }
  const int64_t total = samples * place.micro_batches;
  const int64_t unit = sample_unit(total);
  for (const auto& axis : plan_.batch_axes) {
    placements[static_cast<size_t>(plan_.mesh.axis_index(axis))] = layout::Shard(0, {.unit = unit});
  }
  at::Tensor result = dtensor::distribute(tensor, plan_.mesh, placements, batch_labels(tensor, samples, total, tensor.dim() == 2));
  dtensor::meta_of(result)->origin = Origin::make({{0, place.index * samples}});
  return result;
}

}  // namespace tessera::parallel
