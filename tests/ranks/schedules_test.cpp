// Schedules of pipelines: whatever the order of passes, one device's bits.
#include <algorithm>

#include <ATen/record_function.h>

#include "tests/ranks/even_block.h"
#include "tests/ranks/stage_runs.h"

namespace tessera::ranks::schedules_test {
namespace {

constexpr auto kShards = plan::Sharding::kParameters;

Setting setting(std::optional<sums::Lattice> lattice) {
  return {.steps = 3, .batch = 8, .lattice = lattice, .clip = clip_to_half};
}

template <typename Model, typename Config>
void expect_same(const Setting& setting, const Config& config, int64_t micro_batches, std::vector<Case> cases) {
  for (Case& c : cases) {
    c.accumulate = micro_batches;
  }
  expect_one_ranks_bits<Model>(setting, config, micro_batches, cases);
}

TEST(Schedules, InFastHaveOneDevicesBits) {
  Setting on_one_thread = setting({});
  on_one_thread.threads = 1;
  expect_same<models::Llama>(on_one_thread, stage_llama(4), 4,
                             {{"pp=2", false, 1, kShards, "gpipe"},
                              {"pp=2", false, 1, kShards, "1f1b"},
                              {"pp=4", false, 1, kShards, "1f1b"},
                              {"pp=2", false, 1, kShards, "interleaved"},
                              {"pp=2", false, 1, kShards, "zb-h1"},
                              {"pp=4", false, 1, kShards, "zb-h2"},
                              {"pp=2", false, 1, kShards, "zbv"},
                              {"pp=2", false, 1, kShards, "v-half"},
                              {"pp=2", false, 1, kShards, "v-min"},
                              {"pp=2", false, 1, kShards, "dualpipe-v"}});
  expect_same<models::Gpt>(on_one_thread, stage_gpt(3, false), 3, {{"pp=2", false, 1, kShards, "1f1b"}});
  expect_same<models::Gpt>(on_one_thread, stage_gpt(3, true), 4,
                           {{"pp=2", false, 1, kShards, "zb-h1"}, {"pp=2", false, 1, kShards, "zbv"}});
}

TEST(Schedules, InExactHaveOneHash) {
  const sums::Lattice lattice{.batch = 8, .sequence = 4, .feature = 8};
  expect_same<models::Llama>(setting(lattice), stage_llama(4), 4,
                             {{"pp=2,tp=2", true, 1, kShards, "1f1b"}, {"pp=2", false, 1, kShards, "interleaved"}});
  expect_same<models::Gpt>(setting(lattice), stage_gpt(3, true), 4,
                           {{"pp=2", false, 1, kShards, "1f1b"},
                            {"pp=2", false, 1, kShards, "interleaved"},
                            {"pp=2", false, 1, kShards, "zb-h1"},
                            {"pp=4", false, 1, kShards, "zb-h2"},
                            {"pp=2", false, 1, kShards, "zbv"},
                            {"pp=2", false, 1, kShards, "v-half"},
                            {"pp=2", false, 1, kShards, "v-min"},
                            {"pp=2", false, 1, kShards, "dualpipe-v"},
                            {"pp=4", false, 1, kShards, "gpipe"}});
}

// A step's micro-batches, the last one before the others. (Turned round, a balanced tree of sums would be the same.)
at::Tensor last_first(const Setting& setting, int64_t step) {
  return tokens_of(setting, step).unflatten(0, {4, -1}).roll(1, 0).flatten(0, 1);
}

// The control of both: gradients of the same micro-batches, added in another order.
TEST(Schedules, MicroBatchesInAnotherOrderHaveOtherBits) {
  for (const auto& lattice : {std::optional<sums::Lattice>(), std::optional(sums::Lattice{.batch = 8})}) {
    Setting in_order = setting(lattice);
    in_order.threads = 1;
    const Curve one = train<models::Llama>(in_order, stage_llama(4), {.accumulate = 4});
    Setting other = in_order;
    other.tokens = last_first;
    const Curve curve = train<models::Llama>(other, stage_llama(4), {"pp=2", false, 4, kShards, "1f1b"});
    EXPECT_NE(difference(one, curve), "");
    EXPECT_LT(distance(curve, one).losses, 1e-5);  // they are the same values
  }
}

// Whose logits are dropped by masks of their own: of a seed, or one after the other as this rank comes to run passes.
template <bool kByExecution>
struct MaskedImpl : models::GptImpl {
  using GptImpl::GptImpl;

  at::Tensor loss(const at::Tensor& tokens, const at::Tensor& targets) {
    const at::Tensor logits = forward(tokens);
    const auto generator = at::make_generator<at::CPUGeneratorImpl>(kByExecution ? passes++ : 0);
    const at::Tensor kept = at::rand(logits.sizes(), generator).gt(0.1);
    return at::cross_entropy_loss((logits * kept).flatten(0, 1), targets.flatten());
  }

  int64_t passes = 0;
};
template <bool kByExecution>
struct Masked : torch::nn::ModuleHolder<MaskedImpl<kByExecution>> {
  using torch::nn::ModuleHolder<MaskedImpl<kByExecution>>::ModuleHolder;
};

template <typename Model>
std::string difference_by_zbv() {
  Setting on_one_thread = setting({});
  on_one_thread.threads = 1;
  const Curve one = train<Model>(on_one_thread, stage_gpt(4, false), {.accumulate = 4});
  return difference(one, train<Model>(on_one_thread, stage_gpt(4, false), {"pp=2", false, 4, kShards, "zbv"}));
}

// The control of both: masks by order of execution.
TEST(Schedules, MasksByOrderOfExecutionHaveOtherBits) {
  EXPECT_EQ(difference_by_zbv<Masked<false>>(), "");
  EXPECT_NE(difference_by_zbv<Masked<true>>(), "");
}

// While it lives, keeps what this thread does in each pass of a schedule: "node" of autograd's graph, or "product".
class Events {
 public:
  Events() { events = this; }
  ~Events() {
    at::removeCallback(handle_);
    events = nullptr;
  }
  Events(const Events&) = delete;
  Events& operator=(const Events&) = delete;

  const std::vector<std::vector<std::string>>& of_passes() const { return of_passes_; }

 private:
  static std::unique_ptr<at::ObserverContext> keep(const at::RecordFunction& span) {
    const std::string name = span.name();
    auto& passes = events->of_passes_;
    if (span.scope() == at::RecordScope::USER_SCOPE) {
      passes.emplace_back();
    } else if (passes.empty()) {
      return nullptr;  // before the step
    } else if (span.scope() == at::RecordScope::BACKWARD_FUNCTION) {
      passes.back().push_back("node");
    } else if (name == "aten::mm" || name == "aten::addmm_") {
      passes.back().push_back("product");
    }
    return nullptr;
  }

  inline static thread_local Events* events = nullptr;

  std::vector<std::vector<std::string>> of_passes_;
  at::CallbackHandle handle_ = at::addThreadLocalCallback(at::RecordFunctionCallback(keep).scopes(
      {at::RecordScope::USER_SCOPE, at::RecordScope::FUNCTION, at::RecordScope::BACKWARD_FUNCTION}));
};

// The products behind a pass's last node, which sends the gradient of the stage's input.
int64_t products_at_end(const std::vector<std::string>& events) {
  const auto node = std::find(events.rbegin(), events.rend(), "node");
  return node == events.rend() ? 0 : node - events.rbegin();
}

// Nobody goes on with the gradients of weights in a step, and the stage before with that of the input.
TEST(Schedules, TheLastBackwardSendsBeforeItMakesGradientsOfWeights) {
  constexpr int64_t kWidth = 8, kMicroBatches = 4;
  for (const char* name : {"1f1b", "gpipe"}) {
    run_on(Mesh({{"pp", 2}}), [&](int64_t rank) {
      auto model = parallel::deferred([&] { return EvenTower(4, kWidth); });
      const auto plan = parallel::generate_plan(*model, {.mesh = Mesh({{"pp", 2}}), .schedule = name});
      auto job = parallel::parallelize(model, plan, {.accumulate = kMicroBatches});
      const Events events;
      job(at::ones({kMicroBatches, kWidth}));
      const auto& passes = events.of_passes();
      ASSERT_EQ(passes.size(), 2 * kMicroBatches) << name;
      int64_t with_products = 0;
      for (const auto& pass : passes) {
        with_products += products_at_end(pass) > 0;
      }
      EXPECT_EQ(with_products, rank) << name;                       // of the first stage nobody waits for a gradient
      EXPECT_EQ(products_at_end(passes.back()), rank * 4) << name;  // two blocks of two weights
    });
  }
}

}  // namespace
}  // namespace tessera::ranks::schedules_test
