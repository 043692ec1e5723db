// libtorch's initialisers inside `deferred`: the bits of one device, however the parameters are cut.

#include <torch/torch.h>

#include <gtest/gtest.h>

#include "tessera/base/text.h"
#include "tessera/tessera.h"
#include "tests/ranks/support.h"

namespace tessera::ranks::initialisers_test {
namespace {

namespace init = torch::nn::init;

struct Initialiser {
  std::string name;
  std::function<void(at::Tensor)> run;
  int64_t min_dims = 1, max_dims = 5;
};

// Everything in torch/nn/init.h that fills a tensor without reading it.
const std::vector<Initialiser>& initialisers() {
  static const std::vector<Initialiser> all = {
      {"uniform_", [](at::Tensor x) { init::uniform_(x, -2, 3); }},
      {"normal_", [](at::Tensor x) { init::normal_(x, 1, 2); }},
      {"constant_", [](at::Tensor x) { init::constant_(x, 0.3); }},
      {"ones_", [](at::Tensor x) { init::ones_(x); }},
      {"zeros_", [](at::Tensor x) { init::zeros_(x); }},
      {"eye_", [](at::Tensor x) { init::eye_(x); }, 2, 2},
      {"dirac_", [](at::Tensor x) { init::dirac_(x); }, 3, 5},
      {"xavier_uniform_", [](at::Tensor x) { init::xavier_uniform_(x, 1.5); }, 2},
      {"xavier_normal_", [](at::Tensor x) { init::xavier_normal_(x); }, 2},
      {"kaiming_uniform_", [](at::Tensor x) { init::kaiming_uniform_(x, std::sqrt(5)); }, 2},
      {"kaiming_normal_", [](at::Tensor x) { init::kaiming_normal_(x, 0, torch::kFanOut, torch::kReLU); }, 2},
      {"orthogonal_", [](at::Tensor x) { init::orthogonal_(x, 2); }, 2},
  };
  return all;
}

// A parameter for every initialiser that takes tensors of these sizes.
struct FilledImpl : torch::nn::Module {
  explicit FilledImpl(const Sizes& sizes) {
    for (const Initialiser& initialiser : initialisers()) {
      const auto dims = static_cast<int64_t>(sizes.size());
      if (dims < initialiser.min_dims || dims > initialiser.max_dims) {
        continue;
      }
      initialiser.run(register_parameter(initialiser.name, torch::full(sizes, 7, torch::kDouble)));
    }
  }
};
TORCH_MODULE(Filled);

using Values = std::vector<std::pair<std::string, at::Tensor>>;

Values values_of(const torch::nn::Module& model) {
  at::NoGradGuard no_grad;
  Values values;
  for (const auto& item : model.named_parameters()) {
    const at::Tensor value = item.value().detach();
    values.emplace_back(item.key(), is_dtensor(value) ? full_tensor(value) : value);
  }
  return values;
}

Values on_one_device(const Sizes& sizes) {
  return comm::run_ranks(1, [&] {
    manual_seed(11);
    return values_of(*Filled(sizes));
  });
}

Values placed(const Sizes& sizes, const Mesh& mesh, const Placements& placements) {
  return comm::run_ranks(mesh.size(), [&] {
    manual_seed(11);
    auto model = deferred([&] { return Filled(sizes); });
    Plan plan;
    plan.mesh = mesh;
    plan.parameters = {{"**", placements, {}, {}}};
    place(*model, plan);
    for (const auto& parameter : model->parameters()) {
      EXPECT_TRUE(is_dtensor(parameter));
      EXPECT_EQ(spec_of(parameter)->placements, placements);
    }
    return values_of(*model);
  });
}

std::vector<Placements> storages(const Mesh& mesh, const Sizes& sizes) {
  const auto dims = static_cast<int64_t>(sizes.size());
  std::vector<layout::Placement> choices = {layout::Replicate()};
  for (int64_t dim = 0; dim < dims; ++dim) {
    choices.push_back(layout::Shard(dim));
    if (sizes[dim] > 3 && sizes[dim] % 3 == 0) {
      choices.push_back(layout::InterleavedShard(dim, 3));
    }
    for (const Placement& ragged : ragged_cuts(dim, sizes[dim], 1)) {
      choices.push_back(ragged);
    }
  }
  return every_layout_of(mesh, sizes, choices);
}

// Even over 2 and 3 ranks, uneven, smaller than the ranks; vectors, matrices wide and tall, and kernels.
class Initialisers : public testing::TestWithParam<Sizes> {};

TEST_P(Initialisers, GiveTheBitsOfOneDevice) {
  const Sizes& sizes = GetParam();
  const Values one = on_one_device(sizes);
  for (const std::string text : {"tp=2", "tp=3", "dp=2,tp=2"}) {
    const Mesh mesh = Mesh::parse(text);
    for (const Placements& placements : storages(mesh, sizes)) {
      SCOPED_TRACE(layout::str(mesh, placements));
      const Values many = placed(sizes, mesh, placements);
      ASSERT_EQ(one.size(), many.size());
      for (size_t i = 0; i < one.size(); ++i) {
        EXPECT_TRUE(at::equal(one[i].second, many[i].second)) << one[i].first << "\n"
                                                              << one[i].second << "\n"
                                                              << many[i].second;
      }
    }
  }
}

INSTANTIATE_TEST_SUITE_P(Sizes, Initialisers,
                         testing::Values(Sizes{12}, Sizes{1}, Sizes{12, 6}, Sizes{7, 5}, Sizes{5, 9}, Sizes{2, 1},
                                         Sizes{6, 4, 3}, Sizes{5, 7, 2}, Sizes{3, 2, 3, 3}),
                         [](const auto& info) { return base::join(info.param, "x"); });

// The control of the above: every initialiser that draws gives other values for another seed, and no two parameters
// share theirs.
TEST(Controls, ValuesComeFromTheSeedAndThePlace) {
  const Values one = on_one_device({7, 5});
  const Values other = comm::run_ranks(1, [] {
    manual_seed(12);
    return values_of(*Filled(Sizes{7, 5}));
  });
  for (size_t i = 0; i < one.size(); ++i) {
    const std::string& name = one[i].first;
    const bool draws = name != "constant_" && name != "ones_" && name != "zeros_" && name != "eye_";
    EXPECT_NE(at::equal(one[i].second, other[i].second), draws) << name;
    for (size_t j = 0; j < i; ++j) {
      EXPECT_FALSE(at::equal(one[i].second, one[j].second)) << name << " and " << one[j].first;
    }
  }
}

// `sparse_` chooses rows by drawn numbers that it reads.
TEST(Sparse, IsRefusedInsideDeferred) {
  const std::string message = failure_on(2, [](int64_t) {
    deferred([] {
      torch::nn::Linear linear(6, 4);
      init::sparse_(linear->weight, 0.5);
      return linear;
    });
  });
  EXPECT_SAYS(message, "[deferred] the value of a tensor is read, which does not exist before parallelize");
  EXPECT_SAYS(message, "initialise that tensor after parallelize");
}

TEST(Sparse, WorksOnPlacedParameters) {
  const auto make = [] { return torch::nn::Linear(torch::nn::LinearOptions(5, 7).bias(false)); };
  const auto fill = [](torch::nn::Linear& linear) {
    manual_seed(4);
    init::sparse_(linear->weight, 0.4);
    return values_of(*linear);
  };
  const Values one = comm::run_ranks(1, [&] {
    auto linear = make();
    return fill(linear);
  });
  EXPECT_EQ((one[0].second == 0).sum(0).eq(3).all().item<bool>(), true)
      << one[0].second;  // ceil(0.4 * 7) in each column
  for (const std::string text : {"tp=2", "tp=3", "dp=2,tp=2"}) {
    const Mesh mesh = Mesh::parse(text);
    for (const Placements& placements : storages(mesh, {7, 5})) {
      SCOPED_TRACE(layout::str(mesh, placements));
      const Values many = comm::run_ranks(mesh.size(), [&] {
        auto linear = deferred(make);
        Plan plan;
        plan.mesh = mesh;
        plan.parameters = {{"weight", placements, {}, {}}};
        place(*linear, plan);
        return fill(linear);
      });
      EXPECT_EQ((many[0].second == 0).sum(0).eq(3).all().item<bool>(), true) << many[0].second;
    }
  }
}

}  // namespace
}  // namespace tessera::ranks::initialisers_test
