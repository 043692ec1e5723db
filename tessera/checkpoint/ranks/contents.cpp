#include "tessera/checkpoint/ranks/contents.h"

#include <map>

#include "tessera/base/error.h"
#include "tessera/comm/core/context.h"
#include "tessera/dtensor/front/dtensor.h"

namespace tessera::checkpoint {
namespace {

// All ranks of the job along one axis.
layout::Mesh whole_job() { return layout::Mesh({{"ranks", comm::RankContext::require().world_size}}); }

layout::Spec spec_of(const KeptTensor& kept) {
  TESSERA_CHECK(kept.tensor.defined(), "[checkpoint] ", kept.name, " is undefined; accepted: a tensor");
  const auto& sizes = kept.tensor.sizes();
  if (dtensor::is_dtensor(kept.tensor)) {
    const auto& spec = dtensor::spec_of(kept.tensor);
    return layout::Spec::contiguous(spec->mesh, spec->placements, sizes, kept.tensor.scalar_type());
  }
  const auto mesh = whole_job();
  return layout::Spec::contiguous(mesh, layout::Placements(mesh.ndim()), sizes, kept.tensor.scalar_type());
}

}  // namespace

catalogue::Catalogue catalogue_of(const Contents& contents) {
  std::vector<catalogue::Entry> entries;
  for (const auto& kept : contents.tensors) {
    entries.push_back({kept.name, kept.aliases, kept.role, spec_of(kept)});
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
