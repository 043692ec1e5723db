#include "tessera/dtensor/exact/rank_merge.h"

#include <algorithm>
#include <utility>

#include <ATen/ops/empty.h>

#include "tessera/comm/call/flight.h"
#include "tessera/dtensor/state/state.h"
#include "tessera/sums/merge_bytes.h"

namespace tessera::dtensor {

namespace {

using comm::NodeSum;
using sums::MergePlan;

// Sums of up to this many bytes may go with others that are scattered: every rank finishes all of them.
constexpr int64_t kSmallWhole = 64 << 10;

// A sum that an axis merges.
struct MergedSum {
  RankMerge* merge;
  sums::Merging merging;

  int64_t elements() const { return c10::multiply_integers(merge->sizes); }
  int64_t bytes() const { return elements() * static_cast<int64_t>(merge->options.dtype().itemsize()); }
  std::vector<int64_t> sizes_at(int64_t member) const { return sums::sizes_at(member, merge->sizes, merging.scatter); }
  bool scatters() const { return merging.scatter.has_value(); }
  bool is_large_whole() const { return !scatters() && bytes() > kSmallWhole; }
  int64_t elements_at(int64_t member) const { return c10::multiply_integers(sizes_at(member)); }
};

// Sums of which every rank of the axis has the same nodes.
struct Batch {
  MergePlan plan;
  std::vector<MergedSum> entries = {};
  int64_t bytes = 0;
  bool scatters = false;         // some of them
  bool has_large_whole = false;  // ... of those that are not scattered

  bool takes(const MergePlan::Nodes& nodes, const MergedSum& entry, const JoinLimits& limits) const {
    return plan.nodes() == nodes && entries.front().merge->options.dtype() == entry.merge->options.dtype() &&
           std::max(entry.bytes(), entries.front().bytes()) <= limits.part && bytes + entry.bytes() <= limits.all &&
           !((scatters || entry.scatters()) && (has_large_whole || entry.is_large_whole()));
  }
  void add(MergedSum entry) {
    bytes += entry.bytes();
    scatters |= entry.scatters();
    has_large_whole |= entry.is_large_whole();
    entries.push_back(std::move(entry));
  }
};

// Which nodes each rank of the axis has of each sum: asked of them, or where they are imagined, of what is known of
// all.
std::vector<MergePlan::Nodes> nodes_of_members(comm::Communicator& group, const std::vector<RankMerge*>& merges,
                                               const std::vector<int64_t>& merged_axes) {
  const RankMerge& first = *merges.front();
  if (C10_UNLIKELY(group.is_imagined())) {
    std::vector<MergePlan::Nodes> nodes(merges.size());
    for (size_t i = 0; i < merges.size(); ++i) {
      for (const int64_t rank : group.ranks()) {
        const layout::Coord coord = *first.way.now()->mesh.coord_of(rank);
        nodes[i].push_back(merges[i]->held->nodes_at(coord, merged_axes, merges[i]->wanted));
      }
    }
    return nodes;
  }
  std::vector<std::vector<sums::Node>> mine(merges.size());
  for (size_t i = 0; i < merges.size(); ++i) {
    for (const NodeSum& node : merges[i]->mine) {
      mine[i].push_back(node.node);
    }
  }
  return comm::exchange_nodes(group, mine, first.root, first.options.device());
}

// A merge over some axes, of several sums.
struct Stage {
  const std::vector<int64_t>& axes;
  layout::JoinedAxes line;
  comm::Communicator& group;
};

std::vector<Batch> batches_of(RankState& state, const Stage& stage, const std::vector<int64_t>& merged_axes,
                              const std::vector<RankMerge*>& merges, const JoinLimits& limits, const char* op) {
  const RankMerge& first = *merges.front();
  comm::Communicator& group = stage.group;
  state.ctx.ledger.record("all_gather", stage.line.name, op,
                          sums::bytes_of_nodes(first.root) * static_cast<int64_t>(merges.size()) * (group.size() - 1));
  auto nodes = nodes_of_members(group, merges, merged_axes);
  std::vector<Batch> batches;
  for (size_t i = 0; i < merges.size(); ++i) {
    MergedSum entry{merges[i], merges[i]->way.next(stage.axes)};
    const auto found = std::find_if(batches.begin(), batches.end(),
                                    [&](const Batch& batch) { return batch.takes(nodes[i], entry, limits); });
    if (found != batches.end()) {
      found->add(std::move(entry));
    } else {
      batches.push_back({.plan = MergePlan(std::move(nodes[i]), first.root)});
      batches.back().add(std::move(entry));
    }
  }
  return batches;
}

// One collective, and what the sums lie in.
class Collective {
 public:
  Collective(RankState& state, const Stage& stage, const Batch& batch, const char* op)
      : state_(state), line_(stage.line), batch_(batch), op_(op), group_(stage.group) {}

  void run() {
    if (batch_.entries.size() == 1) {
      run_alone();
    } else {
      run_joined();
    }
  }

 private:
  std::vector<NodeSum> merged(const comm::Merge& merge) {
    const sums::Merging& merging = batch_.entries.front().merging;
    const comm::FlightLayouts layouts(state_.ctx, merging.from, merging.to);
    return run_merge(state_.ctx, line_, op_, merge);
  }

  void run_alone() {
    const MergedSum& entry = batch_.entries.front();
    RankMerge& own = *entry.merge;
    comm::Merge merge{.plan = batch_.plan,
                      .sizes = own.sizes,
                      .options = own.options,
                      .scatter = entry.merging.scatter,
                      .memory = own.may_reuse ? comm::Merge::Memory::kReuse : comm::Merge::Memory::kKeep};
    for (const NodeSum& node : own.mine) {
      merge.sums.push_back(node.sum);
    }
    own.mine = merged(merge);
  }

  void run_joined() {
    comm::Merge merge{
        .plan = batch_.plan, .options = batch_.entries.front().merge->options, .memory = comm::Merge::Memory::kReuse};
    const sums::Scatter parts{.dim = 0, .parts = parts_of_members()};
    merge.sizes = {parts.parts.back().end};
    if (batch_.scatters) {
      merge.scatter = parts;
    }
    const size_t nodes = batch_.plan.nodes()[group_.rank()].size();
    for (size_t node = 0; node < nodes; ++node) {
      merge.sums.push_back(packed(node, merge.sizes));
    }
    for (const MergedSum& entry : batch_.entries) {
      entry.merge->mine.clear();
    }
    for (const NodeSum& node : merged(merge)) {
      unpack(node);
    }
  }

  // What each member gets lies end to end; where nothing is scattered, all get the one part.
  std::vector<layout::Range> parts_of_members() const {
    std::vector<layout::Range> parts;
    int64_t end = 0;
    for (int64_t member = 0; member < (batch_.scatters ? group_.size() : 1); ++member) {
      const int64_t begin = end;
      for (const MergedSum& entry : batch_.entries) {
        end += entry.elements_at(member);
      }
      parts.push_back({begin, end});
    }
    return parts;
  }

  // The sums of one node, whose own memory is given back.
  at::Tensor packed(size_t node, at::IntArrayRef sizes) {
    const at::Tensor flat = at::empty(sizes, batch_.entries.front().merge->options);
    int64_t begin = 0;
    for (int64_t member = 0; member < (batch_.scatters ? group_.size() : 1); ++member) {
      for (const MergedSum& entry : batch_.entries) {
        at::Tensor part = entry.merge->mine[node].sum;
        if (const auto& scatter = entry.merging.scatter) {
          const layout::Range& range = scatter->parts[member];
          part = part.narrow(scatter->dim, range.begin, range.size());
        }
        flat.narrow(0, begin, part.numel()).view(part.sizes()).copy_(part);
        begin += part.numel();
      }
    }
    for (const MergedSum& entry : batch_.entries) {
      entry.merge->mine[node].sum.reset();
    }
    return flat;
  }

  void unpack(const NodeSum& node) {
    int64_t begin = 0;
    for (const MergedSum& entry : batch_.entries) {
      const std::vector<int64_t> sizes = entry.sizes_at(group_.rank());
      const at::Tensor own = node.sum.narrow(0, begin, c10::multiply_integers(sizes)).view(sizes);
      entry.merge->mine.push_back({node.node, own.clone()});
      begin += c10::multiply_integers(sizes);
    }
  }

  RankState& state_;
  const layout::JoinedAxes& line_;
  const Batch& batch_;
  const char* const op_;
  comm::Communicator& group_;
};

bool have_one_way(const RankMerge& a, const RankMerge& b) {
  return a.stages == b.stages && a.root == b.root && a.options.device() == b.options.device() &&
         a.way.now()->mesh == b.way.now()->mesh;
}

void merge_alike(RankState& state, const std::vector<RankMerge*>& merges, const JoinLimits& limits, const char* op) {
  const layout::Mesh mesh = merges.front()->way.now()->mesh;
  std::vector<int64_t> merged_axes;
  for (const std::vector<int64_t>& axes : merges.front()->stages) {
    layout::JoinedAxes line = layout::join_axes(mesh, axes);
    const Stage stage{axes, line, state.ctx.axis(line.mesh, line.axis)};
    for (const Batch& batch : batches_of(state, stage, merged_axes, merges, limits, op)) {
      Collective(state, stage, batch, op).run();
      for (const MergedSum& entry : batch.entries) {
        entry.merge->sizes = entry.sizes_at(stage.group.rank());
        entry.merge->may_reuse = true;
      }
    }
    merged_axes.insert(merged_axes.end(), axes.begin(), axes.end());
  }
}

std::vector<int64_t> axes_of(const MergeStages& stages) {
  std::vector<int64_t> axes;
  for (const std::vector<int64_t>& stage : stages) {
    axes.insert(axes.end(), stage.begin(), stage.end());
  }
  std::sort(axes.begin(), axes.end());
  return axes;
}

layout::Spec end_of(ScatteringMove way, const MergeStages& stages) {
  for (const std::vector<int64_t>& axes : stages) {
    way.next(axes);
  }
  return way.now();
}

// A small sum goes along with others that are merged over the same axes one after the other: that adds bytes, and saves
// a collective.
void go_along(RankMerge& merge, const std::vector<RankMerge*>& others) {
  if (MergedSum{&merge, {}}.bytes() > kSmallWhole) {
    return;
  }
  for (const RankMerge* other : others) {
    if (other->stages.size() > merge.stages.size() && axes_of(other->stages) == axes_of(merge.stages) &&
        end_of(merge.way, other->stages) == end_of(merge.way, merge.stages)) {
      merge.stages = other->stages;
    }
  }
}

}  // namespace

void merge_over_ranks(RankState& state, const std::vector<RankMerge*>& merges, const JoinLimits& limits,
                      const char* op) {
  std::vector<std::vector<RankMerge*>> kinds;
  for (RankMerge* merge : merges) {
    go_along(*merge, merges);
    const auto found =
        std::find_if(kinds.begin(), kinds.end(), [&](const auto& kind) { return have_one_way(*kind.front(), *merge); });
    if (found != kinds.end()) {
      found->push_back(merge);
    } else {
      kinds.push_back({merge});
    }
  }
  for (const auto& kind : kinds) {
    merge_alike(state, kind, limits, op);
  }
}

}  // namespace tessera::dtensor
