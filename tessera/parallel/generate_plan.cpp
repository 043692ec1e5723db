#include "tessera/parallel/generate_plan.h"

#include <algorithm>
#include <numeric>

#include "tessera/base/error.h"
#include "tessera/base/text.h"
#include "tessera/dtensor/state/state.h"
#include "tessera/layout/axis_role.h"
#include "tessera/parallel/roles.h"

namespace tessera::parallel {
namespace {

// Of the attention that a group of Linears belongs to; none: unknown.
struct Heads {
  int64_t queries = 0;
  int64_t keys = 0;
  bool are_given = false;  // by the caller, not by the model
};

// Heads in whole groups, when a group of Linears is attention: what the cuts of Q (and of the product that reads it)
// and of K and V fall on.
struct AttentionCut {
  int64_t query_unit = 1;
  int64_t key_unit = 1;
  bool keeps_keys_whole = false;
  bool keeps_all_whole = false;
  bool is_fused = false;
};

std::string weight_of(const std::string& module) { return module.empty() ? "weight" : module + ".weight"; }
std::string bias_of(const std::string& module) { return module.empty() ? "bias" : module + ".bias"; }

// Every all-digit part as `*`: `layers.*.mlp.up.weight`.
std::string general(const std::string& name) {
  return base::join(base::split(name, '.'), ".", [](std::ostream& out, const std::string& part) {
    out << (base::try_parse_int(part) ? "*" : part);
  });
}

// The same remark about every layer is made once.
void add_note(Plan& plan, const std::string& note) {
  if (std::find(plan.notes.begin(), plan.notes.end(), note) == plan.notes.end()) {
    plan.notes.push_back(note);
  }
}

int64_t head_dim_of(const LinearGroup& group, const Heads& heads) {
  return heads.queries > 0 && group.row && group.row->in % heads.queries == 0 ? group.row->in / heads.queries : 0;
}

// Separate Q, K and V, or one fused product of them, read by the output product.
bool is_attention(const LinearGroup& group, const Heads& heads) {
  const auto head_dim = head_dim_of(group, heads);
  if (head_dim == 0) {
    return false;
  }
  const auto& columns = group.columns;
  const auto keys = heads.keys * head_dim, queries = heads.queries * head_dim;
  if (columns.size() == 1) {
    return columns[0].out == queries + 2 * keys;
  }
  const auto makes = [&](int64_t width) {
    return std::count_if(columns.begin(), columns.end(), [&](const LinearInfo& linear) { return linear.out == width; });
  };
  return columns.size() == 3 && (keys == queries ? makes(queries) == 3 : makes(queries) == 1 && makes(keys) == 2);
}

class Generator {
 public:
  Generator(const ModuleTree& model, const PlanOptions& options) : model_(model), options_(options) {
    options_.kv_heads = options.kv_heads > 0 ? options.kv_heads : options.heads;
    TESSERA_CHECK_AS(PlanError, options.devices >= 1 && options.heads >= 0 && options.kv_heads >= 0,
                     "[generate_plan] devices ", options.devices, ", heads ", options.heads, ", kv_heads ",
                     options.kv_heads,
                     "; accepted: at least one device, and numbers of heads that are not negative (0: unknown)");
    TESSERA_CHECK_AS(PlanError, options.heads > 0 ? options.heads % options_.kv_heads == 0 : options.kv_heads == 0,
                     "[generate_plan] heads ", options.heads, " with kv_heads ", options.kv_heads,
                     "; accepted: heads a multiple of kv_heads, or neither given");
  }

  Plan run() {
    roles_ = find_roles(model_);
    plan_.mesh = options_.mesh ? *options_.mesh : choose_mesh();
    if (!options_.keep_gathered) {
      plan_.keep_gathered_bytes = 1;  // the largest activation is unknown here: only the newest gathered tensor stays
    }
    plan_.batch_axes = layout::axes_of(plan_.mesh, layout::AxisRole::kData);
    for (const auto& axis : layout::axes_of(plan_.mesh, layout::AxisRole::kTensor)) {
      tensor_axis_ = plan_.mesh.axis_index(axis);
      ranks_ = plan_.mesh.axis(*tensor_axis_).size;
    }
    if (ranks_ > 1) {
      plan_embeddings();
      std::for_each(roles_.groups.begin(), roles_.groups.end(),
                    [this](const LinearGroup& group) { plan_group(group); });
      for (const auto& name : roles_.unknown) {
        add_note(plan_, general(name) + " stays whole: it belongs to no Linear and no Embedding");
      }
    }
    collapse();
    return std::move(plan_);
  }

 private:
  // Data parallelism first: no more of it than the lattice has leaves of a batch, and tensor parallelism for the rest.
  layout::Mesh choose_mesh() {
    const int64_t devices = options_.devices;
    if (devices == 1) {
      return {};
    }
    int64_t ranks = 1;
    while (options_.lattice && (devices % ranks != 0 || devices / ranks > options_.lattice->batch)) {
      ++ranks;
    }
    TESSERA_CHECK_AS(PlanError, ranks == 1 || ranks <= options_.lattice->feature, "[generate_plan] no mesh of ",
                     devices, " ranks fits the lattice ", options_.lattice->str(),
                     "; accepted: a lattice with batch=", devices, ", or fewer ranks: dp of at most ",
                     options_.lattice->batch, " times tp of at most ", options_.lattice->feature);
    std::vector<layout::Axis> axes;
    if (devices > ranks) {
      axes.push_back({layout::name_of(layout::AxisRole::kData), devices / ranks});
    }
    if (ranks > 1) {
      axes.push_back({layout::name_of(layout::AxisRole::kTensor), ranks});
    }
    layout::Mesh mesh(axes);
    add_note(plan_, "mesh {" + mesh.str() + "} chosen for " + std::to_string(devices) +
                        " ranks, data parallelism first; another is given as the mesh");
    return mesh;
  }

  layout::Placements on_tensor_axis(layout::Placement placement) const {
    layout::Placements placements(static_cast<size_t>(plan_.mesh.ndim()));
    placements[static_cast<size_t>(*tensor_axis_)] = placement;
    return placements;
  }

  // Under sequence parallelism where what the norms and the residual sum read lies: [batch, sequence, ...] with the
  // batch cut by the batch axes and the sequence by tp.
  std::optional<layout::Placements> sequence_shards() const {
    if (!options_.sequence_parallel) {
      return {};
    }
    auto placements = on_tensor_axis(layout::Shard(1));
    for (const auto& axis : plan_.batch_axes) {
      placements[static_cast<size_t>(plan_.mesh.axis_index(axis))] = layout::Shard(0);
    }
    return placements;
  }

  void add(const std::string& name, layout::Placement placement, std::optional<layout::Placements> output = {}) {
    plan_.parameters.push_back({name, on_tensor_axis(placement), {}, std::move(output)});
  }

  // Says so when `width` does not fall into equal parts of whole units.
  void note_cut(const std::string& name, int64_t width, int64_t unit) {
    if (width % (unit * ranks_) == 0) {
      return;
    }
    std::vector<int64_t> parts;
    const layout::Cut cut(width, ranks_, unit);
    for (int64_t i = 0; i < ranks_; ++i) {
      parts.push_back(cut[i].size());
    }
    add_note(plan_, general(name) + ": " + std::to_string(width) +
                        (unit > 1 ? " in units of " + std::to_string(unit) : "") + " over " + std::to_string(ranks_) +
                        " ranks is uneven: " + base::join(parts, ", "));
  }

  void plan_embeddings() {
    const auto output = sequence_shards();
    for (const auto& embedding : roles_.embeddings) {
      if (!embedding.is_position) {
        const auto unit = whole_leaves(1, embedding.rows);
        note_cut(weight_of(embedding.name), embedding.rows, unit);
        add(weight_of(embedding.name), layout::Shard(0, {.unit = unit}), output);
      } else if (output) {
        add(weight_of(embedding.name), layout::Replicate(), output);
      }
    }
  }

  Heads heads_of(const LinearGroup& group) const {
    const auto& first = group.columns.front();
    return options_.heads > 0 ? Heads{options_.heads, options_.kv_heads, true}
                              : Heads{first.heads, first.kv_heads, false};
  }

  AttentionCut attention_cut(const LinearGroup& group, const Heads& heads) {
    const auto head_dim = head_dim_of(group, heads);
    const auto per_key = heads.queries / heads.keys;
    AttentionCut cut{per_key * head_dim, head_dim};
    if (group.columns.size() == 1) {
      cut.is_fused = true;
      cut.key_unit = group.columns[0].out / heads.keys;
    } else if (heads.keys < ranks_) {
      cut.keeps_keys_whole = heads.queries > heads.keys;
      cut.query_unit = head_dim;
    }
    widen_to_leaves(cut, group);
    // The gradients of keys and values that are whole are cut between their heads all the same.
    const bool cuts_leaves =
        cut.keeps_keys_whole && heads.keys > 1 && whole_leaves(head_dim, heads.keys * head_dim) != head_dim;
    cut.keeps_all_whole = options_.lattice && (cuts_leaves || cut.query_unit >= group.row->in);
    note_whole(cut, group, heads);
    return cut;
  }

  void note_whole(const AttentionCut& cut, const LinearGroup& group, const Heads& heads) {
    const auto of_heads = std::to_string(heads.queries) + " query and " + std::to_string(heads.keys) +
                          " key/value heads for " + std::to_string(ranks_) + " ranks: ";
    if (cut.keeps_all_whole) {
      add_note(plan_,
               general(group.row->name) + ": " + of_heads +
                   "this attention stays whole, as no cut between its heads falls between leaves of the lattice " +
                   options_.lattice->str());
    } else if (cut.keeps_keys_whole) {
      add_note(plan_,
               general(group.row->name) + ": " + of_heads + "K and V stay whole, queries are cut by single heads");
    }
  }

  // The smallest multiple of `unit` at which cuts of `width` fall between the lattice's leaves.
  int64_t whole_leaves(int64_t unit, int64_t width) const {
    return options_.lattice ? std::lcm(unit, layout::leaf_unit(width, options_.lattice->feature)) : unit;
  }

  // Queries and keys are cut alike: as many heads more as both need.
  void widen_to_leaves(AttentionCut& cut, const LinearGroup& group) const {
    if (!options_.lattice) {
      return;
    }
    const auto times = [&](int64_t unit, int64_t width) { return whole_leaves(unit, width) / unit; };
    int64_t scale = times(cut.query_unit, group.row->in);
    for (const auto& linear : group.columns) {
      const bool is_query = !cut.is_fused && linear.out == group.row->in;
      if (is_query || !cut.keeps_keys_whole) {
        scale = std::lcm(scale, times(is_query ? cut.query_unit : cut.key_unit, linear.out));
      }
    }
    cut.query_unit *= scale;
    cut.key_unit *= scale;
  }

  // Fused products that lie one after the other, and of which a part is read: 3 for Q, K and V, 2 for a gate and what
  // it gates; else 1. 0: fused in an order that is not known, or that this plan cannot cut.
  int64_t blocks_of(const LinearGroup& group, const Heads& heads) const {
    if (group.columns.size() != 1 || !group.row) {
      return 1;
    }
    const LinearInfo& linear = group.columns[0];
    if (is_attention(group, heads)) {
      const bool is_by_heads =
          linear.name.ends_with("query_key_value");  // so named where the rows are in the order of the heads
      const bool are_blocks = heads.keys == heads.queries && !is_by_heads && !options_.lattice;
      return heads.are_given ? 1 : are_blocks ? 3 : 0;
    }
    return linear.out == 2 * group.row->in && !options_.lattice ? 2 : 1;
  }

  void plan_fused(const LinearGroup& group, const Heads& heads, int64_t blocks) {
    const LinearInfo& linear = group.columns[0];
    const int64_t unit = is_attention(group, heads) ? head_dim_of(group, heads) : 1;
    add(weight_of(linear.name), layout::InterleavedShard(linear.is_transposed ? 1 : 0, blocks, {.unit = unit}));
    if (linear.has_bias) {
      add(bias_of(linear.name), layout::InterleavedShard(0, blocks, {.unit = unit}));
    }
    plan_row(*group.row, unit);
  }

  void plan_row(const LinearInfo& row, int64_t unit) {
    note_cut(weight_of(row.name), row.in, unit);
    add(weight_of(row.name), layout::Shard(row.is_transposed ? 0 : 1, {.unit = unit}), sequence_shards());
  }

  void plan_group(const LinearGroup& group) {
    const auto heads = heads_of(group);
    const int64_t blocks = blocks_of(group, heads);
    if (blocks == 0) {
      add_note(
          plan_,
          general(weight_of(group.columns[0].name)) +
              " stays whole: fused Q, K and V whose order is not known, or not to be cut in "
              "`exact`; with their rows in the order of the heads, and `heads` and `kv_heads` given, they are cut");
      return;
    }
    if (blocks > 1) {
      plan_fused(group, heads, blocks);
      return;
    }
    const bool has_heads = is_attention(group, heads);
    const auto cut = has_heads ? attention_cut(group, heads) : AttentionCut();
    if (cut.keeps_all_whole) {
      if (const auto output = sequence_shards()) {
        add(weight_of(group.row->name), layout::Replicate(), output);
      }
      return;
    }
    for (const auto& linear : group.columns) {
      plan_column(group, linear, cut, has_heads);
    }
    if (group.row) {
      plan_row(*group.row, has_heads ? cut.query_unit : whole_leaves(cut.query_unit, group.row->in));
    }
  }

  void plan_column(const LinearGroup& group, const LinearInfo& linear, const AttentionCut& cut, bool has_heads) {
    // With as many key heads as query heads all three have one width, and one unit.
    const bool is_query = has_heads && !cut.is_fused && linear.out == group.row->in;
    if (has_heads && !is_query && !cut.is_fused && cut.keeps_keys_whole) {
      return;
    }
    const auto head_unit = is_query ? cut.query_unit : cut.key_unit;
    const auto unit = has_heads ? head_unit : whole_leaves(head_unit, linear.out);
    if (group.row && group.columns.size() == 1 && !has_heads && linear.out == 3 * group.row->in) {
      add_note(plan_, general(weight_of(linear.name)) +
                          " looks like fused Q, K and V: without `heads` its cuts may fall "
                          "inside a head, which costs communication; give `heads` and `kv_heads`");
    }
    note_cut(weight_of(linear.name), linear.out, unit);
    add(weight_of(linear.name), layout::Shard(linear.is_transposed ? 1 : 0, {.unit = unit}));
    if (linear.has_bias) {
      add(bias_of(linear.name), layout::Shard(0, {.unit = unit}));
    }
  }

  // Entries that differ in layer numbers only become one, where its pattern then means the same for every parameter.
  void collapse() {
    const auto entries = std::exchange(plan_.parameters, {});
    std::map<std::string, const ParameterPlan*> exact;
    for (const auto& named : tensors_of(model_)) {
      if (named.is_parameter) {
        exact[named.name] = nullptr;
      }
    }
    for (const auto& entry : entries) {
      exact[entry.pattern] = &entry;
    }
    std::map<std::string, bool> verdicts;
    const auto means_the_same = [&](const ParameterPlan& wide) {
      return std::all_of(exact.begin(), exact.end(), [&](const auto& named) {
        const auto* entry = named.second;
        return !matches(wide.pattern, named.first) ||
               (entry != nullptr && entry->storage == wide.storage && entry->output == wide.output);
      });
    };
    for (const auto& entry : entries) {
      auto wide = entry;
      wide.pattern = general(entry.pattern);
      const auto [verdict, is_new] = verdicts.try_emplace(wide.pattern, false);
      if (is_new) {
        verdict->second = means_the_same(wide);
      }
      if (is_new || !verdict->second) {
        plan_.parameters.push_back(verdict->second ? wide : entry);
      }
    }
  }

  const ModuleTree& model_;
  PlanOptions options_;
  ModelRoles roles_;
  Plan plan_;
  std::optional<int64_t> tensor_axis_;
  int64_t ranks_ = 1;
};

// A rank that sums exactly has said its lattice already.
PlanOptions with_lattice_of_rank(PlanOptions options) {
  const auto* rank = dtensor::RankState::current();
  if (rank && rank->exact.lattice()) {
    TESSERA_CHECK_AS(PlanError, !options.lattice || options.lattice == rank->exact.lattice(),
                     "[generate_plan] lattice ", options.lattice->str(), ", but this rank's numerics are exact on ",
                     rank->exact.lattice()->str(), "; accepted: that one, or none: it is taken from the numerics");
    options.lattice = rank->exact.lattice();
  }
  return options;
}

}  // namespace

Plan generate_plan(const ModuleTree& model, const PlanOptions& options) {
  return Generator(model, with_lattice_of_rank(options)).run();
}

Plan generate_plan(const torch::nn::Module& model, const PlanOptions& options) {
  return generate_plan(describe(model), options);
}

}  // namespace tessera::parallel
