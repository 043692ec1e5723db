// The named steps of a redistribution as data: what each does, when it applies, what it costs.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include <c10/util/ArrayRef.h>

#include "tessera/layout/spec.h"
#include "tessera/reshard/holdings.h"

namespace tessera::reshard {

enum class StepKind : uint8_t {
  kAllReduce,      // P -> R. P(avg) is the sum divided by the size of the axis, here and below.
  kReduceScatter,  // P -> S
  kAllGather,      // S -> R
  kAllToAll,       // S -> S of another dim, or of other cuts of the same dim
  kSlice,          // R -> S, local
  kPartialize,  // R -> P, local: coordinate 0 keeps the value and the others hold identity(op); avg, max, min: all keep
                // it. On -> P: the coordinate that has the value keeps it; not for avg
  kPad,         // S -> P, local: the own part stands in a tensor of identity(op); not for avg
  kGather,      // S -> On
  kScatter,     // On -> S
  kSend,        // On -> On of another coordinate or stage
  kBroadcast,   // On -> R
  kReduce,      // P -> On
  kDrop,        // R -> On, local
  kRelabel,     // the same boxes under another name, local: no data moves
  kExchange,    // any cuts to any cuts over several axes or between meshes, by the transfers of an Exchange
};

// One step of a redistribution: the tensor goes from layout `before` to layout `after`.
//
// All but kExchange (and kRelabel between meshes) change one axis of one mesh, or several that change alike: then it is
// kAllReduce, kReduceScatter or kAllGather over the ranks that differ along these (layout::join_axes). The ranks of
// each such line work together, and their boxes make one contiguous box: no other axis cuts a dim inside of those that
// do.
struct Step {
  StepKind kind = StepKind::kRelabel;
  int64_t axis = -1;  // the axis that changes; -1 where there is no one axis
  // Where several change alike: these. Of kExchange on one mesh: transfers stay inside their submesh. Else empty.
  std::vector<int64_t> axes = {};
  Placement from = {};  // of `axis`, or of the first of those that change alike
  Placement to = {};
  Spec before;
  Spec after;
  // Where cuts are interleaved or span dims: `from`, `to`, `before` and `after` are of the tensor taken apart so
  // (layout::taken_apart), and a rank's part is put together for a layout of the tensor itself, or stays as it is
  // before another such step. Else nothing.
  std::optional<layout::BoxForm> form = {};
  Spec put_together = {};
  double bytes = 0;  // sent by a rank under ring algorithms, averaged over all ranks; an exchange of 0 is local

  // `all_gather tp: S(0) -> R`; `all_reduce {dp: P, tp: P} -> {dp: R, tp: R}`; `exchange {dp: S(0), tp: R} -> {dp: R,
  // tp: S(0)}`.
  std::string str() const;

  // Along which the ranks of a line differ; empty of kExchange, and between meshes.
  std::vector<int64_t> line_axes() const;
};

// `all_reduce`, `slice`, ...
const char* name_of(StepKind kind);

// No rank needs another one.
bool is_local(StepKind kind);

// One axis that is about to change its placement: all that the checks and costs of the table read.
struct Change {
  Placement from;
  Placement to;
  int64_t parts = 1;           // size of the axis
  double line_bytes = 0;       // bytes that the ranks of one line share or each hold, averaged over the lines
  bool is_innermost = true;    // no other axis cuts the dim of `from` inside this one
  bool has_same_cuts = false;  // both cut one dim, and every rank's part stays what it is
  double kept = 0;             // S to S, S to On, On to S: the share of a line's elements that stay on their rank
};

// `axis` of a tensor of the given layout about to become `to`. `kept` is that of the line at the mesh's origin.
Change change_of(const layout::SpecData& tensor, const Placements& placements, int64_t axis, const Placement& to);

// The placements after a change, in normal form: an axis that begins to cut a dim becomes its innermost cut.
Placements after_change(const Mesh& mesh, const Placements& placements, int64_t axis, const Placement& to);

// A row of the table.
struct StepRule {
  StepKind kind;
  bool (*applies)(const Change&);
  double (*bytes)(const Change&);  // per rank, as Step::bytes
};

// The one-axis steps.
c10::ArrayRef<StepRule> step_table();

// The row that makes a change, or null when no single step does.
const StepRule* find_step(const Change& change);
// The row of this kind.
const StepRule& step_of(StepKind kind);

// Axes, in their order on the mesh, that one step of this kind changes.
struct JointChange {
  StepKind kind = StepKind::kAllReduce;
  std::vector<int64_t> axes;
};

// What two axes or more may do at once on the way to `to`: merges of one op, and gathers.
std::vector<JointChange> joint_changes(const Mesh& mesh, const Placements& from, const Placements& to);

// Bytes per rank of what `axis` sends to become `to`, by the table: what a layout costs, asked axis by axis. Other axes
// that cut its dim further in have their own turn: they count as if they were not there. Cuts into other blocks are
// taken away first. Throws where there is no such step: an axis becomes Partial of another kind.
double axis_bytes(const layout::SpecData& tensor, int64_t axis, const Placement& to);

// Bytes per rank of an exchange between two layouts of one mesh, and the axes over which it works. Axes that are
// Partial must be so alike on both sides. Exact where those axes hold at most 1024 ranks; beyond, as if nothing stayed
// on its rank.
double exchange_bytes(const layout::SpecData& tensor, const Placements& from, const Placements& to);
std::vector<int64_t> exchange_axes(const Mesh& mesh, const Placements& from, const Placements& to);

}  // namespace tessera::reshard
