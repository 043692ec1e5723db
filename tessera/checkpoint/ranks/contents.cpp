#include "tessera/checkpoint/ranks/contents.h"

#include <numeric>

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

std::vector<reshard::Box> boxes_at(const layout::Spec& spec, const layout::Coord& coord) {
  if (!spec->holds(coord)) {
    return {};
  }
  std::vector<reshard::Box> boxes = {{}};
  for (const auto& runs : spec.local_runs(coord)) {
    std::vector<reshard::Box> longer;
    for (const auto& box : boxes) {
      for (const auto& run : runs) {
        if (run.size() > 0) {
          longer.push_back(box);
          longer.back().push_back(run);
        }
      }
    }
    boxes = std::move(longer);
  }
  return boxes;
}

}  // namespace tessera::checkpoint
