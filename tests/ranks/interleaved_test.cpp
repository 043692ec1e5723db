// Fused products that are cut block by block: the values, the gradients, and that nothing is gathered.
#include <ATen/ATen.h>
#include <gtest/gtest.h>

#include "tests/ranks/support.h"

namespace tessera::ranks::interleaved_test {
namespace {

using layout::InterleavedShard;
using layout::Partial;
using layout::Replicate;
using layout::Shard;

constexpr int64_t kRanks = 4, kSamples = 2, kLength = 3, kDim = 24, kHead = 4;

trace::Ledger& ledger() { return comm::RankContext::require().ledger; }

enum class Take { kSplit, kChunk, kSlice, kView };

// Q, K and V of one product, in the ways in which programs take them.
std::vector<at::Tensor> parts_of(const at::Tensor& fused, Take take) {
  switch (take) {
    case Take::kSplit: return fused.split(kDim, 2);
    case Take::kChunk: return fused.chunk(3, 2);
    case Take::kView: return fused.view({kSamples, kLength, 3, kDim}).unbind(2);
    case Take::kSlice: break;
  }
  return {fused.slice(2, 0, kDim), fused.slice(2, kDim, -kDim), fused.slice(2, 2 * kDim)};
}

at::Tensor heads_of(const at::Tensor& x) { return x.view({kSamples, kLength, kDim / kHead, kHead}).transpose(1, 2); }

// Attention of one fused product, as GPT-2 has it.
at::Tensor attention(const at::Tensor& x, const at::Tensor& weight, const at::Tensor& bias, const at::Tensor& out,
                     Take take) {
  const at::Tensor fused =
      at::addmm(bias, x.view({kSamples * kLength, kDim}), weight).view({kSamples, kLength, 3 * kDim});
  const auto parts = parts_of(fused, take);
  const at::Tensor scores = at::softmax(heads_of(parts[0]).matmul(heads_of(parts[1]).transpose(2, 3)), -1);
  const at::Tensor mixed = scores.matmul(heads_of(parts[2])).transpose(1, 2).reshape({kSamples * kLength, kDim});
  return mixed.mm(out);
}

std::vector<at::Tensor> leaves() {
  return {waves({kSamples, kLength, kDim}), waves({kDim, 3 * kDim}, 0.21), waves({3 * kDim}, 0.5),
          waves({kDim, kDim}, 0.11)};
}

std::vector<at::Tensor> with_gradients(std::vector<at::Tensor> of) {
  for (at::Tensor& tensor : of) {
    tensor.requires_grad_();
  }
  return of;
}

void expect_close(const at::Tensor& found, const at::Tensor& expected) {
  EXPECT_LE(error_of(full_tensor(found.detach()), expected), 1e-12);
}

TEST(Interleaved, FusedAttentionSendsOneSumForwardAndOneBackward) {
  const Mesh mesh = Mesh::parse("tp=4");
  const auto plain = with_gradients(leaves());
  const at::Tensor expected = attention(plain[0], plain[1], plain[2], plain[3], Take::kSplit);
  expected.square().sum().backward();
  for (Take take : {Take::kSplit, Take::kChunk, Take::kSlice}) {
    SCOPED_TRACE(static_cast<int>(take));
    run_on(mesh, [&](int64_t) {
      const auto values = leaves();
      const auto x = with_gradients({distribute(values[0], mesh, {Replicate()}),
                                     distribute(values[1], mesh, {InterleavedShard(1, 3, {.unit = kHead})}),
                                     distribute(values[2], mesh, {InterleavedShard(0, 3, {.unit = kHead})}),
                                     distribute(values[3], mesh, {Shard(0, {.unit = kHead})})});
      ledger().clear();
      const at::Tensor found = redistribute(attention(x[0], x[1], x[2], x[3], take), {Replicate()});
      EXPECT_EQ(ledger().calls_of("all_reduce", "tp"), 1) << ledger().json();
      EXPECT_EQ(ledger().total_bytes(), ledger().bytes_of("all_reduce", "tp")) << ledger().json();
      found.square().sum().backward();
      EXPECT_EQ(ledger().total_bytes(), ledger().bytes_of("all_reduce", "tp")) << ledger().json();
      expect_close(found, expected.detach());
      for (size_t i = 0; i < x.size(); ++i) {
        expect_close(x[i].grad(), plain[i].grad());
        EXPECT_EQ(spec_of(x[i].grad())->placements, spec_of(x[i])->placements);
      }
      EXPECT_EQ(ledger().calls_of("all_reduce", "tp"), 2) << ledger().json();
    });
  }
}

// What a cut does not fit is gathered, and right.
TEST(Interleaved, OtherUsesAreRight) {
  const Mesh mesh = Mesh::parse("dp=2,tp=2");
  const at::Tensor value = waves({6, 12});
  const std::vector<std::function<at::Tensor(const at::Tensor&)>> uses = {
      [](const at::Tensor& x) { return x.view({6, 3, 4}).sum(1); },
      [](const at::Tensor& x) { return x.view({6, 3, 4}) * 2; },
      [](const at::Tensor& x) { return x.view({6, 3, 4}).mul(3).view({6, 12}); },
      [](const at::Tensor& x) { return x.view({6, 2, 6}).amax(2); },
      [](const at::Tensor& x) { return x.t().contiguous(); },
      [](const at::Tensor& x) { return x.split(6, 1)[1]; },
      [](const at::Tensor& x) { return x.split(5, 1)[2]; },
      [](const at::Tensor& x) { return x.unbind(1)[7]; },
      [](const at::Tensor& x) { return x.slice(1, 2, 6); },
      [](const at::Tensor& x) { return x.slice(1, 1, 12, 3); },
      [](const at::Tensor& x) { return at::cat({x, x.neg()}, 1); },
      [](const at::Tensor& x) { return at::softmax(x, 1); },
      [](const at::Tensor& x) { return at::layer_norm(x, {12}).exp(); },
      [](const at::Tensor& x) { return x.cumsum(1); },
      [](const at::Tensor& x) { return x.index_select(1, at::tensor({3, 1})); },
      [](const at::Tensor& x) { return x.tril(1); },
      [](const at::Tensor& x) { return x.mm(x.t()); },
      [](const at::Tensor& x) { return x.sum({1}); },
      [](const at::Tensor& x) { return x.reshape({72}).roll(1); },
  };
  run_on(mesh, [&](int64_t) {
    for (const Placement& placement : {InterleavedShard(1, 3), InterleavedShard(1, 2),
                                       InterleavedShard(1, 3, {.unit = 2}), InterleavedShard(0, 2)}) {
      for (const Placement& other :
           {Placement(Replicate()), Placement(Shard(0)), Placement(Partial()), InterleavedShard(1, 3)}) {
        if (!layout::is_layout_of(mesh, {other, placement}, value.sizes())) {
          continue;
        }
        for (size_t i = 0; i < uses.size(); ++i) {
          const at::Tensor plain = value.clone().requires_grad_(),
                           x = spread(value, mesh, {other, placement}).requires_grad_();
          const at::Tensor expected = uses[i](plain), found = uses[i](x);
          EXPECT_LE(error_of(full_tensor(found.detach()), expected.detach()), 1e-12) << i << " of " << spec_of(x).str();
          expected.square().sum().backward();
          found.square().sum().backward();
          EXPECT_LE(error_of(full_tensor(x.grad()), plain.grad()), 1e-12)
              << "gradient of " << i << " of " << spec_of(x).str();
        }
      }
    }
  });
}

// The numbers of an element depend on neither generator on how it is cut.
// As many elements as blocks: each is a block of its own, and is at the first rank.
TEST(Interleaved, ADimOfAsManyElementsAsBlocksKeepsItsCut) {
  const Mesh mesh = Mesh::parse("tp=2");
  run_on(mesh, [&](int64_t) {
    const at::Tensor value = waves({3, 2}), x = distribute(value, mesh, {InterleavedShard(1, 2)});
    for (const at::Tensor& y : {x.mul(2), at::zeros_like(x), x.mul(3).add_(x)}) {
      EXPECT_EQ(spec_of(y).layout_str(), "{tp: S(1/2)}");
    }
    expect_close(x.mul(3).add_(x), value.mul(4));
    expect_close(at::zeros_like(x), at::zeros_like(value));
  });
}

TEST(Interleaved, RandomNumbersAreThoseOfTheWhole) {
  const Mesh mesh = Mesh::parse("tp=4");
  run_on(mesh, [&](int64_t) {
    for (auto kind : {dtensor::GeneratorKind::kCounter, dtensor::GeneratorKind::kStock}) {
      dtensor::set_generator(kind);
      std::vector<at::Tensor> drawn;
      for (const Placement& placement :
           {Placement(Replicate()), InterleavedShard(0, 3), InterleavedShard(1, 2, {.unit = 3})}) {
        dtensor::manual_seed(7);
        const at::Tensor x = distribute(at::zeros({18, 24}), mesh, {placement});
        drawn.push_back(full_tensor(x.normal_()));
        drawn.push_back(full_tensor(at::dropout(distribute(at::ones({18, 24}), mesh, {placement}), 0.5, true)));
      }
      for (size_t i = 2; i < drawn.size(); ++i) {
        EXPECT_TRUE(at::equal(drawn[i], drawn[i % 2])) << i;
      }
    }
    dtensor::set_generator(dtensor::GeneratorKind::kCounter);
  });
}

}  // namespace
}  // namespace tessera::ranks::interleaved_test
