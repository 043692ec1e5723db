// A job whose ranks pass samples of their own: the gradients of all of them on one device, in `exact` its bits.

#include <torch/torch.h>

#include <gtest/gtest.h>

#include "tessera/tessera.h"

namespace tessera::local_rows_test {
namespace {

using parallel::Batch;
using Tensors = std::vector<at::Tensor>;
using Counts = std::vector<int64_t>;

struct NetImpl : torch::nn::Module {
  NetImpl() {
    first = register_module("first", torch::nn::Linear(6, 8));
    second = register_module("second", torch::nn::Linear(8, 3));
  }
  at::Tensor forward(const at::Tensor& x, const at::Tensor& y) {
    return at::mse_loss(second(torch::tanh(first(x))), y);
  }
  torch::nn::Linear first{nullptr}, second{nullptr};
};
TORCH_MODULE(Net);

Tensors batch_of(int64_t samples) {
  return {at::arange(samples * 6, at::kDouble).reshape({samples, 6}).mul(0.7).sin(),
          at::arange(samples * 3, at::kDouble).reshape({samples, 3}).cos()};
}

// The rows of the calling rank, whose data coordinate has so many of the batch.
Tensors own_rows(const Tensors& batch, const Mesh& mesh, const std::vector<std::string>& axes, const Counts& counts) {
  const auto coord = mesh.coord_of(comm::RankContext::require().rank);
  int64_t index = 0, begin = 0;
  for (const auto& axis : axes) {
    const auto i = mesh.axis_index(axis);
    index = index * mesh.axis(i).size + (*coord)[static_cast<size_t>(i)];
  }
  for (int64_t i = 0; i < index; ++i) {
    begin += counts[static_cast<size_t>(i)];
  }
  Tensors rows;
  for (const at::Tensor& tensor : batch) {
    rows.push_back(tensor.narrow(0, begin, counts[static_cast<size_t>(index)]));
  }
  return rows;
}

struct Case {
  std::string mesh;
  std::vector<std::string> axes;
  Counts counts;
};

const std::vector<Case> kCases = {{"dp=2", {"dp"}, {6, 6}},
                                  {"dp=2", {"dp"}, {7, 5}},
                                  {"dp=3", {"dp"}, {1, 0, 11}},
                                  {"dp=2,tp=2", {"dp"}, {5, 7}},
                                  {"fsdp=2", {"fsdp"}, {7, 5}},
                                  {"fsdp=2,tp=2", {"fsdp"}, {12, 0}},
                                  {"fsdp=2,dp=2", {"dp", "fsdp"}, {2, 4, 1, 5}}};

// Two steps: losses, then gradients of the last one.
Tensors train(const std::string& mesh, parallel::JobOptions options,
              const std::function<Tensors(const Tensors&)>& rows) {
  return run_ranks(Mesh::parse(mesh).size(), [&] {
    set_numerics(Numerics::kExact, sums::Lattice::parse("batch=6"));
    manual_seed(3);
    Net net = deferred([] { return Net(); });
    net->to(at::kDouble);
    auto job = parallelize(net, generate_plan(*net, {.mesh = Mesh::parse(mesh)}), options);
    Tensors found;
    for (int64_t step = 0; step < 2; ++step) {
      const Tensors batch = rows(batch_of(12));
      const at::Tensor loss = job(batch[0], batch[1]);
      net->zero_grad();
      loss.backward();
      found.push_back(full_tensor(loss.detach()));
    }
    for (const at::Tensor& parameter : net->parameters()) {
      found.push_back(full_tensor(parameter.grad()).clone());
    }
    return found;
  });
}

TEST(LocalRows, GiveTheBitsOfTheWholeBatch) {
  for (const int64_t accumulate : {1, 3}) {
    const Tensors want = train("1", {.accumulate = accumulate}, [](const Tensors& batch) { return batch; });
    for (const Case& each : kCases) {
      const Tensors got =
          train(each.mesh, {.accumulate = accumulate, .batch = Batch::kLocal},
                [&](const Tensors& batch) { return own_rows(batch, Mesh::parse(each.mesh), each.axes, each.counts); });
      ASSERT_EQ(got.size(), want.size());
      for (size_t i = 0; i < want.size(); ++i) {
        EXPECT_TRUE(at::equal(got[i], want[i])) << each.mesh << " accumulate " << accumulate << " value " << i;
      }
    }
  }
}

TEST(LocalRows, RefusesAStepWithoutSamples) {
  try {
    train("dp=2", {.batch = Batch::kLocal},
          [](const Tensors& batch) { return Tensors{batch[0].narrow(0, 0, 0), batch[1].narrow(0, 0, 0)}; });
    FAIL() << "accepted";
  } catch (const c10::Error& error) {
    EXPECT_NE(std::string(error.what()).find("[job] a step needs at least one sample, got none on any rank"),
              std::string::npos)
        << error.what();
  }
}

}  // namespace
}  // namespace tessera::local_rows_test
