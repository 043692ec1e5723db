#include "tessera/checkpoint/ranks/stage.h"

#include <algorithm>
#include <set>

#include <ATen/core/grad_mode.h>

#include "tessera/catalogue/owners.h"
#include "tessera/comm/core/context.h"
#include "tessera/dtensor/front/chunks.h"
#include "tessera/dtensor/front/dtensor.h"
#include "tessera/dtensor/front/gather_to.h"
#include "tessera/dtensor/record/interception.h"

namespace tessera::checkpoint {
namespace {

using catalogue::Catalogue;
using catalogue::Entry;

at::Tensor copy_of(const at::Tensor& part) {
  const dtensor::LocalScope scope;
  return part.detach().cpu().clone(at::MemoryFormat::Contiguous);
}

// What this rank holds, in slices of the whole.
std::vector<dtensor::Chunk> chunks_of(const at::Tensor& tensor) {
  return dtensor::is_dtensor(tensor) ? dtensor::chunks_of(tensor)
                                     : std::vector<dtensor::Chunk>{{std::vector<int64_t>(tensor.dim()), tensor}};
}

// The same value in memory that the program does not write to: of what is whole already, a copy.
at::Tensor apart_from(const at::Tensor& tensor, const at::Tensor& value) {
  const auto chunks = chunks_of(tensor);
  const bool is_shared = std::any_of(chunks.begin(), chunks.end(),
                                     [&](const dtensor::Chunk& chunk) { return chunk.part.is_alias_of(value); });
  return is_shared || !value.is_cpu() ? copy_of(value) : value.contiguous();
}

void stage_whole(const Catalogue& model, const Contents& contents, Staged& staged) {
  const int64_t rank = comm::RankContext::require().rank;
  const auto owners = catalogue::owners_of(model);
  const auto tensors = in_order_of(model, contents);
  for (size_t i = 0; i < tensors.size(); ++i) {
    const at::Tensor value = dtensor::gather_to(owners[i], tensors[i]);
    if (owners[i] != rank) {
      continue;
    }
    const auto& sizes = model.entries()[i].spec->sizes;
    staged.whole.push_back({model.entries()[i].name, sizes, everything(sizes), apart_from(tensors[i], value)});
  }
  const std::set<int64_t> writers(owners.begin(), owners.end());
  staged.model_parts = static_cast<int64_t>(writers.size());
  if (const auto own = writers.find(rank); own != writers.end()) {
    staged.model_part = std::distance(writers.begin(), own);
  }
}

void stage_slices(const Entry& entry, const at::Tensor& tensor, std::vector<Piece>& slices) {
  for (const auto& [offsets, part] : chunks_of(tensor)) {
    Box box;
    for (size_t d = 0; d < offsets.size(); ++d) {
      box.push_back({offsets[d], offsets[d] + part.size(static_cast<int64_t>(d))});
    }
    slices.push_back({entry.name, entry.spec->sizes, std::move(box), copy_of(part)});
  }
}

}  // namespace

Staged stage(const Contents& contents, const Catalogue& catalogue, bool in_slices) {
  const at::NoGradGuard no_grad;
  const int64_t rank = comm::RankContext::require().rank;
  Staged staged;
  if (!in_slices) {
    stage_whole(catalogue.subset([](const Entry& entry) { return is_of_model(entry.role); }), contents, staged);
  }
  const auto rest =
      in_slices ? catalogue : catalogue.subset([](const Entry& entry) { return !is_of_model(entry.role); });
  const catalogue::SliceOwners owners(rest);
  const auto tensors = in_order_of(rest, contents);
  for (size_t i = 0; i < tensors.size(); ++i) {
    if (owners.owner(i, rank) == rank) {
      stage_slices(rest.entries()[i], tensors[i], staged.slices);
    }
  }
  return staged;
}

}  // namespace tessera::checkpoint
