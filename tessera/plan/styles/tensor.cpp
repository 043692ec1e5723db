// Tensor parallelism: the split alternates along products that follow each other, attention is cut between heads,
// tables of tokens and the head along the vocabulary.
#include <algorithm>
#include <numeric>

#include "tessera/base/text.h"
#include "tessera/layout/cut.h"
#include "tessera/plan/draft.h"
#include "tessera/plan/heads.h"

namespace tessera::plan {
namespace {

// Heads in whole groups, when a group of Linears is attention: what the cuts of Q (and of the product that reads it)
// and of K and V fall on.
struct AttentionCut {
  int64_t query_unit = 1;
  int64_t key_unit = 1;
  bool keeps_keys_whole = false;
  bool keeps_all_whole = false;
  bool is_fused = false;
};

class TensorStyle {
 public:
  TensorStyle(Draft& draft, int64_t axis) : draft_(draft), axis_(axis), ranks_(draft.plan.mesh.axis(axis).size) {}

  void run() {
    for (const auto& embedding : draft_.roles.embeddings) {
      plan_embedding(embedding);
    }
    for (const auto& group : draft_.roles.groups) {
      plan_group(group);
    }
    for (const auto& adapter : draft_.roles.adapters) {
      plan_adapter(adapter);
    }
  }

 private:
  void place(const std::string& name, layout::Placement placement) {
    draft_.entry(name).storage[static_cast<size_t>(axis_)] = placement;
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
    draft_.note(general(name) + ": " + std::to_string(width) +
                (unit > 1 ? " in units of " + std::to_string(unit) : "") + " over " + std::to_string(ranks_) +
                " ranks is uneven: " + base::join(parts, ", "));
  }

  void plan_embedding(const EmbeddingInfo& embedding) {
    if (embedding.is_position) {
      return;
    }
    const auto unit = whole_leaves(1, embedding.rows);
    note_cut(embedding.weight(), embedding.rows, unit);
    place(embedding.weight(), layout::Shard(0, {.unit = unit}));
  }

  // Where its layer is cut, so is what it reads or makes of the same features.
  void plan_adapter(const AdapterInfo& adapter) {
    const auto& layer = draft_.entry(adapter.layer).storage[static_cast<size_t>(axis_)];
    if (const layout::Placement own = placement_beside(adapter, layer); own.is_shard()) {
      place(adapter.name, own);
    }
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
    cut.keeps_all_whole = draft_.options.lattice && (cuts_leaves || cut.query_unit >= group.row->in);
    note_whole(cut, group, heads);
    return cut;
  }

  void note_whole(const AttentionCut& cut, const LinearGroup& group, const Heads& heads) {
    const auto of_heads = std::to_string(heads.queries) + " query and " + std::to_string(heads.keys) +
                          " key/value heads for " + std::to_string(ranks_) + " ranks: ";
    if (cut.keeps_all_whole) {
      draft_.note(general(group.row->name) + ": " + of_heads +
                  "this attention stays whole, as no cut between its heads falls between leaves of the lattice " +
                  draft_.options.lattice->str());
    } else if (cut.keeps_keys_whole) {
      draft_.note(general(group.row->name) + ": " + of_heads + "K and V stay whole, queries are cut by single heads");
    }
  }

  // The smallest multiple of `unit` at which cuts of `width` fall between the lattice's leaves.
  int64_t whole_leaves(int64_t unit, int64_t width) const {
    return draft_.options.lattice ? std::lcm(unit, sums::leaf_unit(width, draft_.options.lattice->feature)) : unit;
  }

  // Queries and keys are cut alike: as many heads more as both need.
  void widen_to_leaves(AttentionCut& cut, const LinearGroup& group) const {
    if (!draft_.options.lattice) {
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

  void plan_fused(const LinearGroup& group, const Heads& heads, int64_t blocks) {
    const LinearInfo& linear = group.columns[0];
    const int64_t unit = is_attention(group, heads) ? head_dim_of(group, heads) : 1;
    place(linear.weight(), layout::InterleavedShard(linear.out_dim(), blocks, {.unit = unit}));
    if (linear.has_bias) {
      place(linear.bias(), layout::InterleavedShard(linear.first_dim(), blocks, {.unit = unit}));
    }
    plan_row(*group.row, unit);
  }

  void plan_row(const LinearInfo& row, int64_t unit) {
    note_cut(row.weight(), row.in, unit);
    place(row.weight(), layout::Shard(row.in_dim(), {.unit = unit}));
  }

  void plan_group(const LinearGroup& group) {
    const auto heads = heads_of(group, draft_.options);
    const auto fusion = fusion_of(group, heads, draft_.options);
    if (!fusion.is_order_known) {
      draft_.note(general(group.columns[0].weight()) +
                  " stays whole: fused Q, K and V whose order is not known, or not to be cut in "
                  "`exact`; with their rows in the order of the heads, and `heads` and `kv_heads` given, they are cut");
      return;
    }
    if (fusion.blocks > 1) {
      plan_fused(group, heads, fusion.blocks);
      return;
    }
    const bool has_heads = is_attention(group, heads);
    const auto cut = has_heads ? attention_cut(group, heads) : AttentionCut();
    if (cut.keeps_all_whole) {
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
    const auto unit = has_heads ? head_unit : whole_leaves(linear.alternates ? 2 * head_unit : head_unit, linear.out);
    const bool may_be_attention = group.columns.size() == 1 && !has_heads && !linear.is_stacked;
    if (group.row && may_be_attention && linear.out == 3 * group.row->in) {
      draft_.note(general(linear.weight()) +
                  " looks like fused Q, K and V: without `heads` its cuts may fall "
                  "inside a head, which costs communication; give `heads` and `kv_heads`");
    }
    note_cut(linear.weight(), linear.out, unit);
    place(linear.weight(), layout::Shard(linear.out_dim(), {.unit = unit}));
    if (linear.has_bias) {
      place(linear.bias(), layout::Shard(linear.first_dim(), {.unit = unit}));
    }
  }

  Draft& draft_;
  const int64_t axis_;
  const int64_t ranks_;  // on the axis
};

}  // namespace

void plan_tensor(Draft& draft) {
  if (const auto axis = draft.wide_axis(layout::AxisRole::kTensor)) {
    TensorStyle(draft, *axis).run();
  }
}

}  // namespace tessera::plan
