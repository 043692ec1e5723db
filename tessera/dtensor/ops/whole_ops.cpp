#include "tessera/dtensor/ops/whole_ops.h"

#include <unordered_set>

namespace tessera::dtensor {

bool is_whole_op(const std::string& op) {
  // clang-format off
  static const std::unordered_set<std::string> ops = {
      "aten::_chunk_cat", "aten::_ctc_loss", "aten::_ctc_loss.Tensor", "aten::_ctc_loss_backward", "aten::_ctc_loss_backward.Tensor",
      "aten::_dirichlet_grad", "aten::_embedding_bag", "aten::_embedding_bag_backward", "aten::_embedding_bag_dense_backward",
      "aten::_embedding_bag_forward_only", "aten::_embedding_bag_per_sample_weights_backward", "aten::_histogramdd_bin_edges",
      "aten::_histogramdd_from_bin_cts", "aten::_histogramdd_from_bin_tensors", "aten::_linalg_check_errors", "aten::_linalg_det",
      "aten::_linalg_eigh", "aten::_linalg_eigvals", "aten::_linalg_slogdet", "aten::_linalg_solve_ex", "aten::_linalg_svd",
      "aten::_pack_padded_sequence", "aten::_pdist_backward", "aten::_pdist_forward", "aten::_segment_reduce_backward", "aten::_trilinear",
      "aten::_unsafe_masked_index", "aten::_unsafe_masked_index_put_accumulate", "aten::block_diag", "aten::channel_shuffle", "aten::cholesky",
      "aten::cholesky_inverse", "aten::cholesky_solve", "aten::diag_embed", "aten::fractional_max_pool2d", "aten::fractional_max_pool2d_backward",
      "aten::fractional_max_pool3d", "aten::fractional_max_pool3d_backward", "aten::geqrf", "aten::hash_tensor", "aten::histc",
      "aten::histogram.bin_ct", "aten::histogram.bins_tensor", "aten::linalg_cholesky_ex", "aten::linalg_cross", "aten::linalg_eig",
      "aten::linalg_householder_product", "aten::linalg_inv_ex", "aten::linalg_ldl_factor_ex", "aten::linalg_ldl_solve", "aten::linalg_lstsq",
      "aten::linalg_lu", "aten::linalg_lu_factor_ex", "aten::linalg_lu_solve", "aten::linalg_matrix_exp", "aten::linalg_pinv.atol_rtol_tensor",
      "aten::linalg_solve_triangular", "aten::linspace.Scalar_Tensor", "aten::linspace.Tensor_Scalar", "aten::linspace.Tensor_Tensor",
      "aten::logspace.Scalar_Tensor", "aten::logspace.Tensor_Scalar", "aten::logspace.Tensor_Tensor", "aten::lu_unpack",
      "aten::masked_scatter_backward", "aten::multi_margin_loss", "aten::multi_margin_loss_backward", "aten::multilabel_margin_loss_backward",
      "aten::multilabel_margin_loss_forward", "aten::narrow_copy", "aten::nonzero_static", "aten::ormqr", "aten::renorm", "aten::rot90",
      "aten::segment_reduce", "aten::triangular_solve", "aten::vdot",
  };
  // clang-format on
  return ops.contains(op);
}

bool is_plain_result(const std::string& op, size_t index) { return op == "aten::_pack_padded_sequence" && index == 1; }

}  // namespace tessera::dtensor
