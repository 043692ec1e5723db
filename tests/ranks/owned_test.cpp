// A matrix-wise optimizer on whole matrices, each at one rank: the bits of plain tensors.
#include "tessera/optim/owned.h"

#include <torch/torch.h>

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
