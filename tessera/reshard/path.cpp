#include "tessera/reshard/path.h"

#include <algorithm>
#include <array>
#include <functional>
#include <limits>
#include <mutex>
#include <optional>
#include <unordered_map>

#include "tessera/base/error.h"
#include "tessera/base/hash.h"
#include "tessera/base/text.h"
#include "tessera/reshard/search.h"

namespace tessera::reshard {

namespace {

constexpr double kNever = std::numeric_limits<double>::infinity();

double sum_bytes(const std::vector<detail::Move>& moves) {
  double bytes = 0;
  for (const detail::Move& move : moves) {
    bytes += move.bytes;
  }
  return bytes;
}

void append(Path& path, Step step) {
  path.bytes += step.bytes;
  path.steps.push_back(std::move(step));
}

// The steps on one mesh. `from` and `to` differ in placements only.
void append_moves(Path& path, const Spec& from, const Spec& to) {
  Spec at = from;
  for (detail::Move& move : detail::search_moves(*from, from->placements, to->placements)) {
    Step step{.axis = move.axis, .before = at, .after = at.with(move.after), .bytes = move.bytes};
    if (move.rule == nullptr) {
      step.kind = StepKind::kExchange;
      step.axes = exchange_axes(from->mesh, at->placements, move.after);
    } else {
      const int64_t first = move.axis >= 0 ? move.axis : move.axes.front();
      step.kind = move.rule->kind;
      step.axes = move.axes;
      step.from = at->placements[first];
      step.to = step.after->placements[first];
    }
    at = step.after;
    append(path, std::move(step));
  }
}

std::vector<int64_t> sorted(std::vector<int64_t> values) {
  std::sort(values.begin(), values.end());
  return values;
}

Step exchange_between_meshes(const Spec& from, const Spec& to) {
  const Exchange exchange{Holdings(from), Holdings(to)};
  Step step{.kind = StepKind::kRelabel, .before = from, .after = to};
  if (!exchange.is_identity()) {
    step.kind = StepKind::kExchange;
    step.bytes = static_cast<double>(exchange.moved()) * static_cast<double>(c10::elementSize(from->dtype)) /
                 static_cast<double>(to->mesh.size());
  }
  return step;
}

// Settles all that ranks do not hold themselves, by cutting one dim or by replicating, whichever is cheapest in all.
Path merge_and_exchange(const Spec& from, const Spec& to) {
  std::optional<Path> best;
  const bool is_settled = layout::settled(from->placements) == from->placements;
  for (int64_t dim = -1; dim < (is_settled ? 0 : from->ndim()); ++dim) {
    Placements merged = from->placements;
    for (size_t a = 0; a < merged.size(); ++a) {
      if (!merged[a].is_settled()) {
        merged = after_change(from->mesh, merged, static_cast<int64_t>(a),
                              dim < 0 ? layout::Replicate() : layout::Shard(dim));
      }
    }
    Path path;
    append_moves(path, from, from.with(merged));
    append(path, exchange_between_meshes(from.with(merged), to));
    if (!best || path.bytes < best->bytes) {
      best = std::move(path);
    }
  }
  return std::move(*best);
}

Path plan_between_meshes(const Spec& from, const Spec& to) {
  TESSERA_CHECK(sorted(from->mesh.ranks()) == sorted(to->mesh.ranks()), "[redistribute] from mesh {", from->mesh.str(),
                "} to mesh {", to->mesh.str(),
                "}, which hold different ranks; accepted: two meshes over the same ranks");
  const Spec whole = to.with(layout::settled(to->placements));
  Path path = merge_and_exchange(from, whole);
  append_moves(path, whole, to);
  return path;
}

bool is_box(const Placement& p) { return !p.is_interleaved() && !p.is_spanning(); }

bool are_boxes(const Placements& placements) { return std::all_of(placements.begin(), placements.end(), is_box); }

// Whether a cut is a box in the form of another layout, in which its dim may be whole.
bool may_stay(const Placement& cut, const layout::SpecData& to, const layout::BoxForm& form) {
  return form.fits(cut) || (!to.is_cut(cut.dim) && cut.dim > form.last_spanned);
}

// Cuts that are interleaved, or that span dims, are plain ones of the tensor taken apart. Where the two layouts take it
// apart otherwise, it has only cuts in between that both know.
Path plan_apart(const Spec& from, const Spec& to) {
  Path path;
  const auto then = [&](const Spec& a, const Spec& b) {
    for (Step& step : plan_path(a, b).steps) {
      append(path, std::move(step));
    }
  };
  const auto is_other = [](const Placement& p) { return !is_box(p); };
  if (from->mesh != to->mesh) {
    const Spec before = from.with(layout::without_cuts(from->placements, is_other));
    const Spec after = to.with(layout::without_cuts(to->placements, is_other));
    then(from, before);
    then(before, after);
    then(after, to);
    return path;
  }
  const auto form = layout::BoxForm::common(from->placements, to->placements, from->ndim());
  if (!form) {
    const auto wanted = layout::BoxForm::of(to->placements, to->ndim());
    const Spec between = from.with(layout::without_cuts(
        from->placements, [&](const Placement& p) { return p.is_spanning() || !may_stay(p, *to, wanted); }));
    then(from, between);
    then(between, to);
    return path;
  }
  const Spec before = layout::taken_apart(from, *form);
  append_moves(path, before, layout::taken_apart(from.with(to->placements), *form));
  if (path.steps.empty() && from->placements != to->placements) {  // the same elements, as parts of other sizes
    append(path, {.kind = StepKind::kRelabel, .before = before, .after = before});
  }
  for (size_t i = 0; i < path.steps.size(); ++i) {
    path.steps[i].form = form;
    path.steps[i].put_together = i + 1 == path.steps.size() ? to : path.steps[i].after;
  }
  return path;
}

// Costs of paths that change several axes, by layout and wanted placements: of the newest, as sizes may change at every
// step.
class CostCache {
 public:
  double find_or_search(const Spec& from, const Placements& to) {
    uint64_t hash = from->hash;
    for (const Placement& p : to) {
      hash = base::hash_combine(hash, p.hash());
    }
    Part& part = parts_[hash >> 60];
    {
      std::lock_guard<std::mutex> lock(part.mutex);
      auto [it, end] = part.costs.equal_range(hash);
      for (; it != end; ++it) {
        if (it->second.from == from && it->second.to == to) {
          return it->second.bytes;
        }
      }
    }
    const bool is_valid = layout::is_layout_of(from->mesh, to, from->sizes);
    const double bytes = is_valid ? sum_bytes(detail::search_moves(*from, from->placements, to)) : kNever;
    std::lock_guard<std::mutex> lock(part.mutex);
    if (part.costs.size() == kMost) {
      part.costs.clear();
    }
    part.costs.emplace(hash, Entry{from, to, bytes});
    return bytes;
  }

 private:
  static constexpr size_t kMost = 16;  // of a part

  struct Entry {
    Spec from;
    Placements to;
    double bytes;
  };
  struct Part {
    std::mutex mutex;
    std::unordered_multimap<uint64_t, Entry> costs;
  };
  std::array<Part, 16> parts_;
};

}  // namespace

std::string Path::str() const {
  if (steps.empty()) {
    return "nothing";
  }
  return base::join(steps, "; ", [](std::ostream& out, const Step& step) { out << step.str(); });
}

Path plan_path(const Spec& from, const Spec& to) {
  TESSERA_CHECK(from->sizes == to->sizes && from->dtype == to->dtype, "[redistribute] from ", from.str(), " to ",
                to.str(), ": sizes and dtype must agree");
  if (!are_boxes(from->placements) || !are_boxes(to->placements)) {
    return plan_apart(from, to);
  }
  if (from->mesh != to->mesh) {
    return plan_between_meshes(from, to);
  }
  Path path;
  append_moves(path, from, from.with(to->placements));
  if (!path.steps.empty()) {
    path.steps.back().after = to;
  }
  return path;
}

double cost_bytes(const Spec& from, const Placements& to) {
  static auto& cache = *new CostCache;
  const Placements wanted = layout::normal_form(from->mesh, to);
  if (wanted == from->placements) {
    return 0;
  }
  if (!are_boxes(from->placements) || !are_boxes(wanted)) {
    return layout::is_layout_of(from->mesh, wanted, from->sizes) ? plan_path(from, from.with(wanted)).bytes : kNever;
  }
  if (layout::last_cut_dim(wanted) < from->ndim()) {
    if (const auto move = detail::find_one_move(*from, from->placements, wanted)) {
      return layout::is_layout_of(from->mesh, wanted, from->sizes) ? move->bytes : kNever;
    }
  }
  return cache.find_or_search(from, wanted);
}

double cost_bytes(const Spec& from, const Spec& to) {
  return from->mesh == to->mesh ? cost_bytes(from, to->placements) : plan_path(from, to).bytes;
}

}  // namespace tessera::reshard
