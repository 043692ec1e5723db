#include "tessera/random/counter.h"

#include <algorithm>
#include <numbers>
#include <type_traits>

#include <ATen/EmptyTensor.h>
#include <ATen/ops/view_as_real.h>
#include <c10/util/BFloat16.h>
#include <c10/util/Half.h>

#include "tessera/base/error.h"
#include "tessera/base/hash.h"
#include "tessera/base/values.h"
#include "tessera/random/counter_samplers.h"

namespace tessera::random {
namespace {

constexpr int64_t kBatch = 64;  // blocks made at once
constexpr int64_t kGroup = 8;   // of these, side by side in vector registers

struct BlockSource {
  explicit BlockSource(const Stream& stream) : step(static_cast<uint32_t>(stream.step)) {
    TESSERA_CHECK(stream.step >> 32 == 0, "[random] step ", stream.step, "; the counter generator has 2^32 steps");
    const uint64_t hash = base::hash_combine(base::hash_mix(stream.seed), stream.site);
    key = {static_cast<uint32_t>(hash), static_cast<uint32_t>(hash >> 32)};
  }

  PhiloxWords block(int64_t sample, int64_t number) const {
    return philox(
        {static_cast<uint32_t>(number), static_cast<uint32_t>(number >> 32), static_cast<uint32_t>(sample), step}, key);
  }

  // The words of `count` <= kBatch neighbouring blocks, one after the other.
  void blocks(int64_t sample, int64_t first, int64_t count, uint32_t* words) const {
    int64_t at = 0;
    for (; at + kGroup <= count; at += kGroup) {
      group(sample, first + at, words + 4 * at);
    }
    for (; at < count; ++at) {
      const PhiloxWords one = block(sample, first + at);
      std::copy(one.begin(), one.end(), words + 4 * at);
    }
  }

  // philox() of kGroup blocks, lane by lane so that the compiler uses vector registers.
  void group(int64_t sample, int64_t first, uint32_t* words) const {
    uint32_t c0[kGroup], c1[kGroup], c2[kGroup], c3[kGroup];
    for (int64_t j = 0; j < kGroup; ++j) {
      c0[j] = static_cast<uint32_t>(first + j);
      c1[j] = static_cast<uint32_t>((first + j) >> 32);
      c2[j] = static_cast<uint32_t>(sample);
      c3[j] = step;
    }
    uint32_t k0 = key[0];
    uint32_t k1 = key[1];
    for (int round = 0; round < 10; ++round, k0 += 0x9E3779B9, k1 += 0xBB67AE85) {
      for (int64_t j = 0; j < kGroup; ++j) {
        const uint64_t product0 = uint64_t{0xD2511F53} * c0[j];
        const uint64_t product1 = uint64_t{0xCD9E8D57} * c2[j];
        c0[j] = static_cast<uint32_t>(product1 >> 32) ^ c1[j] ^ k0;
        c1[j] = static_cast<uint32_t>(product1);
        c2[j] = static_cast<uint32_t>(product0 >> 32) ^ c3[j] ^ k1;
        c3[j] = static_cast<uint32_t>(product0);
      }
    }
    for (int64_t j = 0; j < kGroup; ++j) {
      const uint32_t block_words[4] = {c0[j], c1[j], c2[j], c3[j]};
      std::copy(block_words, block_words + 4, words + 4 * j);
    }
  }

  PhiloxKey key;
  uint32_t step;
};

template <typename T, typename Sampler>
void fill_run(T* out, ElementRun run, const BlockSource& source, const Sampler& sampler) {
  constexpr int64_t kValues = Sampler::kValues;
  uint32_t words[4 * kBatch];
  T values[kValues * kBatch];
  int64_t block = run.element / kValues;
  int64_t skip = run.element % kValues;
  while (run.count > 0) {
    const int64_t blocks = std::min(kBatch, (skip + run.count + kValues - 1) / kValues);
    source.blocks(run.sample, block, blocks, words);
    const int64_t count = std::min(run.count, blocks * kValues - skip);
    const bool in_place = count == blocks * kValues;
    T* target = in_place ? out : values;
    for (int64_t j = 0; j < blocks; ++j) {
      sampler(words + 4 * j, target + kValues * j);
    }
    if (!in_place) {
      std::copy(values + skip, values + skip + count, out);
    }
    out += count;
    run.count -= count;
    block += blocks;
    skip = 0;
  }
}

template <typename T, typename Sampler>
void fill_with(at::Tensor& local, const Region& region, const BlockSource& source, const Sampler& sampler) {
  T* out = local.data_ptr<T>();
  for_each_run(region, [&](const ElementRun& run) {
    fill_run(out, run, source, sampler);
    out += run.count;
  });
}

template <typename T>
void fill_real(at::Tensor& local, const Region& region, const BlockSource& source, const Distribution& distribution) {
  if (const auto* uniform = std::get_if<Uniform>(&distribution)) {
    fill_with<T>(local, region, source, UniformSampler<T>(*uniform));
  } else if (const auto* normal = std::get_if<Normal>(&distribution)) {
    fill_with<T>(local, region, source, NormalSampler<T>(*normal));
  } else if (const auto* log_normal = std::get_if<LogNormal>(&distribution)) {
    NormalSampler<T> sampler({log_normal->mean, log_normal->std});
    sampler.is_log = true;
    fill_with<T>(local, region, source, sampler);
  } else if (const auto* cauchy = std::get_if<Cauchy>(&distribution)) {
    fill_with<T>(local, region, source, InverseSampler<T, CauchyInverse<T>>{CauchyInverse<T>(*cauchy)});
  } else {
    fill_with<T>(local, region, source,
                 InverseSampler<T, ExponentialInverse<T>>{ExponentialInverse<T>(std::get<Exponential>(distribution))});
  }
}

template <typename T>
void fill_discrete(at::Tensor& local, const Region& region, const BlockSource& source,
                   const Distribution& distribution) {
  if (const auto* bernoulli = std::get_if<Bernoulli>(&distribution)) {
    return fill_with<T>(local, region, source, BernoulliSampler<T>(*bernoulli));
  }
  if (const auto* geometric = std::get_if<Geometric>(&distribution)) {
    return fill_with<T>(local, region, source, InverseSampler<T, GeometricInverse<T>>{GeometricInverse<T>(*geometric)});
  }
  const auto& integers = std::get<Integers>(distribution);
  TESSERA_CHECK(integers.from < integers.to, "[random integers] cannot draw from [", integers.from, ", ", integers.to,
                "); give from < to");
  if constexpr (std::is_integral_v<T>) {
    using Limits = std::numeric_limits<T>;
    TESSERA_CHECK(integers.from >= static_cast<int64_t>(Limits::lowest()) &&
                      integers.to - 1 <= static_cast<int64_t>(Limits::max()),
                  "[random integers] [", integers.from, ", ", integers.to, ") does not fit ", local.scalar_type());
  }
  const uint64_t range = static_cast<uint64_t>(integers.to) - static_cast<uint64_t>(integers.from);
  if (range >> 32 == 0) {
    fill_with<T>(local, region, source, IntegerSampler<T, false>{integers.from, range});
  } else {
    fill_with<T>(local, region, source, IntegerSampler<T, true>{integers.from, range});
  }
}

bool is_discrete(const Distribution& distribution) {
  return std::holds_alternative<Bernoulli>(distribution) || std::holds_alternative<Integers>(distribution) ||
         std::holds_alternative<Geometric>(distribution);
}

// What each of the two parts of a complex number is drawn from: parts of a Normal have half of its variance, as in
// libtorch.
Distribution distribution_of_parts(const Distribution& distribution) {
  const auto* normal = std::get_if<Normal>(&distribution);
  TESSERA_CHECK(normal || std::holds_alternative<Uniform>(distribution),
                "[random fill] complex numbers of this distribution; accepted: uniform and normal");
  return normal ? Normal{normal->mean, normal->std / std::numbers::sqrt2} : distribution;
}

// Real and imaginary parts lie along one more dim.
void fill_complex(const at::Tensor& local, Region region, const Stream& stream, const Distribution& distribution) {
  at::Tensor parts = at::view_as_real(local);
  region.sizes.push_back(2);
  region.held.push_back({{0, 2}});
  fill(parts, region, stream, distribution_of_parts(distribution));
}

// The numbers of a tensor on a GPU, which the CPU makes.
template <typename Fill>
void copy_from_cpu(const at::Tensor& out, const Fill& fill) {
  at::Tensor made = at::detail::empty_cpu(out.sizes(), out.scalar_type());
  fill(made);
  out.copy_(made);
}

}  // namespace

Site make_site(std::string_view name) { return {base::hash_string(name), std::string(name)}; }

void fill(at::Tensor& local, const Region& region, const Stream& stream, const Distribution& distribution) {
  if (local.is_cuda()) {
    return copy_from_cpu(local, [&](at::Tensor& made) { fill(made, region, stream, distribution); });
  }
  TESSERA_CHECK(local.device().is_cpu() && local.is_contiguous(),
                "[random fill] needs a contiguous tensor on the CPU; this one is on ", local.device(), " with strides ",
                local.strides());
  TESSERA_CHECK(local.sizes() == at::IntArrayRef(local_sizes(region)), "[random fill] local tensor of sizes ",
                local.sizes(), " for a region of ", at::IntArrayRef(local_sizes(region)));
  if (!base::has_values()) {
    return;
  }
  if (local.is_complex()) {
    return fill_complex(local, region, stream, distribution);
  }
  const BlockSource source(stream);
  const auto fill_either = [&]<typename T>(T) {
    is_discrete(distribution) ? fill_discrete<T>(local, region, source, distribution)
                              : fill_real<T>(local, region, source, distribution);
  };
  switch (local.scalar_type()) {
    case at::kDouble: return fill_either(double{});
    case at::kFloat: return fill_either(float{});
    case at::kHalf: return fill_either(at::Half{});
    case at::kBFloat16: return fill_either(at::BFloat16{});
    default: break;
  }
  TESSERA_CHECK(is_discrete(distribution), "[random fill] no ", local.scalar_type(),
                " values of a continuous distribution; accepted: float64, float32, float16, bfloat16, complex (uniform "
                "and normal)");
  switch (local.scalar_type()) {
    case at::kLong: return fill_discrete<int64_t>(local, region, source, distribution);
    case at::kInt: return fill_discrete<int32_t>(local, region, source, distribution);
    case at::kShort: return fill_discrete<int16_t>(local, region, source, distribution);
    case at::kChar: return fill_discrete<int8_t>(local, region, source, distribution);
    case at::kByte: return fill_discrete<uint8_t>(local, region, source, distribution);
    case at::kBool: return fill_discrete<bool>(local, region, source, distribution);
    default:
      TESSERA_CHECK(false, "[random fill] no values of dtype ", local.scalar_type(),
                    "; accepted: float64, float32, float16, bfloat16, int64, int32, int16, int8, uint8, bool");
  }
}

void fill_permutation(at::Tensor& out, const Stream& stream) {
  if (out.is_cuda()) {
    return copy_from_cpu(out, [&](at::Tensor& made) { fill_permutation(made, stream); });
  }
  TESSERA_CHECK(out.device().is_cpu() && out.is_contiguous() && out.scalar_type() == at::kLong && out.dim() == 1,
                "[randperm] needs a contiguous int64 tensor of one dim on the CPU");
  const int64_t n = out.numel();
  const BlockSource source(stream);
  std::vector<std::pair<uint64_t, int64_t>> keys(static_cast<size_t>(n));
  for (int64_t i = 0; i < n; i += 2) {
    const PhiloxWords words = source.block(0, i / 2);
    keys[i] = {wide(words.data()), i};
    if (i + 1 < n) {
      keys[i + 1] = {wide(words.data() + 2), i + 1};
    }
  }
  std::sort(keys.begin(), keys.end());
  std::transform(keys.begin(), keys.end(), out.data_ptr<int64_t>(), [](const auto& key) { return key.second; });
}

int64_t draw_integer(const Stream& stream, int64_t sample, int64_t element, int64_t range) {
  TESSERA_CHECK(range > 0, "[random integer] range ", range, "; it must be positive");
  TESSERA_CHECK(sample >= 0 && sample >> 32 == 0 && element >= 0 && element >> 40 == 0, "[random integer] sample ",
                sample, ", element ", element, "; accepted: samples below 2^32, elements below 2^40");
  const PhiloxWords words = BlockSource(stream).block(sample, element / 2);
  return static_cast<int64_t>(bounded(wide(words.data() + 2 * (element % 2)), static_cast<uint64_t>(range)));
}

}  // namespace tessera::random
