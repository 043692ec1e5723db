// The job: rows, micro-batches, what backward of the step's loss does, and what it refuses.

#include <torch/torch.h>

#include <gtest/gtest.h>

#include "tessera/base/text.h"
#include "tessera/tessera.h"

namespace tessera::job_test {
namespace {

using Tensors = std::vector<at::Tensor>;
using Rows = std::vector<layout::Range>;

const std::vector<std::string> kMeshes = {"1", "dp=2", "dp=3", "dp=4", "tp=2", "dp=2,tp=2", "dp_replicate=2,dp=2"};
const std::vector<int64_t> kAccumulations = {1, 2, 3, 16};

struct NetImpl : torch::nn::Module {
  NetImpl() {
    first = register_module("first", torch::nn::Linear(6, 8));
    unused = register_module("unused", torch::nn::Linear(2, 2));  // before parameters that are used
    second = register_module("second", torch::nn::Linear(8, 3));
    left = register_parameter("left", torch::ones({3}));  // autograd gives both one gradient
    right = register_parameter("right", torch::ones({3}));
    to(torch::kDouble);
  }
  at::Tensor forward(const at::Tensor& x, const at::Tensor& y) {
    return at::mse_loss(second(torch::gelu(first(x))) + (left + right), y);
  }
  torch::nn::Linear first{nullptr}, second{nullptr}, unused{nullptr};
  at::Tensor left, right;
};
TORCH_MODULE(Net);

at::Tensor inputs(int64_t samples) { return at::arange(samples * 6, at::kDouble).reshape({samples, 6}).mul(0.7).sin(); }
at::Tensor targets(int64_t samples) { return at::arange(samples * 3, at::kDouble).reshape({samples, 3}).cos(); }

// A net on a mesh, as one rank has it.
struct Placed {
  explicit Placed(const std::string& mesh, parallel::JobOptions options = {}) : job(make(mesh, options)) {}

  Job make(const std::string& mesh, parallel::JobOptions options) {
    manual_seed(3);
    net = deferred([] { return Net(); });
    const Plan plan = generate_plan(*net, {.mesh = Mesh::parse(mesh)});
    place(*net, plan);
    return Job(net.ptr(), plan, [net = net](const Tensors& batch) mutable { return net(batch[0], batch[1]); }, options);
  }

  // Each gradient lies as its parameter does.
  void expect_gradients_placed() const {
    for (const auto& item : net->named_parameters()) {
      const at::Tensor gradient = item.value().grad();
      EXPECT_TRUE(!gradient.defined() || spec_of(gradient)->placements == spec_of(item.value())->placements)
          << item.key();
    }
  }

  // Whole; of a parameter without one, nothing.
  std::map<std::string, at::Tensor> gradients() const {
    std::map<std::string, at::Tensor> all;
    for (const auto& item : net->named_parameters()) {
      const at::Tensor gradient = item.value().grad();
      all[item.key()] = gradient.defined() ? full_tensor(gradient).clone() : gradient;
    }
    return all;
  }

  Net net{nullptr};
  Job job;
};

void expect_close(const std::map<std::string, at::Tensor>& one, const std::map<std::string, at::Tensor>& many,
                  double factor = 1) {
  for (const auto& [name, gradient] : one) {
    ASSERT_EQ(gradient.defined(), many.at(name).defined()) << name;
    if (!gradient.defined()) {
      continue;
    }
    EXPECT_TRUE(at::allclose(gradient * factor, many.at(name), 1e-12, 1e-14)) << name;
  }
}

// The gradients of plain libtorch on the whole batch.
std::map<std::string, at::Tensor> plain_gradients(int64_t samples) {
  return run_ranks(1, [&] {
    manual_seed(3);
    Net net;
    net(inputs(samples), targets(samples)).backward();
    std::map<std::string, at::Tensor> all;
    for (const auto& item : net->named_parameters()) {
      all[item.key()] = item.value().grad();
    }
    return all;
  });
}

std::map<std::string, at::Tensor> gradients_of(const std::string& mesh, int64_t samples,
                                               parallel::JobOptions options = {}) {
  return run_ranks(Mesh::parse(mesh).size(), [&] {
    Placed placed(mesh, options);
    placed.job(inputs(samples), targets(samples)).backward();
    placed.expect_gradients_placed();
    return placed.gradients();
  });
}

TEST(Parallelize, NeedsNoOptimizer) {
  const auto one = plain_gradients(6);
  for (const int64_t accumulate : {1, 2}) {
    expect_close(one, run_ranks(2, [&] {
                   Placed placed("dp=2");  // another net takes its place
                   manual_seed(3);
                   placed.net = deferred([] { return Net(); });
                   placed.job =
                       parallelize(placed.net, generate_plan(*placed.net, {.devices = 2}), {.accumulate = accumulate});
                   placed.job(inputs(6), targets(6)).backward();
                   return placed.gradients();
                 }));
  }
}

TEST(Accumulation, GradientsAreThoseOfTheBatch) {
  for (const int64_t samples : {7, 3, 1, 12}) {
    const auto one = plain_gradients(samples);
    EXPECT_FALSE(one.at("unused.weight").defined());
    for (const std::string mesh : {"1", "dp=2", "dp=3", "tp=2", "dp=2,tp=2"}) {
      for (const int64_t accumulate : kAccumulations) {
        SCOPED_TRACE(mesh + " accumulate " + std::to_string(accumulate) + " samples " + std::to_string(samples));
        expect_close(one, gradients_of(mesh, samples, {.accumulate = accumulate}));
      }
    }
  }
}

// The ranges that each rank reads in a step, micro-batch by micro-batch.
std::vector<Rows> rows_read(const std::string& mesh, int64_t samples, int64_t accumulate) {
  std::vector<Rows> read(Mesh::parse(mesh).size());
  run_ranks(static_cast<int64_t>(read.size()), [&](int64_t rank) {
    Placed placed(mesh, {.accumulate = accumulate});
    placed.job.run_rows(samples, [&](int64_t begin, int64_t end) {
      const auto index = static_cast<int64_t>(read[rank].size());
      EXPECT_EQ(placed.job.rows_of(samples, index), (layout::Range{begin, end}));
      read[rank].push_back({begin, end});
      return Tensors{inputs(samples).slice(0, begin, end), targets(samples).slice(0, begin, end)};
    });
  });
  return read;
}

TEST(Rows, EachRankReadsOneBlockOfItsOwn) {
  for (const std::string& text : kMeshes) {
    const auto mesh = Mesh::parse(text);
    for (const int64_t samples : {1, 5, 12, 17}) {
      for (const int64_t accumulate : kAccumulations) {
        SCOPED_TRACE(text + " samples " + std::to_string(samples) + " accumulate " + std::to_string(accumulate));
        std::vector<int> times(samples, 0);
        const auto read = rows_read(text, samples, accumulate);
        for (int64_t rank = 0; rank < mesh.size(); ++rank) {
          const auto tp = mesh.find_axis("tp");
          const bool counts = !tp || (*mesh.coord_of(rank))[*tp] == 0;
          const Rows& rows = read[rank];
          for (size_t i = 1; i < rows.size(); ++i) {
            EXPECT_EQ(rows[i].begin, rows[i - 1].end) << "rank " << rank;
          }
          EXPECT_TRUE(counts || rows == read[rank - 1])
              << "rank " << rank << " reads other rows than its tensor-parallel neighbour";
          for (const layout::Range& range : rows) {
            for (int64_t i = range.begin; counts && i < range.end; ++i) {
              ++times.at(i);
            }
          }
        }
        EXPECT_EQ(times, std::vector<int>(samples, 1));
      }
    }
  }
}

TEST(Backward, StepsAdd) {
  const auto one = plain_gradients(6);
  const auto twice = run_ranks(2, [&] {
    Placed placed("dp=2", {.accumulate = 2});
    placed.job(inputs(6), targets(6)).backward();
    placed.job(inputs(6), targets(6)).backward();
    return placed.gradients();
  });
  expect_close(one, twice, 2);
}

TEST(Backward, OfAFunctionOfTheLoss) {
  const auto one = plain_gradients(6);
  const auto scaled = run_ranks(2, [&] {
    Placed placed("tp=2");
    at::Tensor loss = placed.job(inputs(6), targets(6));
    (loss * 3 - loss / 2).backward();
    return placed.gradients();
  });
  expect_close(one, scaled, 2.5);
}

TEST(Backward, BesideAnotherTerm) {
  const auto one = plain_gradients(6);
  auto both = run_ranks(2, [&] {
    Placed placed("dp=2");
    (placed.job(inputs(6), targets(6)) + placed.net->unused->weight.sum() * 4 + placed.net->first->bias.sum())
        .backward();
    return placed.gradients();
  });
  EXPECT_TRUE(at::equal(both.at("unused.weight"), at::full({2, 2}, 4.0, at::kDouble)));
  both.at("first.bias").sub_(1);
  both.at("unused.weight") = at::Tensor();
  expect_close(one, both);
}

TEST(Backward, TwiceThroughOneLoss) {
  const auto one = plain_gradients(6);
  const auto kept = run_ranks(2, [&] {
    Placed placed("dp=2");
    at::Tensor loss = placed.job(inputs(6), targets(6));
    loss.backward({}, /*retain_graph=*/true);
    loss.backward();
    return placed.gradients();
  });
  expect_close(one, kept, 2);
}

TEST(Backward, HooksSeeTheStepsGradientOnce) {
  const auto one = plain_gradients(6);
  const auto halved = run_ranks(2, [&] {
    Placed placed("dp=2", {.accumulate = 3});
    int64_t calls = 0;
    for (auto& parameter : placed.net->parameters()) {
      parameter.register_hook([&calls](const at::Tensor& gradient) {
        ++calls;
        return gradient * 0.5;
      });
    }
    placed.job(inputs(6), targets(6)).backward();
    EXPECT_EQ(calls, 6);  // all parameters but those of `unused`
    return placed.gradients();
  });
  expect_close(one, halved, 0.5);
}

TEST(Evaluation, WithoutGradients) {
  run_ranks(2, [&] {
    Placed placed("dp=2", {.accumulate = 2});
    at::Tensor quiet;
    {
      torch::NoGradGuard no_grad;
      quiet = placed.job(inputs(5), targets(5));
    }
    EXPECT_FALSE(quiet.requires_grad());
    EXPECT_EQ(placed.job.step(), 0);
    const at::Tensor loss = placed.job(inputs(5), targets(5));
    EXPECT_TRUE(loss.requires_grad());
    EXPECT_EQ(placed.job.step(), 1);
    EXPECT_EQ(loss.item<double>(), quiet.item<double>());
    EXPECT_EQ(spec_of(loss).layout_str(), "{dp: R}");
  });
}

// Dropout masks by sample: the loss is a function of a job that only draws.
at::Tensor masks(const std::string& text, int64_t samples, int64_t accumulate, int64_t step) {
  const auto mesh = Mesh::parse(text);
  return run_ranks(mesh.size(), [&] {
    manual_seed(9);
    auto net = deferred([] { return Net(); });
    const Plan plan = generate_plan(*net, {.mesh = mesh});
    place(*net, plan);
    at::Tensor all = at::full({samples, 8}, -1.0, at::kDouble);
    Job job(net.ptr(), plan,
            [&](const Tensors& batch) {
              const at::Tensor hidden = torch::dropout(at::ones_like(net->first(batch[0])), 0.4, true);
              all.index_put_({full_tensor(batch[1])}, full_tensor(hidden));
              return hidden.mean() * net->first->bias.sum();
            },
            {.accumulate = accumulate});
    job.set_step(step);
    job(inputs(samples), at::arange(samples));
    return all;
  });
}

TEST(Dropout, MasksDependOnSampleAndStepOnly) {
  const at::Tensor one = masks("1", 7, 1, 0);
  EXPECT_GT(one.eq(0).sum().item<int64_t>(), 0);
  EXPECT_EQ(one.lt(0).sum().item<int64_t>(), 0);
  EXPECT_FALSE(at::equal(one, masks("1", 7, 1, 1)));
  for (const std::string& mesh : kMeshes) {
    for (const int64_t accumulate : kAccumulations) {
      EXPECT_TRUE(at::equal(one, masks(mesh, 7, accumulate, 0))) << mesh << " accumulate " << accumulate;
    }
  }
}

template <typename Body>
std::string error_of(const std::string& mesh, Body&& body) {
  try {
    run_ranks(Mesh::parse(mesh).size(), [&] {
      Placed placed(mesh);
      body(placed);
    });
  } catch (const std::exception& error) {
    return base::message_of(error);
  }
  return "no error";
}

void expect_says(const std::string& message, const std::string& part) {
  EXPECT_NE(message.find(part), std::string::npos) << message;
}

TEST(Refused, TheModelBesideItsJob) {
  for (const char* mesh : {"1", "dp=2", "dp=2,tp=2"}) {
    expect_says(error_of(mesh, [](Placed& placed) { placed.net(inputs(4), targets(4)); }),
                "`first.weight` meets a plain tensor outside of its job");
  }
  const auto one = plain_gradients(4);
  run_ranks(2, [&] {  // what is accepted instead
    Placed placed("dp=2");
    placed.net(distribute(inputs(4), Mesh::parse("dp=2"), "{dp: S(0)}"), targets(4)).backward();
    expect_close(one, placed.gradients());
    const at::NoGradGuard no_grad;
    EXPECT_TRUE(is_dtensor(placed.net(inputs(4), targets(4))));
  });
}

TEST(Refused, TensorsThatDisagree) {
  expect_says(error_of("dp=2", [](Placed& placed) { placed.job(inputs(4), targets(5)); }),
              "disagree on the number of samples: 4 and [5, 3]");
}

TEST(Refused, NoSamples) {
  expect_says(error_of("dp=2", [](Placed& placed) { placed.job(inputs(0), targets(0)); }), "at least one sample");
  expect_says(error_of("dp=2", [](Placed& placed) { placed.job(at::ones({})); }), "expected the step's batch");
}

TEST(Refused, RowsOfAnotherSize) {
  expect_says(error_of("dp=2",
                       [](Placed& placed) {
                         placed.job.run_rows(4, [](int64_t, int64_t) { return Tensors{inputs(4), targets(4)}; });
                       }),
              "expected plain tensors with the 2 samples [");
}

TEST(Refused, ALossThatIsNone) {
  const auto with_loss = [](Job::Loss loss) {
    return error_of("dp=2", [&](Placed& placed) { Job(placed.net.ptr(), placed.job.plan(), loss)(inputs(4)); });
  };
  expect_says(with_loss([](const Tensors& batch) { return batch[0].mul(2); }),
              "must return its mean loss as a scalar, got a tensor of [4, 6]");
  expect_says(with_loss([](const Tensors&) { return at::Tensor(); }),
              "must return its mean loss as a scalar, got nothing");
  expect_says(with_loss([](const Tensors& batch) { return batch[0].mean(); }), "no parameter");
}

TEST(Refused, BackwardWithoutRetaining) {
  expect_says(error_of("dp=2",
                       [](Placed& placed) {
                         at::Tensor loss = placed.job(inputs(4), targets(4));
                         loss.backward();
                         loss.backward();
                       }),
              "a second time");
}

TEST(Refused, AccumulatingLessThanOne) {
  expect_says(
      error_of("1", [](Placed& placed) { Job(placed.net.ptr(), placed.job.plan(), nullptr, {.accumulate = 0}); }),
      "accumulate must be at least 1, got 0");
}

}  // namespace
}  // namespace tessera::job_test
