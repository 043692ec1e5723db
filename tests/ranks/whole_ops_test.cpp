// Operators that are computed from gathered operands: the values and gradients of one device in every layout.
#include "tests/ranks/functions.h"

namespace tessera::ranks::whole_ops_test {
namespace {

// Of a 4 x 4 matrix.
const Functions& linear_algebra() {
  static const Functions all = {
      {"inverse", [](const at::Tensor& x) { return at::linalg_inv(x + 3 * at::eye(4, at::kDouble)); }},
      {"solve", [](const at::Tensor& x) { return at::linalg_solve(x + 3 * at::eye(4, at::kDouble), x); }},
      {"det", [](const at::Tensor& x) { return at::linalg_det(x + at::eye(4, at::kDouble)); }},
      {"slogdet", [](const at::Tensor& x) { return std::get<1>(at::linalg_slogdet(x + 3 * at::eye(4, at::kDouble))); }},
      {"singular values",
       [](const at::Tensor& x) { return at::linalg_svdvals(x + at::diag(at::arange(3, 7, at::kDouble))); }},
      {"eigenvalues", [](const at::Tensor& x) { return at::linalg_eigvalsh(x + x.t()); }},
      {"cholesky", [](const at::Tensor& x) { return at::linalg_cholesky(x.matmul(x.t()) + at::eye(4, at::kDouble)); }},
      {"matrix_exp", [](const at::Tensor& x) { return at::linalg_matrix_exp(x); }},
      {"cross", [](const at::Tensor& x) { return at::linalg_cross(x.slice(0, 0, 3), x.slice(0, 1, 4), 0); }},
      {"householder_product", [](const at::Tensor& x) { return at::linalg_householder_product(x, x.select(1, 0)); }},
      {"lstsq", [](const at::Tensor& x) { return std::get<0>(at::linalg_lstsq(x + 3 * at::eye(4, at::kDouble), x)); }},
      {"lu", [](const at::Tensor& x) { return std::get<2>(at::linalg_lu(x + 3 * at::eye(4, at::kDouble))); }},
      {"eig",
       [](const at::Tensor& x) {
         return at::view_as_real(std::get<0>(at::linalg_eig(x + at::diag(at::arange(4, at::kDouble)))));
       }},
      {"eigvals",
       [](const at::Tensor& x) { return at::linalg_eigvals(x + at::diag(at::arange(4, at::kDouble))).abs(); }},
      {"lu_factor",
       [](const at::Tensor& x) { return std::get<0>(at::linalg_lu_factor(x + 3 * at::eye(4, at::kDouble))); }},
      {"lu_solve",
       [](const at::Tensor& x) {
         const auto [lu, pivots] = at::linalg_lu_factor(x + 3 * at::eye(4, at::kDouble));
         return at::linalg_lu_solve(lu, pivots, x);
       }},
      {"cholesky_solve",
       [](const at::Tensor& x) {
         return at::cholesky_solve(x, at::cholesky(x.matmul(x.t()) + at::eye(4, at::kDouble)));
       }},
      {"cholesky_inverse",
       [](const at::Tensor& x) { return at::cholesky_inverse(x.tril() + 3 * at::eye(4, at::kDouble)); }},
      {"triangular_solve",
       [](const at::Tensor& x) { return std::get<0>(at::triangular_solve(x, x + 3 * at::eye(4, at::kDouble))); }},
      {"ldl",
       [](const at::Tensor& x) {
         const auto [ld, pivots] = at::linalg_ldl_factor(x.detach() + x.detach().t() + 6 * at::eye(4, at::kDouble));
         return at::linalg_ldl_solve(ld, pivots, x.detach()) + x;
       }},
      {"ormqr",
       [](const at::Tensor& x) {
         const auto [a, tau] = at::geqrf(x.detach() + 3 * at::eye(4, at::kDouble));
         return at::ormqr(a, tau, x);
       }},
  };
  return all;
}

// Of a 4 x 4 matrix.
const Functions& functions() {
  static const Functions all = {
      {"renorm", [](const at::Tensor& x) { return at::renorm(x, 2, 0, 0.5); }},
      {"rot90", [](const at::Tensor& x) { return at::rot90(x); }},
      {"block_diag", [](const at::Tensor& x) { return at::block_diag({x, x * 2}); }},
      {"pdist", [](const at::Tensor& x) { return at::pdist(x); }},
      {"bilinear", [](const at::Tensor& x) { return at::bilinear(x, x, waves({3, 4, 4}, 0.7)); }},
      {"multi_margin_loss",
       [](const at::Tensor& x) { return at::multi_margin_loss(x, at::tensor({0, 3, 1, 2}, at::kLong)); }},
      {"vdot", [](const at::Tensor& x) { return at::vdot(x.reshape({16}), x.reshape({16}) * 2); }},
      {"histc", [](const at::Tensor& x) { return at::histc(x.detach(), 3) + x.sum(); }},
      {"i0", [](const at::Tensor& x) { return at::special_i0(x); }},
      {"channel_shuffle", [](const at::Tensor& x) { return at::channel_shuffle(x.reshape({1, 4, 2, 2}), 2); }},
      {"multilabel_margin_loss",
       [](const at::Tensor& x) {
         return at::multilabel_margin_loss(x, at::tensor({3, 1, -1, 0}, at::kLong).expand({4, 4}));
       }},
      {"embedding_bag",
       [](const at::Tensor& x) {
         return std::get<0>(at::embedding_bag(x, at::tensor({3, 1, 1, 0}, at::kLong), at::tensor({0, 2}, at::kLong)));
       }},
      {"diag_embed", [](const at::Tensor& x) { return at::diag_embed(x); }},
      {"digamma", [](const at::Tensor& x) { return at::digamma(x + 3); }},
      {"masked_scatter", [](const at::Tensor& x) { return at::masked_scatter(x * 0, waves({4, 4}).gt(0), x); }},
      {"ctc_loss",
       [](const at::Tensor& x) {
         return at::ctc_loss(at::log_softmax(x.unsqueeze(1), 2), at::tensor({1, 2}, at::kLong).view({1, 2}),
                             at::IntArrayRef({4}), at::IntArrayRef({2}));
       }},
      {"ctc_loss of each sample, whole",
       [](const at::Tensor& x) {
         const at::Tensor losses =
             at::ctc_loss(at::log_softmax(x.unsqueeze(1), 2), at::tensor({1, 2}, at::kLong).view({1, 2}),
                          at::IntArrayRef({4}), at::IntArrayRef({2}), 0, /*reduction=*/0);
         return dtensor::is_dtensor(losses) ? full_tensor(losses) : losses;
       }},
      {"segment_reduce",
       [](const at::Tensor& x) { return at::segment_reduce(x, "mean", at::tensor({1, 3}, at::kLong)); }},
      {"fractional_max_pool2d",
       [](const at::Tensor& x) {
         return std::get<0>(
             at::fractional_max_pool2d(x.reshape({1, 1, 4, 4}), {2, 2}, {2, 2}, at::full({1, 1, 2}, 0.4, at::kDouble)));
       }},
      {"histogram", [](const at::Tensor& x) { return std::get<0>(at::histogram(x.detach(), 3)) + x.sum(); }},
      {"histogramdd",
       [](const at::Tensor& x) {
         const auto [counts, edges] = at::histogramdd(x.detach().slice(1, 0, 2), at::IntArrayRef({2, 3}));
         return at::cat({counts.flatten(), edges.at(0), edges.at(1)}) + x.sum();
       }},
      {"_chunk_cat",
       [](const at::Tensor& x) { return at::_chunk_cat({x.detach(), x.detach().slice(0, 0, 2)}, 0, 2) + x.sum(); }},
      {"_unsafe_masked_index",
       [](const at::Tensor& x) {
         const at::Tensor rows = at::tensor({3, 1, 0}, at::kLong), mask = (rows != 1).view({3, 1});
         return at::_unsafe_masked_index(x, mask,
                                         c10::List<std::optional<at::Tensor>>({std::optional<at::Tensor>(rows)}), 0.5);
       }},
      {"nonzero_static", [](const at::Tensor& x) { return at::nonzero_static(x.detach() > 0, 5) + x.sum(); }},
      {"linspace",
       [](const at::Tensor& x) {
         return at::linspace(x.detach().select(0, 1).select(0, 2), 1, 5, at::kDouble) + x.sum();
       }},
      {"packed sequence",
       [](const at::Tensor& x) {
         const auto [data, batch_sizes] =
             at::_pack_padded_sequence(x, at::tensor({4, 3, 1, 1}, at::kLong), /*batch_first=*/true);
         EXPECT_FALSE(dtensor::is_dtensor(batch_sizes));
         return std::get<0>(at::_pad_packed_sequence(data * 2, batch_sizes, /*batch_first=*/true, 0.5, 4));
       }},
      {"ctc_loss of tensors",
       [](const at::Tensor& x) {
         const at::Tensor length = x.detach().mul(0).sum().to(at::kLong).view({1}) + 4;  // a DTensor as x is
         return at::ctc_loss(at::log_softmax(x.unsqueeze(1), 2), at::tensor({1, 2}, at::kLong).view({1, 2}), length,
                             length - 2);
       }},
  };
  return all;
}

TEST(WholeOps, OfLinearAlgebraAreThoseOfOneDevice) { expect_those_of_one_device(linear_algebra(), waves({4, 4})); }

TEST(WholeOps, AreThoseOfOneDevice) { expect_those_of_one_device(functions(), waves({4, 4})); }

TEST(WholeOps, ThatMixSamplesAreRefusedInExact) {
  const Mesh mesh = Mesh::parse("dp=2");
  EXPECT_SAYS(failure_on(2,
                         [&](int64_t) {
                           dtensor::set_numerics(dtensor::Numerics::kExact, {});
                           const layout::Labels labels = {{{.label = layout::Label::kBatch, .extent = 4, .total = 4}},
                                                          {}};
                           at::linalg_matrix_exp(distribute(waves({4, 4}), mesh, {layout::Shard(0)}, labels));
                         }),
              "numerics exact: no exact rule for this operator");
}

}  // namespace
}  // namespace tessera::ranks::whole_ops_test
