// The gradient norm in `exact` numerics: the bits of its definition, written out here, on every layout.

#include <cmath>

#include "tessera/dtensor/exact/squared_norm.h"
#include "tessera/optim/clip.h"
#include "tests/ranks/support.h"

namespace tessera::ranks::clip_norm_test {
namespace {

using dtensor::Numerics;
using dtensor::squared_norm;
using layout::Replicate;
using layout::Shard;

// The definition, one addition at a time.
template <typename T>
T tree(const std::vector<T>& values, size_t begin, size_t end) {
  if (end == begin) {
    return T(0);
  }
  if (end - begin == 1) {
    return values[begin];
  }
  size_t half = 1;
  while (2 * half < end - begin) {
    half *= 2;
  }
  return tree(values, begin, begin + half) + tree(values, begin + half, end);
}

template <typename T>
T tree(const std::vector<T>& values) {
  return tree(values, 0, values.size());
}

// Eight column leaves of ceil(n / 8); in each 16 lanes of fused multiply-adds.
template <typename T>
T squares_of_row(const T* row, int64_t n) {
  const int64_t leaf = std::max<int64_t>((n + 7) / 8, 1);
  std::vector<T> leaves;
  for (int64_t begin = 0; begin < n; begin += leaf) {
    std::vector<T> lanes(16, T(0));
    for (int64_t i = begin; i < std::min(begin + leaf, n); ++i) {
      T& lane = lanes[static_cast<size_t>((i - begin) % 16)];
      lane = std::fma(row[i], row[i], lane);
    }
    leaves.push_back(tree(lanes));
  }
  return tree(leaves);
}

template <typename T>
T squares(const at::Tensor& x) {
  const int64_t rows = x.dim() < 2 ? 1 : x.size(0), n = rows == 0 ? 0 : x.numel() / rows;
  std::vector<T> of_rows;
  for (int64_t r = 0; r < rows; ++r) {
    of_rows.push_back(squares_of_row(x.contiguous().const_data_ptr<T>() + r * n, n));
  }
  return tree(of_rows);
}

template <typename T>
T norm(const std::vector<at::Tensor>& parameters) {
  std::vector<T> all;
  for (const at::Tensor& x : parameters) {
    all.push_back(squares<T>(x));
  }
  return std::sqrt(tree(all));
}

double expected_squares(const at::Tensor& x) {
  return x.scalar_type() == at::kFloat ? squares<float>(x) : squares<double>(x);
}

// Reals of both signs over some binary orders, so that another order of additions changes bits.
at::Tensor wild(c10::IntArrayRef sizes, at::ScalarType dtype, int64_t salt) {
  const at::Tensor index = at::arange(c10::multiply_integers(sizes), at::kLong) * 2654435761 + salt * 40503 + 12345;
  const at::Tensor mantissa = index.remainder(100003).to(at::kDouble) / 50001.5 - 1;
  return (mantissa * (index.floor_divide(64) + salt).remainder(9).sub(4).to(at::kDouble).exp2())
      .reshape(sizes)
      .to(dtype);
}

const std::vector<Sizes> kShapes = {{64, 64}, {13, 37}, {7, 8}, {1, 300}, {300, 1}, {24, 4, 6}, {5, 3, 2, 2},
                                    {160},    {7},      {1},    {},       {0, 4},   {3, 0},     {2, 16}};

// Whole, rows cut with all units that are not too coarse and at given places, columns cut on leaves and inside them,
// everything on two axes.
std::vector<Placement> choices_of(const Sizes& sizes) {
  std::vector<Placement> choices = {Replicate()};
  for (size_t d = 0; d < sizes.size(); ++d) {
    for (int64_t unit : {int64_t{1}, int64_t{3}, (sizes[d] + 7) / 8}) {
      if (unit >= 1) {
        choices.push_back(Shard(static_cast<int64_t>(d), {.unit = unit}));
      }
    }
    for (const Placement& ragged : ragged_cuts(static_cast<int64_t>(d), sizes[d], sizes[d] / 4)) {
      choices.push_back(ragged);
    }
  }
  return choices;
}

void run_exact(const Mesh& mesh, const std::function<void(int64_t)>& body) {
  run_on(mesh, [&](int64_t rank) {
    dtensor::set_numerics(Numerics::kExact);
    body(rank);
  });
}

TEST(ExactNorm, SquaresHaveTheBitsOfTheDefinition) {
  for (const char* text : {"1", "dp=2", "tp=3", "tp=8", "dp=2,tp=2", "a=3,b=2"}) {
    const Mesh mesh = Mesh::parse(text);
    run_exact(mesh, [&](int64_t) {
      for (const at::ScalarType dtype : {at::kFloat, at::kDouble}) {
        for (const Sizes& sizes : kShapes) {
          const at::Tensor x = wild(sizes, dtype, static_cast<int64_t>(sizes.size()));
          const double expected = expected_squares(x);
          for (const Placements& layout : every_layout_of(mesh, sizes, choices_of(sizes))) {
            const at::Tensor found = squared_norm(distribute(x, mesh, layout));
            EXPECT_TRUE(spec_of(found)->is_replicated && found.dim() == 0 && found.scalar_type() == dtype);
            EXPECT_EQ(to_local(found).item<double>(), expected)
                << x.sizes() << dtype << " " << layout::str(mesh, layout);
          }
        }
      }
    });
  }
}

// What is cut between leaves is not gathered: few bytes travel.
TEST(ExactNorm, SumsTravelInsteadOfElements) {
  const Mesh mesh = Mesh::parse("tp=4");
  run_exact(mesh, [&](int64_t) {
    const at::Tensor x = wild({60, 640}, at::kFloat, 1);
    for (const Placement& placement : {Shard(0), Shard(0, {.unit = 7}), Shard(1)}) {
      const at::Tensor placed = distribute(x, mesh, {placement});
      auto& ledger = comm::RankContext::require().ledger;
      const int64_t before = ledger.total_bytes();
      squared_norm(placed);
      const int64_t sent = ledger.total_bytes() - before;
      if (placement.dim == 0) {
        EXPECT_LE(sent, 3 * 4 * 8) << placement.str();  // at most eight nodes of rows, to three others
      } else {
        EXPECT_EQ(sent, 3 * 4 * 60);  // a node of each row
      }
    }
  });
}

// All gradients in one exchange an axis, whatever they are cut by.
TEST(ExactNorm, TakesOneExchangeAnAxis) {
  const Mesh mesh = Mesh::parse("dp=2,tp=2");
  std::vector<at::Tensor> gradients;
  for (const Sizes& sizes : {Sizes{64, 64}, {24, 32}, {160}, {13, 16}, {8, 16}}) {
    gradients.push_back(wild(sizes, at::kFloat, static_cast<int64_t>(gradients.size())));
  }
  const float expected = norm<float>(gradients);
  const std::vector<std::vector<const char*>> cases = {
      {"{dp: S(0), tp: S(1)}", "{dp: S(1), tp: S(0)}", "{tp: S(0)}", "{dp: S(0)}", "{dp: S(0), tp: S(0)}"},
      {"{tp: S(1)}", "{tp: S(0)}", "{}", "{tp: S(0)}", "{tp: S(1)}"}};
  for (const auto& layouts : cases) {
    run_exact(mesh, [&](int64_t) {
      std::vector<at::Tensor> parameters;
      for (size_t i = 0; i < gradients.size(); ++i) {
        parameters.push_back(distribute(at::zeros_like(gradients[i]), mesh, layouts[i]).set_requires_grad(true));
        parameters.back().mutable_grad() = distribute(gradients[i], mesh, layouts[i]);
      }
      auto& ledger = comm::RankContext::require().ledger;
      ledger.clear();
      EXPECT_EQ(to_local(optim::grad_norm(parameters)).item<float>(), expected);
      int64_t calls = 0;
      for (const auto& entry : ledger.entries()) {
        calls += entry.calls;
        EXPECT_EQ(entry.collective, "all_gather");
        EXPECT_EQ(entry.op, "squared_norm");
        EXPECT_EQ(entry.calls, 1) << entry.axis;
      }
      EXPECT_EQ(calls, layouts == cases[0] ? 2 : 1);
    });
  }
}

std::vector<at::Tensor> model() {
  std::vector<at::Tensor> all;
  for (const Sizes& sizes : kShapes) {
    all.push_back(wild(sizes, at::kFloat, static_cast<int64_t>(all.size())));
  }
  return all;
}

// Parameters in program order, whatever their layouts; those without a gradient are not there.
TEST(ExactNorm, IsTheTreeOverParameters) {
  const auto gradients = model();
  const float expected = norm<float>(gradients);
  for (const char* text : {"1", "dp=2", "tp=2", "tp=3", "dp=2,tp=2"}) {
    const Mesh mesh = Mesh::parse(text);
    run_exact(mesh, [&](int64_t) {
      std::vector<at::Tensor> parameters;
      for (size_t i = 0; i < gradients.size(); ++i) {
        const auto layouts = every_layout_of(mesh, gradients[i].sizes(), choices_of(gradients[i].sizes().vec()));
        parameters.push_back(
            distribute(at::zeros_like(gradients[i]), mesh, layouts[i * 7 % layouts.size()]).set_requires_grad(true));
        parameters.back().mutable_grad() = distribute(gradients[i], mesh, layouts[i * 7 % layouts.size()]);
        parameters.push_back(distribute(at::zeros({3}), mesh, Placements(mesh.ndim())).set_requires_grad(true));
      }
      EXPECT_EQ(to_local(optim::grad_norm(parameters)).item<float>(), expected) << text;
      const at::Tensor before = optim::clip_grad_norm(parameters, 1.0);
      EXPECT_EQ(to_local(before).item<float>(), expected);
      const float factor = 1.0F / (expected + 1e-6F);
      for (size_t i = 0; i < gradients.size(); ++i) {
        EXPECT_LE(error_of(full_tensor(parameters[2 * i].grad()), gradients[i] * factor), 1e-6);
      }
    });
  }
}

// The controls: in `fast`, and in another order of parameters, the bits are others.
TEST(ExactNorm, AnotherOrderHasOtherBits) {
  const auto norm_of = [](std::vector<at::Tensor> gradients, Numerics numerics) {
    float found = 0;
    run_on(Mesh::parse("tp=2"), [&](int64_t rank) {
      dtensor::set_numerics(numerics);
      std::vector<at::Tensor> parameters;
      for (const at::Tensor& gradient : gradients) {
        parameters.push_back(
            distribute(at::zeros_like(gradient), Mesh::parse("tp=2"), {Replicate()}).set_requires_grad(true));
        parameters.back().mutable_grad() =
            distribute(gradient, Mesh::parse("tp=2"), {gradient.dim() > 0 ? Shard(0) : Replicate()});
      }
      const float value = full_tensor(optim::grad_norm(parameters)).item<float>();
      if (rank == 0) {
        found = value;
      }
    });
    return found;
  };
  // Sums of squares that differ in their last bits, so that orders show.
  int64_t differ = 0, other_order = 0;
  for (int64_t salt = 0; salt < 12; ++salt) {
    std::vector<at::Tensor> gradients;
    for (int64_t i = 0; i < 5; ++i) {
      gradients.push_back(wild({33, 40 + i}, at::kFloat, 5 * salt + i));
    }
    const float exact = norm_of(gradients, Numerics::kExact);
    EXPECT_EQ(exact, norm<float>(gradients));
    const float fast = norm_of(gradients, Numerics::kFast);
    EXPECT_NEAR(fast, exact, 1e-5 * exact);
    differ += fast != exact;
    std::swap(gradients[0], gradients[4]);
    other_order += norm_of(gradients, Numerics::kExact) != exact;
  }
  EXPECT_GT(differ, 0);
  EXPECT_GT(other_order, 0);
}

TEST(ExactNorm, OfPlainTensorsIsTheSame) {
  for (const Sizes& sizes : kShapes) {
    const at::Tensor x = wild(sizes, at::kDouble, 3);
    EXPECT_EQ(squared_norm(x).item<double>(), squares<double>(x)) << x.sizes();
  }
}

// The values that 16 bits have, in float32: their squares would leave the range of float16.
TEST(ExactNorm, Of16BitsIsThatOfTheirValues) {
  for (const c10::ScalarType dtype : {at::kHalf, at::kBFloat16}) {
    const at::Tensor x = (wild({7, 40}, at::kFloat, 3) * 64).to(dtype);
    const float expected = squares<float>(x.to(at::kFloat));
    EXPECT_EQ(squared_norm(x).item<float>(), expected) << dtype;
    const Mesh mesh = Mesh::parse("a=2");
    EXPECT_EQ(failure_on(2,
                         [&](int64_t) {
                           const at::Tensor found = squared_norm(distribute(x, mesh, {layout::Shard(0)}));
                           EXPECT_EQ(found.scalar_type(), at::kFloat);
                           EXPECT_EQ(full_tensor(found).item<float>(), expected) << dtype;
                         }),
              "");
  }
}

TEST(ExactNorm, SaysWhatIsAccepted) {
  EXPECT_SAYS(failure_on(1, [&](int64_t) { squared_norm(distribute(at::ones({4}, at::kInt), Mesh(), Placements())); }),
              "accepted: float32, float64, bfloat16 and float16");
  const Mesh mesh = Mesh::parse("a=2");
  EXPECT_SAYS(failure_on(2, [&](int64_t) { squared_norm(from_local(at::ones({4}), mesh, {layout::Partial()})); }),
              "accepted: no Partial");
}

}  // namespace
}  // namespace tessera::ranks::clip_norm_test
