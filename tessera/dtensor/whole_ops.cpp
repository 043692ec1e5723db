#include "tessera/dtensor/whole_ops.h"

#include <unordered_set>

namespace tessera::dtensor {

bool is_whole_op(const std::string& op) {
  static const std::unordered_set<std::string> ops = {
      "aten::_ctc_loss", "aten::_ctc_loss.Tensor", "aten::_ctc_loss_backward", "aten::_ctc_loss_backward.Tensor", "aten::_embedding_bag",
      "aten::_embedding_bag_backward", "aten::_embedding_bag_dense_backward", "aten::_linalg_check_errors", "aten::_linalg_det", "aten::_linalg_eigh",
      "aten::_linalg_slogdet", "aten::_linalg_solve_ex", "aten::_linalg_svd", "aten::_pdist_backward", "aten::_pdist_forward", "aten::_trilinear",
      "aten::block_diag", "aten::channel_shuffle", "aten::diag_embed", "aten::histc", "aten::linalg_cholesky_ex", "aten::linalg_cross",
      "aten::linalg_householder_product", "aten::linalg_inv_ex", "aten::linalg_lstsq", "aten::linalg_lu", "aten::linalg_lu_solve",
      "aten::linalg_matrix_exp", "aten::linalg_pinv.atol_rtol_tensor", "aten::linalg_solve_triangular", "aten::masked_scatter_backward",
      "aten::multi_margin_loss", "aten::multi_margin_loss_backward", "aten::multilabel_margin_loss_backward", "aten::multilabel_margin_loss_forward",
      "aten::polygamma", "aten::renorm", "aten::rot90", "aten::special_i1", "aten::vdot",
  };
  return ops.contains(op);
}

}  // namespace tessera::dtensor
