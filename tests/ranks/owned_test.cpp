// A matrix-wise optimizer on whole matrices, each at one rank: the bits of plain tensors.
#include "tessera/optim/owned.h"

#include <filesystem>

#include <torch/torch.h>
#include <unistd.h>

#include "tessera/checkpoint/program/job.h"
#include "tessera/parallel/generate_plan.h"
#include "tessera/parallel/optimizer_fields.h"
#include "tessera/parallel/place.h"
#include "tests/ranks/support.h"

namespace tessera::ranks::owned_test {
namespace {

using optim::OwnedOver;
using Tensors = std::vector<at::Tensor>;

struct GramOptions : torch::optim::OptimizerCloneableOptions<GramOptions> {
  TORCH_ARG(double, lr) = 0.1;

 public:
  double get_lr() const override { return lr_; }
  void set_lr(const double lr) override { lr_ = lr; }
};

struct GramState : torch::optim::OptimizerCloneableParamState<GramState> {
  TORCH_ARG(at::Tensor, gram);
};

// One that no layout of a matrix is right for: a Gram matrix is kept, and the gradient divided by it.
class Gram : public torch::optim::Optimizer {
 public:
  explicit Gram(Tensors parameters)
      : Optimizer({torch::optim::OptimizerParamGroup(std::move(parameters))}, std::make_unique<GramOptions>()) {}

  torch::Tensor step(LossClosure) override {
    const at::NoGradGuard no_grad;
    for (auto& group : param_groups()) {
      for (const at::Tensor& parameter : group.params()) {
        const at::Tensor gradient = parameter.grad();
        if (!gradient.defined()) {
          continue;
        }
        auto& state = state_[parameter.unsafeGetTensorImpl()];
        if (!state) {
          auto made = std::make_unique<GramState>();
          made->gram(at::eye(gradient.size(0), gradient.options()));
          state = std::move(made);
        }
        const at::Tensor& gram = static_cast<GramState&>(*state).gram();
        gram.add_(gradient.mm(gradient.t()));
        parameter.sub_(at::linalg_solve(gram, gradient), group.options().get_lr());
      }
    }
    return {};
  }
};

const std::vector<Sizes>& shapes() {
  static const std::vector<Sizes> all = {{8, 6}, {5, 7}, {4, 4}, {9, 3}};
  return all;
}

// Three steps, the rate halved after each; the last parameter has no gradient in the first.
Tensors train(const std::function<at::Tensor(const at::Tensor&, size_t)>& make,
              const std::function<std::unique_ptr<torch::optim::Optimizer>(std::unique_ptr<Gram>)>& wrap,
              const std::function<void(torch::optim::Optimizer&, const Tensors&)>& look = {}) {
  Tensors parameters;
  for (size_t i = 0; i < shapes().size(); ++i) {
    parameters.push_back(make(waves(shapes()[i]).to(at::kFloat), i).requires_grad_());
  }
  const auto optimizer = wrap(std::make_unique<Gram>(parameters));
  for (int64_t step = 0; step < 3; ++step) {
    for (size_t i = step == 0 ? 1 : 0; i < parameters.size(); ++i) {
      parameters[i].mutable_grad() = make(waves(shapes()[i], 0.4 + 0.1 * static_cast<double>(step)).to(at::kFloat), i);
    }
    optimizer->step();
    auto& options = optimizer->param_groups()[0].options();
    options.set_lr(options.get_lr() / 2);
  }
  if (look) {
    look(*optimizer, parameters);
  }
  for (at::Tensor& parameter : parameters) {
    parameter = parameter.detach();
  }
  return parameters;
}

Tensors train_plain() {
  return train([](const at::Tensor& value, size_t) { return value.clone(); },
               [](std::unique_ptr<Gram> gram) -> std::unique_ptr<torch::optim::Optimizer> { return gram; });
}

TEST(Owned, HasTheBitsOfPlainTensors) {
  at::set_num_threads(1);
  const Tensors plain = train_plain();
  for (const char* axes : {"a=1", "a=2", "a=3", "a=2,b=2"}) {
    const Mesh mesh = Mesh::parse(axes);
    const auto all = every_layout(mesh, 2, {layout::Replicate(), layout::Shard(0), layout::Shard(1)});
    for (const auto over : {OwnedOver::kCuts, OwnedOver::kMesh}) {
      for (const auto numerics : {dtensor::Numerics::kFast, dtensor::Numerics::kExact}) {
        run_on(mesh, [&](int64_t) {
          dtensor::set_numerics(numerics);
          for (size_t number = 0; number < all.size(); ++number) {
            const Tensors found = train(
                [&](const at::Tensor& value, size_t i) { return spread(value, mesh, all[(number + i) % all.size()]); },
                [&](std::unique_ptr<Gram> gram) { return optim::owned(std::move(gram), {.over = over}); });
            for (size_t i = 0; i < found.size(); ++i) {
              EXPECT_TRUE(at::equal(full_tensor(found[i]), plain[i])) << axes << " layout " << number << " of " << i;
              EXPECT_EQ(
                  spec_of(found[i]).layout_str(),
                  Spec::contiguous(mesh, all[(number + i) % all.size()], found[i].sizes(), at::kFloat).layout_str());
            }
          }
        });
      }
    }
  }
}

TEST(Owned, KeepsPlainStateAtTheOwnerAlone) {
  const Mesh mesh = Mesh::parse("a=2");
  std::mutex mutex;
  std::map<size_t, int> owners;
  run_on(mesh, [&](int64_t) {
    train([&](const at::Tensor& value, size_t) { return distribute(value, mesh, "{a: S(0)}"); },
          [](std::unique_ptr<Gram> gram) { return optim::owned(std::move(gram)); },
          [&](torch::optim::Optimizer& optimizer, const Tensors& parameters) {
            const std::lock_guard lock(mutex);
            for (size_t i = 0; i < parameters.size(); ++i) {
              const auto found = optimizer.state().find(parameters[i].unsafeGetTensorImpl());
              if (found != optimizer.state().end()) {
                ++owners[i];
                EXPECT_FALSE(dtensor::is_dtensor(static_cast<GramState&>(*found->second).gram()));
              }
            }
            EXPECT_FALSE(optimizer.state().empty()) << "the work is shared out";
            EXPECT_TRUE(static_cast<optim::Owned&>(optimizer).optimizer().state().empty());
          });
  });
  EXPECT_EQ(owners, (std::map<size_t, int>{{0, 1}, {1, 1}, {2, 1}, {3, 1}}));
}

// Each gradient there and each value back, 2 T (N-1)/N over all ranks; a small number a parameter to agree on writes.
TEST(Owned, SendsEachMatrixThereAndBack) {
  const Mesh mesh = Mesh::parse("a=4");
  std::mutex mutex;
  int64_t sent = 0;
  run_on(mesh, [&](int64_t) {
    const at::Tensor parameter = distribute(waves({16, 8}).to(at::kFloat), mesh, "{a: S(0)}").requires_grad_();
    const auto optimizer = optim::owned(std::make_unique<Gram>(Tensors{parameter}));
    const auto step = [&] {
      parameter.mutable_grad() = distribute(waves({16, 8}, 0.2).to(at::kFloat), mesh, "{a: S(0)}");
      optimizer->step();
    };
    step();
    auto& ledger = dtensor::RankState::require().ctx.ledger;
    ledger.clear();
    step();
    const std::lock_guard lock(mutex);
    sent += ledger.total_bytes() - ledger.bytes_of("all_reduce", "a");
    EXPECT_LE(ledger.bytes_of("all_reduce", "a"), 8);
  });
  EXPECT_EQ(sent, 2 * 16 * 8 * 4 * 3 / 4);
}

struct ProductsImpl : torch::nn::Module {
  torch::nn::Linear up = register_module("up", torch::nn::Linear(torch::nn::LinearOptions(8, 12).bias(false)));
  torch::nn::Linear down = register_module("down", torch::nn::Linear(torch::nn::LinearOptions(12, 6).bias(false)));
  at::Tensor forward(const at::Tensor& x) { return down(at::relu(up(x))); }
};
TORCH_MODULE(Products);

// Steps of a job in `exact` on a mesh, from a checkpoint if there is one, and saved after them; what the parameters
// are.
Tensors go_on(const char* axes, const std::string& from, const std::string& to, int64_t steps) {
  Tensors values;
  const Mesh mesh = Mesh::parse(axes);
  run_on(mesh, [&](int64_t rank) {
    const sums::Lattice lattice{.batch = 12, .feature = 2};
    dtensor::set_numerics(dtensor::Numerics::kExact, lattice);
    torch::manual_seed(5);
    Products model;
    const auto optimizer = optim::owned(std::make_unique<Gram>(model->parameters()));
    const auto plan = parallel::generate_plan(*model, {.mesh = mesh, .lattice = lattice});
    parallel::place(*model, plan, optimizer.get());
    parallel::Job job(
        model.ptr(), plan,
        [model](const std::vector<at::Tensor>& batch) mutable { return torch::mse_loss(model(batch[0]), batch[1]); },
        {.optimizer = optimizer.get()});
    if (!from.empty()) {
      checkpoint::load(from, job);
    }
    for (int64_t step = 0; step < steps; ++step) {
      const auto number = static_cast<double>(job.step() + 1);
      job(waves({12, 8}, 0.3 * number).to(at::kFloat), waves({12, 6}, 0.7 * number).to(at::kFloat)).backward();
      optimizer->step();
      optimizer->zero_grad();
      auto& options = optimizer->param_groups()[0].options();
      options.set_lr(options.get_lr() * 0.75);
    }
    if (!to.empty()) {
      checkpoint::save(to, job);
    }
    for (const at::Tensor& parameter : model->parameters()) {
      const at::Tensor value = full_tensor(parameter.detach());
      if (rank == 0) {
        values.push_back(value);
      }
    }
  });
  return values;
}

// The state of each matrix, whole in the files, is at its owner again, on another mesh too.
TEST(Owned, GoesOnFromACheckpoint) {
  static const bool is_known = [] {
    parallel::register_optimizer(parallel::optimizer_kind<Gram, GramOptions, GramState>(
        "Gram", [](GramOptions& options, parallel::FieldVisitor& visit) { visit.number("lr", options.lr()); },
        [](GramState& state, parallel::FieldVisitor& visit) { visit.tensor("gram", state.gram()); }));
    return true;
  }();
  ASSERT_TRUE(is_known);
  at::set_num_threads(1);
  const std::string run = std::filesystem::temp_directory_path() / ("tessera_owned_" + std::to_string(::getpid()));
  const Tensors expected = go_on("1", "", "", 4);
  for (const char* first : {"1", "fsdp=2", "fsdp=3", "dp=2,fsdp=2"}) {
    std::filesystem::remove_all(run);
    go_on(first, "", run, 2);
    for (const char* then : {"1", "fsdp=2", "dp=2", "fsdp=4"}) {
      const Tensors found = go_on(then, run, "", 2);
      for (size_t i = 0; i < found.size(); ++i) {
        EXPECT_TRUE(at::equal(found[i], expected[i])) << first << ", then " << then << ", parameter " << i;
      }
    }
  }
  std::filesystem::remove_all(run);
}

TEST(Owned, SaysWhatItDoesNotTake) {
  Tensors parameters = {waves({4, 4}).to(at::kFloat).requires_grad_()};
  auto stepped = std::make_unique<Gram>(parameters);
  parameters[0].mutable_grad() = at::ones({4, 4});
  stepped->step({});
  EXPECT_THROW(optim::owned(std::move(stepped)), c10::Error);
  EXPECT_THROW(optim::owned(nullptr), c10::Error);
}

}  // namespace
}  // namespace tessera::ranks::owned_test
