// Complex numbers and Fourier transforms.
#include "tests/ranks/functions.h"

namespace tessera::ranks::complex_test {
namespace {

// The pairs of reals of a 4 x 6 matrix as a 4 x 3 matrix of complex numbers.
at::Tensor pairs(const at::Tensor& x) { return at::view_as_complex(x.reshape({4, 3, 2})); }

const Functions& functions() {
  static const Functions all = {
      {"rotary",
       [](const at::Tensor& x) {
         const at::Tensor turns = at::polar(at::ones({4, 3}, at::kDouble), waves({4, 3}));
         return at::view_as_real(pairs(x) * turns).flatten(1);
       }},
      {"polar", [](const at::Tensor& x) { return at::view_as_real(at::polar(x, x * 2)); }},
      {"complex",
       [](const at::Tensor& x) { return at::view_as_real(at::complex(x, x * x) * at::complex(x, x.exp())); }},
      {"real and imag", [](const at::Tensor& x) { return at::real(pairs(x)) * at::imag(pairs(x)); }},
      {"conj", [](const at::Tensor& x) { return at::imag(pairs(x).conj()); }},
      {"a product with its conj", [](const at::Tensor& x) { return at::real(pairs(x) * pairs(x).conj()); }},
      {"conj_physical_", [](const at::Tensor& x) { return at::view_as_real((pairs(x) * 2).conj_physical_()); }},
      {"abs", [](const at::Tensor& x) { return pairs(x).abs(); }},
      {"angle", [](const at::Tensor& x) { return pairs(x).angle(); }},
      {"a sum", [](const at::Tensor& x) { return at::view_as_real(pairs(x).sum(0)); }},
      {"a mean", [](const at::Tensor& x) { return at::view_as_real(pairs(x).mean()); }},
      {"a matrix product", [](const at::Tensor& x) { return at::view_as_real(pairs(x).matmul(pairs(x).mH())); }},
      {"a solution",
       [](const at::Tensor& x) {
         return at::view_as_real(
             at::linalg_solve(pairs(x).slice(0, 0, 3) + 3 * at::eye(3, at::kDouble), pairs(x).slice(0, 1, 4)));
       }},
      {"norm", [](const at::Tensor& x) { return at::linalg_vector_norm(pairs(x), 2, at::IntArrayRef({0})); }},
      {"variance", [](const at::Tensor& x) { return at::var(pairs(x), at::OptionalIntArrayRef(0), 1); }},
      {"logsumexp", [](const at::Tensor& x) { return at::view_as_real(at::logsumexp(pairs(x), 0)); }},
      {"einsum",
       [](const at::Tensor& x) { return at::view_as_real(at::einsum("ij,kj->ik", {pairs(x), pairs(x).exp()})); }},
      {"exp", [](const at::Tensor& x) { return at::view_as_real(pairs(x).exp()); }},
      {"a real part written to",
       [](const at::Tensor& x) {
         const at::Tensor z = pairs(x) * 2;
         at::real(z).mul_(waves({4, 3}));
         return at::view_as_real(z) * 1;
       }},
      {"a conj written to",
       [](const at::Tensor& x) {
         const at::Tensor z = pairs(x) * 2;
         z.conj().mul_(at::complex(waves({4, 3}), waves({4, 3}, 0.7)));
         return at::view_as_real(z) * 1;
       }},
      {"fft", [](const at::Tensor& x) { return at::view_as_real(at::fft_fft(x)); }},
      {"fft of complex numbers", [](const at::Tensor& x) { return at::view_as_real(at::fft_fft(pairs(x), {}, 0)); }},
      {"ifft", [](const at::Tensor& x) { return at::view_as_real(at::fft_ifft(pairs(x))); }},
      {"rfft", [](const at::Tensor& x) { return at::view_as_real(at::fft_rfft(x, {}, 0)); }},
      {"irfft", [](const at::Tensor& x) { return at::fft_irfft(pairs(x), 5); }},
      {"fft2", [](const at::Tensor& x) { return at::real(at::fft_fft2(x)); }},
      {"there and back",
       [](const at::Tensor& x) { return at::fft_irfft2(at::fft_rfft2(x) * waves({4, 4}), at::IntArrayRef({4, 6})); }},
      {"stft",
       [](const at::Tensor& x) {
         return at::view_as_real(at::stft(x, /*n_fft=*/4, /*hop_length=*/2, /*win_length=*/4, waves({4}),
                                          /*normalized=*/false, /*onesided=*/true, /*return_complex=*/true));
       }},
  };
  return all;
}

TEST(Complex, FunctionsAreThoseOfOneDevice) { expect_those_of_one_device(functions(), waves({4, 6})); }

TEST(Complex, TransformsCutWhatTheyDoNotTransform) {
  const Mesh mesh = Mesh::parse("a=2");
  run_on(mesh, [&](int64_t) {
    const at::Tensor x = distribute(waves({4, 6}), mesh, {layout::Shard(0)});
    EXPECT_EQ(layout::str(mesh, spec_of(at::fft_rfft(x, {}, 1))->placements), "{a: S(0)}");
    EXPECT_EQ(layout::str(mesh, spec_of(at::fft_rfft(redistribute(x, "{a: S(1)}"), {}, 0))->placements), "{a: S(1)}");
    EXPECT_EQ(layout::str(mesh, spec_of(at::polar(x, x))->placements), "{a: S(0)}");
  });
}

}  // namespace
}  // namespace tessera::ranks::complex_test
