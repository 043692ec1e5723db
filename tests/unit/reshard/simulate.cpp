#include "tests/unit/reshard/simulate.h"

#include <algorithm>
#include <limits>

#include <gtest/gtest.h>

#include "tessera/layout/joined_axes.h"

namespace tessera::reshard {

using layout::ReduceOp;

namespace {

Box whole_box(c10::IntArrayRef sizes) {
  Box box;
  for (int64_t size : sizes) {
    box.push_back({0, size});
  }
  return box;
}

// Calls visit(global index) for every element of the box, row-major.
template <typename Visit>
void for_each_index(const Box& box, Visit visit) {
  std::vector<int64_t> index;
  for (const Range& range : box) {
    index.push_back(range.begin);
  }
  for (int64_t i = 0, n = numel(box); i < n; ++i) {
    visit(index);
    for (size_t d = box.size(); d-- > 0;) {
      if (++index[d] < box[d].end) {
        break;
      }
      index[d] = box[d].begin;
    }
  }
}

int64_t offset_of(const std::vector<int64_t>& index, const Box& box) {
  int64_t offset = 0;
  for (size_t d = 0; d < box.size(); ++d) {
    EXPECT_TRUE(box[d].begin <= index[d] && index[d] < box[d].end) << "an index outside its box";
    offset = offset * box[d].size() + index[d] - box[d].begin;
  }
  return offset;
}

std::vector<double> take(const std::vector<double>& from, const Box& from_box, const Box& box) {
  std::vector<double> result;
  for_each_index(box, [&](const auto& index) { result.push_back(from[offset_of(index, from_box)]); });
  return result;
}

void put(std::vector<double>& to, const Box& to_box, const std::vector<double>& values, const Box& box) {
  size_t i = 0;
  for_each_index(box, [&](const auto& index) { to[offset_of(index, to_box)] = values[i++]; });
}

double combine(ReduceOp op, double a, double b) {
  switch (op) {
    case ReduceOp::kMax: return std::max(a, b);
    case ReduceOp::kMin: return std::min(a, b);
    case ReduceOp::kProd: return a * b;
    default: return a + b;
  }
}

double identity(ReduceOp op) {
  switch (op) {
    case ReduceOp::kMax: return -std::numeric_limits<double>::infinity();
    case ReduceOp::kMin: return std::numeric_limits<double>::infinity();
    case ReduceOp::kProd: return 1;
    default: return 0;
  }
}

// `count` numbers that combine to `value`.
std::vector<double> addends(ReduceOp op, double value, int64_t count) {
  std::vector<double> parts(count);
  for (int64_t i = 0; i < count; ++i) {
    switch (op) {
      case ReduceOp::kMax: parts[i] = i == count - 1 ? value : value - 1 - static_cast<double>(i); break;
      case ReduceOp::kMin: parts[i] = i == count - 1 ? value : value + 1 + static_cast<double>(i); break;
      case ReduceOp::kProd: parts[i] = i == 0 ? value : (i % 2 == 1 ? 2 : 0.5); break;
      default: parts[i] = 3 * static_cast<double>(i) + 1;
    }
  }
  const double total = op == ReduceOp::kAvg ? value * static_cast<double>(count) : value;
  if (op == ReduceOp::kSum || op == ReduceOp::kAvg) {
    parts[0] = total;
    for (int64_t i = 1; i < count; ++i) {
      parts[0] -= parts[i];
    }
  } else if (op == ReduceOp::kProd && count % 2 == 0) {
    parts[0] = value / 2;
  }
  return parts;
}

bool holds(const Spec& spec, int64_t rank) { return spec->holds(*spec->mesh.coord_of(rank)); }

Box box_of(const Spec& spec, int64_t rank) { return spec.local_ranges(*spec->mesh.coord_of(rank)); }

// The box that the boxes of a line make together; checks that they tile it, or are all the same when `is_shared`.
Box line_box(const Spec& spec, const std::vector<int64_t>& line, bool is_shared) {
  Box box = box_of(spec, line[0]);
  int64_t count = 0;
  for (int64_t rank : line) {
    const Box part = box_of(spec, rank);
    if (is_shared) {
      EXPECT_EQ(part, box);
    }
    count += numel(part);
    for (size_t d = 0; d < box.size() && numel(part) > 0; ++d) {
      box[d] =
          numel(box) == 0 ? part[d] : Range{std::min(box[d].begin, part[d].begin), std::max(box[d].end, part[d].end)};
    }
  }
  if (!is_shared && count > 0) {
    EXPECT_EQ(count, numel(box)) << "the boxes of a line are no tiling";
  }
  return box;
}

// The line of a step that passes through `rank`.
std::vector<int64_t> line_of(const Step& step, int64_t rank) {
  const layout::JoinedAxes line = layout::join_axes(step.before->mesh, step.line_axes());
  return line.mesh.line(line.axis, *line.mesh.coord_of(rank));
}

// What the ranks of a line hold together, over `box`.
std::vector<double> line_values(const Step& step, const std::vector<int64_t>& line, const Box& box,
                                const Buffers& buffers) {
  const Placement from = step.from;
  std::vector<double> values(numel(box), from.is_partial() ? identity(from.op) : 0);
  for (int64_t rank : line) {
    const std::vector<double>& local = buffers.at(rank);
    if (!holds(step.before, rank)) {
      EXPECT_TRUE(local.empty());
    } else if (from.is_partial()) {
      for (size_t i = 0; i < values.size(); ++i) {
        values[i] = combine(from.op, values[i], local[i]);
      }
    } else {
      put(values, box, local, box_of(step.before, rank));
    }
  }
  for (double& value : values) {
    value /= from.is_partial() && from.op == ReduceOp::kAvg ? static_cast<double>(line.size()) : 1;
  }
  return values;
}

std::vector<double> run_on_rank(const Step& step, int64_t rank, const Buffers& buffers) {
  const Box before = box_of(step.before, rank);
  const Box after = box_of(step.after, rank);
  const std::vector<double>& local = buffers.at(rank);
  if (step.kind == StepKind::kRelabel) {
    EXPECT_EQ(before, after);
    return local;
  }
  const Coord coord = *step.after->mesh.coord_of(rank);
  const auto takes_part = [&](const Spec& spec) {
    const auto line = line_of(step, rank);
    return std::any_of(line.begin(), line.end(), [&](int64_t other) { return holds(spec, other); });
  };
  EXPECT_EQ(takes_part(step.before), takes_part(step.after));
  if (!takes_part(step.before)) {
    return local;
  }
  if (step.kind == StepKind::kDrop) {
    EXPECT_EQ(before, after);
    return holds(step.after, rank) ? local : std::vector<double>();
  }
  if (step.kind == StepKind::kSlice) {
    EXPECT_EQ(intersect(before, after), after);
    return take(local, before, after);
  }
  if (step.kind == StepKind::kPartialize) {
    EXPECT_EQ(before, after);
    const ReduceOp op = step.to.op;
    if (step.from.is_on()) {
      return holds(step.before, rank) ? local : std::vector<double>(numel(after), identity(op));
    }
    const bool keeps = coord[step.axis] == 0 || op == ReduceOp::kMax || op == ReduceOp::kMin || op == ReduceOp::kAvg;
    return keeps ? local : std::vector<double>(local.size(), identity(op));
  }
  if (step.kind == StepKind::kPad) {
    std::vector<double> result(numel(after), identity(step.to.op));
    put(result, after, local, before);
    return result;
  }
  const auto line = line_of(step, rank);
  const Box whole = line_box(step.before, line, step.from.is_partial() || step.from.is_on());
  if (!holds(step.after, rank)) {
    return {};
  }
  return take(line_values(step, line, whole, buffers), whole, after);
}

Buffers run_exchange(const Step& step, const Buffers& buffers) {
  const Exchange exchange{Holdings(step.before), Holdings(step.after)};
  std::map<std::pair<int64_t, int64_t>, std::pair<Box, std::vector<double>>> wire;
  for (int64_t rank : step.before->mesh.ranks()) {
    if (!holds(step.before, rank)) {
      continue;
    }
    const Coord at = *step.before->mesh.coord_of(rank);
    for (const Transfer& send : exchange.transfers_of(rank).sends) {
      const auto values = take(buffers.at(rank), box_of(step.before, rank), send.box);
      EXPECT_TRUE(wire.emplace(std::pair(send.from, send.to), std::pair(send.box, values)).second);
      const Coord to = *step.before->mesh.coord_of(send.to);
      for (int64_t a = 0; a < step.before->mesh.ndim() && !step.axes.empty(); ++a) {
        EXPECT_TRUE(std::count(step.axes.begin(), step.axes.end(), a) || at[a] == to[a])
            << "leaves the submesh of its axes";
      }
    }
  }
  Buffers result;
  for (int64_t rank : step.after->mesh.ranks()) {
    const Box box = box_of(step.after, rank);
    std::vector<int> count(numel(box));
    auto& local = result[rank];
    if (!holds(step.after, rank)) {
      continue;
    }
    local.resize(numel(box));
    for (const Transfer& receive : exchange.transfers_of(rank).receives) {
      const auto sent = wire.find({receive.from, receive.to});
      EXPECT_TRUE(sent != wire.end() && sent->second.first == receive.box) << "nobody sends what a rank receives";
      put(local, box, sent->second.second, receive.box);
      for_each_index(receive.box, [&](const auto& index) { ++count[offset_of(index, box)]; });
      wire.erase(sent);
    }
    EXPECT_EQ(count, std::vector<int>(count.size(), 1)) << "elements received not exactly once";
  }
  EXPECT_TRUE(wire.empty()) << "something sent is received by nobody";
  return result;
}

}  // namespace

std::vector<double> element_values(c10::IntArrayRef sizes) {
  std::vector<double> values(numel(whole_box(sizes)));
  for (size_t i = 0; i < values.size(); ++i) {
    values[i] = static_cast<double>(4 * i + 4);
  }
  return values;
}

Buffers spread(const Spec& spec, const std::vector<double>& values) {
  Buffers buffers;
  for (int64_t rank : spec->mesh.ranks()) {
    const Coord coord = *spec->mesh.coord_of(rank);
    auto& local = buffers[rank];
    if (!holds(spec, rank)) {
      continue;
    }
    local = take(values, whole_box(spec->sizes), box_of(spec, rank));
    for (int64_t a = 0; a < spec->mesh.ndim(); ++a) {
      if (spec->placements[a].is_partial()) {
        for (double& value : local) {
          value = addends(spec->placements[a].op, value, spec->mesh.axis(a).size)[coord[a]];
        }
      }
    }
  }
  return buffers;
}

Buffers run_path(const Path& path, Buffers buffers) {
  for (const Step& step : path.steps) {
    if (step.kind == StepKind::kExchange) {
      buffers = run_exchange(step, buffers);
      continue;
    }
    Buffers next;
    for (int64_t rank : step.after->mesh.ranks()) {
      next[rank] = run_on_rank(step, rank, buffers);
    }
    buffers = std::move(next);
  }
  return buffers;
}

void expect_holds(const Spec& spec, const std::vector<double>& values, const Buffers& buffers) {
  Buffers merged = buffers;
  for (int64_t a = 0; a < spec->mesh.ndim(); ++a) {
    if (!spec->placements[a].is_partial()) {
      continue;
    }
    const ReduceOp op = spec->placements[a].op;
    const Buffers parts = merged;
    for (int64_t rank : spec->mesh.ranks()) {
      const auto line = spec->mesh.line(a, *spec->mesh.coord_of(rank));
      for (size_t i = 0; i < merged[rank].size(); ++i) {
        double value = identity(op);
        for (int64_t other : line) {
          value = combine(op, value, parts.at(other)[i]);
        }
        merged[rank][i] = op == ReduceOp::kAvg ? value / static_cast<double>(line.size()) : value;
      }
    }
  }
  for (int64_t rank : spec->mesh.ranks()) {
    const auto held =
        holds(spec, rank) ? take(values, whole_box(spec->sizes), box_of(spec, rank)) : std::vector<double>();
    EXPECT_EQ(merged[rank], held) << "rank " << rank;
  }
}

}  // namespace tessera::reshard
