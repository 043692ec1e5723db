// Losses, softmax and normalisation over ranks, forward and backward, against one device: cross entropy with cut
// batches and vocabularies, regression losses, means of uneven and empty shards.
#include <functional>

#include <ATen/ATen.h>
#include <gtest/gtest.h>

#include "tessera/comm/threads/run_ranks.h"
#include "tessera/dtensor/front/dtensor.h"
#include "tessera/dtensor/front/registry.h"

namespace tessera::losses_test {

using dtensor::distribute;
using dtensor::full_tensor;
using dtensor::spec_of;
using layout::Mesh;
using layout::Placement;
using layout::Placements;

namespace {

using Body = std::function<at::Tensor(const at::Tensor& x)>;

// Values in (0.05, 0.95) that differ from element to element.
at::Tensor values(c10::IntArrayRef sizes, double step = 0.37) {
  return (at::arange(c10::multiply_integers(sizes), at::kDouble) * step).sin().mul(0.45).add(0.5).reshape(sizes);
}

at::Tensor classes_of(c10::IntArrayRef sizes, int64_t classes, int64_t ignored) {
  const at::Tensor target =
      (at::arange(c10::multiply_integers(sizes), at::kLong) * 5).remainder(classes).reshape(sizes);
  return target.masked_fill(target == 2, ignored);
}

// Every way to place a tensor of `ndim` dims on every axis: R, P, or any dim cut.
std::vector<Placements> every_placement(const Mesh& mesh, int64_t ndim) {
  std::vector<Placement> choices = {layout::Replicate(), layout::Partial()};
  for (int64_t d = 0; d < ndim; ++d) {
    choices.push_back(layout::Shard(d));
  }
  std::vector<Placements> result = {{}};
  for (int64_t axis = 0; axis < mesh.ndim(); ++axis) {
    std::vector<Placements> longer;
    for (const Placements& placements : result) {
      for (const Placement& choice : choices) {
        longer.push_back(placements);
        longer.back().push_back(choice);
      }
    }
    result = std::move(longer);
  }
  return result;
}

double error_of(const at::Tensor& found, const at::Tensor& expected) {
  if (found.sizes() != expected.sizes()) {
    return 1e300;
  }
  const at::Tensor same = found.isnan().logical_and(expected.isnan());
  const at::Tensor difference = (found - expected).abs().masked_fill(same, 0);
  return difference.numel() == 0 ? 0 : difference.max().item<double>();
}

// `plain`, replicated where x is distributed.
at::Tensor beside(const at::Tensor& x, const at::Tensor& plain) {
  return dtensor::is_dtensor(x) ? distribute(plain, spec_of(x)->mesh, Placements(spec_of(x)->mesh.ndim())) : plain;
}

struct Result {
  at::Tensor value;
  at::Tensor grad;
};

// Value of the body at x, and the gradient of a weighted sum of it.
Result run(const Body& body, const at::Tensor& x, const at::Tensor& weights) {
  const at::Tensor y = body(x);
  (y * weights).sum().backward();
  return {full_tensor(y.detach()), full_tensor(x.grad())};
}

// Compares the body of a distributed x with that of a plain one, for every placement of x. Other tensors are plain.
void verify(const char* name, const at::Tensor& x, const Body& body) {
  const at::Tensor plain = x.clone().requires_grad_();
  const at::Tensor weights = values(body(plain).sizes(), 0.77);
  const Result expected = run(body, plain, weights);
  dtensor::ensure_registered();
  for (const char* text : {"a=2", "a=3", "a=2,b=2"}) {
    const Mesh mesh = Mesh::parse(text);
    comm::run_ranks(mesh.size(), [&](int64_t rank) {
      for (const Placements& placements : every_placement(mesh, x.dim())) {
        const Result found = run(body, distribute(x, mesh, placements).requires_grad_(), weights);
        const std::string where = c10::str(name, " ", x.sizes(), " ", layout::str(mesh, placements), " rank ", rank);
        EXPECT_LE(error_of(found.value, expected.value), 1e-12) << where << "\n"
                                                                << found.value << "\n"
                                                                << expected.value;
        EXPECT_LE(error_of(found.grad, expected.grad), 1e-12) << where << "\n" << found.grad << "\n" << expected.grad;
      }
    });
  }
}

const std::vector<std::vector<int64_t>>& shapes() {
  static const std::vector<std::vector<int64_t>> all = {{4, 6}, {5, 7}, {1, 3}};
  return all;
}

TEST(Losses, SoftmaxOverACutRow) {
  for (const auto& sizes : shapes()) {
    const at::Tensor x = values(sizes).mul(8);
    verify("log_softmax", x, [](const at::Tensor& t) { return at::log_softmax(t, 1); });
    verify("softmax", x, [](const at::Tensor& t) { return at::softmax(t, 0); });
    verify("logsumexp", x, [](const at::Tensor& t) { return at::logsumexp(t, {1}); });
    const at::Tensor masked = x.index_fill(0, at::zeros({1}, at::kLong), -std::numeric_limits<double>::infinity());
    verify("safe_softmax", masked, [](const at::Tensor& t) { return at::_safe_softmax(t, 1); });
  }
}

TEST(Losses, CrossEntropy) {
  for (const auto& sizes : shapes()) {
    const at::Tensor x = values(sizes).mul(8);
    const at::Tensor weight = values({sizes[1]}, 0.9);
    for (int64_t reduction : {at::Reduction::None, at::Reduction::Mean, at::Reduction::Sum}) {
      verify("cross_entropy", x, [&](const at::Tensor& t) {
        return at::cross_entropy_loss(t, classes_of({sizes[0]}, sizes[1], -100), {}, reduction);
      });
      verify("weighted cross_entropy", x, [&](const at::Tensor& t) {
        return at::cross_entropy_loss(t, classes_of({sizes[0]}, sizes[1], 1), weight, reduction, 1);
      });
    }
  }
}

TEST(Losses, CrossEntropyOfOneSampleAndOfNone) {
  const at::Tensor sample = values({7}).mul(8);
  verify("one sample", sample,
         [](const at::Tensor& t) { return at::cross_entropy_loss(t, at::full({}, 3, at::kLong)); });
  verify("all ignored", values({4, 6}),
         [](const at::Tensor& t) { return at::cross_entropy_loss(t, at::full({4}, -100, at::kLong)); });
}

TEST(Losses, CrossEntropyOfPlacesAndSmoothed) {
  const at::Tensor target = classes_of({4, 3}, 5, -100);
  verify("places", values({4, 5, 3}), [&](const at::Tensor& t) { return at::cross_entropy_loss(t, target); });
  verify("smoothed", values({4, 6}), [&](const at::Tensor& t) {
    return at::cross_entropy_loss(t, classes_of({4}, 6, -100), {}, at::Reduction::Mean, -100, 0.1);
  });
  verify("probabilities", values({4, 6}),
         [&](const at::Tensor& t) { return at::cross_entropy_loss(t, values({4, 6}, 0.7)); });
}

TEST(Losses, TargetsAndClassWeightsMayBeDistributed) {
  const at::Tensor x = values({5, 7}).mul(8);
  const at::Tensor target = classes_of({5}, 7, -100);
  const at::Tensor weight = values({7}, 0.9);
  const at::Tensor plain = x.clone().requires_grad_();
  const Result expected =
      run([&](const at::Tensor& t) { return at::cross_entropy_loss(t, target, weight); }, plain, values({}));
  dtensor::ensure_registered();
  for (const char* text : {"a=2", "a=3", "a=2,b=2"}) {
    const Mesh mesh = Mesh::parse(text);
    comm::run_ranks(mesh.size(), [&](int64_t) {
      for (const Placements& of_x : every_placement(mesh, 2)) {
        for (const char* of_target : {"{a: R}", "{a: S(0)}"}) {
          for (const char* of_weight : {"{a: R}", "{a: S(0)}"}) {
            const Result found = run(
                [&](const at::Tensor& t) {
                  return at::cross_entropy_loss(t, distribute(target, mesh, of_target),
                                                distribute(weight, mesh, of_weight));
                },
                distribute(x, mesh, of_x).requires_grad_(), values({}));
            EXPECT_LE(error_of(found.value, expected.value), 1e-12);
            EXPECT_LE(error_of(found.grad, expected.grad), 1e-12);
          }
        }
      }
    });
  }
}

TEST(Losses, Regression) {
  for (const auto& sizes : shapes()) {
    const at::Tensor x = values(sizes);
    const at::Tensor y = values(sizes, 0.71);
    for (int64_t reduction : {at::Reduction::Mean, at::Reduction::Sum}) {
      verify("mse", x, [&](const at::Tensor& t) { return at::mse_loss(t, y, reduction); });
      verify("smooth_l1", x, [&](const at::Tensor& t) { return at::smooth_l1_loss(t, y, reduction, 0.1); });
      verify("huber", x, [&](const at::Tensor& t) { return at::huber_loss(t, y, reduction, 0.1); });
      verify("soft_margin", x, [&](const at::Tensor& t) { return at::soft_margin_loss(t, y, reduction); });
      verify("bce", x, [&](const at::Tensor& t) { return at::binary_cross_entropy(t, y, {}, reduction); });
    }
    verify("bce_logits", x, [&](const at::Tensor& t) {
      return at::binary_cross_entropy_with_logits(t, beside(t, y), {}, values({sizes[1]}, 0.3));
    });
    verify("mse", x, [&](const at::Tensor& t) { return at::mse_loss(t, y, at::Reduction::None); });
    verify("l1", x, [&](const at::Tensor& t) { return at::l1_loss(t, y); });
    verify("kl_div", x, [&](const at::Tensor& t) { return at::kl_div(t, y); });
  }
}

TEST(Losses, Normalisation) {
  const at::Tensor x = values({5, 4, 3});
  verify("layer_norm", x,
         [&](const at::Tensor& t) { return at::layer_norm(t, {4, 3}, values({4, 3}, 0.6), values({4, 3}, 0.9)); });
  verify("plain layer_norm", x, [&](const at::Tensor& t) { return at::layer_norm(t, {3}); });
  verify("group_norm", x,
         [&](const at::Tensor& t) { return at::group_norm(t, 2, values({4}, 0.6), values({4}, 0.9)); });
  for (bool trains : {true, false}) {
    verify("batch_norm", x, [&](const at::Tensor& t) {
      return at::batch_norm(t, values({4}, 0.6), values({4}, 0.9), values({4}, 0.2), values({4}, 0.3), trains, 0.1,
                            1e-5, false);
    });
  }
}

TEST(Losses, GradientsOfNormalisationWeights) {
  const at::Tensor x = values({5, 4});
  const auto gradients = [&](const Mesh* mesh, const char* layout) {
    const auto placed = [&](const at::Tensor& t, const char* text) {
      return mesh ? distribute(t, *mesh, text) : t.clone();
    };
    const at::Tensor weight = placed(values({4}, 0.6), "{a: R}").requires_grad_();
    const at::Tensor bias = placed(values({4}, 0.9), "{a: R}").requires_grad_();
    at::layer_norm(placed(x, layout), {4}, weight, bias).pow(3).sum().backward();
    return std::pair(full_tensor(weight.grad()), full_tensor(bias.grad()));
  };
  const auto expected = gradients(nullptr, "");
  dtensor::ensure_registered();
  const Mesh mesh = Mesh::parse("a=3");
  comm::run_ranks(3, [&](int64_t) {
    for (const char* layout : {"{a: R}", "{a: S(0)}", "{a: S(1)}", "{a: P}"}) {
      const auto found = gradients(&mesh, layout);
      EXPECT_LE(error_of(found.first, expected.first), 1e-12) << layout;
      EXPECT_LE(error_of(found.second, expected.second), 1e-12) << layout;
    }
  });
}

TEST(Losses, HalfPrecisionIsRoundedOnce) {
  const at::Tensor x = values({4, 6}).mul(8).to(at::kBFloat16);
  const at::Tensor expected = at::log_softmax(x.to(at::kFloat), 1).to(at::kBFloat16);
  dtensor::ensure_registered();
  const Mesh mesh = Mesh::parse("a=2");
  comm::run_ranks(2, [&](int64_t) {
    const at::Tensor found = full_tensor(at::log_softmax(distribute(x, mesh, "{a: S(1)}"), 1));
    EXPECT_EQ(found.scalar_type(), at::kBFloat16);
    EXPECT_LE((found - expected).abs().max().item<double>(), 0.0625);
  });
}

TEST(Losses, TheMeanOfACutVocabularyMovesOnlyRows) {
  dtensor::ensure_registered();
  const Mesh mesh = Mesh::parse("a=2");
  comm::run_ranks(2, [&](int64_t) {
    const at::Tensor x = distribute(values({4, 6}), mesh, "{a: S(1)}").requires_grad_();
    const at::Tensor log_p = at::log_softmax(x, 1);
    EXPECT_EQ(spec_of(log_p).layout_str(), "{a: S(1)}");
    const at::Tensor loss = at::nll_loss(log_p, classes_of({4}, 6, -100));
    EXPECT_EQ(spec_of(loss).layout_str(), "{a: P}");
    loss.backward();
    EXPECT_EQ(spec_of(x.grad()).layout_str(), "{a: S(1)}");
  });
}

TEST(Losses, RefuseATargetThatIsNoClass) {
  dtensor::ensure_registered();
  const Mesh mesh = Mesh::parse("a=2");
  EXPECT_ANY_THROW(comm::run_ranks(2, [&](int64_t) {
    const at::Tensor x = distribute(values({4, 6}), mesh, "{a: S(1)}");
    at::nll_loss(x, at::full({4}, 6, at::kLong));
  }));
}

}  // namespace

}  // namespace tessera::losses_test
