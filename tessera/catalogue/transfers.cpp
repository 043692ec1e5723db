#include "tessera/catalogue/transfers.h"

#include <algorithm>
#include <optional>
#include <unordered_map>

#include "tessera/base/error.h"
#include "tessera/base/text.h"

namespace tessera::catalogue {
namespace {

using layout::Mesh;
using layout::Spec;
using reshard::Box;
using reshard::Exchange;
using reshard::Holdings;

// Whether one rank holds a part, of many Specs.
class Standpoint {
 public:
  explicit Standpoint(int64_t rank) : rank_(rank) {}

  bool holds(const Spec& spec) {
    const auto [at, is_new] = coords_.try_emplace(spec->mesh.id());
    if (is_new) {
      at->second = spec->mesh.coord_of(rank_);
    }
    return at->second && spec->holds(*at->second);
  }

 private:
  int64_t rank_;
  std::unordered_map<const void*, std::optional<layout::Coord>> coords_;
};

Exchange exchange_of(const Spec& from, const Spec& to) {
  return {Holdings::of_holders(from), Holdings::of_holders(to)};
}

int64_t element_bytes(const Spec& spec) { return static_cast<int64_t>(c10::elementSize(spec->dtype)); }

const Entry& match(const Catalogue& found, const Entry& wanted) {
  const Entry* entry = found.find_match(wanted);
  TESSERA_CHECK(entry != nullptr, "[catalogue] nothing is called ", wanted.name, " where it is to come from");
  TESSERA_CHECK(entry->spec->sizes == wanted.spec->sizes && entry->spec->dtype == wanted.spec->dtype, "[catalogue] ",
                wanted.name, " is ", entry->spec.str(), " and wanted as ", wanted.spec.str(),
                "; accepted: the same sizes and dtype");
  return *entry;
}

}  // namespace

Spec whole_at(const Spec& spec, int64_t rank) {
  const auto coord = spec->mesh.coord_of(rank);
  TESSERA_CHECK(coord, "[catalogue] ", spec.str(), " whole at rank ", rank, ", which mesh {", spec->mesh.str(),
                "} does not contain");
  layout::Placements placements;
  for (int64_t at : *coord) {
    placements.push_back(layout::On(at));
  }
  return spec.with(placements);
}

Catalogue whole_at(const Catalogue& catalogue, const std::vector<int64_t>& owners) {
  std::vector<Entry> entries = catalogue.entries();
  TESSERA_CHECK(entries.size() == owners.size(), "[catalogue] ", owners.size(), " owners of ", entries.size(),
                " entries");
  for (size_t i = 0; i < entries.size(); ++i) {
    entries[i].spec = whole_at(entries[i].spec, owners[i]);
  }
  return Catalogue(std::move(entries), catalogue.values());
}

std::vector<EntryTransfers> transfers_of(const Catalogue& found, const Catalogue& wanted, int64_t rank) {
  std::vector<EntryTransfers> result;
  Standpoint standpoint(rank);
  for (size_t i = 0; i < wanted.entries().size(); ++i) {
    const Entry& to = wanted.entries()[i];
    const Entry& from = match(found, to);
    if (!standpoint.holds(from.spec) && !standpoint.holds(to.spec)) {
      continue;
    }
    EntryTransfers own{i, exchange_of(from.spec, to.spec).transfers_of(rank)};
    if (!own.transfers.sends.empty() || !own.transfers.receives.empty()) {
      result.push_back(std::move(own));
    }
  }
  return result;
}

Traffic traffic_of(const std::vector<EntryTransfers>& transfers, const Catalogue& wanted) {
  Traffic traffic;
  for (const EntryTransfers& own : transfers) {
    const int64_t bytes = element_bytes(wanted.entries().at(own.index).spec);
    for (const reshard::Transfer& send : own.transfers.sends) {
      (send.from == send.to ? traffic.kept : traffic.sent) += reshard::numel(send.box) * bytes;
    }
    for (const reshard::Transfer& receive : own.transfers.receives) {
      traffic.received += receive.from == receive.to ? 0 : reshard::numel(receive.box) * bytes;
    }
  }
  return traffic;
}

int64_t received_bytes(const Spec& from, const Spec& to, int64_t rank) {
  return exchange_of(from, to).lacking(rank) * element_bytes(to);
}

int64_t moved_bytes(const Spec& from, const Spec& to) { return exchange_of(from, to).moved() * element_bytes(to); }

namespace {

using Runs = std::vector<std::vector<layout::Range>>;

Runs runs_of(const Spec& spec, int64_t rank, const Box& box) {
  const auto coord = spec->mesh.coord_of(rank);
  TESSERA_CHECK(coord && spec->holds(*coord) && box.size() == spec->sizes.size(), "[catalogue] rank ", rank,
                " holds no part of ", spec.str());
  return spec.local_runs(*coord);
}

// Where elements of a dim lie in a part that has these runs of it, one behind the other.
layout::Range within(const Spec& spec, int64_t rank, size_t dim, const Runs& runs, const layout::Range& wanted) {
  int64_t before = 0;
  for (const layout::Range& run : runs[dim]) {
    if (run.begin <= wanted.begin && wanted.end <= run.end) {
      return {before + wanted.begin - run.begin, before + wanted.end - run.begin};
    }
    before += run.size();
  }
  TESSERA_CHECK(false, "[catalogue] rank ", rank, " does not hold elements ", wanted.begin, " to ", wanted.end,
                " of dim ", dim, " of ", spec.str(), " in one run");
}

}  // namespace

Box local_box(const Spec& spec, int64_t rank, const Box& box) {
  TESSERA_CHECK(!spec->is_spanned(), "[catalogue] the box of a part of ", spec.str(),
                ", which takes dims together; accepted: part_around");
  const Runs runs = runs_of(spec, rank, box);
  Box local;
  for (size_t d = 0; d < box.size(); ++d) {
    local.push_back(within(spec, rank, d, runs, box[d]));
  }
  return local;
}

Box part_around(const Spec& spec, int64_t rank, const Box& box) {
  const Runs runs = runs_of(spec, rank, box);
  const std::vector<int64_t> local_sizes = spec.local_sizes(*spec->mesh.coord_of(rank));
  const auto last = static_cast<size_t>(layout::last_spanned_dim(spec->placements));
  Box part;
  for (size_t d = 0; d < box.size(); ++d) {
    if (last == 0 || d > last) {
      const int64_t begin = box[d].begin - within(spec, rank, d, runs, box[d]).begin;
      part.push_back({begin, begin + local_sizes[d]});
    } else {
      part.push_back({0, spec->sizes[d]});
    }
  }
  if (last > 0) {  // in the order of the whole tensor, but from where the run begins
    int64_t first = 0, end = 0;
    for (size_t d = 0; d <= last; ++d) {
      first = first * spec->sizes[d] + box[d].begin;
      end = end * spec->sizes[d] + box[d].end - 1;
    }
    within(spec, rank, last, runs, {first, end + 1});
    const int64_t begin = runs[last].front().begin;
    part[last] = {begin, begin + spec->sizes[last]};
  }
  return part;
}

}  // namespace tessera::catalogue
