// Operators in `exact` numerics, one by one: every layout gives the bits of a mesh of one, or says why it cannot.
#include <set>

#include "tessera/rules/exact/exact.h"
#include "tessera/rules/exact/exact_table.h"
#include "tests/ranks/exact_samples.h"
#include "tests/support/sampled.h"

namespace tessera::ranks::exact_ops_test {
namespace {

using dtensor::Numerics;
using sums::Lattice;
using rules::testing::Named;

const std::vector<const char*> kMeshes = {"tp=2", "tp=3", "tp=4", "dp=2,tp=2"};

// The layouts in which the tensor is cut between leaves.
std::vector<Placements> leaf_layouts(const Mesh& mesh, const at::Tensor& tensor, const Lattice& lattice) {
  std::vector<Placement> choices = {layout::Replicate()};
  for (int64_t d = 0; d < tensor.dim(); ++d) {
    const int64_t unit = std::max<int64_t>(1, sums::leaf_unit(tensor.size(d), lattice.feature));
    choices.push_back(layout::Shard(d, {.unit = unit}));
    for (const Placement& ragged : ragged_cuts(d, tensor.size(d), 2 * unit)) {
      choices.push_back(ragged);
    }
  }
  return every_layout_of(mesh, tensor.sizes(), choices);
}

// `most` of the combinations of layouts of the sample's tensors, spread over all of them.
std::vector<std::vector<Placements>> some_combinations(const Sample& sample, const Mesh& mesh, int64_t most,
                                                       size_t first) {
  std::vector<std::vector<Placements>> options;
  int64_t count = 1;
  for (const auto& [tensor, arg] : rules::testing::tensors_of(sample.args)) {
    options.push_back(leaf_layouts(mesh, tensor, {}));
    count *= static_cast<int64_t>(options.back().size());
  }
  std::vector<std::vector<Placements>> some;
  const int64_t stride = std::max<int64_t>(1, count / most);
  for (int64_t index = static_cast<int64_t>(first) % stride; index < count; index += stride) {
    std::vector<Placements>& layouts = some.emplace_back();
    int64_t rest = index;
    for (const auto& choices : options) {
      layouts.push_back(choices[rest % static_cast<int64_t>(choices.size())]);
      rest /= static_cast<int64_t>(choices.size());
    }
  }
  return some;
}

std::string described(const Sample& sample, const Mesh& mesh, const std::vector<Placements>& layouts) {
  std::string text = sample.op + " on " + mesh.str();
  size_t next = 0;
  for (const auto& [tensor, arg] : rules::testing::tensors_of(sample.args)) {
    text += c10::str(" ", c10::toString(tensor.scalar_type()), tensor.sizes(), layout::str(mesh, layouts[next++]));
  }
  return text;
}

// The sample's outcome on a mesh of one, in `exact`.
std::vector<CallOutcome> outcomes_on_one(const Samples& samples) {
  std::vector<CallOutcome> outcomes;
  run_on(Mesh(), [&](int64_t) {
    dtensor::set_numerics(Numerics::kExact);
    for (const Sample& sample : samples) {
      outcomes.push_back(run_call(sample, Mesh(), std::vector<Placements>(9)));
    }
  });
  return outcomes;
}

struct Tally {
  std::set<std::string> ran, refused;
  int64_t calls = 0;
};

// Each sample that a mesh of one runs, in some layouts.
void check_layouts(const Samples& samples, const std::vector<CallOutcome>& expected, const char* text, Tally& tally) {
  const Mesh mesh = Mesh::parse(text);
  run_on(mesh, [&](int64_t rank) {
    dtensor::set_numerics(Numerics::kExact);
    for (size_t i = 0; i < samples.size(); ++i) {
      if (!expected[i].error.empty()) {
        continue;
      }
      for (const auto& layouts : some_combinations(samples[i], mesh, is_full() ? 100 : 5, i)) {
        const std::string found = difference(run_call(samples[i], mesh, layouts), expected[i]);
        if (rank != 0) {
          continue;
        }
        EXPECT_EQ(found, "") << described(samples[i], mesh, layouts);
        ++tally.calls;
      }
    }
  });
}

TEST(ExactOps, EveryOperatorOfTheTableHasTheBitsOfOneRank) {
  for (c10::ScalarType dtype : {at::kFloat, at::kDouble, at::kBFloat16, at::kHalf}) {
    Samples samples;
    for (const Sample& sample : exact_samples()) {
      if (sample.op == "aten::mish_backward") {
        continue;  // libtorch's gives wrong sizes where the gradient broadcasts
      }
      if (rules::find_exact_rule(sample.op) && sample.compare == audit::Compare::kValues && !writes(sample)) {
        samples.push_back(made_wild(sample, dtype));
      }
    }
    const std::vector<CallOutcome> expected = outcomes_on_one(samples);
    Tally tally;
    for (size_t i = 0; i < samples.size(); ++i) {
      (expected[i].error.empty() ? tally.ran : tally.refused).insert(samples[i].op);
      EXPECT_TRUE(expected[i].error.empty() || says(expected[i].error, "numerics exact"))
          << samples[i].op << ": " << expected[i].error;
    }
    for (const char* mesh : support::sampled(kMeshes, 2, c10::toString(dtype))) {
      check_layouts(samples, expected, mesh, tally);
    }
    for (const std::string& op : tally.refused) {
      if (!tally.ran.contains(op)) {
        std::printf("refused in every sample: %s\n", op.c_str());
      }
    }
    std::printf("%zu samples of %zu operators, %lld calls\n", samples.size(), tally.ran.size(),
                static_cast<long long>(tally.calls));
    EXPECT_GT(tally.ran.size(), 100u);
  }
}

// Nothing without an exact rule runs.
TEST(ExactOps, OthersAreRefusedByName) {
  std::set<std::string> seen;
  run_on(Mesh::parse("tp=2"), [&](int64_t rank) {
    dtensor::set_numerics(Numerics::kExact);
    for (const Sample& sample : exact_samples()) {
      if (rules::find_exact_rule(sample.op) || writes(sample)) {
        continue;
      }
      const CallOutcome outcome = run_call(sample, Mesh::parse("tp=2"), std::vector<Placements>(9, Placements(1)));
      if (rank != 0) {
        continue;
      }
      if (outcome.error.empty()) {
        std::printf("no exact rule, and runs: %s\n", sample.op.c_str());
      }
      EXPECT_TRUE(outcome.error.empty() || says(outcome.error, "numerics exact")) << sample.op << ": " << outcome.error;
    }
  });
}

// A plan for one order is not taken for another.
TEST(ExactOps, NormsOfOtherOrdersAreRefusedAfterTheEuclideanOne) {
  const Mesh mesh = Mesh::parse("tp=2");
  run_on(mesh, [&](int64_t) {
    dtensor::set_numerics(Numerics::kExact);
    const at::Tensor x = wild({5, 4}, at::kDouble, 1);
    for (const double order : {2.0, 1.0, 3.0, 2.0}) {
      const CallOutcome outcome =
          run_call(audit::sample("aten::linalg_vector_norm", {x}, {{"ord", order}, {"dim", Sizes{0}}}), mesh,
                   {{layout::Shard(1)}});
      EXPECT_TRUE(order == 2.0 ? outcome.error.empty() : says(outcome.error, "called like this"))
          << order << outcome.error;
    }
  });
}

// The control: in `fast` the same calls have other bits in some layouts, and they are as before after `exact`.
TEST(ExactOps, FastIsUnchangedAfterExact) {
  const Sample sum = made_wild(audit::sample("aten::sum", {audit::reals({13, 64})}), at::kFloat);
  const Sample product =
      made_wild(audit::sample("aten::mm", {audit::reals({16, 64}), audit::reals({64, 16})}), at::kFloat);
  const Mesh mesh = Mesh::parse("tp=4");
  CallOutcome one;
  run_on(Mesh(), [&](int64_t) { one = run_call(sum, Mesh(), {{}}); });
  run_on(mesh, [&](int64_t rank) {
    const auto both = [&] {
      return std::pair(run_call(sum, mesh, {{layout::Shard(1)}}),
                       run_call(product, mesh, {{layout::Shard(1)}, {layout::Shard(0)}}));
    };
    const auto before = both();
    dtensor::set_numerics(Numerics::kExact);
    const auto exact = both();
    dtensor::set_numerics(Numerics::kFast);
    const auto after = both();
    if (rank != 0) {
      return;
    }
    EXPECT_EQ(difference(after.first, before.first), "");
    EXPECT_EQ(difference(after.second, before.second), "");
    EXPECT_NE(difference(exact.first, before.first), "");
    EXPECT_NE(difference(one, before.first), "");
  });
}

// A cut inside a leaf, with the sizes that work.
TEST(ExactOps, CutsInsideALeafAreRefused) {
  const Mesh mesh = Mesh::parse("tp=2");
  run_on(mesh, [&](int64_t rank) {
    dtensor::set_numerics(Numerics::kExact);
    const auto check = [&](const Sample& sample, const std::vector<Placements>& layouts, const char* words) {
      const CallOutcome outcome = run_call(sample, mesh, layouts);
      EXPECT_TRUE(says(outcome.error, words)) << outcome.error << ", rank " << rank;
    };
    using layout::Shard;
    const at::Tensor x = wild({4, 20}, at::kDouble, 1), w = wild({20, 5}, at::kDouble, 2);
    const Named last = {{"dim", std::vector<int64_t>{1}}};
    check(audit::sample("aten::sum.dim_IntList", {x}, last), {{Shard(1)}},
          "dim 1 of 20 has 8 leaves of 3; the cut at 10 is inside leaf 3 "
          "[9,12); accepted: cuts at multiples of 3, S(1;3); even cuts without a unit fit over 1, 7, 8 ranks of axis "
          "tp, or another lattice");
    check(audit::sample("tessera::contract", {x, w}, {{"equation", "ik,kj->ij"}}), {{Shard(1)}, {Shard(0)}},
          "cuts at multiples of 3");
    check(audit::sample("aten::sum", {x}), {{Shard(1)}}, "cuts at multiples of 3");
    check(audit::sample("aten::linalg_vector_norm", {x}), {{Shard(1)}}, "cuts at multiples of 3");
    EXPECT_EQ(run_call(audit::sample("aten::sum.dim_IntList", {x}, last), mesh, {{Shard(1, {.unit = 3})}}).error, "");
    // Another lattice makes the same cut legal.
    dtensor::set_numerics(Numerics::kExact, {.feature = 4});
    EXPECT_EQ(run_call(audit::sample("aten::sum.dim_IntList", {x}, last), mesh, {{Shard(1)}}).error, "");
  });
}

}  // namespace
}  // namespace tessera::ranks::exact_ops_test
