// The hash of a value against the hash of the full tensor, computed here by its definition.
#include "tessera/watch/step_value.h"

#include <cmath>
#include <limits>
#include <numeric>

#include <ATen/ATen.h>
#include <gtest/gtest.h>

#include "tessera/base/hash.h"
#include "tessera/comm/threads/run_ranks.h"
#include "tessera/dtensor/front/dtensor.h"

namespace tessera::watch::step_value_test {
namespace {

// The definition: the sum of a mix of each element's row-major index and its bits.
uint64_t expected_hash(const at::Tensor& whole) {
  const auto flat = whole.contiguous().flatten();
  uint64_t sum = 0;
  for (int64_t i = 0; i < flat.numel(); ++i) {
    uint64_t bits = 0;
    std::memcpy(&bits, static_cast<const char*>(flat.const_data_ptr()) + i * static_cast<int64_t>(flat.itemsize()),
                flat.itemsize());
    const bool is_nan = flat.is_floating_point() && std::isnan(flat[i].item<double>());
    sum += base::hash_mix((static_cast<uint64_t>(i) + 1) * 0x9e3779b97f4a7c15ULL ^ (is_nan ? ~uint64_t{0} : bits));
  }
  return sum;
}

// The sum of the ranks' hashes of what `make` gives on each.
template <typename Make>
uint64_t hash_on(int64_t ranks, Make make) {
  std::vector<uint64_t> parts(static_cast<size_t>(ranks));
  comm::run_ranks(ranks, [&](int64_t rank) { parts[static_cast<size_t>(rank)] = hash_value(make()); });
  return std::accumulate(parts.begin(), parts.end(), uint64_t{0});
}

uint64_t hash_of(const at::Tensor& whole, const std::string& mesh, const std::string& layout) {
  const auto parsed = layout::Mesh::parse(mesh);
  return hash_on(parsed.size(), [&] { return dtensor::distribute(whole, parsed, layout); });
}

at::Tensor values(at::ScalarType dtype) {
  return c10::isFloatingType(dtype) ? at::sin(at::arange(7 * 5 * 3, at::kDouble)).to(dtype).view({7, 5, 3})
                                    : at::arange(7 * 5 * 3, at::kLong).to(dtype).view({7, 5, 3});
}

// The sum of the ranks' digests of what `make` gives on each.
template <typename Make>
Digest digest_on(int64_t ranks, Make make) {
  std::vector<Digest> parts(static_cast<size_t>(ranks));
  comm::run_ranks(ranks, [&](int64_t rank) { parts[static_cast<size_t>(rank)] = digest_value(make(rank)); });
  Digest all;
  for (const auto& part : parts) {
    all += part;
  }
  return all;
}

TEST(DigestValue, IsTheSameOnEveryLayoutAndOfTermsOfASum) {
  const auto whole = values(at::kDouble);
  const auto one = digest_on(1, [&](int64_t) { return dtensor::distribute(whole, layout::Mesh::parse("1"), "{}"); });
  EXPECT_EQ(one.hash, expected_hash(whole));
  for (const auto& [text, layout] :
       {std::pair("dp=3", "{dp: R}"), {"dp=3", "{dp: S(0)}"}, {"dp=2,tp=2", "{dp: S(1), tp: S(2)}"}}) {
    const auto mesh = layout::Mesh::parse(text);
    const auto other = digest_on(mesh.size(), [&](int64_t) { return dtensor::distribute(whole, mesh, layout); });
    EXPECT_EQ(other.hash, one.hash) << layout;
    EXPECT_LE((other - one).size(), 1e-14 * one.size()) << layout;
  }
  for (const auto& [op, share] : {std::pair(layout::ReduceOp::kSum, 1.0), {layout::ReduceOp::kAvg, 3.0}}) {
    const auto mesh = layout::Mesh::parse("dp=3");
    const auto terms = digest_on(3, [&](int64_t rank) {
      const auto term = whole * (share * static_cast<double>(rank + 1) / 6);
      return dtensor::from_local(term, mesh, {layout::Partial(op)}, whole.sizes().vec());
    });
    EXPECT_LE((terms - one).size(), 1e-14 * one.size()) << layout::name_of(op);
  }
}

TEST(DigestValue, KnowsHowFarTwoValuesAreApart) {
  const auto digest_of = [](const at::Tensor& value) {
    return digest_on(1, [&](int64_t) { return dtensor::distribute(value, layout::Mesh::parse("1"), "{}"); });
  };
  const auto whole = values(at::kDouble);
  const double size = whole.norm().item<double>();
  // 32 sums tell a distance to about an eighth.
  EXPECT_NEAR(digest_of(whole).size() / size, 1, 0.5);
  EXPECT_NEAR((digest_of(whole) - digest_of(whole * 1.01)).size() / (0.01 * size), 1, 0.5);
  auto other = whole.clone();
  other.view(-1)[17] += 0.25;  // of one element it is the difference itself
  EXPECT_NEAR((digest_of(whole) - digest_of(other)).size(), 0.25, 1e-12);
  EXPECT_DOUBLE_EQ(digest_of(at::scalar_tensor(-2.5, at::kDouble)).one_element(), -2.5);
  other.view(-1)[17] = std::numeric_limits<double>::quiet_NaN();
  EXPECT_NE(digest_of(other).not_finite, digest_of(whole).not_finite);
  EXPECT_TRUE(std::isfinite(digest_of(other).size()));
}

TEST(HashValue, IsTheSameOnEveryLayoutAndFollowsItsDefinition) {
  for (const auto dtype :
       {at::kFloat, at::kDouble, at::kHalf, at::kBFloat16, at::kLong, at::kInt, at::kByte, at::kBool}) {
    const auto whole = values(dtype);
    const auto expected = expected_hash(whole);
    const std::vector<std::pair<std::string, std::string>> layouts = {{"1", "{}"},
                                                                      {"dp=3", "{dp: R}"},
                                                                      {"dp=3", "{dp: S(0)}"},
                                                                      {"dp=4", "{dp: S(0)}"},
                                                                      {"tp=8", "{tp: S(2)}"},
                                                                      {"dp=2,tp=2", "{dp: S(0), tp: S(0)}"},
                                                                      {"dp=2,tp=2", "{dp: S(0@1), tp: S(0@0)}"},
                                                                      {"dp=2,tp=3", "{dp: S(1;2), tp: R}"},
                                                                      {"dp=2,tp=2", "{dp: R, tp: S(2)}"}};
    for (const auto& [mesh, layout] : layouts) {
      EXPECT_EQ(hash_of(whole, mesh, layout), expected) << dtype << " " << mesh << " " << layout;
    }
  }
}

TEST(HashValue, SeesEveryBitAndEveryPlace) {
  const auto whole = values(at::kFloat);
  const auto hash = hash_of(whole, "dp=2", "{dp: S(0)}");
  auto bits = whole.clone();
  bits.view(at::kInt)[6][4][2] += 1;
  EXPECT_NE(hash_of(bits, "dp=2", "{dp: S(0)}"), hash);
  EXPECT_NE(hash_of(whole.flip(0), "dp=2", "{dp: S(0)}"), hash);
  const auto zero = at::zeros({4});
  EXPECT_NE(hash_of(zero, "1", "{}"), hash_of(zero.neg(), "1", "{}"));
  EXPECT_EQ(hash_of(at::zeros({0, 3}), "dp=2", "{dp: S(0)}"), 0u);
}

TEST(HashValue, AllNaNAreOne) {
  const auto of_pattern = [](int32_t pattern) {
    const auto tensor = at::zeros({3});
    tensor.view(at::kInt)[1] = pattern;
    return hash_of(tensor, "1", "{}");
  };
  EXPECT_EQ(of_pattern(0x7fc00000), of_pattern(0x7fa12345));
  EXPECT_EQ(of_pattern(0x7fc00000), of_pattern(static_cast<int32_t>(0xffc00000)));
  EXPECT_NE(of_pattern(0x7fc00000), of_pattern(0x7f800000));  // infinity
}

// Micro-batches of 2 of a step of 6 samples, dealt to rows in any order, are the step together.
TEST(HashValue, MicroBatchesAreTheStep) {
  const auto whole = at::sin(at::arange(6 * 4, at::kDouble)).view({6, 4});
  const auto mesh = layout::Mesh::parse("dp=2");
  const std::vector<std::vector<int64_t>> samples = {{0, 3}, {1, 4}, {2, 5}};
  for (const bool is_transposed : {false, true}) {
    uint64_t sum = 0;
    for (const auto& of_batch : samples) {
      sum += hash_on(2, [&] {
        const auto rows = whole.index_select(0, at::tensor(of_batch));
        const auto* origin = dtensor::Origin::make({{0, of_batch[0]}, {1, of_batch[1]}});
        const layout::Labels labels = {{{.label = layout::Label::kBatch, .extent = 2, .total = 6}}, {}};
        const auto batch = dtensor::with_labels(dtensor::distribute(rows, mesh, "{dp: S(0)}"), labels, origin);
        EXPECT_TRUE(has_samples(*dtensor::spec_of(batch)));
        EXPECT_EQ(step_sizes(*dtensor::spec_of(batch)), (std::vector<int64_t>{6, 4}));
        return is_transposed ? batch.t() : batch;
      });
    }
    EXPECT_EQ(sum, expected_hash(is_transposed ? whole.t() : whole));
  }
}

TEST(StepValue, TextsReadBackAndIndicesAreRowMajor) {
  StepValue value;
  const auto whole =
      at::tensor({0.1F, -0.0F, std::numeric_limits<float>::quiet_NaN(), 1e-30F, 3.0F, 16777217.0F}).view({2, 3});
  comm::run_ranks(2,
                  [&](int64_t) { value.add(dtensor::distribute(whole, layout::Mesh::parse("tp=2"), "{tp: S(1)}")); });
  EXPECT_EQ(value.sizes(), (std::vector<int64_t>{2, 3}));
  EXPECT_EQ(value.text_of(0), "0.100000001");
  EXPECT_EQ(value.text_of(1), "-0");
  EXPECT_EQ(value.text_of(2), "nan");
  EXPECT_EQ(std::stof(value.text_of(3)), 1e-30F);
  EXPECT_EQ(value.text_of(4), "3");
  EXPECT_EQ(value.index_of(5), (std::vector<int64_t>{1, 2}));
}

}  // namespace
}  // namespace tessera::watch::step_value_test
