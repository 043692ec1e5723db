// Which leaves of a sum over samples the ranks have that are only imagined, and so cannot say it.
#pragma once

#include <cstdint>
#include <utility>
#include <vector>

#include "tessera/layout/origin.h"
#include "tessera/sums/sample_plan.h"

namespace tessera::dtensor {

// The calls whose samples were added so far: of each rank it is known what it adds in them. A value.
class HeldLeaves {
 public:
  void add(const sums::SamplePlan& plan, const layout::Origin* origin) { calls_.emplace_back(plan, origin); }
  void join(const HeldLeaves& other) { calls_.insert(calls_.end(), other.calls_.begin(), other.calls_.end()); }

  // Which leaves are asked for.
  struct Wanted {
    bool complete_ones_only = false;       // of which the rank at the place has all samples
    std::vector<sums::Node> without = {};  // these
  };

  // The nodes that the rank at `coord` has when the sums over `merged` axes are made.
  std::vector<sums::Node> nodes_at(layout::Coord coord, const std::vector<int64_t>& merged, const Wanted& wanted) const;

 private:
  std::vector<std::pair<sums::SamplePlan, const layout::Origin*>> calls_;
};

}  // namespace tessera::dtensor
