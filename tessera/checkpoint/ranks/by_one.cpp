#include "tessera/checkpoint/ranks/by_one.h"

#include <ATen/EmptyTensor.h>
#include <ATen/core/grad_mode.h>

#include "tessera/base/error.h"
#include "tessera/catalogue/transfers.h"
#include "tessera/checkpoint/ranks/contents.h"
#include "tessera/comm/core/context.h"
#include "tessera/dtensor/front/dtensor.h"
#include "tessera/dtensor/ops/layout_ops.h"
#include "tessera/dtensor/record/interception.h"

namespace tessera::checkpoint {
namespace {

// What `read` gives, as the tensor is to have it.
at::Tensor read_as(const layout::Spec& spec, size_t index, const std::function<at::Tensor(size_t)>& read) {
  const dtensor::LocalScope scope;
  const at::Tensor value = read(index);
  TESSERA_CHECK_AS(DataError, value.sizes() == at::IntArrayRef(spec->sizes), "[checkpoint] a tensor of sizes ",
                   value.sizes(), " was read for ", spec.str(), "; accepted: one of its sizes");
  return value.to(spec->dtype).contiguous();
}

// This rank's part of tensor `index`, which one rank reads.
at::Tensor read_part(const layout::Spec& spec, size_t index, const std::function<at::Tensor(size_t)>& read) {
  const auto& ranks = spec->mesh.ranks();
  const int64_t reader = ranks[index % ranks.size()], rank = comm::RankContext::require().rank;
  const auto coord = spec->mesh.coord_of(rank);
  if (!coord) {
    return at::Tensor(at::detail::empty_cpu({0}, spec->dtype));
  }
  const auto whole = catalogue::whole_at(spec, reader);
  const at::Tensor own = rank == reader ? read_as(spec, index, read)
                                        : at::Tensor(at::detail::empty_cpu(whole.local_sizes(*coord), spec->dtype));
  const at::Tensor placed =
      dtensor::redistribute(dtensor::from_local(own, spec->mesh, whole->placements, spec->sizes), spec->placements);
  return dtensor::to_local(placed);
}

}  // namespace

void load_by_one(const std::vector<at::Tensor>& targets, const std::function<at::Tensor(size_t)>& read) {
  const at::NoGradGuard no_grad;
  std::vector<at::Tensor> parts;
  for (size_t i = 0; i < targets.size(); ++i) {
    parts.push_back(read_part(layout_of(targets[i]), i, read));
  }
  comm::RankContext::require().world->barrier();  // everything was read
  for (size_t i = 0; i < targets.size(); ++i) {
    set_part(targets[i], parts[i]);
  }
}

}  // namespace tessera::checkpoint
