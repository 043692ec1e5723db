#include "tessera/optim/owner_plan.h"

#include <algorithm>
#include <numeric>
#include <set>
#include <utility>

#include "tessera/base/error.h"

namespace tessera::optim {
namespace {

using layout::Coord;
using layout::Mesh;
using layout::Placements;
using layout::Spec;

std::vector<size_t> dearest_first(const std::vector<Spec>& parameters) {
  std::vector<std::pair<double, int64_t>> costs;
  for (const Spec& spec : parameters) {
    costs.emplace_back(step_cost(spec->sizes), spec->bytes());
  }
  std::vector<size_t> order(parameters.size());
  std::iota(order.begin(), order.end(), size_t{0});
  std::stable_sort(order.begin(), order.end(), [&](size_t a, size_t b) { return costs[a] > costs[b]; });
  return order;
}

// The axes on which a parameter has one owner.
std::vector<bool> owned_axes(const Spec& spec, OwnedOver over) {
  std::vector<bool> owned;
  for (int64_t axis = 0; axis < spec->mesh.ndim(); ++axis) {
    owned.push_back(spec->mesh.axis(axis).size > 1 &&
                    (over == OwnedOver::kMesh || spec->placements[axis].holds_once()));
  }
  return owned;
}

// What the ranks have to do so far, by their place on the mesh, the last axis fastest.
class Loads {
 public:
  explicit Loads(const Mesh& mesh) : mesh_(mesh), loads_(static_cast<size_t>(mesh.size())) {}

  // The places on the owned axes that hold some of the tensor, each by its first rank: all, of a tensor without
  // elements.
  std::vector<size_t> places_of(const Spec& spec, const std::vector<bool>& owned) const {
    std::set<size_t> holding, all;
    for (size_t rank = 0; rank < loads_.size(); ++rank) {
      const size_t place = place_of(rank, owned);
      all.insert(place);
      if (holds_elements(spec, rank)) {
        holding.insert(place);
      }
    }
    const std::set<size_t>& places = holding.empty() ? all : holding;
    return {places.begin(), places.end()};
  }

  // That of the places whose busiest rank has the least to do.
  size_t least(const std::vector<size_t>& places, const std::vector<bool>& owned) const {
    std::vector<double> busiest(loads_.size(), 0);
    for (size_t rank = 0; rank < loads_.size(); ++rank) {
      double& most = busiest[place_of(rank, owned)];
      most = std::max(most, loads_[rank]);
    }
    return *std::min_element(places.begin(), places.end(), [&](size_t a, size_t b) { return busiest[a] < busiest[b]; });
  }

  // Gives the work to the ranks of that place.
  Placements take(const std::vector<bool>& owned, size_t place, double cost) {
    for (size_t rank = 0; rank < loads_.size(); ++rank) {
      loads_[rank] += place_of(rank, owned) == place ? cost : 0;
    }
    Placements placements;
    for (int64_t axis = 0; axis < mesh_.ndim(); ++axis) {
      placements.push_back(owned[axis] ? layout::On(coordinate(place, axis)) : layout::Replicate());
    }
    return placements;
  }

 private:
  bool holds_elements(const Spec& spec, size_t rank) const {
    Coord coord;
    for (int64_t axis = 0; axis < mesh_.ndim(); ++axis) {
      coord.push_back(coordinate(rank, axis));
    }
    return spec->holds(coord) && c10::multiply_integers(spec.local_sizes(coord)) > 0;
  }

  int64_t coordinate(size_t rank, int64_t axis) const {
    auto left = static_cast<int64_t>(rank);
    for (int64_t later = mesh_.ndim() - 1; later > axis; --later) {
      left /= mesh_.axis(later).size;
    }
    return left % mesh_.axis(axis).size;
  }

  // The first of the ranks that have the same coordinates on the owned axes.
  size_t place_of(size_t rank, const std::vector<bool>& owned) const {
    int64_t place = 0;
    for (int64_t axis = 0; axis < mesh_.ndim(); ++axis) {
      place = place * mesh_.axis(axis).size + (owned[axis] ? coordinate(rank, axis) : 0);
    }
    return static_cast<size_t>(place);
  }

  const Mesh mesh_;
  std::vector<double> loads_;
};

}  // namespace

double step_cost(c10::IntArrayRef sizes) {
  const auto elements = static_cast<double>(c10::multiply_integers(sizes));
  if (sizes.size() < 2 || elements == 0) {
    return elements;
  }
  const auto rows = static_cast<double>(sizes[0]), columns = elements / rows;
  const double shorter = std::min(rows, columns), longer = std::max(rows, columns);
  return 4 * shorter * shorter * longer + 2 * shorter * shorter * shorter;
}

std::vector<Placements> plan_owners(const std::vector<Spec>& parameters, OwnedOver over) {
  std::vector<Placements> owners(parameters.size());
  if (parameters.empty()) {
    return owners;
  }
  const Mesh& mesh = parameters.front()->mesh;
  for (const Spec& spec : parameters) {
    TESSERA_CHECK(spec->mesh == mesh, "[owned] parameters on {", mesh.str(), "} and {", spec->mesh.str(),
                  "}; accepted: one mesh");
  }
  Loads loads(mesh);
  std::vector<std::pair<size_t, std::vector<size_t>>> free;  // parameters that have a choice, and the places
  for (size_t i : dearest_first(parameters)) {
    const std::vector<bool> owned = owned_axes(parameters[i], over);
    std::vector<size_t> places = loads.places_of(parameters[i], owned);
    if (places.size() == 1) {
      owners[i] = loads.take(owned, places[0], step_cost(parameters[i]->sizes));
    } else {
      free.emplace_back(i, std::move(places));
    }
  }
  for (const auto& [i, places] : free) {
    const std::vector<bool> owned = owned_axes(parameters[i], over);
    owners[i] = loads.take(owned, loads.least(places, owned), step_cost(parameters[i]->sizes));
  }
  return owners;
}

}  // namespace tessera::optim
