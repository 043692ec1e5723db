// Stages of a pipeline without a schedule: one device's bits, one hash in `exact`, and what travels between stages.
#include <filesystem>

#include <unistd.h>

#include "tessera/optim/clip.h"
#include "tessera/plan/stages.h"
#include "tests/ranks/support.h"
#include "tests/ranks/training_run.h"

namespace tessera::ranks::stages_test {
namespace {

constexpr int64_t kSteps = 3;

Setting setting(std::optional<sums::Lattice> lattice) {
  return {.steps = kSteps, .batch = 6, .lattice = lattice, .clip = [](const std::vector<at::Tensor>& parameters) {
            return full_tensor(optim::clip_grad_norm(parameters, 0.5)).item().toDouble();
          }};
}

models::LlamaConfig llama(bool is_tied = false) {
  models::LlamaConfig config;
  config.vocab_size = 64, config.dim = 32, config.layers = 3, config.heads = 8, config.kv_heads = 8, config.hidden = 48,
  config.max_seq = 16, config.tie_embeddings = is_tied;
  return config;
}

models::GptConfig gpt(bool is_tied) {
  models::GptConfig config;
  config.vocab_size = 64, config.dim = 32, config.layers = 3, config.heads = 8, config.max_seq = 16,
  config.dropout = 0.1, config.tie_embeddings = is_tied;
  return config;
}

template <typename Model, typename Config>
void expect_same(const Setting& setting, const Config& config, const std::vector<Case>& cases, int64_t accumulate = 1) {
  const Curve one = train<Model>(setting, config, {.accumulate = accumulate});
  EXPECT_GT(*std::min_element(one.norms.begin(), one.norms.end()), 0.5);  // clipping bites
  for (const Case& c : cases) {
    SCOPED_TRACE(c.str());
    try {
      EXPECT_EQ(difference(one, train<Model>(setting, config, c)), "");
    } catch (const std::exception& error) {
      ADD_FAILURE() << error.what();
    }
  }
}

TEST(Stages, InFastHaveOneDevicesBits) {
  expect_same<models::Llama>(setting({}), llama(), {{"pp=2"}, {"pp=3"}, {"pp=4"}});
  expect_same<models::Gpt>(setting({}), gpt(false), {{"pp=2", false, 3}}, 3);
}

TEST(Stages, InExactHaveOneHash) {
  const sums::Lattice lattice{.batch = 6, .sequence = 4, .feature = 8};
  expect_same<models::Llama>(setting(lattice), llama(), {{"pp=2"}, {"pp=4", false, 3}, {"pp=2,tp=2", true}});
  expect_same<models::Llama>(setting(lattice), llama(true), {{"pp=2"}, {"pp=2,dp=2", false, 2}});
  expect_same<models::Gpt>(setting(lattice), gpt(true), {{"pp=4"}, {"pp=2,tp=2"}, {"tp=2,pp=2", true, 2}});
  expect_same<models::Gpt>(setting(lattice), gpt(false), {{"pp=2,dp=2"}, {"pp=3", false, 6}});
}

// The control of both: squares added stage by stage.
TEST(Stages, ANormAddedByStageHasOtherBits) {
  Setting by_stage = setting(sums::Lattice());
  const Curve one = train<models::Llama>(by_stage, llama(), {});
  by_stage.clip = [](const std::vector<at::Tensor>& parameters) {
    std::map<std::string, std::vector<at::Tensor>> stages;
    for (const at::Tensor& parameter : parameters) {
      stages[spec_of(parameter).layout_str()].push_back(parameter);
    }
    double squares = 0;
    for (const auto& [layout, own] : stages) {
      squares += std::pow(full_tensor(optim::grad_norm(own)).item().toDouble(), 2);
    }
    const double norm = static_cast<float>(std::sqrt(squares));
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
    SCOPED_TRACE(c10::str(from, " -> ", to));
    Setting first = setting(sums::Lattice()), second = first;
    first.steps = 1, first.save_to = second.load_from = (folder / from).string();
    train<models::Gpt>(first, gpt(true), {from});
    const Curve rest = train<models::Gpt>(second, gpt(true), {to});
    EXPECT_TRUE(std::equal(rest.losses.begin(), rest.losses.end(), whole.losses.begin() + 1));
    for (const auto& [name, value] : whole.parameters) {
      EXPECT_TRUE(at::equal(value, rest.parameters.at(name))) << name;
    }
  }
  std::filesystem::remove_all(folder);
}

// What all ranks together send over the axis in a step of `micro_batches`.
trace::Ledger ledger_of_step(const std::string& mesh, const models::LlamaConfig& config, int64_t micro_batches,
                             std::optional<sums::Lattice> lattice) {
  trace::Ledger all;
  const Mesh parsed = Mesh::parse(mesh);
  comm::run_ranks(parsed.size(), [&](int64_t rank) {
    if (lattice) {
      dtensor::set_numerics(dtensor::Numerics::kExact, *lattice);
    }
    auto model = parallel::deferred([&] { return models::Llama(config); });
    const auto plan =
        parallel::generate_plan(*model, {.mesh = parsed, .heads = config.heads, .kv_heads = config.heads});
    parallel::place(*model, plan);
    parallel::Job job(model.ptr(), plan,
                      [model](const std::vector<at::Tensor>& batch) mutable { return model->loss(batch[0], batch[1]); },
                      {.accumulate = micro_batches});
    comm::RankContext::require().ledger.clear();
    const at::Tensor ids = at::ones({4, 16}, at::kLong);
    job(ids, ids).backward();
    if (rank == 0) {  // each rank notes the mean over its line
      all = comm::RankContext::require().ledger;
    }
  });
  return all;
}

TEST(Stages, SendBoundaryValuesOnceInEachDirection) {
  const int64_t activation = 4 * 16 * 32 * 4;  // of all micro-batches, in bytes
  for (const auto& lattice : {std::optional<sums::Lattice>(), std::optional(sums::Lattice())}) {
    for (const int64_t stages : {2, 4}) {
      for (const int64_t micro_batches : {1, 2}) {
        SCOPED_TRACE(c10::str(stages, " stages, ", micro_batches, " micro-batches, exact ", lattice.has_value()));
        models::LlamaConfig config = llama();
        const auto ledger = ledger_of_step(c10::str("pp=", stages), config, micro_batches, lattice);
        EXPECT_EQ(stages * ledger.bytes_of("send", "pp"), 2 * (stages - 1) * activation);
        EXPECT_EQ(ledger.calls_of("send", "pp"), 2 * (stages - 1) * micro_batches);
        // A tied head is fetched once, and its gradient goes home.
        config.tie_embeddings = true;
        const auto tied = ledger_of_step(c10::str("pp=", stages), config, micro_batches, lattice);
        const int64_t table = 64 * 32 * 4, ways = lattice ? 2 : 1 + micro_batches;
        EXPECT_EQ(stages * tied.bytes_of("send", "pp"), 2 * (stages - 1) * activation + ways * table);
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

}  // namespace
}  // namespace tessera::ranks::stages_test
