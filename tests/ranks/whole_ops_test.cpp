// Operators that are computed from gathered operands: the values and gradients of one device in every layout.
#include <torch/torch.h>

#include "tests/ranks/support.h"

namespace tessera::ranks {
namespace {

using Function = std::function<at::Tensor(const at::Tensor&)>;

// Of a 4 x 4 matrix.
const std::vector<std::pair<const char*, Function>>& functions() {
  static const std::vector<std::pair<const char*, Function>> all = {
      {"inverse", [](const at::Tensor& x) { return at::linalg_inv(x + 3 * at::eye(4, at::kDouble)); }},
      {"solve", [](const at::Tensor& x) { return at::linalg_solve(x + 3 * at::eye(4, at::kDouble), x); }},
      {"det", [](const at::Tensor& x) { return at::linalg_det(x + at::eye(4, at::kDouble)); }},
      {"slogdet", [](const at::Tensor& x) { return std::get<1>(at::linalg_slogdet(x + 3 * at::eye(4, at::kDouble))); }},
      {"singular values", [](const at::Tensor& x) { return at::linalg_svdvals(x + at::diag(at::arange(3, 7, at::kDouble))); }},
      {"eigenvalues", [](const at::Tensor& x) { return at::linalg_eigvalsh(x + x.t()); }},
      {"cholesky", [](const at::Tensor& x) { return at::linalg_cholesky(x.matmul(x.t()) + at::eye(4, at::kDouble)); }},
      {"matrix_exp", [](const at::Tensor& x) { return at::linalg_matrix_exp(x); }},
      {"cross", [](const at::Tensor& x) { return at::linalg_cross(x.slice(0, 0, 3), x.slice(0, 1, 4), 0); }},
      {"renorm", [](const at::Tensor& x) { return at::renorm(x, 2, 0, 0.5); }},
      {"rot90", [](const at::Tensor& x) { return at::rot90(x); }},
      {"block_diag", [](const at::Tensor& x) { return at::block_diag({x, x * 2}); }},
      {"pdist", [](const at::Tensor& x) { return at::pdist(x); }},
      {"bilinear", [](const at::Tensor& x) { return at::bilinear(x, x, waves({3, 4, 4}, 0.7)); }},
      {"multi_margin_loss", [](const at::Tensor& x) { return at::multi_margin_loss(x, at::tensor({0, 3, 1, 2}, at::kLong)); }},
      {"vdot", [](const at::Tensor& x) { return at::vdot(x.reshape({16}), x.reshape({16}) * 2); }},
      {"histc", [](const at::Tensor& x) { return at::histc(x.detach(), 3) + x.sum(); }},
      {"i0", [](const at::Tensor& x) { return at::special_i0(x); }},
      {"householder_product", [](const at::Tensor& x) { return at::linalg_householder_product(x, x.select(1, 0)); }},
      {"lstsq", [](const at::Tensor& x) { return std::get<0>(at::linalg_lstsq(x + 3 * at::eye(4, at::kDouble), x)); }},
      {"lu", [](const at::Tensor& x) { return std::get<2>(at::linalg_lu(x + 3 * at::eye(4, at::kDouble))); }},
      {"channel_shuffle", [](const at::Tensor& x) { return at::channel_shuffle(x.reshape({1, 4, 2, 2}), 2); }},
      {"multilabel_margin_loss", [](const at::Tensor& x) { return at::multilabel_margin_loss(x, at::tensor({3, 1, -1, 0}, at::kLong).expand({4, 4})); }},
      {"embedding_bag", [](const at::Tensor& x) { return std::get<0>(at::embedding_bag(x, at::tensor({3, 1, 1, 0}, at::kLong), at::tensor({0, 2}, at::kLong))); }},
      {"diag_embed", [](const at::Tensor& x) { return at::diag_embed(x); }},
      {"digamma", [](const at::Tensor& x) { return at::digamma(x + 3); }},
      {"masked_scatter", [](const at::Tensor& x) { return at::masked_scatter(x * 0, waves({4, 4}).gt(0), x); }},
      {"ctc_loss", [](const at::Tensor& x) { return at::ctc_loss(at::log_softmax(x.unsqueeze(1), 2), at::tensor({1, 2}, at::kLong).view({1, 2}), at::IntArrayRef({4}), at::IntArrayRef({2})); }},
  };
  return all;
}

TEST(WholeOps, AreThoseOfOneDevice) {
  const at::Tensor value = waves({4, 4});
  for (const char* text : {"a=3", "a=2,b=2"}) {
    const Mesh mesh = Mesh::parse(text);
    run_on(mesh, [&](int64_t) {
      for (const Placements& placements : plain_layouts(mesh, 2)) {
        for (const auto& [name, function] : functions()) {
          SCOPED_TRACE(c10::str(name, " of ", layout::str(mesh, placements)));
          const at::Tensor plain = value.clone().requires_grad_(), x = spread(value, mesh, placements).requires_grad_();
          const at::Tensor expected = function(plain), found = function(x);
          EXPECT_LE(error_of(full_tensor(found.detach()), expected.detach()), 1e-12);
          (expected * waves(expected.sizes(), 0.9)).sum().backward();
          (found * waves(expected.sizes(), 0.9)).sum().backward();
          EXPECT_LE(error_of(full_tensor(x.grad()), plain.grad()), 1e-10);
        }
      }
    });
  }
}

TEST(WholeOps, ThatMixSamplesAreRefusedInExact) {
  const Mesh mesh = Mesh::parse("dp=2");
  EXPECT_SAYS(failure_on(2, [&](int64_t) {
                dtensor::set_numerics(dtensor::Numerics::kExact, {});
                const layout::Labels labels = {{{.label = layout::Label::kBatch, .extent = 4, .total = 4}}, {}};
                at::linalg_matrix_exp(distribute(waves({4, 4}), mesh, {layout::Shard(0)}, labels));
              }),
              "numerics exact: no exact rule for this operator");
}

}  // namespace
}  // namespace tessera::ranks
