#include "tessera/checkpoint/offline/reshard.h"

#include <algorithm>
#include <set>

#include "tessera/catalogue/owners.h"
#include "tessera/checkpoint/folder/names.h"
#include "tessera/checkpoint/format/range_reader.h"
#include "tessera/checkpoint/format/value_hash.h"
#include "tessera/checkpoint/format/weight_index.h"
#include "tessera/checkpoint/offline/new_step.h"

namespace tessera::checkpoint {
namespace {

using catalogue::Catalogue;
using catalogue::Entry;
using layout::Mesh;
using layout::Placement;

// The places of an axis are those of so many ranks: on a mesh that they do not fit the tensor is cut evenly.
layout::Placements with_even_cuts(layout::Placements placements) {
  for (Placement& placement : placements) {
    placement.places = placement.is_ragged() ? layout::Places() : placement.places;
  }
  return placements;
}

layout::Spec spec_on_mesh(const layout::Spec& spec, const Mesh& mesh) {
  layout::Placements placements(mesh.ndim());
  for (int64_t i = 0; i < mesh.ndim(); ++i) {
    if (const auto before = spec->mesh.find_axis(mesh.axis(i).name)) {
      auto& placement = placements[i] = spec->placements[*before];
      if (placement.is_on()) {
        placement = layout::On(std::min<int64_t>(placement.dim, mesh.axis(i).size - 1));
      }
    }
  }
  if (!layout::is_layout_of(mesh, placements, spec->sizes)) {
    placements = with_even_cuts(std::move(placements));
  }
  return layout::Spec::contiguous(mesh, placements, spec->sizes, spec->dtype);
}

// Writes the share of one rank after the other.
class Resharding {
 public:
  Resharding(const OpenCheckpoint& from, const ReshardOptions& options)
      : from_(from),
        options_(options),
        catalogue_(on_mesh(from.catalogue, options.mesh)),
        whole_(catalogue_.subset([&](const Entry& e) { return !options.in_slices && is_of_model(e.role); })),
        rest_(catalogue_.subset([&](const Entry& e) { return options.in_slices || !is_of_model(e.role); })),
        owners_(catalogue::owners_of(whole_)),
        writers_(owners_.begin(), owners_.end()),
        slice_owners_(rest_),
        reader_(*from.store, from.folder, from.manifest) {}

  std::string run(const std::string& run) {
    const auto& save = from_.manifest.save;
    NewStep step(*from_.store, run, save.step, save.block_size);
    for (int64_t rank = 0; rank < options_.mesh.size(); ++rank) {
      auto files = step.files_of(rank);
      if (rank == 0) {
        for (const auto& [name, content] : small_files_of(from_.manifest, reader_)) {
          files.write_file(name, content);
        }
      }
      write_share(files, rank);
      files.leave_receipt();
    }
    step.commit(options_.mesh.size(), catalogue_);
    return step.folder();
  }

 private:
  void write_share(RankFiles& files, int64_t rank) {
    std::vector<Piece> whole, slices;
    for (size_t i = 0; i < owners_.size(); ++i) {
      if (owners_[i] == rank) {
        add(whole_.entries()[i], everything(whole_.entries()[i].spec->sizes), whole);
      }
    }
    for (size_t i = 0; i < rest_.entries().size(); ++i) {
      if (slice_owners_.owner(i, rank) == rank) {
        const auto& entry = rest_.entries()[i];
        for (const auto& box : reshard::Holdings::of_holders(entry.spec).cells_of(rank)) {
          add(entry, box, slices);
        }
      }
    }
    if (const auto own = writers_.find(rank); own != writers_.end()) {
      files.write_part(model_part_name(std::distance(writers_.begin(), own), static_cast<int64_t>(writers_.size())),
                       std::move(whole));
    }
    if (!slices.empty()) {
      files.write_part(state_part_name(rank), std::move(slices));
    }
  }

  void add(const Entry& entry, const Box& box, std::vector<Piece>& pieces) {
    const auto value = reader_.read_box(*from_.manifest.find(entry.name), box);
    pieces.push_back({entry.name, entry.spec->sizes, box, value, hash_slice(value, box, entry.spec->sizes)});
    tell(options_.progress, static_cast<int64_t>(value.nbytes()));
  }

  const OpenCheckpoint& from_;
  const ReshardOptions& options_;
  const Catalogue catalogue_, whole_, rest_;
  const std::vector<int64_t> owners_;  // of whole_
  const std::set<int64_t> writers_;
  const catalogue::SliceOwners slice_owners_;
  RangeReader reader_;
};

}  // namespace

Catalogue on_mesh(const Catalogue& catalogue, const Mesh& mesh) {
  auto entries = catalogue.entries();
  for (auto& entry : entries) {
    entry.spec = spec_on_mesh(entry.spec, mesh);
  }
  return Catalogue(std::move(entries), catalogue.values());
}

std::string reshard(const OpenCheckpoint& from, const std::string& run, const ReshardOptions& options) {
  return Resharding(from, options).run(run);
}

}  // namespace tessera::checkpoint
