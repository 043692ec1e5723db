#include "tessera/reshard/steps.h"

#include <algorithm>

#include "tessera/base/error.h"

namespace tessera::reshard {

using layout::Cut;
using layout::ReduceOp;
using layout::SpecData;

namespace {

constexpr int64_t kMostRanksCounted = 1024;

double no_bytes(const Change&) { return 0; }

// What a rank of a ring sends of what the line holds.
double gather_bytes(const Change& change) {
  return change.line_bytes * static_cast<double>(change.parts - 1) / static_cast<double>(change.parts);
}

// What a line holds goes to other ranks but for what is kept: averaged over the line.
double moved_bytes(const Change& change) {
  return change.line_bytes * (1 - change.kept) / static_cast<double>(change.parts);
}

// From one stage of a rank to another of its stages.
bool is_at_one_place(const Change& change) { return change.from.coordinate() == change.to.coordinate(); }

constexpr StepRule kTable[] = {
    {StepKind::kRelabel, [](const Change& c) { return c.from.is_shard() && c.to.is_shard() && c.has_same_cuts; },
     no_bytes},
    {StepKind::kSlice, [](const Change& c) { return c.from.is_replicate() && c.to.is_shard(); }, no_bytes},
    {StepKind::kPartialize,
     [](const Change& c) {
       return c.to.is_partial() && (c.from.is_replicate() || (c.from.is_on() && c.to.op != ReduceOp::kAvg));
     },
     no_bytes},
    {StepKind::kPad,
     [](const Change& c) {
       return c.from.is_shard() && c.is_innermost && c.to.is_partial() && c.to.op != ReduceOp::kAvg;
     },
     no_bytes},
    {StepKind::kAllToAll, [](const Change& c) { return c.from.is_shard() && c.is_innermost && c.to.is_shard(); },
     moved_bytes},
    {StepKind::kAllGather, [](const Change& c) { return c.from.is_shard() && c.is_innermost && c.to.is_replicate(); },
     gather_bytes},
    {StepKind::kReduceScatter, [](const Change& c) { return c.from.is_partial() && c.to.is_shard(); }, gather_bytes},
    {StepKind::kAllReduce, [](const Change& c) { return c.from.is_partial() && c.to.is_replicate(); },
     [](const Change& c) { return 2 * gather_bytes(c); }},
    {StepKind::kDrop, [](const Change& c) { return c.from.is_replicate() && c.to.is_on(); }, no_bytes},
    {StepKind::kGather, [](const Change& c) { return c.from.is_shard() && c.is_innermost && c.to.is_on(); },
     moved_bytes},
    {StepKind::kScatter, [](const Change& c) { return c.from.is_on() && c.to.is_shard(); }, moved_bytes},
    {StepKind::kSend, [](const Change& c) { return c.from.is_on() && c.to.is_on(); },
     [](const Change& c) { return is_at_one_place(c) ? 0 : c.line_bytes / static_cast<double>(c.parts); }},
    {StepKind::kBroadcast, [](const Change& c) { return c.from.is_on() && c.to.is_replicate(); }, gather_bytes},
    {StepKind::kReduce, [](const Change& c) { return c.from.is_partial() && c.to.is_on(); }, gather_bytes},
};

// Whether `b` cuts the dim of `a` inside `a`.
bool is_inside(const Placements& placements, size_t a, size_t b) {
  if (a == b || !placements[b].is_shard(placements[a].dim)) {
    return false;
  }
  return placements[a].order >= 0 ? placements[b].order > placements[a].order : b > a;
}

bool is_innermost(const Placements& placements, size_t axis) {
  for (size_t b = 0; b < placements.size(); ++b) {
    if (is_inside(placements, axis, b)) {
      return false;
    }
  }
  return true;
}

// The longest run of a dim (of a block of it) that the cuts outside `axis` leave to a rank: that of the first.
int64_t run_outside(const SpecData& tensor, const Placements& placements, int64_t dim, int64_t blocks, int64_t axis) {
  int64_t run = tensor.sizes[dim] / blocks;
  for (int64_t outer : layout::axes_of_dim(tensor.mesh, placements, dim)) {
    if (outer == axis) {
      break;
    }
    run = placements[outer].cut(run, tensor.mesh.axes()[outer].size).most();
  }
  return run;
}

int64_t overlap(const Range& a, const Range& b) {
  return std::max<int64_t>(0, std::min(a.end, b.end) - std::max(a.begin, b.begin));
}

// The share of the elements that stay when one axis goes from cutting a dim to cutting another.
double kept_between_dims(const Cut& from, const Cut& to) {
  if (from.size() == 0 || to.size() == 0) {
    return 0;
  }
  const double pairs = static_cast<double>(from.size()) * static_cast<double>(to.size());
  if (!from.is_even() || !to.is_even()) {
    double kept = 0;
    for (int64_t i = 0; i < from.parts(); ++i) {
      kept += static_cast<double>(from[i].size()) * static_cast<double>(to[i].size());
    }
    return kept / pairs;
  }
  // Full parts stand first, then one remainder, then nothing.
  const int64_t full = std::min(from.full_parts(), to.full_parts());
  const double rest = static_cast<double>(from[full].size()) * static_cast<double>(to[full].size());
  const double kept =
      static_cast<double>(full) * static_cast<double>(from.most()) * static_cast<double>(to.most()) + rest;
  return kept / pairs;
}

// The share that one part is.
double share_of(const Cut& cut, int64_t part) {
  return cut.size() == 0 ? 0 : static_cast<double>(cut[part].size()) / static_cast<double>(cut.size());
}

// The share that stays when the cuts of one dim change.
double kept_in_dim(const Cut& from, const Cut& to) {
  int64_t kept = 0;
  for (int64_t i = 0; i < from.parts(); ++i) {
    kept += overlap(from[i], to[i]);
  }
  return from.size() == 0 ? 0 : static_cast<double>(kept) / static_cast<double>(from.size());
}

// The dims that the axes cut, on either side.
std::vector<bool> dims_of(const std::vector<int64_t>& axes, const Placements& from, const Placements& to, size_t ndim) {
  std::vector<bool> result(ndim);
  for (int64_t axis : axes) {
    for (const Placement& placement : {from[axis], to[axis]}) {
      if (placement.is_shard()) {
        result[placement.dim] = true;
      }
    }
  }
  return result;
}

// The axes whose cuts shall go, but for those inside of which another cut stays.
std::vector<int64_t> gathered_axes(const Mesh& mesh, const Placements& from, const Placements& to) {
  std::vector<int64_t> axes;
  for (int64_t dim = 0; dim < layout::last_cut_dim(from) + 1; ++dim) {
    const std::vector<int64_t> cutting = layout::axes_of_dim(mesh, from, dim);
    for (size_t i = cutting.size(); i > 0 && to[cutting[i - 1]].is_replicate(); --i) {
      axes.push_back(cutting[i - 1]);
    }
  }
  std::sort(axes.begin(), axes.end());
  return axes;
}

// Elements of the given dims that a rank lacks, averaged over the ranks of the given axes.
double mean_missing(const SpecData& tensor, const Placements& from, const Placements& to,
                    const std::vector<int64_t>& axes, const std::vector<bool>& dims) {
  const Mesh& mesh = tensor.mesh;
  Coord coord(mesh.ndim());
  double missing = 0;
  int64_t ranks = 0;
  size_t moved = 0;
  do {
    double wanted = 1;
    double kept = 1;
    for (size_t d = 0; d < dims.size(); ++d) {
      if (dims[d]) {
        const auto dim = static_cast<int64_t>(d);
        const Range after = layout::local_range(mesh, to, dim, tensor.sizes[d], coord);
        wanted *= static_cast<double>(after.size());
        kept *= static_cast<double>(overlap(after, layout::local_range(mesh, from, dim, tensor.sizes[d], coord)));
      }
    }
    missing += wanted - kept;
    ++ranks;
    for (moved = axes.size(); moved > 0; --moved) {
      const int64_t axis = axes[moved - 1];
      if (++coord[axis] < mesh.axes()[axis].size) {
        break;
      }
      coord[axis] = 0;
    }
  } while (moved > 0);
  return missing / static_cast<double>(ranks);
}

// The placements of the tensor from those of the tensor taken apart, for people.
Placements in_dims_of_tensor(Placements placements, const layout::BoxForm& form) {
  Placements cuts;  // of each dim of the tensor taken apart
  for (size_t d = 0; d < form.blocks.size(); ++d) {
    const auto dim = static_cast<int64_t>(d);
    if (form.blocks[d] > 1) {
      cuts.push_back(layout::Shard(dim));
    }
    cuts.push_back(layout::InterleavedShard(dim, form.blocks[d]));
    cuts.back().spans = form.last_spanned > 0 && dim == form.last_spanned;
  }
  for (Placement& p : placements) {
    if (p.is_shard()) {
      const Placement& cut = cuts[p.dim];
      p.blocks = cut.blocks, p.dim = cut.dim, p.spans = cut.spans;
    }
  }
  return placements;
}

}  // namespace

std::string Step::str() const {
  const Placements from_all = form ? in_dims_of_tensor(before->placements, *form) : before->placements;
  const Placements to_all = form ? in_dims_of_tensor(after->placements, *form) : after->placements;
  if (axis < 0) {
    return std::string(name_of(kind)) + " " + layout::str(before->mesh, from_all) + " -> " +
           layout::str(after->mesh, to_all);
  }
  const Placement now = to.is_shard() ? to_all[axis] : to;
  return std::string(name_of(kind)) + " " + after->mesh.axis(axis).name + ": " + from_all[axis].str() + " -> " +
         now.str();
}

std::vector<int64_t> Step::line_axes() const {
  if (axis >= 0) {
    return {axis};
  }
  return kind == StepKind::kExchange || kind == StepKind::kRelabel ? std::vector<int64_t>() : axes;
}

const char* name_of(StepKind kind) {
  switch (kind) {
    case StepKind::kAllReduce: return "all_reduce";
    case StepKind::kReduceScatter: return "reduce_scatter";
    case StepKind::kAllGather: return "all_gather";
    case StepKind::kAllToAll: return "all_to_all";
    case StepKind::kSlice: return "slice";
    case StepKind::kPartialize: return "partialize";
    case StepKind::kPad: return "pad";
    case StepKind::kGather: return "gather";
    case StepKind::kScatter: return "scatter";
    case StepKind::kSend: return "send";
    case StepKind::kBroadcast: return "broadcast";
    case StepKind::kReduce: return "reduce";
    case StepKind::kDrop: return "drop";
    case StepKind::kRelabel: return "relabel";
    case StepKind::kExchange: return "exchange";
  }
  TESSERA_ASSERT(false, "StepKind ", static_cast<int>(kind));
}

bool is_local(StepKind kind) {
  return kind == StepKind::kSlice || kind == StepKind::kPartialize || kind == StepKind::kPad ||
         kind == StepKind::kDrop || kind == StepKind::kRelabel;
}

Change change_of(const SpecData& tensor, const Placements& placements, int64_t axis, const Placement& to) {
  Change change{.from = placements[axis], .to = to, .parts = tensor.mesh.axes()[axis].size};
  change.line_bytes = static_cast<double>(tensor.bytes());
  for (size_t a = 0; a < placements.size(); ++a) {
    if (placements[a].holds_once() && static_cast<int64_t>(a) != axis) {
      change.line_bytes /= static_cast<double>(tensor.mesh.axes()[a].size);
    }
  }
  const auto cut_by = [&](const Placement& shard, int64_t outside) {
    return shard.cut(run_outside(tensor, placements, shard.dim, shard.blocks, outside), change.parts);
  };
  if (change.from.is_on() && to.is_shard()) {
    change.kept = share_of(cut_by(to, -1), change.from.coordinate());
  }
  if (!change.from.is_shard()) {
    return change;
  }
  change.is_innermost = is_innermost(placements, axis);
  if (to.is_on()) {
    change.kept = share_of(cut_by(change.from, axis), to.coordinate());
  }
  if (!to.is_shard()) {
    return change;
  }
  const bool in_dim = to.shares_dim(change.from);
  const Cut before = cut_by(change.from, axis);
  const Cut after = cut_by(to, in_dim ? axis : -1);
  change.has_same_cuts = in_dim && layout::same_cuts(tensor.mesh, placements, tensor.sizes, axis, to);
  change.kept = in_dim ? kept_in_dim(before, after) : kept_between_dims(before, after);
  return change;
}

Placements after_change(const Mesh& mesh, const Placements& placements, int64_t axis, const Placement& to) {
  Placements result = placements;
  result[axis] = to;
  result[axis].order = -1;
  if (to.is_shard() && placements[axis].is_shard(to.dim)) {
    result[axis].order = placements[axis].order;
  } else if (to.is_shard()) {
    int8_t order = 0;
    for (int64_t outer : layout::axes_of_dim(mesh, placements, to.dim)) {
      result[outer].order = order++;
    }
    result[axis].order = order;
  }
  return layout::normal_form(mesh, result);
}

c10::ArrayRef<StepRule> step_table() { return kTable; }

const StepRule* find_step(const Change& change) {
  const auto row =
      std::find_if(std::begin(kTable), std::end(kTable), [&](const StepRule& rule) { return rule.applies(change); });
  return row == std::end(kTable) ? nullptr : row;
}

const StepRule& step_of(StepKind kind) {
  const auto row =
      std::find_if(std::begin(kTable), std::end(kTable), [&](const StepRule& rule) { return rule.kind == kind; });
  TESSERA_ASSERT(row != std::end(kTable), name_of(kind), " is not in the table");
  return *row;
}

std::vector<JointChange> joint_changes(const Mesh& mesh, const Placements& from, const Placements& to) {
  std::vector<JointChange> changes;
  const auto add = [&](StepKind kind, std::vector<int64_t> axes) {
    if (axes.size() > 1) {
      changes.push_back({kind, std::move(axes)});
    }
  };
  for (const ReduceOp op : {ReduceOp::kSum, ReduceOp::kProd, ReduceOp::kMax, ReduceOp::kMin, ReduceOp::kAvg}) {
    std::vector<int64_t> whole, cut;
    for (int64_t a = 0; a < mesh.ndim(); ++a) {
      if (from[a].is_partial() && from[a].op == op) {
        (to[a].is_replicate() ? whole : cut).push_back(a);
      }
    }
    std::erase_if(cut, [&](int64_t a) { return !to[a].is_shard(); });
    add(StepKind::kAllReduce, std::move(whole));
    add(StepKind::kReduceScatter, std::move(cut));
  }
  add(StepKind::kAllGather, gathered_axes(mesh, from, to));
  return changes;
}

double axis_bytes(const SpecData& tensor, int64_t axis, const Placement& to) {
  const Placement& from = tensor.placements[axis];
  const bool has_other_blocks = from.shares_dim(to) && from.blocks != to.blocks;
  Change change = change_of(tensor, tensor.placements, axis, has_other_blocks ? layout::Replicate() : to);
  change.is_innermost = true;
  const StepRule* row = find_step(change);
  TESSERA_ASSERT(row != nullptr || from == to, "no step from ", from.str(), " to ", to.str());
  return row == nullptr ? 0 : row->bytes(change);
}

std::vector<int64_t> exchange_axes(const Mesh& mesh, const Placements& from, const Placements& to) {
  std::vector<int64_t> axes;
  for (int64_t a = 0; a < mesh.ndim(); ++a) {
    if (from[a] != to[a]) {
      axes.push_back(a);
    }
  }
  // Whoever cuts a dim that those cut moves with them, and so on.
  for (size_t count = 0; count != axes.size();) {
    count = axes.size();
    for (int64_t a = 0; a < mesh.ndim(); ++a) {
      const auto shares = [&](int64_t b) {
        return (from[a].is_shard() && (from[b].is_shard(from[a].dim) || to[b].is_shard(from[a].dim))) ||
               (to[a].is_shard() && (from[b].is_shard(to[a].dim) || to[b].is_shard(to[a].dim)));
      };
      if (std::find(axes.begin(), axes.end(), a) == axes.end() && std::any_of(axes.begin(), axes.end(), shares)) {
        axes.push_back(a);
      }
    }
  }
  std::sort(axes.begin(), axes.end());
  return axes;
}

double exchange_bytes(const SpecData& tensor, const Placements& from, const Placements& to) {
  const Mesh& mesh = tensor.mesh;
  const auto axes = exchange_axes(mesh, from, to);
  const auto dims = dims_of(axes, from, to, tensor.sizes.size());
  int64_t ranks = 1;
  for (int64_t axis : axes) {
    ranks *= mesh.axes()[axis].size;
  }
  double elements = 1;
  for (size_t d = 0; d < dims.size(); ++d) {
    if (!dims[d] || ranks > kMostRanksCounted) {
      elements *= static_cast<double>(tensor.sizes[d]);
    }
  }
  for (int64_t a = 0; a < mesh.ndim(); ++a) {
    if (to[a].holds_once() && (!to[a].is_shard() || !dims[to[a].dim] || ranks > kMostRanksCounted)) {
      elements /= static_cast<double>(mesh.axes()[a].size);
    }
  }
  const double missing = ranks > kMostRanksCounted ? 1 : mean_missing(tensor, from, to, axes, dims);
  return missing * elements * static_cast<double>(c10::elementSize(tensor.dtype));
}

}  // namespace tessera::reshard
