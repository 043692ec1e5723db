// Imagined tensors against real ones: sizes, strides and dtypes of results, the bytes that live, and what stays real.
#include "tessera/watch/imagined.h"

#include <functional>
#include <thread>

#include <ATen/ATen.h>
#include <gtest/gtest.h>

#include "tests/support/resident_memory.h"

namespace tessera::watch::imagined_test {
namespace {

using Tensors = std::vector<at::Tensor>;

struct Outline {
  std::vector<int64_t> sizes, strides;
  at::ScalarType dtype;
  bool operator==(const Outline&) const = default;
};

std::vector<Outline> outlines(const Tensors& tensors) {
  std::vector<Outline> all;
  for (const at::Tensor& tensor : tensors) {
    all.push_back({tensor.sizes().vec(), tensor.strides().vec(), tensor.scalar_type()});
  }
  return all;
}

// Operators by the three ways in which results are made, and what stands between.
const std::map<std::string, std::function<Tensors()>> kPrograms = {
    {"products",
     [] {
       return Tensors{at::randn({64, 48}).mm(at::randn({48, 32})), at::randn({4, 64, 48}).matmul(at::randn({48, 32}))};
     }},
    {"elements",
     [] { return Tensors{at::randn({64, 48}).t().exp(), at::gelu(at::randn({64, 48})).add(1).to(at::kBFloat16)}; }},
    {"sums",
     [] {
       return Tensors{at::randn({64, 48}).sum(1), at::randn({64, 48}).mean(), at::softmax(at::randn({64, 48}), -1)};
     }},
    {"norms",
     [] {
       const auto [y, mean, rstd] =
           at::native_layer_norm(at::randn({64, 48}), {48}, at::ones({48}), at::zeros({48}), 1e-5);
       const auto [dx, dw, db] = at::native_layer_norm_backward(y, at::randn({64, 48}), {48}, mean, rstd,
                                                                at::ones({48}), at::zeros({48}), {true, true, false});
       return Tensors{y, mean, rstd, dx, dw};
     }},
    {"lookups",
     [] {
       const at::Tensor index = at::arange(300).remainder(64);
       return Tensors{at::embedding(at::randn({64, 48}), index),
                      at::embedding_dense_backward(at::randn({300, 48}), index, 64, -1, false)};
     }},
    {"lists", [] { return at::_foreach_mul({at::randn({64, 48}), at::randn({48, 48})}, 2); }},
    {"writes", [] { return Tensors{at::randn({64, 48}).add_(1).copy_(at::randn({48})).t_()}; }},
    {"choices",
     [] {
       return Tensors{at::where(at::randn({64, 48}) > 0, at::randn({64, 1}), at::randn({48})),
                      at::cat({at::randn({64, 48}), at::randn({9, 48})})};
     }},
};

TEST(Imagined, ResultsAreOfTheSameSizesAndBytes) {
  for (const auto& [name, program] : kPrograms) {
    const auto expected = outlines(program());
    const Imagined imagined;
    {
      const Tensors results = program();
      EXPECT_EQ(outlines(results), expected) << name;
      int64_t bytes = 0;
      for (const at::Tensor& result : results) {
        bytes += static_cast<int64_t>(result.storage().nbytes());
      }
      EXPECT_EQ(imagined.live(), bytes) << name;
      EXPECT_GE(imagined.peak(), bytes) << name;
    }
    EXPECT_EQ(imagined.live(), 0) << name;
  }
}

TEST(Imagined, ATerabyteTakesNoMemoryAndNoTime) {
  const support::PeakOfMemory peak;
  Imagined imagined;
  at::Tensor x = at::zeros({1 << 19, 1 << 19});
  EXPECT_EQ(imagined.live(), int64_t{1} << 40);
  x = x.mm(x);
  EXPECT_EQ(imagined.live(), int64_t{1} << 40);
  EXPECT_EQ(imagined.peak(), int64_t{2} << 40);
  imagined.reset_peak();
  EXPECT_EQ(imagined.peak(), int64_t{1} << 40);
  EXPECT_LT(peak.bytes(), 64 << 20);
}

TEST(Imagined, FewElementsAndIntegersHaveTheirValues) {
  const Imagined imagined;
  EXPECT_EQ(at::arange(4, at::kFloat).sum().item<float>(), 6);
  EXPECT_EQ(at::arange(4096).max().item<int64_t>(), 4095);
  EXPECT_EQ(at::full({64, 64}, 3.0).sum().item<double>(), 0);  // these are not written
}

TEST(Imagined, OtherThreadsAndLaterProgramsAreReal) {
  at::Tensor kept;
  {
    const Imagined imagined;
    kept = at::ones({64, 64});
    std::thread([] { EXPECT_EQ(at::ones({64, 64}).sum().item<float>(), 4096); }).join();
    EXPECT_EQ(imagined.live(), 4 * 4096);
    EXPECT_THROW(Imagined(), c10::Error);
  }
  EXPECT_EQ(at::ones({64, 64}).sum().item<float>(), 4096);
  EXPECT_EQ(kept.fill_(2).sum().item<float>(), 2 * 4096);  // it outlives its program
}

}  // namespace
}  // namespace tessera::watch::imagined_test
