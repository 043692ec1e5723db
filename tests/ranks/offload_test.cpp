// Saved activations in a file: the bits of a model that keeps them in memory, and as much less memory as the file
// holds.

#include <gtest/gtest.h>
#include <torch/torch.h>

#include "tessera/dtensor/front/offload.h"
#include "tests/ranks/block_models.h"

namespace tessera::ranks::offload_test {
namespace {

using dtensor::offload;
using dtensor::offloaded_bytes;
using plan::Sharding;
using support::bytes_of;
using Names = std::vector<std::string>;
using Tensors = std::vector<at::Tensor>;

models::LlamaConfig llama(int64_t layers = 3) {
  models::LlamaConfig config;
  config.vocab_size = 67, config.dim = 64, config.layers = layers, config.heads = 4, config.kv_heads = 2;
  config.hidden = 96, config.max_seq = 32, config.fused_attention = true;
  return config;
}

Setting setting_of(std::optional<sums::Lattice> lattice) {
  return {.steps = 2, .batch = 16, .vocabulary = 67, .lattice = lattice};
}

Setting with(Setting setting, Names offloaded, Names recomputed = {}, Names keep = {}) {
  setting.offload = std::move(offloaded);
  setting.recompute = std::move(recomputed), setting.recompute_keep = std::move(keep);
  return setting;
}

TEST(Offload, HasTheBitsOfAModelInMemory) {
  const Names gpts = {"transformer.h.*"}, llamas = {"model.layers.*"};
  for (const bool is_exact : {true, false}) {
    const Setting all =
        setting_of(is_exact ? std::optional(sums::Lattice{.batch = 16, .sequence = 2, .feature = 4}) : std::nullopt);
    for (const Case& c : std::vector<Case>{{"1"}, {"fsdp=2", false, 2, Sharding::kGradients}}) {
      SCOPED_TRACE(c.str() + (is_exact ? " exact" : ""));
      const Curve gpt_curve = train<models::Gpt>(all, tied_gpt_with_dropout(), c),
                  llama_curve = train<models::Llama>(all, llama(), c);
      EXPECT_EQ(difference(gpt_curve, train<models::Gpt>(with(all, gpts), tied_gpt_with_dropout(), c)), "");
      EXPECT_EQ(difference(llama_curve, train<models::Llama>(with(all, llamas), llama(), c)), "");
      EXPECT_EQ(difference(llama_curve, train<models::Llama>(with(all, llamas, llamas, {"linear"}), llama(), c)), "");
    }
  }
}

constexpr int64_t kBatch = 16, kLength = 32;

// Of rank 0, above what is there between steps.
struct Account {
  int64_t held = 0;  // for backward
  int64_t peak = 0;  // with backward
  int64_t file = 0;  // at most
  int64_t left = 0;  // in the file, after backward
};

Account account_of(const Mesh& mesh, int64_t layers, const Names& offloaded, const Names& recomputed) {
  Account account;
  run_on(mesh, [&](int64_t rank) {
    LlamaLoop loop(llama(layers), {.mesh = mesh, .recompute = recomputed, .offload = offloaded});
    loop.forward(kBatch, kLength).backward();  // gradients are there from now on
    const int64_t before = bytes_of(rank).live;
    support::reset_peak(rank);
    at::Tensor loss = loop.forward(kBatch, kLength);
    const int64_t held = bytes_of(rank).live - before, file = offloaded_bytes();
    loss.backward();
    const int64_t peak = bytes_of(rank).peak - before;
    loss.reset();
    if (rank == 0) {
      account = {held, peak, file, offloaded_bytes()};
    }
  });
  return account;
}

// What is not in memory is in the file: what one more block adds to either, or to the peak. Blocks that keep all move
// nearly all; recomputed ones keep their input, which moves.
TEST(Offload, TakesWhatItMovesOutOfMemory) {
  support::count_allocations();
  for (const char* text : {"1", "fsdp=2"}) {
    const auto mesh = Mesh::parse(text);
    for (const Names& recomputed : {Names{}, Names{"model.layers.*"}}) {
      SCOPED_TRACE(c10::str(text, " recomputed ", recomputed.size()));
      const auto added = [&](const Names& offloaded) {
        const Account few = account_of(mesh, 2, offloaded, recomputed),
                      many = account_of(mesh, 4, offloaded, recomputed);
        EXPECT_EQ(many.left, 0);
        return Account{many.held - few.held, many.peak - few.peak, many.file - few.file};
      };
      const Account plain = added({}), moved = added({"model.layers.*"});
      EXPECT_EQ(plain.file, 0);
      const auto file = static_cast<double>(moved.file);
      EXPECT_NEAR(file, static_cast<double>(plain.held), 0.02 * file);
      EXPECT_NEAR(static_cast<double>(plain.held - moved.held), file, 0.02 * file);
      EXPECT_NEAR(static_cast<double>(plain.peak - moved.peak), file, 0.02 * file);
    }
  }
}

at::Tensor leaf(at::IntArrayRef sizes) { return distribute(at::randn(sizes), Mesh::parse("1"), "{}").requires_grad_(); }

// What the program holds as well, writes to, or has numbers of, stays right.
TEST(Offload, LeavesWhatOthersHold) {
  run_on(Mesh::parse("1"), [](int64_t) {
    const at::Tensor x = leaf({64, 64});
    at::Tensor part, inside;
    const Tensors results = offload(
        [&](const Tensors& in) -> Tensors {
          const at::Tensor h = in[0].sin();
          part = to_local(h.detach());
          inside = h.exp();
          return {h * inside, h.cos()};
        },
        {x});
    const void* where = part.const_data_ptr();
    (results[0] + results[1]).sum().backward();
    EXPECT_EQ(part.const_data_ptr(), where);
    const at::Tensor value = full_tensor(x.detach());
    EXPECT_TRUE(at::equal(part, value.sin()));
    EXPECT_TRUE(at::equal(full_tensor(inside.detach()), value.sin().exp()));
    const at::Tensor y = x.detach().clone().requires_grad_(), h = y.sin(), e = h.exp();
    const Tensors plain = {h * e, h.cos()};  // in the same order: the last operator's gradient comes first
    (plain[0] + plain[1]).sum().backward();
    EXPECT_TRUE(at::equal(full_tensor(x.grad()), full_tensor(y.grad())));
    const torch::NoGradGuard no_grad;
    EXPECT_EQ(offload([](const Tensors& in) -> Tensors { return {in[0].sin()}; }, {x})[0].requires_grad(), false);
  });
}

// A graph may be differentiated again, and its memory in the file lives as long as it.
TEST(Offload, ServesAGraphThatIsKept) {
  run_on(Mesh::parse("1"), [](int64_t) {
    const at::Tensor x = leaf({64, 64}), w = leaf({64, 64});
    at::Tensor y = offload([&](const Tensors& in) -> Tensors { return {in[0].mm(w).tanh().mm(w).sum()}; }, {x})[0];
    EXPECT_EQ(offloaded_bytes(), 64 * 64 * 4);  // the result of tanh
    y.backward({}, /*retain_graph=*/true);
    const at::Tensor once = full_tensor(x.grad()).clone();
    y.backward();
    EXPECT_TRUE(at::equal(full_tensor(x.grad()), once + once));
    EXPECT_EQ(offloaded_bytes(), 0);
  });
}

TEST(Offload, NamesWhatDoesNotGo) {
  EXPECT_SAYS(failure_on(1, [](int64_t) { dtensor::set_offload_folder("/nowhere"); }),
              "[offload] cannot make a file in \"/nowhere\"");
  EXPECT_SAYS(failure_on(1, [](int64_t) { LlamaLoop(llama(), {.mesh = Mesh::parse("1"), .offload = {"layers.*"}}); }),
              "offload \"layers.*\" matches no module of the model; accepted");
  EXPECT_SAYS(
      failure_on(1, [](int64_t) { LlamaLoop(llama(), {.mesh = Mesh::parse("1"), .offload = {"model.layers.*.mlp"}}); }),
      "has `model.layers.0.mlp` offloaded");
}

}  // namespace
}  // namespace tessera::ranks::offload_test
