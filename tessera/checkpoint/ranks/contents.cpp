#include "tessera/checkpoint/ranks/contents.h"

#include <map>

#include "tessera/base/error.h"
#include "tessera/comm/core/context.h"
#include "tessera/dtensor/front/dtensor.h"
#include "tessera/dtensor/ops/layout_ops.h"
#include "tessera/dtensor/record/interception.h"

namespace tessera::checkpoint {
namespace {

// All ranks of the job along one axis.
layout::Mesh whole_job() { return layout::Mesh({{"ranks", comm::RankContext::require().world_size}}); }

}  // namespace

layout::Spec layout_of(const at::Tensor& tensor) {
  if (dtensor::is_dtensor(tensor)) {
    const auto& spec = dtensor::spec_of(tensor);
    return layout::Spec::contiguous(spec->mesh, spec->placements, tensor.sizes(), tensor.scalar_type());
  }
  const auto mesh = whole_job();
  return layout::Spec::contiguous(mesh, layout::Placements(mesh.ndim()), tensor.sizes(), tensor.scalar_type());
}

at::Tensor part_of(const at::Tensor& tensor) {
  return dtensor::is_dtensor(tensor) ? dtensor::part_outside_program(tensor) : tensor;
}

bool is_plain_memory(const at::Tensor& tensor) {
  return tensor.is_cpu() && tensor.is_contiguous() && !tensor.is_conj() && !tensor.is_neg();
}

void set_part(const at::Tensor& tensor, const at::Tensor& part) {
  if (part.numel() == 0) {
    return;
  }
  const at::Tensor target = part_of(tensor);
  const dtensor::LocalScope scope;
  target.copy_(part);
}

catalogue::Catalogue catalogue_of(const Contents& contents) {
  std::vector<catalogue::Entry> entries;
  for (const auto& kept : contents.tensors) {
    TESSERA_CHECK(kept.tensor.defined(), "[checkpoint] ", kept.name, " is undefined; accepted: a tensor");
    entries.push_back({kept.name, kept.aliases, kept.role, layout_of(kept.tensor)});
  }
  return catalogue::Catalogue(std::move(entries), contents.values);
}

std::vector<at::Tensor> in_order_of(const catalogue::Catalogue& catalogue, const Contents& contents) {
  std::map<std::string, at::Tensor> by_name;
  for (const auto& kept : contents.tensors) {
    by_name[kept.name] = kept.tensor;
  }
  std::vector<at::Tensor> tensors;
  for (const auto& entry : catalogue.entries()) {
    tensors.push_back(by_name.at(entry.name));
  }
  return tensors;
}

}  // namespace tessera::checkpoint
