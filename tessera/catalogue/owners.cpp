#include "tessera/catalogue/owners.h"

#include <algorithm>
#include <map>
#include <memory>
#include <numeric>
#include <queue>
#include <unordered_map>

#include "tessera/reshard/holdings.h"

namespace tessera::catalogue {
namespace {

using layout::Cut;
using layout::Spec;
using reshard::Holdings;

// Whether no rank's part is empty, of a run that these cut one after the other.
bool is_everywhere(int64_t size, const std::vector<layout::NestedCut>& cuts, size_t level) {
  if (level == cuts.size() || size == 0) {
    return size > 0;
  }
  const std::vector<int64_t> sizes = Cut(size, cuts[level].parts, cuts[level].places).different_sizes();
  return std::all_of(sizes.begin(), sizes.end(), [&](int64_t part) { return is_everywhere(part, cuts, level + 1); });
}

bool is_everywhere(const Spec& spec) {
  const std::vector<int64_t> sizes = spec->run_sizes();
  for (int64_t dim = 0; dim < spec->ndim(); ++dim) {
    std::vector<layout::NestedCut> cuts;
    for (int64_t axis : spec->axes_of(dim)) {
      cuts.push_back({spec->mesh.axis(axis).size, spec->placements[axis].places});
    }
    if (!is_everywhere(sizes[dim] / spec->blocks_of(dim), cuts, 0)) {
      return false;
    }
  }
  return true;
}

bool has_elements(const Holdings& holdings, int64_t rank) { return reshard::numel(holdings.boxes_of(rank)[0]) > 0; }

// Entries by decreasing bytes; those of equal bytes in the order of their names.
std::vector<size_t> largest_first(const Catalogue& catalogue) {
  const std::vector<Entry>& entries = catalogue.entries();
  std::vector<int64_t> bytes(entries.size());
  std::transform(entries.begin(), entries.end(), bytes.begin(), [](const Entry& e) { return e.spec->bytes(); });
  std::vector<size_t> order(entries.size());
  std::iota(order.begin(), order.end(), size_t{0});
  std::stable_sort(order.begin(), order.end(), [&](size_t a, size_t b) { return bytes[a] > bytes[b]; });
  return order;
}

using Load = std::pair<int64_t, int64_t>;  // bytes, then rank
using Queue = std::priority_queue<Load, std::vector<Load>, std::greater<>>;

// The least loaded of several sets of ranks. A load in a queue may be of earlier, and then too small, as loads grow
// only: it is put right when it comes to the front.
class Loads {
 public:
  int64_t take_least(const Spec& spec, int64_t bytes) {
    Queue& queue = queue_of(spec);
    while (queue.top().first != loads_[queue.top().second]) {
      const int64_t rank = queue.top().second;
      queue.pop();
      queue.emplace(loads_[rank], rank);
    }
    const int64_t rank = queue.top().second;
    queue.pop();
    queue.emplace(loads_[rank] += bytes, rank);
    return rank;
  }

 private:
  Queue& queue_of(const Spec& spec) {
    Queue*& found = by_spec_[spec.get()];
    if (found == nullptr) {
      std::vector<int64_t> ranks = holders_of(spec);
      std::unique_ptr<Queue>& queue = queues_[ranks];
      if (queue == nullptr) {
        std::vector<Load> loads;
        for (int64_t rank : ranks) {
          loads.emplace_back(0, rank);
        }
        queue = std::make_unique<Queue>(std::greater<>(), std::move(loads));
      }
      found = queue.get();
    }
    return *found;
  }

  std::unordered_map<int64_t, int64_t> loads_;
  std::map<std::vector<int64_t>, std::unique_ptr<Queue>> queues_;
  std::unordered_map<const layout::SpecData*, Queue*> by_spec_;
};

// The number of a coordinate among those of some axes, the last fastest, and how many there are.
struct Place {
  int64_t index = 0, count = 1;
};

Place place_on(const layout::Mesh& mesh, const layout::Coord& coord, const std::vector<int64_t>& axes) {
  Place place;
  for (int64_t axis : axes) {
    const int64_t size = mesh.axes()[axis].size;
    place = {place.index * size + coord[axis], place.count * size};
  }
  return place;
}

std::vector<int64_t> other_axes(const layout::Mesh& mesh, const std::vector<int64_t>& axes) {
  std::vector<int64_t> result;
  for (int64_t axis = 0; axis < mesh.ndim(); ++axis) {
    if (std::find(axes.begin(), axes.end(), axis) == axes.end()) {
      result.push_back(axis);
    }
  }
  return result;
}

}  // namespace

std::vector<int64_t> holders_of(const Spec& spec) {
  const Holdings holdings = Holdings::of_holders(spec);
  std::vector<int64_t> ranks = holdings.mesh().ranks();
  if (spec->numel() > 0 && !is_everywhere(spec)) {
    std::erase_if(ranks, [&](int64_t rank) { return !has_elements(holdings, rank); });
  }
  std::sort(ranks.begin(), ranks.end());
  return ranks;
}

std::vector<int64_t> owners_of(const Catalogue& catalogue) {
  std::vector<int64_t> owners(catalogue.entries().size());
  Loads loads;
  for (size_t i : largest_first(catalogue)) {
    const Spec& spec = catalogue.entries()[i].spec;
    owners[i] = loads.take_least(spec, spec->bytes());
  }
  return owners;
}

SliceOwners::SliceOwners(const Catalogue& catalogue) : turns_(catalogue.entries().size()) {
  for (const Entry& entry : catalogue.entries()) {
    specs_.push_back(entry.spec);
  }
  struct Slices {
    Queue* queue = nullptr;  // of the replicas
    int64_t bytes = 0;       // of the largest slice
  };
  std::unordered_map<const layout::SpecData*, Slices> by_spec;
  std::map<std::pair<const void*, std::vector<int64_t>>, Queue> queues;
  for (size_t i : largest_first(catalogue)) {
    auto& [queue, bytes] = by_spec[specs_[i].get()];
    if (queue == nullptr) {
      const Holdings holdings = Holdings::of_holders(specs_[i]);
      bytes =
          c10::multiply_integers(specs_[i].largest_sizes()) * static_cast<int64_t>(c10::elementSize(specs_[i]->dtype));
      queue = &queues[{holdings.mesh().id(), holdings.free_axes()}];
      const layout::Coord first(holdings.mesh().ndim());
      const int64_t replicas = place_on(holdings.mesh(), first, holdings.free_axes()).count;
      for (int64_t replica = 0; queue->size() < static_cast<size_t>(replicas); ++replica) {
        queue->emplace(0, replica);
      }
    }
    const Load least = queue->top();
    queue->pop();
    turns_[i] = least.second;
    queue->emplace(least.first + bytes, least.second);
  }
}

int64_t SliceOwners::owner(size_t index, int64_t rank) const {
  const Spec& spec = specs_.at(index);
  const auto at = spec->mesh.coord_of(rank);
  if (!at || !spec->holds(*at)) {
    return -1;
  }
  const Holdings holdings = Holdings::of_holders(spec);
  if (!has_elements(holdings, rank)) {
    return -1;
  }
  const layout::Coord coord = *holdings.mesh().coord_of(rank);
  const std::vector<int64_t> cut_axes = other_axes(holdings.mesh(), holdings.free_axes());
  const int64_t slice = place_on(holdings.mesh(), coord, cut_axes).index;
  return holdings.copy_in_turn(coord, turns_[index] + slice);
}

}  // namespace tessera::catalogue
