// Samples of complex numbers and of Fourier transforms.
#include <ATen/ops/view_as_complex.h>

#include "tests/audit/samples.h"

namespace tessera::audit {

using Ints = std::vector<int64_t>;

namespace {

at::Tensor complexes(Ints sizes) {
  sizes.push_back(2);
  return at::view_as_complex(reals(sizes));
}

void add_transforms(Samples& samples) {
  for (const Ints& dims : {Ints{1}, Ints{2}, Ints{0, 2}, Ints{2, 1}}) {
    for (const int64_t normalization : {0, 1, 2}) {
      samples.push_back(sample("aten::_fft_r2c", {reals({5, 4, 6})},
                               {{"dim", dims}, {"normalization", normalization}, {"onesided", true}}));
      samples.push_back(sample("aten::_fft_c2c", {complexes({5, 4, 3})},
                               {{"dim", dims}, {"normalization", normalization}, {"forward", normalization > 0}}));
    }
    samples.push_back(
        sample("aten::_fft_r2c", {reals({5, 4, 3})}, {{"dim", dims}, {"normalization", 0}, {"onesided", false}}));
    samples.push_back(
        sample("aten::_fft_c2r", {complexes({5, 4, 4})}, {{"dim", dims}, {"normalization", 2}, {"last_dim_size", 6}}));
  }
}

}  // namespace

void add_complex_samples(Samples& samples) {
  const at::Tensor z = complexes({5, 4});
  for (const char* op : {"aten::_conj_physical", "aten::abs", "aten::angle", "aten::conj_physical_", "aten::exp",
                         "aten::neg", "aten::reciprocal", "aten::sgn", "aten::sum", "aten::view_as_real"}) {
    samples.push_back(sample(op, {z}));
  }
  samples.push_back(sample("aten::linalg_vector_norm", {z}, {{"dim", Ints{0}}}));
  samples.push_back(sample("aten::logsumexp", {z}, {{"dim", Ints{0}}}));
  samples.push_back(sample("aten::var.correction", {z}, {{"dim", Ints{0}}}));
  samples.push_back(sample("aten::std_mean.correction", {z}));
  samples.push_back(sample("aten::view_as_real_copy", {z}));
  samples.push_back(sample("aten::view_as_complex_copy", {reals({5, 4, 2})}));
  samples.push_back(sample("aten::view_as_complex", {reals({5, 4, 2})}));
  samples.push_back(sample("aten::view_as_complex", {reals({2})}));
  samples.push_back(sample("aten::add.Tensor", {z, reals({4})}));
  samples.push_back(sample("aten::mul.Tensor", {z, complexes({5, 1})}));
  samples.push_back(sample("aten::mul.Tensor", {z, complexes({})}));
  samples.push_back(sample("aten::mm", {z, complexes({4, 3})}));
  samples.push_back(sample("aten::polar", {reals({5, 4}), reals({4})}));
  add_transforms(samples);
}

}  // namespace tessera::audit
