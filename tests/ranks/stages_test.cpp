// Stages of a pipeline without a schedule: one device's bits, one hash in `exact`, and what travels between stages.
#include <filesystem>

#include <unistd.h>

#include "tessera/dtensor/move/hand_over.h"
#include "tessera/optim/clip.h"
#include "tessera/plan/stages.h"
#include "tests/ranks/stage_runs.h"

namespace tessera::ranks::stages_test {
namespace {

constexpr int64_t kSteps = 3;

Setting setting(std::optional<sums::Lattice> lattice) {
  return {.steps = kSteps, .batch = 6, .lattice = lattice, .clip = clip_to_half};
}

models::LlamaConfig llama(bool is_tied = false) { return stage_llama(3, is_tied); }

models::GptConfig gpt(bool is_tied) { return stage_gpt(3, is_tied); }

template <typename Model, typename Config>
void expect_same(const Setting& setting, const Config& config, const std::vector<Case>& cases, int64_t accumulate = 1) {
  expect_one_ranks_bits<Model>(setting, config, accumulate, cases);
}

// The kernels of libtorch add in another order on other numbers of threads.
TEST(Stages, InFastHaveOneDevicesBits) {
  Setting on_one_thread = setting({});
  on_one_thread.threads = 1;
  expect_same<models::Llama>(on_one_thread, llama(), {{"pp=2"}, {"pp=4"}});
  expect_same<models::Gpt>(on_one_thread, gpt(false), {{"pp=2", false, 3}}, 3);
}

TEST(Stages, InExactHaveOneHash) {
  const sums::Lattice lattice{.batch = 6, .sequence = 4, .feature = 8};
  expect_same<models::Llama>(setting(lattice), llama(), {{"pp=4", false, 3}, {"pp=2,tp=2", true}});
  expect_same<models::Gpt>(setting(lattice), gpt(true), {{"pp=4"}, {"tp=2,pp=2", true, 2}});
  if (is_full()) {
    expect_same<models::Llama>(setting(lattice), llama(true), {{"pp=2"}, {"pp=2,dp=2", false, 2}, {"pp=2,dp=2,tp=2"}});
    expect_same<models::Gpt>(setting(lattice), gpt(true), {{"pp=2,tp=2"}, {"pp=2", false, 6}});
    expect_same<models::Gpt>(setting(lattice), gpt(false), {{"pp=2,dp=2"}, {"pp=3", false, 6}});
  }
}

// The control of both: squares added stage by stage.
TEST(Stages, ANormAddedByStageHasOtherBits) {
  Setting by_stage = setting(sums::Lattice());
  by_stage.steps = 8;  // in some of them both sums round alike
  const Curve one = train<models::Llama>(by_stage, llama(), {});
  by_stage.clip = [](const std::vector<at::Tensor>& parameters) {
    std::map<std::string, std::vector<at::Tensor>> stages;
    for (const at::Tensor& parameter : parameters) {
      stages[spec_of(parameter).layout_str()].push_back(parameter);
    }
    float squares = 0;
    for (const auto& [layout, own] : stages) {
      const auto norm = full_tensor(optim::grad_norm(own)).item().toFloat();
      squares += norm * norm;
    }
    const double norm = std::sqrt(squares);
    for (const at::Tensor& parameter : parameters) {
      parameter.grad().mul_(0.5 / (norm + 1e-6));
    }
    return norm;
  };
  EXPECT_NE(difference(one, train<models::Llama>(by_stage, llama(), {"pp=4"})), "");
}

TEST(Stages, ACheckpointMovesBetweenNumbersOfStages) {
  const auto folder = std::filesystem::temp_directory_path() / ("tessera_stages_" + std::to_string(::getpid()));
  const Curve whole = train<models::Gpt>(setting(sums::Lattice()), gpt(true), {});
  for (const auto& [from, to] : {std::pair("pp=2", "pp=4"), {"pp=4", "1"}, {"tp=2", "pp=2,tp=2"}}) {
    expect_goes_on<models::Gpt>(setting(sums::Lattice()), gpt(true), folder.string(), from, to, whole);
  }
  std::filesystem::remove_all(folder);
}

// A step of `micro_batches`, of 4 samples of 16 tokens: each rank notes the mean over its line.
template <typename Model, typename Config>
trace::Ledger ledger_of_step(int64_t stages, const Config& config, int64_t micro_batches,
                             std::optional<sums::Lattice> lattice, const std::string& misplaced = "") {
  trace::Ledger ledger;
  const Mesh mesh({{"pp", stages}});
  comm::run_ranks(stages, [&](int64_t rank) {
    if (lattice) {
      dtensor::set_numerics(dtensor::Numerics::kExact, *lattice);
    }
    auto model = parallel::deferred([&] { return Model(config); });
    auto plan = parallel::generate_plan(*model, {.mesh = mesh});
    for (plan::ParameterPlan& entry : plan.parameters) {
      entry.storage = entry.pattern == misplaced ? Placements{layout::On(0)} : entry.storage;
    }
    parallel::place(*model, plan);
    parallel::Job job(model.ptr(), plan,
                      [model](const std::vector<at::Tensor>& batch) mutable { return model->loss(batch[0], batch[1]); },
                      {.accumulate = micro_batches});
    comm::RankContext::require().ledger.clear();
    const at::Tensor ids = at::ones({4, 16}, at::kLong);
    job(ids, ids).backward();
    optim::grad_norm(model->parameters());  // what waits is merged, and goes home
    if (rank == 0) {
      ledger = comm::RankContext::require().ledger;
    }
  });
  return ledger;
}

TEST(Stages, SendBoundaryValuesOnceInEachDirection) {
  const int64_t activation = 4 * 16 * 32 * 4, table = 64 * 32 * 4;  // of all micro-batches, in bytes
  for (const auto& lattice : {std::optional<sums::Lattice>(), std::optional(sums::Lattice())}) {
    for (const int64_t stages : {2, 4}) {
      for (const int64_t micro_batches : {1, 2}) {
        SCOPED_TRACE(c10::str(stages, " stages, ", micro_batches, " micro-batches, exact ", lattice.has_value()));
        const int64_t boundaries = stages - 1;
        const auto plain = ledger_of_step<models::Gpt>(stages, gpt(false), micro_batches, lattice);
        EXPECT_EQ(stages * plain.bytes_of("send", "pp"), 2 * boundaries * activation);
        EXPECT_EQ(plain.calls_of("send", "pp"), 2 * boundaries * micro_batches);
        // The control: a weight of the last stage at the first costs its activations two ways more.
        const auto wrong =
            ledger_of_step<models::Gpt>(stages, gpt(false), micro_batches, lattice, "transformer.h.2.mlp.c_fc.weight");
        EXPECT_GT(wrong.bytes_of("send", "pp"), plain.bytes_of("send", "pp"));
        // A tied head fetches the table once a step; its gradient goes home, in `exact` once a step too.
        const auto tied = ledger_of_step<models::Gpt>(stages, gpt(true), micro_batches, lattice);
        EXPECT_EQ(stages * tied.bytes_of("send", "pp"),
                  2 * boundaries * activation + (1 + (lattice ? 1 : micro_batches)) * table);
        // RMSNorm reads its weight last, so what it normalised crosses beside the residual; of four stages the last one
        // has the last norm, and no residual.
        const auto root_mean_square = ledger_of_step<models::Llama>(stages, llama(), micro_batches, lattice);
        EXPECT_EQ(stages * root_mean_square.bytes_of("send", "pp"), 2 * (stages == 2 ? 2 : 5) * activation);
      }
    }
  }
}

TEST(Stages, OfAPlanThatDoesNotFitTheMeshAreRefused) {
  plan::Plan plan;
  plan.mesh = Mesh::parse("pp=2");
  plan.parameters = {{"weight", {layout::On(2)}, {}, {}}};
  EXPECT_SAYS(failure_on(2,
                         [&](int64_t) {
                           torch::nn::Linear model(4, 4);
                           parallel::place(*model, plan);
                         }),
              "\"weight\" is On(2) on axis pp of mesh {pp=2}; accepted: On(0) to On(1)");
}

TEST(Stages, OfOneRankGiveEachOtherValuesOfTheSizesThatBothSay) {
  const auto given = [](int64_t elements) {
    return failure_on(1, [&](int64_t) {
      comm::RankContext& ctx = comm::RankContext::require();
      ctx.own_messages.keep(1, at::ones({elements}));
      EXPECT_EQ(dtensor::taken_from_own(ctx, {.result_sizes = {8}}, 1).numel(), 8);
    });
  };
  EXPECT_EQ(given(8), "");
  EXPECT_SAYS(given(4), "takes a value of sizes [8] from another of its stages");
}

}  // namespace
}  // namespace tessera::ranks::stages_test
