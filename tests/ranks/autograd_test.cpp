// Gradients of DTensors as libtorch's engine makes them: products of any rank, twice differentiated, hooks, retained
// graphs.
#include <torch/torch.h>

#include "tessera/rules/engine/equation.h"
#include "tests/ranks/support.h"

namespace tessera::ranks::autograd_test {
namespace {

using torch::autograd::grad;

const Mesh& square() {
  static const Mesh mesh = Mesh::parse("a=2,b=2");
  return mesh;
}

// Layouts for every operand of a call, of which the sample takes some.
std::vector<Placements> some_layouts(const Mesh& mesh, int64_t ndim, size_t stride, size_t first) {
  const auto all = plain_layouts(mesh, ndim);
  std::vector<Placements> some;
  for (size_t i = first % std::min(stride, all.size()); i < all.size(); i += is_full() ? 1 : stride) {
    some.push_back(all[i]);
  }
  return some;
}

struct Product {
  at::Tensor value, grad_a, grad_b;
};

Product product_of(const at::Tensor& a, const at::Tensor& b, const at::Tensor& weights) {
  const at::Tensor value = at::matmul(a, b);
  (value * weights).sum().backward();
  return {value, a.grad(), b.grad()};
}

// In the dims where strides mean something.
bool same_strides(const at::Tensor& found, const at::Tensor& expected) {
  for (int64_t dim = 0; dim < expected.dim(); ++dim) {
    if (expected.size(dim) > 1 && found.stride(dim) != expected.stride(dim)) {
      return false;
    }
  }
  return true;
}

// Every pair of ranks, with missing dims, dims of one and zero in the batch.
TEST(Products, BroadcastAsMatmulDoes) {
  const std::vector<Sizes> shapes = {{4},       {4, 4},       {1, 4},       {4, 1},       {3, 4, 4},    {1, 4, 4},
                                     {3, 1, 4}, {2, 3, 4, 4}, {2, 1, 4, 4}, {1, 3, 4, 4}, {1, 1, 4, 4}, {2, 3, 4, 1}};
  int64_t count = 0;
  for (const Sizes& of_a : shapes) {
    for (const Sizes& of_b : shapes) {
      const at::Tensor a = waves(of_a), b = waves(of_b, 0.71);
      at::Tensor plain_a = a.clone().requires_grad_(), plain_b = b.clone().requires_grad_(), weights;
      Product expected;
      try {
        weights = waves(at::matmul(a, b).sizes(), 0.53);
        expected = product_of(plain_a, plain_b, weights);
      } catch (const c10::Error&) {
        const std::string error =
            failure_on(4, [&](int64_t) { at::matmul(distribute(a, square(), "{}"), distribute(b, square(), "{}")); });
        EXPECT_NE(error, "") << a.sizes() << " x " << b.sizes();
        continue;
      }
      ++count;
      run_on(square(), [&](int64_t rank) {
        size_t first = static_cast<size_t>(count);
        for (const Placements& at_a : some_layouts(square(), a.dim(), 11, first)) {
          for (const Placements& at_b : some_layouts(square(), b.dim(), 7, ++first)) {
            const std::string where = c10::str(a.sizes(), layout::str(square(), at_a), " x ", b.sizes(),
                                               layout::str(square(), at_b), ", rank ", rank);
            const at::Tensor x = spread(a, square(), at_a).requires_grad_(),
                             y = spread(b, square(), at_b).requires_grad_();
            const Product found = product_of(x, y, weights);
            EXPECT_TRUE(same_strides(found.value, expected.value))
                << where << found.value.strides() << expected.value.strides();
            EXPECT_LE(error_of(full_tensor(found.value), expected.value), 1e-13) << where;
            EXPECT_LE(error_of(full_tensor(found.grad_a), expected.grad_a), 1e-13) << where;
            EXPECT_LE(error_of(full_tensor(found.grad_b), expected.grad_b), 1e-13) << where;
          }
        }
      });
    }
  }
  EXPECT_GT(count, 60);
}

TEST(Products, OfEmptyAndOneElementOperands) {
  for (const auto& [of_a, of_b] : std::vector<std::pair<Sizes, Sizes>>{
           {{0, 4}, {4, 3}}, {{3, 0}, {0, 2}}, {{0, 2, 3}, {3, 2}}, {{1}, {1}}, {{2, 0}, {0}}}) {
    const at::Tensor a = waves(of_a), b = waves(of_b), expected = at::matmul(a, b);
    run_on(square(), [&](int64_t) {
      for (const Placements& at_a : plain_layouts(square(), a.dim())) {
        const at::Tensor x = spread(a, square(), at_a), y = distribute(b, square(), "{b: S(0)}");
        EXPECT_LE(error_of(full_tensor(at::matmul(x, y)), expected), 1e-13)
            << a.sizes() << b.sizes() << layout::str(square(), at_a);
      }
    });
  }
}

TEST(Products, LinearOfAnyRank) {
  const at::Tensor w = waves({6, 4}), bias = waves({6}, 0.3);
  for (const Sizes& sizes : std::vector<Sizes>{{4}, {3, 4}, {2, 3, 4}, {2, 1, 3, 4}}) {
    const at::Tensor x = waves(sizes, 0.9);
    const at::Tensor plain_x = x.clone().requires_grad_(), plain_w = w.clone().requires_grad_(),
                     plain_b = bias.clone().requires_grad_();
    const at::Tensor expected = at::linear(plain_x, plain_w, plain_b), weights = waves(expected.sizes(), 0.2);
    (expected * weights).sum().backward();
    run_on(square(), [&](int64_t) {
      for (const Placements& at_x : plain_layouts(square(), x.dim())) {
        for (const char* at_w : {"{}", "{a: S(0)}", "{b: S(1)}", "{a: S(1), b: S(0)}"}) {
          const at::Tensor dx = spread(x, square(), at_x).requires_grad_(),
                           dw = distribute(w, square(), at_w).requires_grad_();
          const at::Tensor db = distribute(bias, square(), "{a: S(0)}").requires_grad_();
          const at::Tensor found = at::linear(dx, dw, db);
          (found * weights).sum().backward();
          const std::string where = c10::str(x.sizes(), layout::str(square(), at_x), at_w);
          EXPECT_LE(error_of(full_tensor(found), expected), 1e-13) << where;
          EXPECT_LE(error_of(full_tensor(dx.grad()), plain_x.grad()), 1e-13) << where;
          EXPECT_LE(error_of(full_tensor(dw.grad()), plain_w.grad()), 1e-13) << where;
          EXPECT_LE(error_of(full_tensor(db.grad()), plain_b.grad()), 1e-13) << where;
        }
      }
    });
  }
}

TEST(Products, LinearWithAWeightOfOneRow) {
  const at::Tensor w = waves({4}), bias = waves({}, 0.3);
  for (const Sizes& sizes : std::vector<Sizes>{{4}, {3, 4}, {2, 3, 4}}) {
    const at::Tensor x = waves(sizes, 0.9);
    run_on(square(), [&](int64_t) {
      const at::Tensor dx = spread(x, square(), Placements{layout::Shard(x.dim() - 1), layout::Shard(0)}),
                       dw = distribute(w, square(), "{a: S(0)}").requires_grad_();
      const at::Tensor found = at::linear(dx, dw, bias);
      EXPECT_LE(error_of(full_tensor(found), at::linear(x, w) + bias), 1e-13) << x.sizes();
      found.sum().backward();
      EXPECT_LE(error_of(full_tensor(dw.grad()), x.reshape({-1, 4}).sum(0)), 1e-13) << x.sizes();
    });
  }
}

// In `fast` one rank runs what libtorch runs, where the product and the sum are one kernel too.
TEST(Products, LinearOnOneRankHasTheBitsOfLibtorch) {
  const Mesh one = Mesh::parse("a=1");
  for (const Sizes& sizes : std::vector<Sizes>{{33, 70}, {3, 11, 70}, {2, 1, 3, 70}}) {
    const at::Tensor x = waves(sizes, 0.9).to(at::kFloat), w = waves({50, 70}).to(at::kFloat),
                     bias = waves({50}, 0.3).to(at::kFloat);
    const auto results_of = [](const at::Tensor& input, const at::Tensor& weight, const at::Tensor& added) {
      const std::vector<at::Tensor> leaves = {input.requires_grad_(), weight.requires_grad_(), added.requires_grad_()};
      const at::Tensor found = at::linear(input, weight, added);
      std::vector<at::Tensor> results = grad({found.square().sum()}, leaves);
      results.push_back(found.detach());
      return results;
    };
    const std::vector<at::Tensor> expected = results_of(x.clone(), w.clone(), bias.clone());
    run_on(one, [&](int64_t) {
      const auto found = results_of(distribute(x, one, "{}"), distribute(w, one, "{}"), distribute(bias, one, "{}"));
      for (size_t i = 0; i < found.size(); ++i) {
        EXPECT_TRUE(at::equal(full_tensor(found[i]), expected[i])) << sizes << " " << i;
      }
      const at::Tensor apart = at::linear(distribute(x, one, "{}"), distribute(w, one, "{}")) + bias;
      EXPECT_LE(error_of(full_tensor(apart), expected.back()), 1e-6);
    });
  }
}

// Every addend that broadcasts to the last dims; of a sum that is cut, one rank adds it.
TEST(Products, AddendsOfContractions) {
  const at::Tensor x = waves({2, 3, 4}), w = waves({4, 6}, 0.7);
  for (const Sizes& sizes : std::vector<Sizes>{{}, {6}, {1}, {3, 6}, {3, 1}, {2, 1, 6}}) {
    const at::Tensor plain_added = waves(sizes, 0.3).requires_grad_();
    const at::Tensor expected = at::matmul(x, w) + plain_added;
    expected.square().sum().backward();
    run_on(square(), [&](int64_t) {
      for (const Placements& at_x : plain_layouts(square(), 3)) {
        for (const char* at_w : {"{}", "{a: S(0)}", "{b: S(1)}", "{a: S(1), b: S(0)}"}) {
          const at::Tensor added = distribute(plain_added.detach(), square(), "{}").requires_grad_();
          const at::Tensor found = rules::contract(spread(x, square(), at_x), distribute(w, square(), at_w),
                                                   "abk,kz->abz", std::nullopt, added);
          found.square().sum().backward();
          const std::string where = c10::str(sizes, layout::str(square(), at_x), at_w);
          EXPECT_LE(error_of(full_tensor(found), expected), 1e-13) << where;
          EXPECT_LE(error_of(full_tensor(added.grad()), plain_added.grad()), 1e-13) << where;
        }
      }
    });
  }
}

// Frozen operands get no gradient, and take none from the others: every choice of those that want one, differentiated
// twice.
TEST(Products, LinearOfFrozenOperands) {
  const std::vector<at::Tensor> whole = {waves({3, 4}), waves({6, 4}, 0.7), waves({6}, 0.3)};
  const std::vector<const char*> layouts = {"{a: S(0)}", "{b: S(0)}", "{b: S(0)}"};
  for (unsigned wanted = 1; wanted < 8; ++wanted) {
    const auto gradients_of = [&](const std::vector<at::Tensor>& operands) {
      std::vector<at::Tensor> leaves;
      for (size_t i = 0; i < operands.size(); ++i) {
        if ((wanted >> i & 1) != 0) {
          leaves.push_back(operands[i].requires_grad_());
        }
      }
      const at::Tensor loss = at::linear(operands[0], operands[1], operands[2]).pow(3).sum();
      const std::vector<at::Tensor> once = grad({loss}, leaves, {}, true, true);
      at::Tensor squares = once[0].square().sum();
      for (size_t i = 1; i < once.size(); ++i) {
        squares = squares + once[i].square().sum();
      }
      std::vector<at::Tensor> all = grad({squares}, leaves);
      all.insert(all.end(), once.begin(), once.end());
      return all;
    };
    const std::vector<at::Tensor> expected = gradients_of({whole[0].clone(), whole[1].clone(), whole[2].clone()});
    run_on(square(), [&](int64_t) {
      std::vector<at::Tensor> operands;
      for (size_t i = 0; i < whole.size(); ++i) {
        operands.push_back(distribute(whole[i], square(), layouts[i]));
      }
      const std::vector<at::Tensor> found = gradients_of(operands);
      for (size_t i = 0; i < expected.size(); ++i) {
        EXPECT_LE(error_of(full_tensor(found[i]), expected[i]), 1e-12) << "wanted " << wanted << ", result " << i;
      }
    });
  }
}

// A function with products, powers, a normalisation and views; differentiated three times.
std::vector<at::Tensor> derivatives(const at::Tensor& x, const at::Tensor& w) {
  const at::Tensor y = at::linear(at::mm(x, w).sin(), w).pow(3);
  const at::Tensor first = (y * at::softmax(x, 1)).sum() + y.t().slice(0, 0, 2).square().mean();
  const auto g = grad({first}, {x, w}, {}, true, true);
  const auto h = grad({(g[0] * g[0]).sum() + g[1].cos().sum()}, {x, w}, {}, true, true);
  const auto i = grad({h[0].sum()}, {x, w}, {}, false, false);
  return {first, g[0], g[1], h[0], h[1], i[0], i[1]};
}

TEST(Gradients, OfGradientsOfGradients) {
  const at::Tensor x = waves({4, 6}), w = waves({6, 5}, 0.61);
  const auto expected = derivatives(x.clone().requires_grad_(), w.clone().requires_grad_());
  run_on(square(), [&](int64_t) {
    for (const Placements& at_x : plain_layouts(square(), 2)) {
      for (const char* at_w : {"{}", "{a: S(0)}", "{a: S(1), b: S(0)}", "{b: S(1)}"}) {
        const auto found =
            derivatives(spread(x, square(), at_x).requires_grad_(), distribute(w, square(), at_w).requires_grad_());
        for (size_t i = 0; i < expected.size(); ++i) {
          EXPECT_LE(error_of(full_tensor(found[i]), expected[i]), 1e-12)
              << i << " " << layout::str(square(), at_x) << at_w;
        }
      }
    }
  });
}

TEST(Gradients, ThroughRedistributionsTwice) {
  const at::Tensor x = waves({4, 6});
  const auto run = [](const at::Tensor& t, const std::function<at::Tensor(const at::Tensor&)>& move) {
    const at::Tensor y = move(t.sin()).pow(3).sum();
    const at::Tensor g = grad({y}, {t}, {}, true, true)[0];
    return grad({(move(g) * g).sum()}, {t})[0];
  };
  const at::Tensor expected = run(x.clone().requires_grad_(), [](const at::Tensor& t) { return t; });
  const Mesh line = Mesh::parse("x=4");
  run_on(square(), [&](int64_t) {
    for (const Placements& from : plain_layouts(square(), 2)) {
      for (const char* to : {"{}", "{a: S(1)}", "{a: S(1), b: S(0)}"}) {
        const at::Tensor found =
            run(spread(x, square(), from).requires_grad_(), [&](const at::Tensor& t) { return redistribute(t, to); });
        EXPECT_LE(error_of(full_tensor(found), expected), 1e-13) << layout::str(square(), from) << to;
      }
      const at::Tensor other = run(spread(x, square(), from).requires_grad_(), [&](const at::Tensor& t) {
        return redistribute(redistribute(t, line, {layout::Shard(1)}), square(), from);
      });
      EXPECT_LE(error_of(full_tensor(other), expected), 1e-13) << layout::str(square(), from);
    }
  });
}

TEST(Gradients, AddUpInLeavesOfAnyLayout) {
  const at::Tensor x = integers({4, 6});
  run_on(square(), [&](int64_t) {
    for (const Placements& placements : plain_layouts(square(), 2)) {
      const at::Tensor leaf = spread(x, square(), placements).requires_grad_();
      (leaf * x).sum().backward();
      at::mm(leaf, distribute(at::ones({6, 3}, at::kDouble), square(), "{a: S(0)}")).sum().backward();
      leaf.t().slice(0, 1, 3).sum().backward();
      at::Tensor expected = x + 3;
      expected.slice(1, 1, 3).add_(1);
      EXPECT_TRUE(at::equal(full_tensor(leaf.grad()), expected)) << layout::str(square(), placements);
      leaf.mutable_grad().reset();
      leaf.sum().backward();
      EXPECT_TRUE(at::equal(full_tensor(leaf.grad()), at::ones_like(x)));
    }
  });
}

TEST(Gradients, RunHooksOnceInOrder) {
  run_on(square(), [&](int64_t) {
    std::vector<std::string> order;
    const at::Tensor x = distribute(integers({4, 6}), square(), "{a: S(0)}").requires_grad_();
    const at::Tensor w = distribute(integers({6, 4}), square(), "{b: S(1)}").requires_grad_();
    const at::Tensor y = at::mm(x, w);
    x.register_hook([&](const at::Tensor& g) {
      order.push_back("x");
      return g * 2;
    });
    y.register_hook([&](const at::Tensor& g) {
      order.push_back("y");
      EXPECT_EQ(full_tensor(g).sum().item<double>(), 16);
      return g * 3;
    });
    const auto removed = y.register_hook([&](const at::Tensor& g) {
      order.push_back("removed");
      return g;
    });
    y.remove_hook(removed);
    y.retain_grad();
    y.sum().backward();
    EXPECT_EQ(order, (std::vector<std::string>{"y", "x"}));
    EXPECT_TRUE(at::equal(full_tensor(y.grad()), at::full({4, 4}, 3, at::kDouble)));
    const at::Tensor expected = at::mm(at::full({4, 4}, 3, at::kDouble), integers({6, 4}).t());
    EXPECT_TRUE(at::equal(full_tensor(x.grad()), expected * 2));
    EXPECT_TRUE(at::equal(full_tensor(w.grad()), at::mm(integers({4, 6}).t(), at::full({4, 4}, 3, at::kDouble))));
  });
}

TEST(Gradients, OfARetainedGraphRunAgain) {
  run_on(square(), [&](int64_t) {
    const at::Tensor x = distribute(integers({4, 6}), square(), "{a: S(1)}").requires_grad_();
    const at::Tensor loss = at::mm(x, x.t()).square().sum();
    loss.backward({}, true);
    const at::Tensor once = full_tensor(x.grad()).clone();
    loss.backward();
    EXPECT_TRUE(at::equal(full_tensor(x.grad()), once * 2));
    EXPECT_ANY_THROW(loss.backward());
  });
}

TEST(Gradients, AreOffWhereTheProgramSaysSo) {
  run_on(square(), [&](int64_t) {
    at::Tensor x = distribute(integers({4, 6}), square(), "{a: S(0)}").requires_grad_();
    {
      at::NoGradGuard no_grad;
      EXPECT_FALSE((x * 2).requires_grad());
      EXPECT_FALSE(redistribute(x, "{}").requires_grad());
      EXPECT_FALSE(full_tensor(x).requires_grad());
      EXPECT_FALSE(at::linear(x, x).requires_grad());
    }
    EXPECT_FALSE(x.detach().requires_grad());
    EXPECT_TRUE((x * 2).requires_grad());
    EXPECT_FALSE((x * 2).is_leaf());
    x.requires_grad_(false);
    EXPECT_FALSE((x * 2).requires_grad());
    x.requires_grad_(true);
    (x * 2 + x.detach() * 5).sum().backward();
    EXPECT_TRUE(at::equal(full_tensor(x.grad()), at::full({4, 6}, 2, at::kDouble)));
    EXPECT_ANY_THROW(x.add_(1));  // a leaf that requires a gradient
    const at::Tensor y = x * 1, z = y.square();
    y.add_(1);
    EXPECT_ANY_THROW(z.sum().backward());  // the saved value was overwritten
  });
}

// A Partial that is merged after it was saved for backward.
TEST(Gradients, SeeAPartialThatWasMergedLater) {
  run_on(square(), [&](int64_t) {
    for (const Placements& placements : plain_layouts(square(), 2)) {
      const at::Tensor x = spread(waves({4, 6}), square(), placements).requires_grad_(),
                       plain = waves({4, 6}).requires_grad_();
      const auto run = [](const at::Tensor& t) {
        const at::Tensor sum = t.sum(1), scaled = sum * sum.t(), other = sum.exp();
        (scaled + other + sum.relu()).sum().backward();
      };
      run(plain);
      run(x);
      EXPECT_LE(error_of(full_tensor(x.grad()), plain.grad()), 1e-13) << layout::str(square(), placements);
    }
  });
}

}  // namespace
}  // namespace tessera::ranks::autograd_test
