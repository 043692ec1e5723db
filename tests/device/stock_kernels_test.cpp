// The maps of `stock` on CUDA against what libtorch's kernels draw on the GPU that is here: every element's word, and
// how far each kernel moves the generator.
#include <cmath>
#include <functional>

#include <ATen/Context.h>
#include <ATen/cuda/CUDAContextLight.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/native_dropout.h>
#include <ATen/ops/ones.h>
#include <gtest/gtest.h>

#include "tessera/random/stock_cuda.h"

namespace tessera::random::stock_kernels_test {
namespace {

constexpr uint64_t kSeed = 0x0123456789abcdef;

CudaDevice device() {
  const auto* properties = at::cuda::getCurrentDeviceProperties();
  return {properties->multiProcessorCount, properties->maxThreadsPerMultiProcessor};
}

at::Tensor on_gpu(int64_t elements, at::ScalarType dtype) {
  return at::empty({elements}, at::TensorOptions().dtype(dtype).device(at::kCUDA));
}

// On both sides of T, 2T and 4T, with every remainder of 4.
std::vector<int64_t> sizes() {
  const int64_t most = cuda_threads(device(), int64_t{1} << 40);
  std::vector<int64_t> all = {1, 2, 5, 255, 257, 1024};
  for (const int64_t times : {1, 2, 4, 8}) {
    for (const int64_t more : {-3, -2, 0, 1, 4}) {
      all.push_back(times * most + more);
    }
  }
  return all;
}

// Runs `draw` from each offset, and asks `is_right(value, words, lane)` of every element of what it gives.
template <typename T>
void verify(int64_t elements, CudaDeal deal, const std::function<at::Tensor()>& draw,
            const std::function<bool(T value, const PhiloxWords& words, size_t lane)>& is_right) {
  auto generator = at::globalContext().defaultGenerator(at::Device(at::kCUDA, 0));
  const int64_t threads = cuda_threads(device(), elements);
  for (const uint64_t offset : {uint64_t{0}, uint64_t{1} << 36}) {
    generator.set_current_seed(kSeed);
    generator.set_offset(offset);
    const at::Tensor drawn = draw().to(at::kCPU);
    EXPECT_EQ(generator.get_offset() - offset, cuda_reservation(deal, elements, threads))
        << elements << " elements, deal " << int(deal);
    const T* values = drawn.const_data_ptr<T>();
    int64_t wrong = 0, first = -1;
    for (int64_t element = 0; element < elements; ++element) {
      const CudaPlace place = cuda_place(deal, element, threads, offset);
      if (!is_right(values[element], cuda_words(kSeed, place), static_cast<size_t>(place.lane)) && wrong++ == 0) {
        first = element;
      }
    }
    ASSERT_EQ(wrong, 0) << "of " << elements << " elements, deal " << int(deal) << ", from " << offset
                        << "; the first is " << first;
  }
}

TEST(StockKernels, Uniform) {
  for (const int64_t elements : sizes()) {
    for (const auto& [from, to] : {std::pair{0.0, 1.0}, std::pair{-0.3, 2.5}}) {
      verify<float>(
          elements, CudaDeal::kFour, [&] { return on_gpu(elements, at::kFloat).uniform_(from, to); },
          [&](float value, const PhiloxWords& words, size_t lane) {
            return value == cuda_uniform(words[lane], static_cast<float>(from), static_cast<float>(to));
          });
      verify<double>(
          elements, CudaDeal::kTwo, [&] { return on_gpu(elements, at::kDouble).uniform_(from, to); },
          [&](double value, const PhiloxWords& words, size_t lane) {
            return value == cuda_uniform_double(words[2 * lane], words[2 * lane + 1], from, to);
          });
    }
  }
}

TEST(StockKernels, Integers) {
  constexpr int64_t kWide = static_cast<int64_t>(kCudaWideRange);
  const auto wide = [](const PhiloxWords& words, size_t lane) {
    return cuda_wide(words[2 * lane], words[2 * lane + 1]);
  };
  for (const int64_t elements : sizes()) {
    verify<int32_t>(
        elements, CudaDeal::kFour, [&] { return on_gpu(elements, at::kInt).random_(); },
        [](int32_t value, const PhiloxWords& words, size_t lane) {
          return value == cuda_integer(words[lane], 0, uint64_t{1} << 31);
        });
    verify<int64_t>(
        elements, CudaDeal::kTwo, [&] { return on_gpu(elements, at::kLong).random_(); },
        [&](int64_t value, const PhiloxWords& words, size_t lane) {
          return value == cuda_integer(wide(words, lane), 0, uint64_t{1} << 63);
        });
    // Up to the range from which on they take 64 bits, and from there.
    verify<int64_t>(
        elements, CudaDeal::kFour, [&] { return on_gpu(elements, at::kLong).random_(-5, kWide - 6); },
        [](int64_t value, const PhiloxWords& words, size_t lane) {
          return value == cuda_integer(words[lane], -5, kCudaWideRange - 1);
        });
    verify<int64_t>(
        elements, CudaDeal::kTwo, [&] { return on_gpu(elements, at::kLong).random_(-5, kWide - 5); },
        [&](int64_t value, const PhiloxWords& words, size_t lane) {
          return value == cuda_integer(wide(words, lane), -5, kCudaWideRange);
        });
  }
}

TEST(StockKernels, Bernoulli) {
  for (const int64_t elements : sizes()) {
    verify<float>(
        elements, CudaDeal::kFour, [&] { return on_gpu(elements, at::kFloat).bernoulli_(0.3); },
        [](float value, const PhiloxWords& words, size_t lane) {
          return (value == 1) == (static_cast<double>(cuda_unit(words[lane])) < 0.3);
        });
    verify<double>(
        elements, CudaDeal::kTwo, [&] { return on_gpu(elements, at::kDouble).bernoulli_(0.3); },
        [](double value, const PhiloxWords& words, size_t lane) {
          return (value == 1) == (cuda_unit_double(words[2 * lane], words[2 * lane + 1]) < 0.3);
        });
  }
}

// The device has its own logarithm and sine: of floats the fast one, 2^-21.4 from the true sine and more beyond pi, and
// the normal is that many radii away.
TEST(StockKernels, NormalsButForTheirLastBits) {
  for (const int64_t elements : sizes()) {
    verify<float>(
        elements, CudaDeal::kFour, [&] { return on_gpu(elements, at::kFloat).normal_(); },
        [](float value, const PhiloxWords& words, size_t lane) {
          const auto all = cuda_normals(words);
          const size_t pair = lane / 2 * 2;
          return std::abs(value - all[lane]) <= 0x1p-20f * std::hypot(all[pair], all[pair + 1]);
        });
    verify<double>(
        elements, CudaDeal::kTwo, [&] { return on_gpu(elements, at::kDouble).normal_(); },
        [](double value, const PhiloxWords& words, size_t lane) {
          return std::abs(value - cuda_normals_double(words)[lane]) <= 1e-14;
        });
  }
}

// Of every width, which the number of elements and the address decide.
TEST(StockKernels, Dropout) {
  constexpr double kDrops = 0.2;
  const auto is_right = [](bool is_kept, const PhiloxWords& words, size_t lane) {
    return is_kept == (cuda_unit(words[lane]) < static_cast<float>(1 - kDrops));
  };
  for (const auto dtype : {at::kFloat, at::kDouble, at::kBFloat16}) {
    const auto itemsize = static_cast<int64_t>(c10::elementSize(dtype));
    for (const int64_t elements : sizes()) {
      for (const int64_t shift : {0, 1, 2}) {
        const at::Tensor input =
            at::ones({elements + shift}, at::TensorOptions().dtype(dtype).device(at::kCUDA)).narrow(0, shift, elements);
        const int64_t alignment = shift == 0 ? 512 : shift * itemsize;
        verify<bool>(
            elements, cuda_dropout_deal(elements, itemsize, alignment, itemsize == 2 ? 8 : 4),
            [&] { return std::get<1>(at::native_dropout(input, kDrops, true)); }, is_right);
      }
    }
  }
}

}  // namespace
}  // namespace tessera::random::stock_kernels_test
