// Functions that need all elements at once, computed on every rank from operands that are gathered, and what programs
// read or ask of a whole tensor.
#include "tessera/rules/families/families.h"

namespace tessera::rules {

namespace {

// What LAPACK computes, below autograd.
void add_linear_algebra(RuleTable& table) {
  // clang-format off
  static const std::vector<std::string> names = {
      "aten::_linalg_det", "aten::_linalg_eigh", "aten::_linalg_eigvals", "aten::_linalg_slogdet", "aten::_linalg_solve_ex",
      "aten::_linalg_svd", "aten::cholesky", "aten::cholesky_inverse", "aten::cholesky_solve", "aten::geqrf",
      "aten::linalg_cholesky_ex", "aten::linalg_eig", "aten::linalg_householder_product", "aten::linalg_inv_ex",
      "aten::linalg_ldl_factor_ex", "aten::linalg_ldl_solve", "aten::linalg_lstsq", "aten::linalg_lu",
      "aten::linalg_lu_factor_ex", "aten::linalg_lu_solve", "aten::linalg_matrix_exp", "aten::linalg_matrix_sqrth",
      "aten::linalg_pinv.atol_rtol_tensor", "aten::linalg_polar", "aten::linalg_solve_triangular", "aten::ormqr",
      "aten::triangular_solve",
  };
  // clang-format on
  for (const std::string& name : names) {
    table.add_optional(name, {.special = Special::kWhole, .caught = Caught::kLinearAlgebra});
  }
}

void add_whole_functions(RuleTable& table) {
  // clang-format off
  static const std::vector<std::string> names = {
      "aten::_chunk_cat", "aten::_dirichlet_grad", "aten::_embedding_bag", "aten::_embedding_bag_backward",
      "aten::_embedding_bag_dense_backward", "aten::_embedding_bag_forward_only",
      "aten::_embedding_bag_per_sample_weights_backward", "aten::_histogramdd_bin_edges", "aten::_histogramdd_from_bin_cts",
      "aten::_histogramdd_from_bin_tensors", "aten::_linalg_check_errors", "aten::_pdist_backward", "aten::_pdist_forward",
      "aten::_segment_reduce_backward", "aten::_trilinear", "aten::_unsafe_masked_index",
      "aten::_unsafe_masked_index_put_accumulate", "aten::block_diag", "aten::channel_shuffle", "aten::diag_embed",
      "aten::fractional_max_pool2d", "aten::fractional_max_pool2d_backward", "aten::fractional_max_pool3d",
      "aten::fractional_max_pool3d_backward", "aten::hash_tensor", "aten::histc", "aten::histogram.bin_ct",
      "aten::histogram.bins_tensor", "aten::linalg_cross", "aten::linspace.Scalar_Tensor", "aten::linspace.Tensor_Scalar",
      "aten::linspace.Tensor_Tensor", "aten::logspace.Scalar_Tensor", "aten::logspace.Tensor_Scalar",
      "aten::logspace.Tensor_Tensor", "aten::lu_unpack", "aten::masked_scatter_backward", "aten::narrow_copy",
      "aten::nonzero_static", "aten::renorm", "aten::rot90", "aten::segment_reduce", "aten::vdot",
  };
  // clang-format on
  for (const std::string& name : names) {
    table.add_optional(name, {.special = Special::kWhole});
  }
  table.add("aten::_pack_padded_sequence", {.special = Special::kWhole, .plain_result = 1});
}

// Made of others that have rows, but for what they read from memory or make.
void add_composites(RuleTable& table) {
  table.add_all({"aten::cov", "aten::linalg_matrix_rank", "aten::linalg_matrix_rank.atol_rtol_float",
                 "aten::linalg_matrix_rank.atol_rtol_tensor", "aten::linalg_matrix_rank.tol_tensor",
                 "aten::linalg_vander", "aten::one_hot", "aten::vander"},
                {.caught = Caught::kComposite});
  table.add_all({"aten::quantile", "aten::quantile.scalar"}, {.caught = Caught::kQuantile});
  table.add_all({"aten::nanquantile", "aten::nanquantile.scalar"}, {.caught = Caught::kNanQuantile});
  table.add_all(
      {"aten::_pad_packed_sequence", "aten::gru.data", "aten::lstm.data", "aten::rnn_relu.data", "aten::rnn_tanh.data"},
      {.host_values = {"batch_sizes"}});
  table.add("aten::tensor_split.tensor_indices_or_sections", {.host_values = {"tensor_indices_or_sections"}});
}

}  // namespace

void add_whole_rules(RuleTable& table) {
  add_linear_algebra(table);
  add_whole_functions(table);
  add_composites(table);
  table.add_all({"aten::_unique", "aten::_unique2", "aten::allclose", "aten::bincount", "aten::is_pinned",
                 "aten::masked_select", "aten::nonzero", "aten::repeat_interleave.Tensor", "aten::unique_consecutive",
                 "aten::unique_dim", "aten::unique_dim_consecutive"},
                {.special = Special::kValueSizes});
  table.add("aten::_local_scalar_dense", {.special = Special::kItem});
  table.add("aten::equal", {.special = Special::kEqual});
  table.add("aten::is_same_size", {.special = Special::kSameSize, .needs_no_value = true});
  table.add("aten::_has_same_storage_numel", {.special = Special::kSameStorage});
  table.add("aten::resize_", {.special = Special::kRefused, .makes = Makes::kNothing});
  table.add_all({"aten::resize_as_", "aten::set_", "aten::set_.source_Storage",
                 "aten::set_.source_Storage_storage_offset", "aten::set_.source_Tensor"},
                {.special = Special::kRefused});
}

}  // namespace tessera::rules
