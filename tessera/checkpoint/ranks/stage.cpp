#include "tessera/checkpoint/ranks/stage.h"

#include <iterator>
#include <set>
#include <tuple>

#include <ATen/core/grad_mode.h>

#include "tessera/catalogue/owners.h"
#include "tessera/checkpoint/ranks/whole_gets.h"
#include "tessera/comm/core/context.h"
#include "tessera/dtensor/front/chunks.h"
#include "tessera/dtensor/front/dtensor.h"
#include "tessera/dtensor/front/gather_to.h"
#include "tessera/dtensor/record/interception.h"

namespace tessera::checkpoint {
namespace {

using catalogue::Catalogue;
using catalogue::Entry;

bool goes_whole(const Entry& entry, const StageOptions& options) {
  return !options.in_slices && is_of_model(entry.role);
}

// What this rank holds, in slices of the whole.
std::vector<dtensor::Chunk> chunks_of(const at::Tensor& tensor) {
  return dtensor::is_dtensor(tensor) ? dtensor::chunks_of(tensor)
                                     : std::vector<dtensor::Chunk>{{std::vector<int64_t>(tensor.dim()), tensor}};
}

// Whether the rank has all of the tensor in one piece. All ranks find the same.
bool is_whole_at(const layout::Spec& spec, int64_t rank) {
  const auto coord = spec->mesh.coord_of(rank);
  if (!coord || spec->has_partial || !spec->holds(*coord)) {
    return false;
  }
  const auto runs = spec.local_runs(*coord);
  const auto sizes = spec->run_sizes();
  for (size_t d = 0; d < runs.size(); ++d) {
    if (runs[d].size() != 1 || runs[d].front().size() != sizes[d]) {
      return false;
    }
  }
  return true;
}

// Contiguous on the CPU; in `memory` if it is copied.
at::Tensor staged_value(const at::Tensor& value, bool copies, HostMemory& memory) {
  const dtensor::LocalScope scope;
  return copies || !is_plain_memory(value) ? memory.copy(value) : value.detach();
}

}  // namespace

WholeTensors stage_whole(const Contents& contents, const Catalogue& catalogue, const StageOptions& options,
                         HostMemory& memory) {
  const at::NoGradGuard no_grad;
  const int64_t rank = comm::RankContext::require().rank;
  const auto model = catalogue.subset([&](const Entry& entry) { return goes_whole(entry, options); });
  const auto owners = catalogue::owners_of(model);
  const auto tensors = in_order_of(model, contents);
  WholeGets gets(model, owners, tensors);
  WholeTensors whole;
  for (size_t i = 0; i < tensors.size(); ++i) {
    const auto& [name, spec] = std::tie(model.entries()[i].name, model.entries()[i].spec);
    const bool is_there = is_whole_at(spec, owners[i]);
    at::Tensor value;
    if (is_there) {
      value = owners[i] == rank ? staged_value(chunks_of(tensors[i]).front().part, options.copies, memory) : value;
    } else if (gets.can_get(i)) {
      value = gets.get(i, memory);
    } else if (const auto gathered = dtensor::gather_to(owners[i], tensors[i]); gathered.defined()) {
      value = staged_value(gathered, true, memory);
    }
    if (owners[i] == rank) {
      whole.pieces.push_back({name, spec->sizes, everything(spec->sizes), value});
    }
  }
  gets.finish();
  const std::set<int64_t> writers(owners.begin(), owners.end());
  whole.parts = static_cast<int64_t>(writers.size());
  if (const auto own = writers.find(rank); own != writers.end()) {
    whole.part = std::distance(writers.begin(), own);
  }
  return whole;
}

std::vector<Piece> stage_slices(const Contents& contents, const Catalogue& catalogue, const StageOptions& options,
                                HostMemory& memory) {
  const at::NoGradGuard no_grad;
  const int64_t rank = comm::RankContext::require().rank;
  const auto rest = catalogue.subset([&](const Entry& entry) { return !goes_whole(entry, options); });
  const catalogue::SliceOwners owners(rest);
  const auto tensors = in_order_of(rest, contents);
  std::vector<Piece> slices;
  for (size_t i = 0; i < tensors.size(); ++i) {
    if (owners.owner(i, rank) != rank) {
      continue;
    }
    for (const auto& [offsets, part] : chunks_of(tensors[i])) {
      Box box;
      for (size_t d = 0; d < offsets.size(); ++d) {
        box.push_back({offsets[d], offsets[d] + part.size(static_cast<int64_t>(d))});
      }
      const auto& entry = rest.entries()[i];
      slices.push_back({entry.name, entry.spec->sizes, std::move(box), staged_value(part, options.copies, memory)});
    }
  }
  return slices;
}

}  // namespace tessera::checkpoint
