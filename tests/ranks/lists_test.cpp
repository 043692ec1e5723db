// Operators on lists of tensors, whose elements lie anywhere, against plain libtorch.
#include <limits>
#include <random>

#include <ATen/ops/_amp_foreach_non_finite_check_and_unscale.h>

#include "tests/ranks/support.h"

namespace tessera::ranks::lists_test {
namespace {

using Tensors = std::vector<at::Tensor>;

const std::vector<Sizes>& shapes() {
  static const std::vector<Sizes> all = {{5, 4}, {3}, {4, 3, 2}, {7, 1}};
  return all;
}

// One tensor of each shape, positive values.
Tensors values(double step) {
  Tensors list;
  for (const Sizes& sizes : shapes()) {
    list.push_back(waves(sizes, step) + 1.5);
  }
  return list;
}

// Where the tensors of a list lie.
enum class Lie : uint8_t { kCut, kAnywhere, kAnywhereOrPlain };

class Layouts {
 public:
  Layouts(const Mesh& mesh, uint64_t seed) : mesh_(mesh), random_(seed) {}

  Tensors spread_all(const Tensors& list, Lie lie) {
    Tensors result;
    for (const at::Tensor& value : list) {
      result.push_back(spread_one(value, lie));
    }
    return result;
  }

  // The same placements for every tensor of one place in the lists.
  std::vector<Placements> draw_cuts() {
    std::vector<Placements> cuts;
    for (const Sizes& sizes : shapes()) {
      cuts.push_back(draw(static_cast<int64_t>(sizes.size()), Lie::kCut));
    }
    return cuts;
  }

 private:
  Placements draw(int64_t ndim, Lie lie) {
    std::vector<Placement> choices = {layout::Replicate()};
    if (lie != Lie::kCut) {
      choices.push_back(layout::Partial());
    }
    for (int64_t dim = 0; dim < ndim; ++dim) {
      choices.push_back(layout::Shard(dim));
    }
    const auto all = every_layout(mesh_, ndim, choices);
    return all[random_() % all.size()];
  }

  at::Tensor spread_one(const at::Tensor& value, Lie lie) {
    if (lie == Lie::kAnywhereOrPlain && random_() % 4 == 0) {
      return value.clone();
    }
    return spread(value, mesh_, draw(value.dim(), lie));
  }

  Mesh mesh_;
  std::mt19937_64 random_;
};

void expect_equal(const Tensors& found, const Tensors& expected, const std::string& what) {
  ASSERT_EQ(found.size(), expected.size()) << what;
  for (size_t i = 0; i < found.size(); ++i) {
    EXPECT_LE(error_of(full_tensor(found[i]), expected[i]), 1e-12) << what << " element " << i;
  }
}

// Reads the lists, writes none.
struct Reading {
  const char* name;
  Tensors (*run)(const Tensors& a, const Tensors& b, const Tensors& c);
};

const std::vector<double> kNumbers = {0.5, -2, 3, 0.25};

std::vector<at::Scalar> numbers() { return {kNumbers.begin(), kNumbers.end()}; }

const Reading kReadings[] = {
    {"add.Scalar", [](const Tensors& a, const Tensors&, const Tensors&) { return at::_foreach_add(a, 0.5); }},
    {"add.List", [](const Tensors& a, const Tensors& b, const Tensors&) { return at::_foreach_add(a, b, 0.5); }},
    {"mul.ScalarList", [](const Tensors& a, const Tensors&, const Tensors&) { return at::_foreach_mul(a, numbers()); }},
    {"mul.Tensor", [](const Tensors& a, const Tensors& b, const Tensors&) { return at::_foreach_mul(a, b[0].sum()); }},
    {"div.List", [](const Tensors& a, const Tensors& b, const Tensors&) { return at::_foreach_div(a, b); }},
    {"maximum.List", [](const Tensors& a, const Tensors& b, const Tensors&) { return at::_foreach_maximum(a, b); }},
    {"sqrt", [](const Tensors& a, const Tensors&, const Tensors&) { return at::_foreach_sqrt(a); }},
    {"pow.Scalar", [](const Tensors& a, const Tensors&, const Tensors&) { return at::_foreach_pow(a, 3); }},
    {"addcmul.Scalar",
     [](const Tensors& a, const Tensors& b, const Tensors& c) { return at::_foreach_addcmul(a, b, c, 0.5); }},
    {"norm 1", [](const Tensors& a, const Tensors&, const Tensors&) { return at::_foreach_norm(a, 1); }},
    {"norm 2", [](const Tensors& a, const Tensors&, const Tensors&) { return at::_foreach_norm(a, 2); }},
    {"norm inf", [](const Tensors& a, const Tensors&,
                    const Tensors&) { return at::_foreach_norm(a, std::numeric_limits<double>::infinity()); }},
    {"max", [](const Tensors& a, const Tensors&, const Tensors&) { return at::_foreach_max(a); }},
};

TEST(Lists, OperatorsReadElementsThatLieAnywhere) {
  const Mesh mesh = Mesh::parse("a=2,b=2");
  const Tensors a = values(0.37), b = values(0.53), c = values(0.71);
  for (const Reading& op : kReadings) {
    const Tensors expected = op.run(a, b, c);
    run_on(mesh, [&](int64_t) {
      for (uint64_t seed = 0; seed < 12; ++seed) {
        for (Lie lie : {Lie::kCut, Lie::kAnywhere, Lie::kAnywhereOrPlain}) {
          Layouts layouts(mesh, seed);
          const Tensors x = layouts.spread_all(a, lie), y = layouts.spread_all(b, lie), z = layouts.spread_all(c, lie);
          expect_equal(op.run(x, y, z), expected, c10::str(op.name, " seed ", seed));
        }
      }
    });
  }
}

struct Writing {
  const char* name;
  void (*run)(const Tensors& a, const Tensors& b, const Tensors& c);
};

const Writing kWritings[] = {
    {"add_.Scalar", [](const Tensors& a, const Tensors&, const Tensors&) { at::_foreach_add_(a, 0.5); }},
    {"add_.List", [](const Tensors& a, const Tensors& b, const Tensors&) { at::_foreach_add_(a, b, 0.5); }},
    {"mul_.Tensor", [](const Tensors& a, const Tensors& b, const Tensors&) { at::_foreach_mul_(a, b[0].sum()); }},
    {"div_.ScalarList", [](const Tensors& a, const Tensors&, const Tensors&) { at::_foreach_div_(a, numbers()); }},
    {"lerp_.Scalar", [](const Tensors& a, const Tensors& b, const Tensors&) { at::_foreach_lerp_(a, b, 0.25); }},
    {"addcmul_.Scalar",
     [](const Tensors& a, const Tensors& b, const Tensors& c) { at::_foreach_addcmul_(a, b, c, 0.5); }},
    {"addcdiv_.ScalarList",
     [](const Tensors& a, const Tensors& b, const Tensors& c) { at::_foreach_addcdiv_(a, b, c, numbers()); }},
    {"copy_", [](const Tensors& a, const Tensors& b, const Tensors&) { at::_foreach_copy_(a, b); }},
    {"zero_", [](const Tensors& a, const Tensors&, const Tensors&) { at::_foreach_zero_(a); }},
    {"sqrt_", [](const Tensors& a, const Tensors&, const Tensors&) { at::_foreach_sqrt_(a); }},
};

TEST(Lists, OperatorsWriteElementsThatLieAnywhere) {
  const Mesh mesh = Mesh::parse("a=2,b=2");
  const Tensors a = values(0.37), b = values(0.53), c = values(0.71);
  for (const Writing& op : kWritings) {
    const Tensors expected = values(0.37);
    op.run(expected, b, c);
    run_on(mesh, [&](int64_t) {
      for (uint64_t seed = 0; seed < 12; ++seed) {
        for (Lie lie : {Lie::kCut, Lie::kAnywhere, Lie::kAnywhereOrPlain}) {
          Layouts layouts(mesh, seed);
          const Tensors x = layouts.spread_all(a, Lie::kCut), y = layouts.spread_all(b, lie),
                        z = layouts.spread_all(c, lie);
          op.run(x, y, z);
          expect_equal(x, expected, c10::str(op.name, " seed ", seed));
        }
      }
    });
  }
}

TEST(Lists, ElementsThatLieAlikeStayWhereTheyAre) {
  const Mesh mesh = Mesh::parse("a=2,b=2");
  const Tensors a = values(0.37), b = values(0.53);
  const Tensors expected = at::_foreach_add(a, b);
  run_on(mesh, [&](int64_t) {
    for (uint64_t seed = 0; seed < 12; ++seed) {
      const auto cuts = Layouts(mesh, seed).draw_cuts();
      Tensors x, y;
      for (size_t i = 0; i < cuts.size(); ++i) {
        x.push_back(spread(a[i], mesh, cuts[i]));
        y.push_back(spread(b[i], mesh, cuts[i]));
      }
      const Tensors sum = at::_foreach_add(x, y);
      expect_equal(sum, expected, c10::str("seed ", seed));
      for (size_t i = 0; i < cuts.size(); ++i) {
        EXPECT_EQ(spec_of(sum[i]).layout_str(), spec_of(x[i]).layout_str());
      }
      const Tensors norms = at::_foreach_norm(sum);
      EXPECT_LE(error_of(full_tensor(at::stack(norms)), at::stack(at::_foreach_norm(expected))), 1e-12);
    }
  });
}

TEST(Lists, GradientsFlowThroughThem) {
  const Mesh mesh = Mesh::parse("a=2");
  at::Tensor x = waves({5, 4}).requires_grad_();
  at::_foreach_mul({x, x}, std::vector<at::Scalar>{2, 3})[1].sum().backward();
  run_on(mesh, [&](int64_t) {
    at::Tensor y = distribute(waves({5, 4}), mesh, "{a: S(0)}").requires_grad_();
    at::_foreach_mul({y, y}, std::vector<at::Scalar>{2, 3})[1].sum().backward();
    EXPECT_EQ(error_of(full_tensor(y.grad()), x.grad()), 0);
  });
}

// What one fused step reads and writes.
struct Fused {
  Tensors parameters, gradients, first, second, largest, steps;
};

Fused fused_values() {
  Fused all{values(0.37), values(0.53), values(0.71), values(0.91), values(1.13), {}};
  for (size_t i = 0; i < shapes().size(); ++i) {
    all.steps.push_back(at::full({}, 3.0, at::kFloat));
  }
  return all;
}

struct FusedStep {
  const char* name;
  void (*run)(const Fused& f);
};

const FusedStep kSteps[] = {
    {"adamw",
     [](const Fused& f) {
       at::_fused_adamw_(f.parameters, f.gradients, f.first, f.second, {}, f.steps, 0.1, 0.9, 0.99, 0.01, 1e-8, false,
                         false);
     }},
    {"adamw amsgrad",
     [](const Fused& f) {
       at::_fused_adamw_(f.parameters, f.gradients, f.first, f.second, f.largest, f.steps, 0.1, 0.9, 0.99, 0.01, 1e-8,
                         true, true);
     }},
    {"adamw scaled",
     [](const Fused& f) {
       at::_fused_adamw_(f.parameters, f.gradients, f.first, f.second, {}, f.steps, 0.1, 0.9, 0.99, 0.01, 1e-8, false,
                         false, at::full({1}, 8.0, at::kFloat), at::zeros({1}, at::kFloat));
     }},
    {"adamw maximize",
     [](const Fused& f) {
       at::_fused_adamw_(f.parameters, f.gradients, f.first, f.second, {}, f.steps, at::full({}, 0.1, at::kDouble), 0.9,
                         0.99, 0.01, 1e-8, false, true);
     }},
    {"adam amsgrad",
     [](const Fused& f) {
       at::_fused_adam_(f.parameters, f.gradients, f.first, f.second, f.largest, f.steps, 0.1, 0.9, 0.99, 0.01, 1e-8,
                        true, false);
     }},
    {"adamw that an infinity leaves out",
     [](const Fused& f) {
       at::_fused_adamw_(f.parameters, f.gradients, f.first, f.second, {}, f.steps, 0.1, 0.9, 0.99, 0.01, 1e-8, false,
                         false, at::full({1}, 8.0, at::kFloat), at::ones({1}, at::kFloat));
     }},
    {"sgd maximize",
     [](const Fused& f) {
       at::_fused_sgd_(f.parameters, f.gradients, f.first, 0.01, 0.9, 0.1, 0.25, false, true, false);
     }},
    {"sgd first step",
     [](const Fused& f) {
       at::_fused_sgd_(f.parameters, f.gradients, f.first, 0.01, 0.9, 0.1, 0.25, false, false, true);
     }},
    {"adam tensor lr",
     [](const Fused& f) {
       at::_fused_adam_(f.parameters, f.gradients, f.first, f.second, {}, f.steps, at::full({}, 0.1), 0.9, 0.99, 0.01,
                        1e-8, false, false);
     }},
    {"sgd",
     [](const Fused& f) {
       at::_fused_sgd_(f.parameters, f.gradients, f.first, 0.01, 0.9, 0.1, 0.0, true, false, false);
     }},
    {"sgd without momentum",
     [](const Fused& f) { at::_fused_sgd_(f.parameters, f.gradients, {}, 0.01, 0.0, 0.1, 0.0, false, false, false); }},
    {"adagrad",
     [](const Fused& f) {
       at::_fused_adagrad_(f.parameters, f.gradients, f.first, f.steps, 0.1, 0.01, 0.01, 1e-8, false);
     }},
};

TEST(Lists, FusedOptimizersStepParametersThatLieAnywhere) {
  const Mesh mesh = Mesh::parse("a=2,b=2");
  const Fused start = fused_values();
  for (const FusedStep& step : kSteps) {
    Fused expected = fused_values();
    step.run(expected);
    run_on(mesh, [&](int64_t) {
      for (uint64_t seed = 0; seed < 12; ++seed) {
        for (Lie lie : {Lie::kCut, Lie::kAnywhere, Lie::kAnywhereOrPlain}) {  // of the gradients
          Layouts layouts(mesh, seed);
          const Lie of_state = lie == Lie::kCut ? Lie::kCut : Lie::kAnywhere;
          Fused found{layouts.spread_all(start.parameters, Lie::kCut), layouts.spread_all(start.gradients, lie),
                      layouts.spread_all(start.first, Lie::kCut),      layouts.spread_all(start.second, of_state),
                      layouts.spread_all(start.largest, Lie::kCut),    fused_values().steps};
          step.run(found);
          const std::string what = c10::str(step.name, " seed ", seed);
          expect_equal(found.parameters, expected.parameters, what + " parameters");
          expect_equal(found.gradients, expected.gradients, what + " gradients");
          expect_equal(found.first, expected.first, what + " first moments");
          expect_equal(found.second, expected.second, what + " second moments");
          expect_equal(found.largest, expected.largest, what + " largest moments");
        }
      }
    });
  }
}

// One rank's bits, in every layout, and libtorch's values.
TEST(Lists, FusedOptimizersHaveOneSetOfBitsInExact) {
  for (const FusedStep& step : kSteps) {
    if (std::string(step.name) == "adagrad") {
      continue;  // it has no exact form
    }
    Fused expected = fused_values();
    step.run(expected);
    Fused one;
    const auto run_in_exact = [&](const Mesh& mesh, const std::function<void(const Fused&, uint64_t seed)>& look) {
      run_on(mesh, [&](int64_t) {
        dtensor::set_numerics(dtensor::Numerics::kExact);
        for (uint64_t seed = 0; seed < 12; ++seed) {
          Layouts layouts(mesh, seed);
          const Fused start = fused_values();
          const Fused found{
              layouts.spread_all(start.parameters, Lie::kCut), layouts.spread_all(start.gradients, Lie::kCut),
              layouts.spread_all(start.first, Lie::kCut),      layouts.spread_all(start.second, Lie::kCut),
              layouts.spread_all(start.largest, Lie::kCut),    start.steps};
          step.run(found);
          look(found, seed);
        }
      });
    };
    run_in_exact(Mesh::parse("a=1"), [&](const Fused& found, uint64_t) {
      expect_equal(found.parameters, expected.parameters, step.name);
      expect_equal(found.gradients, expected.gradients, step.name);
      expect_equal(found.first, expected.first, step.name);
      expect_equal(found.second, expected.second, step.name);
      expect_equal(found.largest, expected.largest, step.name);
      for (const auto& [own, whole] : {std::pair(&found.parameters, &one.parameters),
                                       {&found.first, &one.first},
                                       {&found.second, &one.second},
                                       {&found.largest, &one.largest}}) {
        whole->clear();
        for (const at::Tensor& tensor : *own) {
          whole->push_back(full_tensor(tensor));
        }
      }
    });
    run_in_exact(Mesh::parse("a=2,b=2"), [&](const Fused& found, uint64_t seed) {
      for (const auto& [own, whole] : {std::pair(&found.parameters, &one.parameters),
                                       {&found.first, &one.first},
                                       {&found.second, &one.second},
                                       {&found.largest, &one.largest}}) {
        for (size_t i = 0; i < whole->size(); ++i) {
          EXPECT_TRUE(at::equal(full_tensor((*own)[i]), (*whole)[i])) << step.name << " seed " << seed << " " << i;
        }
      }
    });
  }
}

TEST(Lists, FusedOptimizersSayWhatTheyCannotWrite) {
  const Mesh mesh = Mesh::parse("a=2");
  const auto message = failure_on(2, [&](int64_t) {
    Fused f = fused_values();
    for (at::Tensor& parameter : f.parameters) {
      parameter = distribute(parameter, mesh, "{a: S(0)}");
    }
    kSteps[0].run(f);
  });
  EXPECT_SAYS(message, "into a plain tensor");
  EXPECT_SAYS(failure_on(2,
                         [&](int64_t) {
                           dtensor::set_numerics(dtensor::Numerics::kExact);
                           Fused f = fused_values();
                           for (at::Tensor& parameter : f.parameters) {
                             parameter = distribute(parameter, mesh, "{a: S(0)}");
                           }
                           at::_fused_adagrad_(f.parameters, f.gradients, f.first, f.steps, 0.1, 0.01, 0.01, 1e-8,
                                               false);
                         }),
              "fused=False");
}

TEST(Lists, EveryRankLearnsOfInfinitiesInAnyPart) {
  const Mesh mesh = Mesh::parse("a=2,b=2");
  for (const bool overflows : {false, true}) {
    Tensors gradients = values(0.37);
    if (overflows) {
      gradients[0][4][1] = std::numeric_limits<double>::infinity();
    }
    Tensors expected;
    for (const at::Tensor& gradient : gradients) {
      expected.push_back(gradient * 0.5);
    }
    run_on(mesh, [&](int64_t) {
      for (uint64_t seed = 0; seed < 12; ++seed) {
        for (const bool in_region : {false, true}) {
          Layouts layouts(mesh, seed);
          const Tensors found = layouts.spread_all(gradients, overflows ? Lie::kCut : Lie::kAnywhere);
          at::Tensor flag = at::zeros({1}, at::kFloat), inverse = at::full({1}, 0.5, at::kFloat);
          if (in_region) {
            flag = distribute(flag, mesh, "{}"), inverse = distribute(inverse, mesh, "{}");
          }
          at::_amp_foreach_non_finite_check_and_unscale_(found, flag, inverse);
          EXPECT_EQ(full_tensor(flag).item<float>(), overflows ? 1 : 0) << "seed " << seed;
          expect_equal(found, expected, c10::str("seed ", seed));
        }
      }
    });
  }
}

}  // namespace
}  // namespace tessera::ranks::lists_test
