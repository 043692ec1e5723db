// AdamW with moments in eight bits on parameters of every layout: the bits of plain tensors, and what it keeps where.
#include "tessera/optim/adamw_8bit.h"

#include <torch/nn/modules/linear.h>

#include "tessera/parallel/place.h"
#include "tests/ranks/support.h"

namespace tessera::ranks::adamw_8bit_test {
namespace {

using optim::AdamW8bit;
using optim::AdamW8bitParamState;
using Tensors = std::vector<at::Tensor>;

const std::vector<Sizes>& shapes() {
  static const std::vector<Sizes> all = {{7, 5}, {6, 300}, {3, 600}, {513}, {5}, {}, {4, 3, 200}, {0, 4}};
  return all;
}

Tensors waves_of(double step) {
  Tensors list;
  for (const Sizes& sizes : shapes()) {
    list.push_back(waves(sizes, step).to(at::kFloat));
  }
  return list;
}

using Place = std::function<at::Tensor(const at::Tensor&)>;

// Three steps of parameters as `make` places them.
Tensors train(const Place& make) {
  Tensors parameters;
  for (const at::Tensor& value : waves_of(0.37)) {
    parameters.push_back(make(value).requires_grad_());
  }
  AdamW8bit optimizer(parameters, optim::AdamW8bitOptions(0.01).weight_decay(0.1));
  for (int64_t step = 0; step < 3; ++step) {
    const Tensors gradients = waves_of(0.51 + 0.1 * static_cast<double>(step));
    for (size_t i = 0; i < parameters.size(); ++i) {
      parameters[i].mutable_grad() = make(gradients[i].pow(3));
    }
    optimizer.step();
  }
  for (at::Tensor& parameter : parameters) {
    parameter = parameter.detach();
  }
  return parameters;
}

const AdamW8bitParamState& state_of(const AdamW8bit& optimizer, const at::Tensor& parameter) {
  return static_cast<const AdamW8bitParamState&>(*optimizer.state().at(parameter.unsafeGetTensorImpl()));
}

TEST(AdamW8bit, HasTheBitsOfPlainTensorsOnEveryLayout) {
  const Tensors plain = train([](const at::Tensor& value) { return value.clone(); });
  for (const char* axes : {"a=1", "a=2", "a=3", "a=2,b=2"}) {
    const Mesh mesh = Mesh::parse(axes);
    for (const auto numerics : {dtensor::Numerics::kFast, dtensor::Numerics::kExact}) {
      run_on(mesh, [&](int64_t) {
        dtensor::set_numerics(numerics);
        for (uint64_t number = 0; number < 25; ++number) {
          const Tensors found = train([&](const at::Tensor& value) {
            std::vector<Placement> choices = {layout::Replicate()};
            for (int64_t dim = 0; dim < value.dim(); ++dim) {
              choices.push_back(layout::Shard(dim));
            }
            if (value.dim() > 2) {
              choices.push_back(layout::spanning(layout::Shard(1)));
            }
            auto all = every_layout(mesh, value.dim(), choices);
            std::erase_if(all,
                          [&](const Placements& lies) { return !layout::is_layout_of(mesh, lies, value.sizes()); });
            return spread(value, mesh, all[number % all.size()]);
          });
          for (size_t i = 0; i < found.size(); ++i) {
            EXPECT_TRUE(at::equal(full_tensor(found[i]), plain[i])) << axes << " layout " << number << " of " << i;
          }
        }
      });
    }
  }
}

TEST(AdamW8bit, KeepsTwoBytesAParameterAndEightABlockOverTheRanks) {
  for (const int64_t ranks : {1, 2, 4}) {
    const Mesh mesh = Mesh::parse("a=" + std::to_string(ranks));
    run_on(mesh, [&](int64_t) {
      const at::Tensor parameter = distribute(waves({64, 512}).to(at::kFloat), mesh, "{a: S(0)}").requires_grad_();
      AdamW8bit optimizer({parameter});
      parameter.mutable_grad() = at::ones_like(parameter);
      optimizer.step();
      const AdamW8bitParamState& state = state_of(optimizer, parameter);
      size_t bytes = 0;
      for (const at::Tensor& kept :
           {state.exp_avg_codes(), state.exp_avg_scales(), state.exp_avg_sq_codes(), state.exp_avg_sq_scales()}) {
        bytes += to_local(kept).nbytes();
      }
      EXPECT_EQ(static_cast<double>(bytes), 64 * 512 * (2 + 8.0 / 256) / static_cast<double>(ranks));
    });
  }
}

TEST(AdamW8bit, CutsItsStateBetweenBlocks) {
  const Mesh mesh = Mesh::parse("a=2");
  run_on(mesh, [&](int64_t) {
    struct Case {
      Sizes sizes;
      const char *parameter, *codes, *scales;
    };
    for (const Case& each :
         {Case{{6, 300}, "{a: S(0)}", "{a: S(0)}", "{a: S(0)}"},
          Case{{6, 300}, "{a: S(1)}", "{a: S(1;256)}", "{a: S(1)}"},
          Case{{513}, "{a: S(0)}", "{a: S(0;256)}", "{a: S(0)}"},
          Case{{4, 3, 200}, "{a: S(1)}", "{a: S(0)}", "{a: S(0)}"}, Case{{6, 300}, "{a: R}", "{a: R}", "{a: R}"}}) {
      const auto state = optim::make_state_8bit(distribute(waves(each.sizes).to(at::kFloat), mesh, each.parameter));
      EXPECT_EQ(spec_of(state.exp_avg_codes()).layout_str(), each.codes);
      EXPECT_EQ(spec_of(state.exp_avg_scales()).layout_str(), each.scales);
    }
  });
}

TEST(AdamW8bit, ScalesOfRowsArePlacedAsTheRows) {
  const Mesh mesh = Mesh::parse("a=2");
  run_on(mesh, [&](int64_t) {
    const auto placed = [&](const Sizes& sizes, const char* layout, const Sizes& scales) {
      return spec_of(parallel::placed_state(at::zeros(scales), distribute(waves(sizes), mesh, layout))).layout_str();
    };
    EXPECT_EQ(placed({6, 300}, "{a: S(0)}", {6, 2}), "{a: S(0)}");
    EXPECT_EQ(placed({6, 300}, "{a: S(1)}", {6, 2}), "{a: R}");
    EXPECT_EQ(placed({4, 3, 200}, "{a: S(0)}", {4, 3}), "{a: S(0)}");
    EXPECT_EQ(placed({4, 3, 200}, "{a: S(1)}", {4, 3}), "{a: R}");
    EXPECT_EQ(placed({4, 3}, "{a: S(0)}", {}), "{a: R}");
  });
}

// A model that took its first steps on one device goes on on a mesh.
TEST(AdamW8bit, GoesOnWhereAModelIsPlacedAfterItsFirstSteps) {
  const auto run = [](const Mesh* mesh) {
    torch::nn::Linear model(600, 6);
    const at::NoGradGuard no_grad;
    model->weight.copy_(waves({6, 600}));
    model->bias.copy_(waves({6}));
    AdamW8bit optimizer(model->parameters());
    for (int64_t step = 0; step < 4; ++step) {
      if (step == 2 && mesh) {
        plan::Plan plan;
        plan.mesh = *mesh;
        plan.parameters = {{.pattern = "weight", .storage = {layout::Shard(0)}, .input = {}, .output = {}},
                           {.pattern = "bias", .storage = {layout::Shard(0)}, .input = {}, .output = {}}};
        parallel::place(*model, plan, &optimizer);
        EXPECT_EQ(spec_of(state_of(optimizer, model->weight).exp_avg_scales()).layout_str(), "{tp: S(0)}");
      }
      for (const at::Tensor& parameter : model->parameters()) {
        const at::Tensor gradient = waves(parameter.sizes(), 0.4 + 0.1 * static_cast<double>(step)).to(at::kFloat);
        parameter.mutable_grad() =
            mesh && step >= 2 ? distribute(gradient, *mesh, spec_of(parameter)->placements) : gradient;
      }
      optimizer.step();
    }
    return full_tensor(model->weight.detach());
  };
  const at::Tensor plain = run(nullptr);
  const Mesh mesh = Mesh::parse("tp=2");
  run_on(mesh, [&](int64_t) { EXPECT_TRUE(at::equal(run(&mesh), plain)); });
}

TEST(AdamW8bit, SaysWhatItDoesNotTake) {
  const Tensors parameters = {at::ones({2}, at::kDouble).requires_grad_()};
  EXPECT_THROW(AdamW8bit(parameters, optim::AdamW8bitOptions().eps(-1)), c10::Error);
  parameters[0].mutable_grad() = at::ones({2}, at::kDouble);
  AdamW8bit optimizer(parameters);
  try {
    optimizer.step();
    FAIL();
  } catch (const c10::Error& error) {
    EXPECT_SAYS(std::string(error.what_without_backtrace()), "accepted: float32");
  }
}

}  // namespace
}  // namespace tessera::ranks::adamw_8bit_test
