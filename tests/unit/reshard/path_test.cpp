// Which steps are chosen, and their bytes.
#include "tessera/reshard/path.h"

#include <cmath>

#include <gtest/gtest.h>

#include <c10/util/Exception.h>

#include "tests/support/layouts.h"

namespace tessera::reshard::path_test {
namespace {

using layout::Partial;
using layout::ReduceOp;
using layout::Replicate;
using layout::Shard;
using support::every_layout;
using Sizes = std::vector<int64_t>;

constexpr auto kFloat = c10::ScalarType::Float;

Spec spec_of(const char* mesh, const char* placements, const Sizes& sizes) {
  const Mesh m = Mesh::parse(mesh);
  return Spec::contiguous(m, layout::parse_placements(m, placements), sizes, kFloat);
}

std::string path_of(const char* mesh, const char* from, const char* to, const Sizes& sizes) {
  return plan_path(spec_of(mesh, from, sizes), spec_of(mesh, to, sizes)).str();
}

double bytes_of(const char* mesh, const char* from, const char* to, const Sizes& sizes) {
  return plan_path(spec_of(mesh, from, sizes), spec_of(mesh, to, sizes)).bytes;
}

// Totals over P ranks for a tensor of T bytes.
TEST(Bytes, AreThoseOfTheTable) {
  for (int64_t parts : {2, 3, 4, 8}) {
    const std::string mesh = "x=" + std::to_string(parts);
    const Sizes sizes{48, 24};
    const double tensor = 48 * 24 * 4;
    const auto total = [&](const char* from, const char* to) {
      return bytes_of(mesh.c_str(), from, to, sizes) * static_cast<double>(parts);
    };
    const auto p = static_cast<double>(parts);
    EXPECT_EQ(total("{x: S(0)}", "{x: S(0)}"), 0);
    EXPECT_DOUBLE_EQ(total("{x: S(0)}", "{x: S(1)}"), tensor * (p - 1) / p);
    EXPECT_DOUBLE_EQ(total("{x: S(1)}", "{x: R}"), tensor * (p - 1));
    EXPECT_EQ(total("{x: R}", "{x: S(1)}"), 0);
    EXPECT_EQ(total("{x: R}", "{x: P}"), 0);
    EXPECT_DOUBLE_EQ(total("{x: P}", "{x: S(0)}"), tensor * (p - 1));
    EXPECT_DOUBLE_EQ(total("{x: P}", "{x: R}"), 2 * tensor * (p - 1));
    EXPECT_EQ(total("{x: S(0)}", "{x: P}"), 0);
    EXPECT_DOUBLE_EQ(total("{x: S(0)}", "{x: On(1)}"), tensor * (p - 1) / p);
    EXPECT_DOUBLE_EQ(total("{x: On(1)}", "{x: S(0)}"), tensor * (p - 1) / p);
    EXPECT_DOUBLE_EQ(total("{x: On(1)}", "{x: R}"), tensor * (p - 1));
    EXPECT_DOUBLE_EQ(total("{x: On(0)}", "{x: On(1)}"), tensor);
    EXPECT_DOUBLE_EQ(total("{x: P}", "{x: On(0)}"), tensor * (p - 1));
    EXPECT_EQ(total("{x: R}", "{x: On(1)}"), 0);
    EXPECT_EQ(total("{x: On(1)}", "{x: P}"), 0);
  }
}

TEST(Bytes, OfWhatIsOnOneCoordinateAreThoseOfItsLineAlone) {
  const double tensor = 48 * 24 * 4;
  // Of the two lines of tp one holds the tensor.
  EXPECT_DOUBLE_EQ(8 * bytes_of("pp=2,tp=4", "{pp: On(1), tp: S(0)}", "{pp: On(1), tp: R}", {48, 24}), tensor * 3);
  // What is dropped first is not gathered elsewhere.
  EXPECT_EQ(path_of("pp=2,tp=4", "{tp: S(0)}", "{pp: On(1)}", {48, 24}),
            "drop pp: R -> On(1); all_gather tp: S(0) -> R");
  EXPECT_EQ(path_of("pp=2,tp=4", "{pp: On(0), tp: S(0)}", "{pp: On(1), tp: S(0)}", {48, 24}),
            "send pp: On(0) -> On(1)");
}

TEST(Bytes, OfUnevenCutsAreExact) {
  // 5 x 3 over 3 ranks: rows 2, 2, 1 and columns 1, 1, 1.
  EXPECT_DOUBLE_EQ(3 * bytes_of("x=3", "{x: S(0)}", "{x: S(1)}", {5, 3}), 4 * (15 - 5));
  // 5 x 2 over 4 ranks: rows 2, 2, 1, 0 and columns 1, 1, 0, 0: 4 of 10 stay.
  EXPECT_DOUBLE_EQ(4 * bytes_of("x=4", "{x: S(0)}", "{x: S(1)}", {5, 2}), 4 * (10 - 4));
  EXPECT_DOUBLE_EQ(4 * bytes_of("x=4", "{x: S(0)}", "{x: R}", {5, 2}), 4 * 10 * 3);
  // 6 over 4: 2, 2, 2, 0 in any unit of 1 or 2; 5 over 2 in units of 2: 4, 1 instead of 3, 2.
  EXPECT_EQ(bytes_of("x=4", "{x: S(0)}", "{x: S(0;2)}", {6}), 0);
  EXPECT_DOUBLE_EQ(2 * bytes_of("x=2", "{x: S(0)}", "{x: S(0;2)}", {5}), 4);
  // On two axes each line holds half.
  EXPECT_DOUBLE_EQ(bytes_of("a=2,b=2", "{a: S(0), b: S(1)}", "{a: S(0)}", {8, 8}), 4 * 32 / 2);
  EXPECT_DOUBLE_EQ(bytes_of("a=2,b=2", "{a: S(0), b: P}", "{a: S(0)}", {8, 8}), 2 * 4 * 32 / 2);
}

TEST(Path, OfOneAxisIsOneStep) {
  const Sizes sizes{8, 8};
  EXPECT_EQ(path_of("x=4", "{x: S(0)}", "{x: S(0)}", sizes), "nothing");
  EXPECT_EQ(path_of("x=4", "{x: P}", "{x: R}", sizes), "all_reduce x: P -> R");
  EXPECT_EQ(path_of("x=4", "{x: P(max)}", "{x: S(1)}", sizes), "reduce_scatter x: P(max) -> S(1)");
  EXPECT_EQ(path_of("x=4", "{x: S(0)}", "{x: R}", sizes), "all_gather x: S(0) -> R");
  EXPECT_EQ(path_of("x=4", "{x: S(0)}", "{x: S(1)}", sizes), "all_to_all x: S(0) -> S(1)");
  EXPECT_EQ(path_of("x=4", "{x: R}", "{x: S(1)}", sizes), "slice x: R -> S(1)");
  EXPECT_EQ(path_of("x=4", "{x: R}", "{x: P}", sizes), "partialize x: R -> P");
  EXPECT_EQ(path_of("x=4", "{x: S(0)}", "{x: P}", sizes), "pad x: S(0) -> P");
  EXPECT_EQ(path_of("x=4", "{x: S(0)}", "{x: S(0;2)}", sizes), "relabel x: S(0) -> S(0;2)");
  EXPECT_EQ(path_of("x=4", "{x: S(0)}", "{x: S(0;3)}", sizes), "all_to_all x: S(0) -> S(0;3)");
  EXPECT_EQ(path_of("a=2,b=2", "{a: S(0), b: S(1)}", "{a: R, b: S(1)}", sizes), "all_gather a: S(0) -> R");
}

TEST(Path, MergesAPartialByItsOwnOpFirst) {
  EXPECT_EQ(path_of("x=4", "{x: P(max)}", "{x: P}", {8, 8}), "all_reduce x: P(max) -> R; partialize x: R -> P");
  EXPECT_EQ(path_of("x=4", "{x: S(0)}", "{x: P(avg)}", {8, 8}), "all_gather x: S(0) -> R; partialize x: R -> P(avg)");
  EXPECT_EQ(path_of("a=2,b=2", "{a: P(max), b: R}", "{a: R, b: P}", {8, 8}),
            "all_reduce a: P(max) -> R; partialize b: R -> P");
}

TEST(Path, OrdersStepsByBytes) {
  // Slicing first halves what is reduced or gathered; scattering a sum on one axis first halves the other's.
  EXPECT_EQ(path_of("a=2,b=2", "{a: P, b: R}", "{a: R, b: S(0)}", {8, 8}), "slice b: R -> S(0); all_reduce a: P -> R");
  EXPECT_EQ(path_of("a=2,b=2", "{a: S(0), b: R}", "{a: R, b: S(1)}", {8, 8}),
            "slice b: R -> S(1); all_gather a: S(0) -> R");
  EXPECT_EQ(path_of("a=2,b=2", "{a: P, b: P}", "{a: R, b: S(0)}", {8, 8}),
            "reduce_scatter b: P -> S(0); all_reduce a: P -> R");
}

TEST(Path, MovesOuterCutsOnlyWhenInnerOnesAreAway) {
  EXPECT_EQ(path_of("a=2,b=2", "{a: S(0), b: S(0)}", "{a: S(0)}", {8, 8}), "all_gather b: S(0) -> R");
  EXPECT_EQ(path_of("a=2,b=2", "{a: S(0@1), b: S(0@0)}", "{b: S(0)}", {8, 8}), "all_gather a: S(0@1) -> R");
  EXPECT_EQ(path_of("a=2,b=2", "{a: S(0), b: S(0)}", "{b: S(0)}", {8, 8}),
            "exchange {a: S(0), b: S(0)} -> {a: R, b: S(0)}");
  EXPECT_EQ(path_of("a=2,b=2", "{a: S(0), b: S(0)}", "{a: S(0@1), b: S(0@0)}", {8, 8}),
            "exchange {a: S(0), b: S(0)} -> {a: S(0@1), b: S(0@0)}");
  EXPECT_EQ(path_of("a=2,b=2", "{}", "{a: S(0@1), b: S(0@0)}", {8, 8}), "slice b: R -> S(0); slice a: R -> S(0@1)");
}

// Of N ranks along axes of A, B, ...: 2 T (N-1)/N to merge, where one after the other sends 2 T (A-1)/A + 2 T (B-1)/B +
// ...; T (N-1)/N to merge into parts or to gather, as one after the other, in one collective.
TEST(Path, ChangesAxesThatWantTheSameAtOnce) {
  const double tensor = 24 * 24 * 4;
  for (const auto& [mesh, ranks] : {std::pair("a=2,b=2,c=1", 4), {"a=2,b=3,c=1", 6}, {"a=2,b=3,c=2", 12}}) {
    const double share = static_cast<double>(ranks - 1) / ranks;
    const auto bytes = [&](const char* from, const char* to) { return bytes_of(mesh, from, to, {24, 24}); };
    EXPECT_DOUBLE_EQ(bytes("{a: P, b: P, c: P}", "{}"), 2 * tensor * share);
    EXPECT_DOUBLE_EQ(bytes("{a: P, b: P, c: P}", "{a: S(0), b: S(1), c: S(0)}"), tensor * share);
    EXPECT_DOUBLE_EQ(bytes("{a: S(0), b: S(1), c: S(0)}", "{}"), tensor * share);
    EXPECT_EQ(plan_path(spec_of(mesh, "{a: P, b: P, c: P}", {24, 24}), spec_of(mesh, "{}", {24, 24})).steps.size(), 1u);
  }
  const Sizes sizes{8, 8};
  EXPECT_EQ(path_of("a=2,b=2", "{a: P, b: P}", "{}", sizes), "all_reduce {a: P, b: P} -> {a: R, b: R}");
  EXPECT_EQ(path_of("a=2,b=2", "{a: P, b: P}", "{a: S(0@1), b: S(0@0)}", sizes),
            "reduce_scatter {a: P, b: P} -> {a: S(0@1), b: S(0@0)}");
  EXPECT_EQ(path_of("a=2,b=2", "{a: S(0), b: S(0)}", "{}", sizes), "all_gather {a: S(0), b: S(0)} -> {a: R, b: R}");
  // Only what wants the same: of one kind, to whole or to parts.
  EXPECT_EQ(path_of("a=2,b=2", "{a: P, b: P(avg)}", "{}", sizes), "all_reduce a: P -> R; all_reduce b: P(avg) -> R");
  EXPECT_EQ(path_of("a=2,b=2,c=2", "{a: P, b: P, c: P}", "{b: S(0)}", sizes),
            "reduce_scatter b: P -> S(0); all_reduce {a: P, b: S(0), c: P} -> {a: R, b: S(0), c: R}");
}

TEST(Path, OfAnExchangeNamesItsAxes) {
  const Path path = plan_path(spec_of("a=2,b=2,c=2", "{a: S(0), b: S(1), c: S(0)}", {8, 8}),
                              spec_of("a=2,b=2,c=2", "{a: S(0@1), b: S(1), c: S(0@0)}", {8, 8}));
  ASSERT_EQ(path.steps.size(), 1u);
  EXPECT_EQ(path.steps[0].kind, StepKind::kExchange);
  EXPECT_EQ(path.steps[0].axes, (std::vector<int64_t>{0, 2}));
}

TEST(Path, BetweenMeshes) {
  const Mesh mesh = Mesh::parse("a=2,b=2");
  const Mesh flat = mesh.flatten({"a", "b"}, "x");
  const auto on_mesh = [&](const Placements& placements) { return Spec::contiguous(mesh, placements, {8, 8}, kFloat); };
  const auto on_flat = [&](const Placement& placement) { return Spec::contiguous(flat, {placement}, {8, 8}, kFloat); };
  EXPECT_EQ(plan_path(on_mesh({Shard(0), Shard(0)}), on_flat(Shard(0))).str(),
            "relabel {a: S(0), b: S(0)} -> {x: S(0)}");
  EXPECT_EQ(plan_path(on_mesh({Replicate(), Replicate()}), on_flat(Partial())).str(),
            "relabel {a: R, b: R} -> {x: R}; partialize x: R -> P");
  const Path gather = plan_path(on_flat(Shard(0)), on_mesh({Shard(0), Replicate()}));
  EXPECT_EQ(gather.str(), "exchange {x: S(0)} -> {a: S(0), b: R}");
  EXPECT_DOUBLE_EQ(gather.bytes, 4 * 16);
  const Path scatter = plan_path(on_mesh({Partial(), Replicate()}), on_flat(Shard(0)));
  EXPECT_EQ(scatter.str(), "reduce_scatter a: P -> S(0); exchange {a: S(0), b: R} -> {x: S(0)}");
  EXPECT_EQ(scatter.steps[1].bytes, 0);
  EXPECT_THROW(plan_path(on_mesh({Replicate(), Replicate()}),
                         Spec::contiguous(Mesh({{"x", 4}}, {1, 2, 3, 4}), {Replicate()}, {8, 8}, kFloat)),
               c10::Error);
  EXPECT_THROW(plan_path(on_flat(Shard(0)), Spec::contiguous(flat, {Shard(0)}, {8, 9}, kFloat)), c10::Error);
}

// Without Partial no chain can send less than what ranks lack, and the chosen one sends just that.
TEST(Path, SendsOnlyWhatIsMissing) {
  for (const char* name : {"x=4", "a=2,b=2", "a=2,b=3", "a=2,b=2,c=2"}) {
    const Mesh mesh = Mesh::parse(name);
    const auto layouts = every_layout(mesh, 2, {Replicate(), Shard(0), Shard(1)});
    for (const auto& a : layouts) {
      for (const auto& b : layouts) {
        const Spec from = Spec::contiguous(mesh, a, {24, 48}, kFloat);
        const Spec to = Spec::contiguous(mesh, b, {24, 48}, kFloat);
        const double missing = 4.0 * static_cast<double>(Exchange(Holdings(from), Holdings(to)).moved());
        const Path path = plan_path(from, to);
        EXPECT_NEAR(path.bytes * static_cast<double>(mesh.size()), missing, 1e-6)
            << from.str() << " " << to.str() << path.str();
      }
    }
  }
}

TEST(Cost, IsThatOfThePath) {
  const Spec from = spec_of("a=2,b=2", "{a: P, b: S(0)}", {8, 8});
  const Mesh& mesh = from->mesh;
  EXPECT_EQ(cost_bytes(from, from), 0);
  EXPECT_EQ(cost_bytes(from, {Partial(), Shard(0)}), 0);
  for (const Placements& to :
       {Placements{Replicate(), Shard(0)}, Placements{Shard(0), Replicate()}, Placements{Replicate(), Shard(1)}}) {
    EXPECT_DOUBLE_EQ(cost_bytes(from, to), plan_path(from, from.with(to)).bytes);
    EXPECT_DOUBLE_EQ(cost_bytes(from, to), plan_path(from, from.with(to)).bytes);
  }
  EXPECT_TRUE(std::isinf(cost_bytes(from, {Partial(), Partial(ReduceOp::kMax)})));
  EXPECT_TRUE(std::isinf(cost_bytes(from, {Replicate(), Shard(2)})));
  EXPECT_EQ(cost_bytes(from, {Partial(), Shard(0)}),
            cost_bytes(from, from.with(layout::normal_form(mesh, from->placements))));
}

TEST(Interleaved, IsCutAndGatheredAsWhatItIsTakenApartTo) {
  const auto path = [](const char* from, const char* to) {
    return plan_path(spec_of("x=2", from, {12, 4}), spec_of("x=2", to, {12, 4}));
  };
  EXPECT_EQ(path("{x: S(0/3)}", "{x: R}").str(), "all_gather x: S(0/3) -> R");
  EXPECT_EQ(path("{x: P}", "{x: S(0/3)}").str(), "reduce_scatter x: P -> S(0/3)");
  EXPECT_EQ(path("{x: R}", "{x: S(0/3)}").str(), "slice x: R -> S(0/3)");
  EXPECT_EQ(path("{x: S(1)}", "{x: S(0/2)}").str(), "all_to_all x: S(1) -> S(0/2)");
  // In other blocks it is whole in between.
  EXPECT_EQ(path("{x: S(0/3)}", "{x: S(0)}").str(), "all_gather x: S(0/3) -> R; slice x: R -> S(0)");
  EXPECT_DOUBLE_EQ(path("{x: S(0/3)}", "{x: R}").bytes, path("{x: S(0)}", "{x: R}").bytes);
  const Spec spec = spec_of("x=2", "{x: S(0/3)}", {12, 4});
  EXPECT_DOUBLE_EQ(cost_bytes(spec, {Replicate()}), path("{x: S(0/3)}", "{x: R}").bytes);
}

TEST(Spanning, IsOneStepFromAndToWhatIsARunOfTheSameDims) {
  const auto path = [](const char* from, const char* to) {
    return plan_path(spec_of("x=2", from, {4, 3, 2}), spec_of("x=2", to, {4, 3, 2}));
  };
  EXPECT_EQ(path("{x: S(0-1|7,5)}", "{x: R}").str(), "all_gather x: S(0-1|7,5) -> R");
  EXPECT_EQ(path("{x: P}", "{x: S(0-1|7,5)}").str(), "reduce_scatter x: P -> S(0-1|7,5)");
  EXPECT_EQ(path("{x: R}", "{x: S(0-1|7,5)}").str(), "slice x: R -> S(0-1|7,5)");
  EXPECT_EQ(path("{x: S(0-1|7,5)}", "{x: S(0)}").str(), "all_to_all x: S(0-1|7,5) -> S(0-1;3)");
  EXPECT_EQ(path("{x: S(0)}", "{x: S(0-1|6,6)}").str(), "relabel x: S(0-1;3) -> S(0-1|2*6)");
  EXPECT_EQ(path("{x: S(0|2,2)}", "{x: S(0-1|6,6)}").steps.size(), 1u) << "a part has other sizes";
  EXPECT_EQ(path("{x: S(0-1|7,5)}", "{x: On(1)}").str(), "gather x: S(0-1|7,5) -> On(1)");
  EXPECT_EQ(path("{x: S(0-1|7,5)}", "{x: S(2)}").str(), "all_to_all x: S(0-1|7,5) -> S(2)");
  EXPECT_EQ(path("{x: S(0-1|7,5)}", "{x: S(1)}").str(), "all_gather x: S(0-1|7,5) -> R; slice x: R -> S(1)");
  EXPECT_DOUBLE_EQ(path("{x: S(0-1|7,5)}", "{x: R}").bytes, path("{x: S(0)}", "{x: R}").bytes);
  EXPECT_DOUBLE_EQ(path("{x: S(0-1|7,5)}", "{x: S(0)}").bytes, 2 * 4 / 2.0) << "one run of the seventh moves";
}

TEST(Table, NamesEveryKindOnce) {
  std::vector<bool> seen(static_cast<size_t>(StepKind::kExchange) + 1);
  for (const StepRule& rule : step_table()) {
    EXPECT_FALSE(seen[static_cast<size_t>(rule.kind)]) << name_of(rule.kind);
    seen[static_cast<size_t>(rule.kind)] = true;
  }
  EXPECT_EQ(std::count(seen.begin(), seen.end(), false), 1) << "only the exchange is no one-axis step";
}

}  // namespace
}  // namespace tessera::reshard::path_test
