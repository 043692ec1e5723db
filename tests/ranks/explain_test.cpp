// What `explain` says a step did against what the ledger says it sent, and what the NaN finder finds.
#include <cmath>
#include <limits>
#include <map>
#include <set>
#include <sstream>

#include <ATen/ATen.h>
#include <gtest/gtest.h>
#include <nlohmann/json.hpp>
#include <torch/nn/modules/linear.h>
#include <torch/optim.h>

#include "tessera/comm/threads/run_ranks.h"
#include "tessera/dtensor/front/dtensor.h"
#include "tessera/watch/explain.h"
#include "tessera/watch/find_nan.h"
#include "tessera/models/llama.h"
#include "tessera/parallel/deferred.h"
#include "tessera/parallel/generate_plan.h"
#include "tessera/parallel/job.h"

namespace tessera::watch::explain_test {
namespace {

using namespace dtensor;
using layout::Mesh;

bool has(const std::string& text, const std::string& part) { return text.find(part) != std::string::npos; }

constexpr int64_t kBatch = 4, kLength = 16, kLayers = 2;

models::LlamaConfig small() {
  models::LlamaConfig config;
  config.vocab_size = 64, config.dim = 32, config.layers = kLayers, config.heads = 4, config.kv_heads = 4,
  config.hidden = 48;
  config.max_seq = kLength;
  return config;
}

struct Explained {
  ExplainReport report;
  trace::Ledger ledger;  // of the same operators
  double loss = 0;
};

struct StepOptions {
  std::string mesh = "dp=2,tp=2";
  bool sequence_parallel = false;
  bool is_exact = false;
  bool is_explained = true;
};

// One training step of a Llama, on rank `rank`.
Explained explain_step(const StepOptions& options, int64_t rank = 0) {
  Explained result;
  const auto mesh = Mesh::parse(options.mesh);
  comm::run_ranks(mesh.size(), [&](int64_t own) {
    manual_seed(3);
    std::optional<sums::Lattice> lattice;
    if (options.is_exact) {
      set_numerics(Numerics::kExact, lattice.emplace(sums::Lattice{.batch = kBatch, .sequence = 8, .feature = 8}));
    }
    auto model = parallel::deferred([&] { return models::Llama(small()); });
    torch::optim::AdamW optimizer(model->parameters(), 1e-3);
    const auto plan = parallel::generate_plan(
        *model,
        {.mesh = mesh, .sequence_parallel = options.sequence_parallel, .heads = 4, .kv_heads = 4, .lattice = lattice});
    parallel::place(*model, plan, &optimizer);
    parallel::Job job(model.ptr(), plan, [model](const std::vector<at::Tensor>& batch) mutable {
      return model->loss(batch[0], batch[1]);
    });
    auto& ledger = comm::RankContext::require().ledger;
    ledger.clear();
    std::optional<Explain> explain;
    if (options.is_explained) {
      explain.emplace();
    }
    const auto loss = job(at::ones({kBatch, kLength}, at::kLong), at::ones({kBatch, kLength}, at::kLong));
    loss.backward();
    optimizer.step();
    if (explain) {
      explain->stop();
    }
    const double value = full_tensor(loss.detach()).item<double>();
    if (own != rank) {
      return;
    }
    result.ledger = ledger;
    result.loss = value;
    if (explain) {
      result.report = explain->report();
    }
  });
  return result;
}

struct Bytes {
  int64_t calls = 0, bytes = 0;
};
Bytes total_of(const trace::Ledger& ledger) {
  Bytes total;
  for (const auto& entry : ledger.entries()) {
    if (entry.op == "full_tensor") {
      continue;  // of the loss, after the end
    }
    total.calls += entry.calls;
    total.bytes += entry.bytes;
  }
  return total;
}

TEST(Explain, BytesAndCollectivesAreTheLedgers) {
  for (const bool is_exact : {false, true}) {
    for (const bool sequence_parallel : {false, true}) {
      for (const char* mesh : {"tp=2", "dp=2", "dp=2,tp=2"}) {
        SCOPED_TRACE(c10::str(mesh, sequence_parallel ? " sp" : "", is_exact ? " exact" : ""));
        const auto step = explain_step({.mesh = mesh, .sequence_parallel = sequence_parallel, .is_exact = is_exact}, 1);
        const auto sent = total_of(step.ledger);
        SCOPED_TRACE(step.report.text() + step.ledger.json());
        EXPECT_GT(sent.bytes, 0);
        EXPECT_EQ(step.report.bytes(), sent.bytes);
        EXPECT_EQ(step.report.collective_calls(), sent.calls);
        EXPECT_EQ(step.report.rank, 1);
        // By operator too.
        std::map<std::string, int64_t> of_op, of_ledger;
        for (const auto& call : step.report.calls) {
          if (!is_exact && call.bytes() > 0) {
            of_op[call.op] += call.bytes();
          }
        }
        for (const auto& entry : step.ledger.entries()) {
          if (!is_exact && entry.op != "full_tensor") {
            of_ledger[entry.op] += entry.bytes;
          }
        }
        EXPECT_EQ(of_op, of_ledger);
      }
    }
  }
}

TEST(Explain, ChangesNoBit) {
  for (const bool is_exact : {false, true}) {
    EXPECT_EQ(explain_step({.is_exact = is_exact}).loss,
              explain_step({.is_exact = is_exact, .is_explained = false}).loss);
  }
}

// Calls of an operator in a phase and a module.
int64_t calls_of(const ExplainReport& report, const std::string& op, OpPhase phase, const std::string& module) {
  int64_t calls = 0;
  for (const auto& call : report.calls) {
    calls += call.op == op && call.place.phase == phase && call.place.module == module ? call.calls : 0;
  }
  return calls;
}

TEST(Explain, OperatorsStandInTheModuleWhoseParameterTheyRead) {
  const auto report = explain_step({.mesh = "tp=2"}).report;
  SCOPED_TRACE(report.text());
  std::set<std::string> products;  // of forward: linear modules
  for (const auto& call : report.calls) {
    if (call.place.phase == OpPhase::kForward && call.op == "tessera::contract") {
      products.insert(call.place.module);
    }
  }
  EXPECT_EQ(products.size(), 7u * kLayers + 1);  // seven products a layer, and the head
  for (const auto& module : products) {
    // The two products of attention follow that of the values.
    const int64_t calls = has(module, "v_proj") ? 3 : 1;
    EXPECT_EQ(calls_of(report, "tessera::contract", OpPhase::kForward, module), calls) << module;
    EXPECT_EQ(calls_of(report, "tessera::contract", OpPhase::kBackward, module), 2 * calls)
        << module;  // of both operands
  }
  int64_t calls = 0, bytes = 0;
  for (const auto& total : report.modules()) {
    calls += total.calls;
    bytes += total.bytes;
  }
  EXPECT_EQ(bytes, report.bytes());
  EXPECT_GT(calls, 100);
  // A step folds to one layer.
  for (const auto& total : report.folded().modules()) {
    EXPECT_FALSE(has(total.module, ".0.")) << total.module;
  }
  EXPECT_EQ(report.folded().bytes(), report.bytes());
  EXPECT_EQ(report.folded().collective_calls(), report.collective_calls());
}

TEST(Explain, TextIsNoWiderThanAskedAndJsonReadsBack) {
  const auto report = explain_step({.mesh = "dp=2,tp=2", .sequence_parallel = true}).report;
  for (const size_t width : {60, 100, 160}) {
    std::istringstream lines(report.text(width));
    for (std::string line; std::getline(lines, line);) {
      EXPECT_LE(line.size(), width) << line;
    }
  }
  const auto json = nlohmann::json::parse(report.json());
  int64_t bytes = 0;
  for (const auto& call : json.at("calls")) {
    bytes += call.at("bytes").get<int64_t>();
  }
  EXPECT_EQ(bytes, report.bytes());
  EXPECT_EQ(json.at("bytes"), report.bytes());
  EXPECT_EQ(json.at("calls").size(), report.calls.size());
}

// Without sequence parallelism every half of a layer is merged whole. The lines to write are those that make the plan
// sequence parallel.
TEST(Explain, MergesThatThePlanCouldCutAreNamed) {
  const auto lines_of = [](const ExplainReport& report) {
    std::set<std::string> lines;
    for (const auto& one : report.worst(100)) {
      if (one.move.remedy == Remedy::kPlanPart) {
        lines.insert(one.move.line);
      }
    }
    return lines;
  };
  for (const bool is_exact : {false, true}) {
    const auto report = explain_step({.mesh = "tp=2", .is_exact = is_exact}).report;
    std::set<std::string> wanted;
    const auto model = parallel::deferred([&] { return models::Llama(small()); });
    for (const auto& entry :
         parallel::generate_plan(*model,
                                 {.mesh = Mesh::parse("tp=2"), .sequence_parallel = true, .heads = 4, .kv_heads = 4})
             .parameters) {
      if (entry.output) {
        wanted.insert("plan: \"" + entry.pattern + "\" output " + layout::str(Mesh::parse("tp=2"), *entry.output));
      }
    }
    EXPECT_EQ(wanted.size(), 3u);
    EXPECT_EQ(lines_of(report), wanted);
    for (const auto& one : report.worst()) {
      EXPECT_TRUE(wanted.contains(one.move.line)) << one.text();
    }
    EXPECT_EQ(report.worst().front().operators, kLayers);
    EXPECT_EQ(lines_of(explain_step({.mesh = "tp=2", .sequence_parallel = true, .is_exact = is_exact}).report),
              std::set<std::string>{});
  }
}

// A plan that keeps a parameter in parts that its reader needs whole.
TEST(Explain, ParametersThatAreGatheredAreNamed) {
  const auto mesh = Mesh::parse("tp=2");
  comm::run_ranks(mesh.size(), [&](int64_t) {
    const auto model = std::make_shared<torch::nn::LinearImpl>(torch::nn::LinearOptions(8, 6).bias(false));
    plan::Plan plan;
    plan.mesh = mesh;
    plan.parameters.push_back({"weight", layout::parse_placements(mesh, "{tp: S(1)}"), {}, {}});
    parallel::place(*model, plan);
    Explain explain;
    at::cumsum(model->weight.detach(), 1);
    explain.stop();
    const auto worst = explain.report().worst();
    ASSERT_EQ(worst.size(), 1u) << explain.report().text();
    EXPECT_EQ(worst[0].move.remedy, Remedy::kStore);
    EXPECT_EQ(worst[0].move.line, "plan: \"weight\" {tp: R}");
    EXPECT_EQ(worst[0].move.saved(), explain.report().bytes());
  });
}

// A program that has one bad redistribution: operands cut along the dim that the operator needs whole.
TEST(Explain, TheLineToWriteSavesWhatItSays) {
  const auto mesh = Mesh::parse("tp=4");
  comm::run_ranks(mesh.size(), [&](int64_t) {
    const auto x = distribute(at::randn({64, 16}), mesh, "{tp: S(1)}");
    const auto body = [&](const at::Tensor& operand) {
      for (int i = 0; i < 3; ++i) {
        at::cumsum(operand.clone(), 1);
      }
    };
    Explain explain;
    body(x);
    explain.stop();
    const auto report = explain.report();
    const auto worst = report.worst();
    ASSERT_EQ(worst.size(), 1u) << report.text();
    EXPECT_EQ(worst[0].op, "aten::cumsum");
    EXPECT_EQ(worst[0].operators, 3);
    EXPECT_EQ(worst[0].move.argument, "self");
    EXPECT_EQ(worst[0].move.from, "{tp: S(1)}");
    EXPECT_EQ(worst[0].move.saved(), report.bytes());
    EXPECT_EQ(worst[0].text(),
              "self = tessera::redistribute(self, \"" + worst[0].move.to + "\");  // once, before these 3 operators");
    EXPECT_TRUE(has(report.text(), worst[0].move.line));
    // The program with the line in it: one redistribution, which is the program's own.
    Explain again;
    body(redistribute(x, worst[0].move.to));
    again.stop();
    EXPECT_EQ(again.report().bytes() * 3, report.bytes());
    const auto own = again.report();
    ASSERT_FALSE(own.calls.empty());
    EXPECT_EQ(own.calls.front().op, "redistribute");
    EXPECT_FALSE(own.calls.front().is_op);
    EXPECT_TRUE(own.worst().empty());
  });
}

TEST(Explain, ModulesAreTheProgramsWhereItNamesThem) {
  const auto mesh = Mesh::parse("tp=2");
  comm::run_ranks(mesh.size(), [&](int64_t) {
    const auto x = distribute(at::ones({4, 4}), mesh, "{tp: S(0)}").requires_grad_();
    Explain explain;
    explain.enter("outer");
    auto y = x * 2;
    explain.enter("outer.inner");
    y = at::exp(y);
    explain.leave();
    y = at::sin(y);
    explain.leave();
    y.sum().backward();
    explain.stop();  // what is outside of all modules is in none
    const auto report = explain.report();
    SCOPED_TRACE(report.text());
    EXPECT_EQ(calls_of(report, "aten::mul.Scalar", OpPhase::kForward, "outer"), 1);
    EXPECT_EQ(calls_of(report, "aten::exp", OpPhase::kForward, "outer.inner"), 1);
    EXPECT_EQ(calls_of(report, "aten::sin", OpPhase::kForward, "outer"), 1);
    EXPECT_EQ(calls_of(report, "aten::sum", OpPhase::kForward, ""), 1);
    EXPECT_EQ(calls_of(report, "aten::cos", OpPhase::kBackward, "outer"), 1);
    EXPECT_EQ(calls_of(report, "aten::mul.Tensor", OpPhase::kBackward, "outer.inner"), 1);  // gradient of exp
    // Whoever stops is not told any more.
    at::exp(x.detach());
    EXPECT_EQ(RankState::require().watch.observer(), nullptr);
    EXPECT_EQ(explain.report().json(), report.json());
  });
}

// What a rank threw.
std::string error_of(const std::function<void()>& body) {
  try {
    body();
  } catch (const std::exception& error) {
    return error.what();
  }
  return "";
}

// Rows of one rank are negative.
at::Tensor planted(const Mesh& mesh, int64_t rank) {
  auto value = at::ones({8, 4});
  value.narrow(0, rank * 2, 2).select(1, 3).fill_(-1);
  return distribute(value, mesh, "{tp: S(0)}");
}

TEST(FindNan, NamesOperatorModuleAndRank) {
  const auto mesh = Mesh::parse("tp=4");
  const auto error = error_of([&] {
    comm::run_ranks(mesh.size(), [&](int64_t) {
      const auto x = planted(mesh, 2);
      NanFinder finder;
      finder.enter("layers.1.mlp");
      auto y = x * 3;
      y = at::log(y);
      y = y + 1;
      full_tensor(y);
    });
  });
  EXPECT_TRUE(
      has(error,
          "[find_nan] aten::log gave NaN on rank 2 (2 of 8 elements of its part, operator 2, forward, layers.1.mlp)"))
      << error;
  EXPECT_TRUE(has(error, "self Float[8, 4] {tp: S(0)} -> Float[8, 4] {tp: S(0)}")) << error;
}

TEST(FindNan, ReportsTheEarliestOfAllRanks) {
  const auto mesh = Mesh::parse("tp=4");
  comm::run_ranks(mesh.size(), [&](int64_t rank) {
    const auto x = planted(mesh, 3);
    NanFinder finder({.action = OnNan::kReport});
    EXPECT_EQ(finder.first(), std::nullopt);
    const auto y = at::log(x);          // a NaN on rank 3
    const auto whole = at::sum(y) + 1;  // and then on all
    full_tensor(whole);
    finder.stop();
    EXPECT_EQ(finder.own().has_value(), rank == 3 || finder.own());  // others may have got it from rank 3
    const auto first = finder.first();
    ASSERT_TRUE(first.has_value());
    EXPECT_TRUE(has(*first, "aten::log gave NaN on rank 3 (2 of 8 elements")) << *first;
  });
}

TEST(FindNan, InfinitiesThatTheProgramWritesAreItsOwn) {
  constexpr double kInfinity = std::numeric_limits<double>::infinity();
  const auto mesh = Mesh::parse("tp=2");
  comm::run_ranks(mesh.size(), [&](int64_t) {
    const auto x = distribute(at::randn({4, 4}), mesh, "{tp: S(0)}");
    const auto mask = distribute(at::ones({4, 4}).triu(1).to(at::kBool), mesh, "{tp: S(0)}");
    NanFinder finder({.action = OnNan::kReport});
    const auto masked = at::masked_fill(x, mask, -kInfinity);
    at::softmax(masked, 1);
    auto y = x.clone();
    y.fill_(kInfinity);
    y.mul_(2);
    EXPECT_FALSE(finder.own().has_value()) << finder.own()->text();
    // An infinity of finite operands, and a NaN of infinities.
    at::exp(x * 0 + 1000);
    ASSERT_TRUE(finder.own().has_value());
    EXPECT_EQ(finder.own()->op, "aten::exp");
    EXPECT_FALSE(finder.own()->is_nan);
    NanFinder of_nan({.action = OnNan::kReport});
    y.sub_(y);
    ASSERT_TRUE(of_nan.own().has_value());
    EXPECT_TRUE(of_nan.own()->is_nan);
    EXPECT_EQ(of_nan.own()->op, "aten::sub_.Tensor");
  });
}

TEST(FindNan, BackwardStandsWhereItsForwardDoes) {
  const auto mesh = Mesh::parse("tp=2");
  const auto error = error_of([&] {
    comm::run_ranks(mesh.size(), [&](int64_t) {
      const auto x = distribute(at::zeros({4}), mesh, "{tp: S(0)}").requires_grad_();
      NanFinder finder;
      finder.enter("root");
      const auto y = at::sqrt(x);  // 0, its derivative is infinite
      finder.leave();
      y.sum().backward();
    });
  });
  EXPECT_TRUE(has(error, "gave an infinity on rank ")) << error;
  EXPECT_TRUE(has(error, "backward, root)")) << error;
}

TEST(FindNan, AHealthyStepHasNone) {
  for (const bool is_exact : {false, true}) {
    comm::run_ranks(2, [&](int64_t) {
      const auto mesh = Mesh::parse("tp=2");
      manual_seed(3);
      if (is_exact) {
        set_numerics(Numerics::kExact, {.batch = kBatch, .sequence = 8, .feature = 8});
      }
      auto model = parallel::deferred([&] { return models::Llama(small()); });
      torch::optim::AdamW optimizer(model->parameters(), 1e-3);
      auto plan = parallel::generate_plan(*model, {.mesh = mesh, .heads = 4, .kv_heads = 4});
      parallel::place(*model, plan, &optimizer);
      parallel::Job job(model.ptr(), plan, [model](const std::vector<at::Tensor>& batch) mutable {
        return model->loss(batch[0], batch[1]);
      });
      NanFinder finder;
      job(at::ones({kBatch, kLength}, at::kLong), at::ones({kBatch, kLength}, at::kLong)).backward();
      optimizer.step();
      EXPECT_EQ(finder.first(), std::nullopt);
    });
  }
}

}  // namespace
}  // namespace tessera::watch::explain_test
