// Running averages of parameters of every layout, against the formula in plain libtorch.
#include "tessera/optim/ema.h"

#include "tests/ranks/support.h"

namespace tessera::ranks::ema_test {
namespace {

using Tensors = std::vector<at::Tensor>;

const Mesh& mesh() {
  static const Mesh all = Mesh::parse("a=2,b=2");
  return all;
}

at::Tensor start() { return waves({5, 7}).to(at::kFloat); }

// The average and the parameter after three updates of a tensor that `make` places.
Tensors run(const std::function<at::Tensor(const at::Tensor&)>& make) {
  const at::Tensor parameter = make(start()).requires_grad_();
  optim::Ema ema({parameter}, 0.9);
  for (int step = 0; step < 3; ++step) {
    parameter.detach().mul_(1.25);
    ema.update();
  }
  return {ema.averages()[0], parameter.detach()};
}

TEST(Ema, IsTheFormulaWithOneSetOfBits) {
  at::Tensor expected = start(), value = start();
  for (int step = 0; step < 3; ++step) {
    value.mul_(1.25);
    expected = 0.9 * expected + 0.1 * value;
  }
  const Tensors plain = run([](const at::Tensor& x) { return x; });
  EXPECT_LE(error_of(plain[0], expected), 1e-6);
  for (const auto numerics : {dtensor::Numerics::kFast, dtensor::Numerics::kExact}) {
    run_on(mesh(), [&](int64_t) {
      dtensor::set_numerics(numerics);
      for (const Placements& placements :
           every_layout(mesh(), 2, {layout::Replicate(), layout::Shard(0), layout::Shard(1)})) {
        const Tensors found = run([&](const at::Tensor& x) { return spread(x, mesh(), placements); });
        EXPECT_TRUE(at::equal(full_tensor(found[0]), plain[0])) << layout::str(mesh(), placements);
        EXPECT_EQ(spec_of(found[0]).layout_str(), spec_of(found[1]).layout_str());
      }
    });
  }
}

TEST(Ema, LendsItsValuesToTheParameters) {
  run_on(mesh(), [&](int64_t) {
    const at::Tensor parameter = distribute(start(), mesh(), "{a: S(0)}").requires_grad_();
    optim::Ema ema({parameter}, 0.5);
    parameter.detach().zero_();
    ema.update();
    const at::Tensor half = start() / 2;
    {
      const optim::Ema::Applied applied(ema);
      EXPECT_TRUE(at::equal(full_tensor(parameter.detach()), half));
      EXPECT_THROW(ema.update(), c10::Error);
    }
    EXPECT_EQ(full_tensor(parameter.detach()).abs().max().item<float>(), 0);
    EXPECT_TRUE(at::equal(full_tensor(ema.averages()[0]), half));
    EXPECT_TRUE(parameter.is_leaf() && parameter.requires_grad());
  });
  EXPECT_THROW(optim::Ema({}, 1.5), c10::Error);
}

}  // namespace
}  // namespace tessera::ranks::ema_test
