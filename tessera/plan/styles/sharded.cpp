// Fully sharded data parallelism: of every parameter each rank of an fsdp axis keeps some rows, with their gradient and
// the optimizer's state; operators gather the parameters that they read, those of one layer together.
#include <algorithm>
#include <cmath>
#include <map>
#include <numeric>
#include <utility>

#include "tessera/base/error.h"
#include "tessera/base/text.h"
#include "tessera/plan/draft.h"
#include "tessera/plan/groups.h"

namespace tessera::plan {
namespace {

using layout::Placement;
using layout::Placements;

// `layers.*`: the name up to its first number, or else the module that the parameter is in.
std::string group_of(const std::string& name) {
  const auto parts = base::split(name, '.');
  const auto number = std::find_if(parts.begin(), parts.end(),
                                   [](const std::string& part) { return base::try_parse_int(part).has_value(); });
  const auto end = number != parts.end() ? number + 1 : parts.end() - (parts.size() > 1 ? 1 : 0);
  return base::join(std::vector<std::string>(parts.begin(), end), ".");
}

bool is_in(const std::string& name, const std::string& module) {
  return name == module || name.starts_with(module + ".");
}

// A share of this many times an equal one is worth a note.
constexpr double kMostWaste = 1.1;

// Rows of a rank below which dims are taken together: cuts between so few leave ranks unequal shares.
constexpr int64_t kFewRows = 16;

// Of a parameter whose first dim gives ranks few rows (experts), the dims whose indices count as rows instead: as many
// as it takes, but not the last.
std::vector<int64_t> row_dims(const layout::SpecData& compute, int64_t parts) {
  std::vector<int64_t> dims = {0};
  int64_t rows = compute.sizes[0];
  for (int64_t dim = 1; dim + 1 < compute.ndim() && rows < kFewRows * parts; ++dim) {
    dims.push_back(dim);
    rows *= compute.sizes[dim];
  }
  const bool are_whole = std::none_of(dims.begin(), dims.end(), [&](int64_t dim) { return compute.is_cut(dim); });
  return are_whole ? dims : std::vector<int64_t>{0};
}

// The most rows that an axis beside those which cut the parameter leaves to a rank, and the most elements of each.
GroupMember member_of(const layout::Spec& compute, const std::vector<int64_t>& row_dims) {
  const auto most = layout::sizes_in_runs(compute.largest_sizes(), row_dims.back());
  return {most[row_dims.back()], c10::multiply_integers(most.begin() + row_dims.back() + 1, most.end())};
}

class ShardedStyle {
 public:
  ShardedStyle(Draft& draft, std::vector<int64_t> axes)
      : draft_(draft),
        mesh_(draft.plan.mesh),
        axes_(std::move(axes)),
        held_(static_cast<size_t>(mesh_.axis(axes_.front()).size)) {}

  void run() {
    std::map<GroupKey, std::vector<NamedTensor>> groups;
    for (const NamedTensor& named : draft_.parameters()) {
      if (draft_.is_whole(named)) {
        continue;
      }
      TESSERA_CHECK_AS(
          PlanError, axes_.size() > 1 || draft_.wanted_of(named).sharding != Sharding::kSecondary, "[plan] sharding \"",
          name_of(Sharding::kSecondary), "\" on mesh ", mesh_.str(),
          ": one axis shards, so that no ranks are near each other; accepted: two, of which the last holds "
          "those that are, such as dp_shard=2,fsdp=4");
      const std::string wanted = draft_.wanted_of(named).group, group = wanted.empty() ? group_of(named.name) : wanted;
      if (named.tensor.dim() == 0) {
        draft_.note(general(named.name) + " stays whole: it has no rows");
      } else if (!is_in(named.name, group) || is_read_elsewhere(draft_.entry(named.name))) {
        plan_even(named, "");
      } else if (axes_.size() > 1 || row_blocks(draft_.entry(named.name).storage) > 1) {
        plan_even(named, general(group));
      } else {
        groups[{group, named.tensor.scalar_type(), stage_of(draft_.entry(named.name))}].push_back(named);
      }
    }
    for (const auto& [key, members] : groups) {
      plan_group(general(key.name), members);
    }
    note_waste();
  }

 private:
  struct GroupKey {
    std::string name;
    at::ScalarType dtype;
    int64_t stage;  // of a pipeline
    auto operator<=>(const GroupKey&) const = default;
  };

  // -1: the mesh has no stages.
  static int64_t stage_of(const ParameterPlan& entry) {
    const auto found =
        std::find_if(entry.storage.begin(), entry.storage.end(), [](const Placement& place) { return place.is_on(); });
    return found == entry.storage.end() ? -1 : found->stage;
  }

  // What other stages read they get in parts.
  static bool is_read_elsewhere(const ParameterPlan& entry) { return entry.compute.has_value(); }

  // Rows cut evenly. Cuts that are interleaved, or over several axes, leave a rank several runs: the group copies them.
  // A tied parameter that is in its group by another name than its first, or one that is read on several stages, is in
  // none and gathered alone.
  void plan_even(const NamedTensor& named, const std::string& group) {
    ParameterPlan& entry = draft_.entry(named.name);
    const Placements compute = entry.storage;
    const Sharding sharding = draft_.wanted_of(named).sharding;
    std::vector<int64_t> axes = axes_;
    if (sharding == Sharding::kSecondary) {
      std::rotate(axes.begin(), axes.end() - 1, axes.end());  // the part that stays is one run of rows
    }
    for (const int64_t axis : axes) {
      entry.storage = cut_rows(mesh_, entry.storage, axis, layout::Shard(0, {.blocks = row_blocks(compute)}));
    }
    entry.group = group;
    plan_states(entry, compute, sharding);
  }

  void plan_group(const std::string& group, const std::vector<NamedTensor>& members) {
    const int64_t axis = axes_.front(), parts = mesh_.axis(axis).size;
    std::vector<GroupMember> sizes;
    std::vector<std::vector<int64_t>> dims;
    for (const NamedTensor& named : members) {
      const auto compute = layout::Spec::contiguous(mesh_, draft_.entry(named.name).storage, named.tensor.sizes(),
                                                    named.tensor.scalar_type());
      // `exact` adds up a gradient's squares row by row, and a row is whole at a rank.
      dims.push_back(draft_.options.lattice ? std::vector<int64_t>{0} : row_dims(*compute, parts));
      sizes.push_back(member_of(compute, dims.back()));
    }
    const auto rows = cut_group(sizes, parts);
    for (size_t i = 0; i < members.size(); ++i) {
      ParameterPlan& entry = draft_.entry(members[i].name);
      const Placements compute = entry.storage;
      entry.storage = cut_rows(mesh_, entry.storage, axis, layout::RaggedShard(dims[i], rows[i]));
      for (size_t part = 0; part < held_.size(); ++part) {
        held_[part] += rows[i][part] * sizes[i].columns;
      }
      entry.group = group;
      plan_states(entry, compute, draft_.wanted_of(members[i]).sharding);
    }
  }

  // What it costs that a group is cut between whole rows, where that is much.
  void note_waste() {
    const int64_t all = std::accumulate(held_.begin(), held_.end(), int64_t{0});
    const double equal = static_cast<double>(all) / static_cast<double>(held_.size());
    const double most = static_cast<double>(*std::max_element(held_.begin(), held_.end()));
    if (most > kMostWaste * equal) {
      draft_.note(c10::str("rows stay whole: of what ", mesh_.axis(axes_.front()).name, "=", held_.size(),
                           " shards in groups the rank that keeps most has ", std::llround(100 * most / equal - 100),
                           "% more than an equal share"));
    }
  }

  Placements without_axes(Placements placements, const std::vector<int64_t>& axes) const {
    for (const int64_t axis : axes) {
      placements[static_cast<size_t>(axis)] = layout::Replicate();
    }
    return layout::normal_form(mesh_, placements);
  }

  void plan_states(ParameterPlan& entry, const Placements& compute, Sharding sharding) const {
    entry.compute = entry.compute.value_or(compute);
    if (sharding == Sharding::kSecondary) {
      entry.kept = without_axes(entry.storage, {axes_.begin(), axes_.end() - 1});
    } else if (sharding != Sharding::kParameters) {
      entry.kept = compute;
    }
    entry.gradient = sharding == Sharding::kState ? compute : entry.storage;
    for (const auto& name : draft_.plan.batch_axes) {
      Placement& placement = (*entry.gradient)[static_cast<size_t>(mesh_.axis_index(name))];
      placement = placement.is_shard() ? placement : layout::Partial();
    }
  }

  Draft& draft_;
  const layout::Mesh& mesh_;
  const std::vector<int64_t> axes_;
  std::vector<int64_t> held_;  // elements of groups, by coordinate of the first axis
};

}  // namespace

void plan_sharded(Draft& draft) {
  if (auto axes = draft.wide_axes(layout::AxisRole::kSharded); !axes.empty()) {
    ShardedStyle(draft, std::move(axes)).run();
  }
}

}  // namespace tessera::plan
