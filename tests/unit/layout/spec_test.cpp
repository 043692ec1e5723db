#include "tessera/layout/spec.h"

#include <thread>

#include <gtest/gtest.h>

#include <c10/util/Exception.h>

#include "tests/unit/layout/random_layout.h"

namespace tessera::layout::spec_test {
namespace {

constexpr auto kFloat = c10::ScalarType::Float;

TEST(Spec, EqualSpecsAreOneRecord) {
  const Mesh mesh = Mesh::parse("dp=2,tp=4");
  const Spec a = Spec::contiguous(mesh, {Shard(0), Replicate()}, {8, 16}, kFloat);
  EXPECT_EQ(a, Spec::contiguous(Mesh({{"dp", 2}, {"tp", 4}}), parse_placements(mesh, "{dp: S(0)}"), {8, 16}, kFloat));
  EXPECT_EQ(a, a.with({Shard(1), Replicate()}).with({Shard(0), Replicate()}));
  EXPECT_NE(a, a.with({Replicate(), Replicate()}));
  EXPECT_NE(a, Spec::contiguous(mesh, {Shard(0), Replicate()}, {8, 16}, c10::ScalarType::Double));
  EXPECT_NE(a, Spec::contiguous(mesh, {Shard(0), Replicate()}, {16, 8}, kFloat));
  EXPECT_NE(a, Spec::make(mesh, {Shard(0), Replicate()}, {8, 16}, {1, 8}, kFloat));
  EXPECT_NE(a, a.with_labels({{{Label::kBatch, 8, 0, 8, 1}}, {}}));
  EXPECT_EQ(a, a.with_labels({{{Label::kBatch, 8, 0, 8, 1}}, {}}).with_labels({}));
}

TEST(Spec, ThreadsAgreeOnTheRecord) {
  const Mesh mesh = Mesh::parse("x=4");
  std::vector<std::vector<Spec>> made(4, std::vector<Spec>(200));
  std::vector<std::thread> threads;
  for (auto& specs : made) {
    threads.emplace_back([&] {
      for (size_t i = 0; i < specs.size(); ++i) {
        specs[i] = Spec::contiguous(mesh, {Shard(0)}, {static_cast<int64_t>(1000 + i)}, kFloat);
      }
    });
  }
  for (auto& thread : threads) {
    thread.join();
  }
  EXPECT_EQ(made[0], made[1]);
  EXPECT_EQ(made[0], made[2]);
  EXPECT_EQ(made[0], made[3]);
}

TEST(Spec, OnIsHeldAtOneCoordinate) {
  const Mesh mesh = Mesh::parse("pp=3,tp=2");
  const Spec spec = Spec::contiguous(mesh, {On(1), Shard(0)}, {8, 6}, kFloat);
  EXPECT_FALSE(spec->is_everywhere);
  EXPECT_FALSE(spec->is_replicated);
  EXPECT_FALSE(spec->has_partial);
  EXPECT_TRUE(spec->is_cut(0));
  for (int64_t rank = 0; rank < 6; ++rank) {
    const Coord coord = *mesh.coord_of(rank);
    EXPECT_EQ(spec->holds(coord), coord[0] == 1);
    EXPECT_EQ(spec->is_first_holder(coord), coord[0] == 1);
    EXPECT_EQ(spec.local_sizes(coord), coord[0] == 1 ? (std::vector<int64_t>{4, 6}) : std::vector<int64_t>{0});
  }
  EXPECT_EQ(Spec::contiguous(mesh, {On(1), On(0)}, {}, kFloat).local_sizes({1, 0}), std::vector<int64_t>());
  EXPECT_EQ(normal_form(Mesh::parse("pp=1"), {On(0)}), Placements{Replicate()});
  EXPECT_THROW(spec.with({On(3), Replicate()}), c10::Error);
  EXPECT_FALSE(is_layout_of(mesh, {On(3), Replicate()}, {8, 6}));
  EXPECT_NE(On(1), On(0));
  EXPECT_NE(On(1), On(1, 0));
  EXPECT_EQ(On(1), On(1, 1));
  EXPECT_NE(On(1).hash(), On(1, 0).hash());
  EXPECT_NE(On(1).hash(), On(0).hash());
  EXPECT_NE(On(1), Shard(1));
}

TEST(Spec, NormalForm) {
  const Mesh mesh = Mesh::parse("a=2,one=1,b=3");
  const Placements r3(3);
  EXPECT_EQ(normal_form(mesh, {Replicate(), Partial(ReduceOp::kMax), Replicate()}), r3);
  EXPECT_EQ(normal_form(mesh, {Shard(0, {.order = 0}), Shard(1), Replicate()}),
            (Placements{Shard(0), Replicate(), Replicate()}));
  EXPECT_EQ(normal_form(mesh, {Shard(0, {.order = 0}), Replicate(), Shard(0, {.order = 1})}),
            (Placements{Shard(0), Replicate(), Shard(0)}));
  const Placements swapped{Shard(0, {.order = 1}), Replicate(), Shard(0, {.order = 0})};
  EXPECT_EQ(normal_form(mesh, swapped), swapped);
  // An axis of size one leaves its place in the order to the others.
  EXPECT_EQ(normal_form(mesh, {Shard(0, {.order = 2}), Shard(0, {.order = 0}), Shard(0, {.order = 1})}), swapped);
  // Those that say no order fill the free positions.
  EXPECT_EQ(normal_form(mesh, {Shard(0, {.order = 1}), Replicate(), Shard(0)}), swapped);
  EXPECT_EQ(normal_form(mesh, {Shard(0), Replicate(), Shard(0, {.order = 0})}), swapped);
  EXPECT_EQ(Spec::contiguous(mesh, {Shard(0), Partial(), Replicate()}, {4}, kFloat).str(),
            "float32[4] {a: S(0), one: R, b: R}");
}

TEST(Spec, DerivedFacts) {
  const Mesh mesh = Mesh::parse("a=2,b=2");
  const Spec spec = Spec::contiguous(mesh, {Partial(), Replicate()}, {3, 0, 4}, kFloat);
  EXPECT_TRUE(spec->has_partial);
  EXPECT_FALSE(spec->is_replicated);
  EXPECT_TRUE(spec.with({Replicate(), Replicate()})->is_replicated);
  EXPECT_EQ(spec->numel(), 0);
  EXPECT_EQ(spec->strides, (std::vector<int64_t>{4, 4, 1}));
  const Spec scalar = Spec::contiguous(mesh, {Replicate(), Replicate()}, {}, kFloat);
  EXPECT_EQ(scalar->numel(), 1);
  EXPECT_EQ(scalar->bytes(), 4);
  EXPECT_TRUE(scalar.local_ranges({1, 0}).empty());
  EXPECT_FALSE(Spec());
}

TEST(Spec, RefusesNonsense) {
  const Mesh mesh = Mesh::parse("a=2,b=2");
  const auto make = [&](const Placements& placements) { return Spec::contiguous(mesh, placements, {4, 4}, kFloat); };
  EXPECT_THROW(make({Replicate()}), c10::Error);
  EXPECT_THROW(make({Replicate(), Shard(2)}), c10::Error);
  EXPECT_THROW(make({Shard(0, {.order = 1}), Shard(0, {.order = 1})}), c10::Error);
  EXPECT_THROW(make({Shard(0, {.order = 2}), Shard(0)}), c10::Error);
  EXPECT_THROW(make({Partial(ReduceOp::kSum), Partial(ReduceOp::kMax)}), c10::Error);
  EXPECT_NO_THROW(make({Partial(ReduceOp::kSum), Partial(ReduceOp::kAvg)}));
  EXPECT_THROW(make({Replicate(), Replicate()}).with_labels({{{Label::kBatch, 3, 0, 3, 1}}, {}}), c10::Error);
  EXPECT_THROW(Spec::make(mesh, {Replicate(), Replicate()}, {4}, {}, kFloat), c10::Error);
  EXPECT_FALSE(is_layout_of(mesh, {Shard(0), Replicate()}, c10::IntArrayRef{}));
  EXPECT_TRUE(is_layout_of(mesh, {Shard(0), Partial()}, {8}));
}

TEST(Spec, InterleavedCutsTakeAPartOfEveryBlock) {
  const Mesh mesh = Mesh::parse("a=2,b=2");
  const Spec spec =
      Spec::contiguous(mesh, {InterleavedShard(0, 3), Replicate()}, {15, 2}, kFloat);  // blocks of 5: 3 and 2
  EXPECT_EQ(spec.local_runs({0, 0}), (std::vector<std::vector<Range>>{{{0, 3}, {5, 8}, {10, 13}}, {{0, 2}}}));
  EXPECT_EQ(spec.local_runs({1, 1}), (std::vector<std::vector<Range>>{{{3, 5}, {8, 10}, {13, 15}}, {{0, 2}}}));
  EXPECT_EQ(spec.local_sizes({0, 0}), (std::vector<int64_t>{9, 2}));
  EXPECT_EQ(spec.local_sizes({1, 0}), (std::vector<int64_t>{6, 2}));
  EXPECT_THROW(spec.local_ranges({0, 0}), std::exception);

  const Spec nested =
      Spec::contiguous(mesh, {InterleavedShard(0, 2), InterleavedShard(0, 2, {.unit = 2})}, {16}, kFloat);
  EXPECT_EQ(nested.local_runs({1, 0}), (std::vector<std::vector<Range>>{{{4, 6}, {12, 14}}}));
  const Spec apart = taken_apart(nested, BoxForm::of(nested->placements, 1));
  EXPECT_EQ(apart.str(), "float32[2, 8] {a: S(1), b: S(1;2)}");
  EXPECT_EQ(apart.local_ranges({1, 0}), (std::vector<Range>{{0, 2}, {4, 6}}));
}

TEST(Spec, RefusesInterleavedCutsThatDoNotFit) {
  const Mesh mesh = Mesh::parse("a=2,b=2");
  EXPECT_THROW(Spec::contiguous(mesh, {InterleavedShard(0, 3), Replicate()}, {16}, kFloat), c10::Error);
  EXPECT_THROW(Spec::contiguous(mesh, {InterleavedShard(0, 2), Shard(0)}, {16}, kFloat), c10::Error);
  EXPECT_THROW(InterleavedShard(0, 256), c10::Error);
  EXPECT_THROW(InterleavedShard(0, 0), c10::Error);
  EXPECT_THROW(parse_placement("S(0/0)"), std::exception);
  EXPECT_FALSE(is_layout_of(mesh, {InterleavedShard(0, 2), InterleavedShard(0, 3)}, {12}));
}

TEST(Spec, SpanningCutsTakeARunOfTheDimsTogether) {
  const Mesh mesh = Mesh::parse("a=3,b=2");
  const Spec spec = Spec::contiguous(mesh, parse_placements(mesh, "{a: S(0-1|1,0,5), b: S(2)}"), {2, 3, 4}, kFloat);
  EXPECT_EQ(spec->run_sizes(), (std::vector<int64_t>{1, 6, 4}));
  EXPECT_EQ(spec.local_sizes({0, 0}), (std::vector<int64_t>{1, 1, 2}));
  EXPECT_EQ(spec.local_sizes({1, 0}), (std::vector<int64_t>{1, 0, 2}));
  EXPECT_EQ(spec.local_ranges({2, 1}), (std::vector<Range>{{0, 1}, {1, 6}, {2, 4}}));
  EXPECT_EQ(spec.largest_sizes(), (std::vector<int64_t>{1, 5, 2}));
  EXPECT_TRUE(spec->is_cut(0) && spec->is_cut(1) && spec->is_cut(2));
  const BoxForm form = BoxForm::of(spec->placements, 3);
  EXPECT_EQ(taken_apart(spec, form).str(), "float32[1, 6, 4] {a: S(1|1,0,5), b: S(2)}");
  // Whole rows are a run of all dims, and a cut of another dim is none.
  const Spec rows = Spec::contiguous(mesh, {RaggedShard({0}, {0, 2, 0}), Replicate()}, {2, 3, 4}, kFloat);
  EXPECT_EQ(taken_apart(rows, form).str(), "float32[1, 6, 4] {a: S(1|0,6,0), b: R}");
  EXPECT_TRUE(form.fits(Shard(0)) && form.fits(Shard(2)));
  EXPECT_FALSE(form.fits(Shard(1)) || form.fits(InterleavedShard(0, 2)));
  EXPECT_EQ(BoxForm::common(spec->placements, {Shard(1), Replicate()}, 3), std::nullopt);
  EXPECT_FALSE(same_layout(spec, spec.with({RaggedShard({0, 1}, {1, 5, 0}), Shard(2)})));
}

TEST(Spec, RefusesSpanningCutsThatDoNotFit) {
  const Mesh mesh = Mesh::parse("a=3,b=2");
  const auto is_layout = [&](const char* text) { return is_layout_of(mesh, parse_placements(mesh, text), {2, 3, 4}); };
  EXPECT_TRUE(is_layout("{a: S(0-1|1,0,5), b: S(0-1)}"));
  EXPECT_TRUE(is_layout("{a: S(0-2|20,0,4)}"));
  EXPECT_FALSE(is_layout("{a: S(0-1|1,0,4)}"));
  EXPECT_FALSE(is_layout("{a: S(0-1|1,0,5), b: S(0)}"));
  EXPECT_FALSE(is_layout("{b: S(1), a: S(0-1|1,0,5)}"));
  EXPECT_FALSE(is_layout("{a: S(0-1|1,0,5), b: S(0-2)}"));
  EXPECT_FALSE(is_layout("{a: S(0-3)}"));
  EXPECT_THROW(spanning(Replicate()), c10::Error);
  EXPECT_THROW(spanning(InterleavedShard(1, 2)), c10::Error);
}

TEST(Spec, AxesOfADimSlowestFirst) {
  const Mesh mesh = Mesh::parse("a=2,b=2,c=2");
  EXPECT_EQ(axes_of_dim(mesh, {Shard(0), Replicate(), Shard(0)}, 0), (std::vector<int64_t>{0, 2}));
  EXPECT_EQ(axes_of_dim(mesh, {Shard(0, {.order = 1}), Shard(1), Shard(0, {.order = 0})}, 0),
            (std::vector<int64_t>{2, 0}));
  EXPECT_TRUE(axes_of_dim(mesh, {Shard(0), Partial(), Shard(0)}, 1).empty());
}

// The placements of axes that replicate make groups; inside each, every element is owned exactly once.
void expect_tiles(const Spec& spec) {
  std::map<Coord, std::vector<int64_t>> counts;
  for (int64_t rank : spec->mesh.ranks()) {
    const Coord coord = *spec->mesh.coord_of(rank);
    Coord group = coord;
    for (int64_t a = 0; a < spec->mesh.ndim(); ++a) {
      group[a] = spec->placements[a].is_shard() ? 0 : coord[a];
    }
    auto& count = counts[group];
    count.resize(spec->numel());
    const auto ranges = spec.local_ranges(coord);
    for (int64_t e = 0; e < spec->numel(); ++e) {
      bool is_mine = true;
      for (int64_t d = 0, rest = e; d < spec->ndim(); ++d) {
        const int64_t index = rest / spec->strides[d];
        rest %= spec->strides[d];
        is_mine &= ranges[d].begin <= index && index < ranges[d].end;
      }
      count[e] += is_mine;
    }
  }
  for (const auto& [group, count] : counts) {
    EXPECT_EQ(count, std::vector<int64_t>(spec->numel(), 1)) << spec.str() << " mesh " << spec->mesh.str();
  }
}

TEST(Spec, NestedCutsTileTheTensor) {
  const uint32_t seed = std::random_device{}();
  SCOPED_TRACE("seed " + std::to_string(seed));
  RandomLayouts random(seed);
  for (int i = 0; i < 1000; ++i) {
    const auto sizes = random.sizes(3, 9);
    const Mesh mesh = random.mesh(3, 4);
    const auto even = random.placements(mesh, static_cast<int64_t>(sizes.size()), true);
    expect_tiles(Spec::contiguous(mesh, even, sizes, kFloat));
    expect_tiles(Spec::contiguous(mesh, random.with_ragged_cuts(mesh, even, sizes), sizes, kFloat));
  }
}

TEST(Spec, ExplicitOrderIsTheNesting) {
  const Mesh mesh = Mesh::parse("dp=2,tp=3");
  const Spec swapped = Spec::contiguous(mesh, {Shard(0, {.order = 1}), Shard(0, {.order = 0})}, {13}, kFloat);
  // tp cuts 13 into 5, 5, 3; dp cuts those into 3 + 2, 3 + 2, 2 + 1.
  EXPECT_EQ(swapped.local_ranges({0, 0}), (std::vector<Range>{{0, 3}}));
  EXPECT_EQ(swapped.local_ranges({1, 0}), (std::vector<Range>{{3, 5}}));
  EXPECT_EQ(swapped.local_ranges({1, 2}), (std::vector<Range>{{12, 13}}));
  EXPECT_EQ(swapped.local_sizes({0, 1}), (std::vector<int64_t>{3}));
}

}  // namespace
}  // namespace tessera::layout::spec_test
