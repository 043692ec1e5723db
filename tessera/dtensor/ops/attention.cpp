#include "tessera/dtensor/ops/attention.h"

#include <numeric>

#include "tessera/dtensor/ops/attention_op.h"
#include "tessera/dtensor/ops/attention_parts.h"
#include "tessera/dtensor/ops/fused_attention.h"
#include "tessera/dtensor/record/kernel_registry.h"
#include "tessera/dtensor/record/meta.h"
#include "tessera/dtensor/record/node.h"
#include "tessera/dtensor/state/state.h"
#include "tessera/rules/exact/exact.h"
#include "tessera/rules/exact/narrow.h"

namespace tessera::dtensor {

namespace {

bool is_wide(c10::ScalarType type) { return type == at::kFloat || type == at::kDouble; }

// Samples, heads and positions that fit each other as the kernels without matrices take them.
bool fits_kernels(const at::Tensor& query, const at::Tensor& key, const at::Tensor& value, bool with_groups) {
  for (const at::Tensor* x : {&query, &key, &value}) {
    if (!is_dtensor(*x) || !meta_of(*x)->spec || meta_of(*x)->parameter || x->dim() != 4 || x->numel() == 0 ||
        !x->is_cpu()) {
      return false;
    }
    if (x->scalar_type() != query.scalar_type() || meta_of(*x)->spec->mesh != meta_of(query)->spec->mesh) {
      return false;
    }
  }
  const bool are_heads = with_groups ? query.size(1) % key.size(1) == 0 : query.size(1) == key.size(1);
  return are_heads && query.size(0) == key.size(0) && query.size(0) == value.size(0) && key.size(1) == value.size(1) &&
         key.size(2) == value.size(2) && query.size(3) == key.size(3);
}

bool is_mask_of_operator(const at::Tensor& mask, const at::Tensor& query, const at::Tensor& key) {
  if (mask.requires_grad() || mask.dim() > 4 ||
      (mask.scalar_type() != at::kBool && mask.scalar_type() != query.scalar_type())) {
    return false;
  }
  const int64_t sizes[] = {query.size(0), query.size(1), query.size(2), key.size(2)};
  for (int64_t d = 1; d <= mask.dim(); ++d) {
    if (mask.size(-d) != 1 && mask.size(-d) != sizes[4 - d]) {
      return false;
    }
  }
  return true;
}

const layout::DimLabels& labels_of(const at::Tensor& x, int64_t dim) {
  static const layout::DimLabels none;
  const layout::Labels& labels = meta_of(x)->spec->labels;
  return labels.empty() ? none : labels[dim];
}

// Samples stand in the first dim and positions in the third, or nowhere: then each sum of the parts is over one of
// them.
bool are_labels_in_place(const at::Tensor& x) {
  for (int64_t d = 0; d < 4; ++d) {
    const layout::DimLabels& labels = labels_of(x, d);
    if ((d != 0 && rules::counts_samples(labels)) || (d != 2 && rules::counts_positions(labels))) {
      return false;
    }
  }
  return true;
}

// Whether those kernels can run where the tensor is: cut between samples and groups of heads alone.
bool is_cut_in_place(const at::Tensor& x, int64_t key_heads) {
  const layout::SpecData& spec = *meta_of(x)->spec;
  if (spec.is_cut(2) || spec.is_cut(3)) {
    return false;
  }
  int64_t parts = 1, unit = 1;
  bool has_even_cuts = true;
  for (int64_t axis : spec.axes_of(1)) {
    parts *= spec.mesh.axis(axis).size;
    unit = std::lcm(unit, spec.placements[axis].places.unit());
    has_even_cuts &= !spec.placements[axis].is_ragged();
  }
  return parts == 1 || x.size(1) == key_heads ||
         (has_even_cuts && key_heads % parts == 0 && x.size(1) % (parts * unit) == 0);
}

// In `exact` numerics the bits are those of the parts (their leaves follow from labels and sizes), so this may look at
// layouts.
bool runs_by_blocks(const at::Tensor& query, const at::Tensor& key, const at::Tensor& value,
                    const std::optional<at::Tensor>& mask) {
  const bool is_known =
      is_wide(query.scalar_type()) || (rules::is_narrow(query.scalar_type()) && RankState::require().exact.lattice());
  if (!is_known || (mask && !is_mask_of_operator(*mask, query, key))) {
    return false;
  }
  return !RankState::require().exact.lattice() ||
         (are_labels_in_place(query) && are_labels_in_place(key) && are_labels_in_place(value));
}

bool runs_fused(const at::Tensor& query, const at::Tensor& key, const at::Tensor& value,
                const std::optional<at::Tensor>& mask) {
  const bool is_plain = !has_tangent(query) && !has_tangent(key) && !has_tangent(value);
  return !RankState::require().exact.lattice() && !mask && is_plain &&
         (is_wide(query.scalar_type()) || rules::is_narrow(query.scalar_type())) && query.size(3) == value.size(3);
}

// Whether a kernel without matrices may take the call where its tensors are.
bool is_in_place(const at::Tensor& query, const at::Tensor& key, const at::Tensor& value,
                 const AttentionParts& options) {
  return RankState::current() && options.dropout == 0 && fits_kernels(query, key, value, options.with_groups) &&
         is_cut_in_place(query, key.size(1)) && is_cut_in_place(key, key.size(1)) &&
         is_cut_in_place(value, key.size(1));
}

std::array<int64_t, 3> leaves_of(const std::optional<sums::Lattice>& of_exact, const at::Tensor& query,
                                 const at::Tensor& key, const at::Tensor& value) {
  if (!of_exact) {
    return {};
  }
  const sums::Lattice& lattice = *of_exact;
  const bool of_keys = rules::counts_positions(labels_of(key, 2)) || rules::counts_positions(labels_of(value, 2));
  const bool of_queries = rules::counts_positions(labels_of(query, 2));
  const int64_t times = query.size(1) / key.size(1);
  return {of_keys ? sums::leaf_length(key.size(2), lattice.sequence) : 0,
          of_queries ? sums::leaf_length(query.size(2), lattice.sequence) : 0,
          sums::leaf_length(times, lattice.feature)};
}

at::Tensor attention_kernel(const at::Tensor& query, const at::Tensor& key, const at::Tensor& value,
                            const std::optional<at::Tensor>& mask, double dropout, bool is_causal,
                            std::optional<double> scale, bool with_groups) {
  const AttentionParts parts{.dropout = dropout,
                             .is_causal = is_causal,
                             .scale = scale,
                             .with_groups = with_groups,
                             .widens = RankState::current() && RankState::current()->exact.lattice()};
  if (!is_in_place(query, key, value, parts)) {
    return attention_by_parts(query, key, value, mask, parts);
  }
  verify_attention(query, key, value, mask, parts);
  if (runs_fused(query, key, value, mask)) {
    const int64_t heads = query.size(1);
    return fused_attention(query, repeat_heads(key, heads), repeat_heads(value, heads), is_causal,
                           attention_scale(query, scale));
  }
  if (!runs_by_blocks(query, key, value, mask)) {
    return attention_by_parts(query, key, value, mask, parts);
  }
  return attention(query, key, value,
                   {.mask = mask,
                    .is_causal = is_causal,
                    .scale = attention_scale(query, scale),
                    .leaves = leaves_of(RankState::require().exact.lattice(), query, key, value)});
}

}  // namespace

void register_attention_kernel(KernelRegistry& registry) {
  for (torch::Library* library : registry.before_autograd()) {
    library->impl("scaled_dot_product_attention", TORCH_FN(attention_kernel));
  }
}

}  // namespace tessera::dtensor
