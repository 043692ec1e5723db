#include "tessera/dtensor/plan/merge_stages.h"

#include <algorithm>
#include <numeric>

namespace tessera::dtensor {

namespace {

// Lists of nodes of up to this many bytes cost less than a collective does.
constexpr double kShortLists = 8 << 10;

// Merges over the neighbours among `axes` that no bit of `cuts` parts.
MergeStages stages_between(const std::vector<int64_t>& axes, size_t cuts) {
  MergeStages stages = {{axes.front()}};
  for (size_t i = 1; i < axes.size(); ++i) {
    if (cuts >> (i - 1) & 1) {
      stages.emplace_back();
    }
    stages.back().push_back(axes[i]);
  }
  for (std::vector<int64_t>& stage : stages) {
    std::sort(stage.begin(), stage.end());
  }
  return stages;
}

// Elements that the members get between them, over those that each has before.
double shares_of(const sums::Merging& merging, const layout::Coord& coord) {
  const auto& scatter = *merging.scatter;
  const double whole = static_cast<double>(merging.from.local_ranges(coord)[scatter.dim].size());
  const int64_t parts = std::accumulate(scatter.parts.begin(), scatter.parts.end(), int64_t{0},
                                        [](int64_t sum, const layout::Range& part) { return sum + part.size(); });
  return whole == 0 ? 0 : static_cast<double>(parts) / whole;
}

double bytes_of(ScatteringMove way, const MergeStages& stages, const sums::Node& root, double bytes) {
  double sums = 0, lists = 0;
  for (const std::vector<int64_t>& stage : stages) {
    const layout::Mesh& mesh = way.now()->mesh;
    const auto ranks = static_cast<double>(layout::ranks_along(mesh, stage));
    const sums::Merging merging = way.next(stage);
    const double shares = merging.scatter ? shares_of(merging, way.coord()) : 2;
    sums += bytes * shares * (ranks - 1) / ranks;
    lists += static_cast<double>(sums::bytes_of_nodes(root)) * (ranks - 1);
    bytes *= merging.scatter ? shares / ranks : 1;
  }
  return sums + std::max(lists - kShortLists, 0.0);
}

}  // namespace

MergeStages merge_stages(const ScatteringMove& way, const std::vector<int64_t>& axes, const sums::Node& root,
                         double bytes) {
  if (axes.empty()) {
    return {};
  }
  MergeStages best = stages_between(axes, 0);
  if (axes.size() == 1) {
    return best;
  }
  double fewest = bytes_of(way, best, root, bytes);
  for (size_t cuts = 1; cuts < size_t{1} << (axes.size() - 1); ++cuts) {
    MergeStages stages = stages_between(axes, cuts);
    const double sent = bytes_of(way, stages, root, bytes), margin = 1e-9 * std::max(sent, fewest);
    if (sent < fewest - margin || (sent <= fewest + margin && stages.size() < best.size())) {
      best = std::move(stages), fewest = sent;
    }
  }
  return best;
}

}  // namespace tessera::dtensor
