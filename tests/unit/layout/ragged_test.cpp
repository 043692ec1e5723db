// Cuts at given places: where they fall, what is refused, what is the same.
#include <gtest/gtest.h>

#include "tessera/base/error.h"
#include "tessera/base/hash.h"
#include "tests/unit/layout/random_layout.h"

namespace tessera::layout::ragged_test {
namespace {

constexpr auto kFloat = c10::ScalarType::Float;

std::string failure_of(const std::function<void()>& body) {
  try {
    body();
  } catch (const std::exception& error) {
    return base::message_of(error);
  }
  return {};
}

// The owner of each element, by dealing them one by one; what is beyond the places is of the last.
std::vector<int64_t> owners_of(int64_t size, const std::vector<int64_t>& sizes) {
  std::vector<int64_t> owners;
  for (size_t part = 0; part < sizes.size(); ++part) {
    owners.insert(owners.end(), sizes[part], static_cast<int64_t>(part));
  }
  owners.resize(size, static_cast<int64_t>(sizes.size()) - 1);
  return owners;
}

TEST(RaggedCut, DealsElementsInOrder) {
  const uint32_t seed = std::random_device{}();
  SCOPED_TRACE("seed " + std::to_string(seed));
  RandomLayouts random(seed);
  for (int i = 0; i < 2000; ++i) {
    const int64_t total = random.number(0, 30), parts = random.number(1, 6), size = random.number(0, total);
    const std::vector<int64_t> sizes = random.parts(total, parts);
    const Cut cut(size, parts, Places::of_sizes(sizes));
    const std::vector<int64_t> owners = owners_of(size, sizes);
    int64_t end = 0, most = 0;
    for (int64_t part = 0; part < parts; ++part) {
      EXPECT_EQ(cut[part].begin, end);
      end = cut[part].end;
      most = std::max(most, cut[part].size());
      EXPECT_EQ(cut[part].size(), std::count(owners.begin(), owners.end(), part));
    }
    EXPECT_EQ(end, size);
    EXPECT_EQ(cut.most(), most);
    for (int64_t element = 0; element < size; ++element) {
      EXPECT_EQ(cut.part_of(element), owners[element]) << element << " of " << size;
    }
  }
}

TEST(RaggedCut, DifferentSizesAreThoseOfItsParts) {
  const uint32_t seed = std::random_device{}();
  SCOPED_TRACE("seed " + std::to_string(seed));
  RandomLayouts random(seed);
  for (int i = 0; i < 1000; ++i) {
    const int64_t size = random.number(0, 30), parts = random.number(1, 6);
    const Places places =
        random.number(0, 1) == 0 ? Places::in_units(random.number(1, 5)) : Places::of_sizes(random.parts(size, parts));
    const Cut cut(size, parts, places);
    std::vector<int64_t> expected;
    for (int64_t part = 0; part < parts; ++part) {
      expected.push_back(cut[part].size());
    }
    std::sort(expected.rbegin(), expected.rend());
    expected.erase(std::unique(expected.begin(), expected.end()), expected.end());
    EXPECT_EQ(cut.different_sizes(), expected);
    EXPECT_EQ(cut.most(), expected.front());
  }
}

TEST(RaggedCut, EqualsAnEvenOneWithTheSameParts) {
  EXPECT_EQ(Cut(8, 3, Places::of_sizes({3, 3, 2})), Cut(8, 3));
  EXPECT_EQ(Cut(8, 3), Cut(8, 3, Places::of_sizes({3, 3, 2})));
  EXPECT_EQ(Cut(2, 3, Places::of_sizes({2, 0, 0})), Cut(2, 3, 4));
  EXPECT_FALSE(Cut(8, 3, Places::of_sizes({3, 2, 3})) == Cut(8, 3));
  EXPECT_EQ(Cut(4, 3, Places::of_sizes({3, 3, 2})), Cut(4, 3, Places::of_sizes({3, 1, 0})));
}

TEST(Places, AreScaledWhereNoElementIsCut) {
  const Places places = Places::of_sizes({3, 0, 5});
  EXPECT_EQ(places.times(4), Places::of_sizes({12, 0, 20}));
  EXPECT_EQ(places.times(4).divided_by(2), Places::of_sizes({6, 0, 10}));
  EXPECT_EQ(places.divided_by(2), std::nullopt);
  EXPECT_EQ(places.on_multiples_of(3), places) << "the last cut is the end";
  EXPECT_EQ(places.on_multiples_of(2), std::nullopt);
  EXPECT_EQ(Places::in_units(4).divided_by(2), Places::in_units(2));
  EXPECT_EQ(Places::in_units(4).divided_by(3), std::nullopt);
  EXPECT_EQ(Places::in_units(4).on_multiples_of(6), Places::in_units(12));
}

TEST(RaggedShard, IsOneValue) {
  const Placement a = RaggedShard({0}, {3, 0, 5});
  EXPECT_EQ(a, RaggedShard({0}, {3, 0, 5}));
  EXPECT_NE(a, RaggedShard({0}, {3, 5, 0}));
  EXPECT_NE(a, RaggedShard({1}, {3, 0, 5}));
  EXPECT_NE(RaggedShard({0}, {3, 3, 2}), Shard(0)) << "another placement, though nothing moves";
  EXPECT_TRUE(a.is_shard(0) && a.is_ragged());
  EXPECT_FALSE(Shard(0, {.unit = 3}).is_ragged());
  EXPECT_STREQ(a.kind_name(), "ragged shard");
  const Placement together = RaggedShard({0, 1}, {3, 0, 5});
  EXPECT_NE(together, RaggedShard({1}, {3, 0, 5}));
  EXPECT_NE(together.hash(), RaggedShard({1}, {3, 0, 5}).hash());
  EXPECT_TRUE(together.is_shard(1) && together.is_spanning() && !together.shares_dim(RaggedShard({1}, {3, 0, 5})));
  EXPECT_STREQ(together.kind_name(), "spanning shard");
}

// Of the content, not of where it is kept: this is what every process computes.
TEST(RaggedShard, HashIsOfItsSizes) {
  const std::vector<int64_t> sizes = {3, 0, 5};
  const auto small = static_cast<uint64_t>(Placement::Kind::kShard) | uint64_t{0xff} << 16 | uint64_t{1} << 24;
  EXPECT_EQ(RaggedShard({0}, sizes).hash(), base::hash_combine(small, base::hash_range(sizes)));
  EXPECT_NE(RaggedShard({0}, sizes).hash(), RaggedShard({0}, {5, 0, 3}).hash());
}

TEST(RaggedShard, RefusesNonsense) {
  EXPECT_THROW(RaggedShard({0}, {}), c10::Error);
  EXPECT_THROW(RaggedShard({0}, {3, -1}), c10::Error);
  EXPECT_THROW(RaggedShard({0}, {INT64_MAX / 2, INT64_MAX / 2}), c10::Error);
  EXPECT_THROW(RaggedShard({}, {3}), c10::Error);
  EXPECT_THROW(RaggedShard({1, 2}, {3}), c10::Error);
  EXPECT_THROW(RaggedShard({1, 0}, {3}), c10::Error);
  EXPECT_THROW(RaggedShard({0, 1}, {3}, {.blocks = 2}), c10::Error);
  EXPECT_THROW(RaggedShard({-1}, {3}), c10::Error);
  EXPECT_THROW(RaggedShard({0}, {3}, {.unit = 2}), c10::Error);
}

TEST(RaggedShard, SizesAddUpToWhatTheAxisCuts) {
  const Mesh mesh = Mesh::parse("tp=2,fsdp=3");
  const auto make = [&](const std::string& layout, const std::vector<int64_t>& sizes) {
    return Spec::contiguous(mesh, parse_placements(mesh, layout), sizes, kFloat);
  };
  const auto says = [&](const std::string& layout, const std::vector<int64_t>& sizes, const std::string& words) {
    const std::string error = failure_of([&] { make(layout, sizes); });
    EXPECT_NE(error.find(words), std::string::npos) << error;
    EXPECT_FALSE(is_layout_of(mesh, parse_placements(mesh, layout), sizes)) << layout;
  };
  says("{fsdp: S(0|3,0,4)}", {8, 2}, "gives 7 elements of dim 0 to 3 ranks; accepted: 3 sizes that add up to 8");
  says("{fsdp: S(0|3,5)}", {8, 2}, "gives 8 elements of dim 0 to 2 ranks; accepted: 3 sizes that add up to 8");
  says("{fsdp: S(0-1|3,0,4)}", {4, 2},
       "gives 7 elements of dims 0 to 1 together to 3 ranks; accepted: 3 sizes that add up to 8");
  says("{tp: S(0@0), fsdp: S(0|3,0,5@1)}", {8}, "accepted: 3 sizes that add up to 4");
  says("{fsdp: S(0/2|3,0,5)}", {8}, "accepted: 3 sizes that add up to 4");
  says("{tp: S(0|5,3@0), fsdp: S(0|3,0,1@1)}", {8}, "accepted: 3 sizes that add up to 5");
  EXPECT_NO_THROW(make("{tp: S(0|5,3@0), fsdp: S(0|4,0,1@1)}", {8}));
  // As the faster cut of 15 rows in 8 and 7: the last part of the shorter run is shorter.
  const Spec spec = make("{tp: S(0@0), fsdp: S(0|3,0,5@1)}", {15});
  EXPECT_EQ(spec.local_ranges({0, 2}), (std::vector<Range>{{3, 8}}));
  EXPECT_EQ(spec.local_ranges({1, 0}), (std::vector<Range>{{8, 11}}));
  EXPECT_EQ(spec.local_ranges({1, 1}), (std::vector<Range>{{11, 11}}));
  EXPECT_EQ(spec.local_ranges({1, 2}), (std::vector<Range>{{11, 15}}));
  EXPECT_EQ(spec.largest_sizes(), (std::vector<int64_t>{5}));
  // As the slower one: what is faster cuts each of its parts.
  const Spec slower = make("{tp: S(0@1), fsdp: S(0|3,0,5@0)}", {8});
  EXPECT_EQ(slower.local_ranges({1, 0}), (std::vector<Range>{{2, 3}}));
  EXPECT_EQ(slower.local_ranges({0, 1}), (std::vector<Range>{{3, 3}}));
  EXPECT_EQ(slower.local_ranges({1, 2}), (std::vector<Range>{{6, 8}}));
}

TEST(RaggedShard, InBlocksTakesItsPartOfEach) {
  const Mesh mesh = Mesh::parse("fsdp=3");
  const Spec spec = Spec::contiguous(mesh, {RaggedShard({0}, {2, 0, 3}, {.blocks = 3})}, {15}, kFloat);
  EXPECT_EQ(spec.local_runs({2}), (std::vector<std::vector<Range>>{{{2, 5}, {7, 10}, {12, 15}}}));
  EXPECT_EQ(spec.local_sizes({1}), (std::vector<int64_t>{0}));
  EXPECT_EQ(spec.largest_sizes(), (std::vector<int64_t>{9}));
}

TEST(RaggedShard, SameLayoutKnowsThatNothingMoves) {
  const Mesh mesh = Mesh::parse("tp=2,fsdp=3");
  const auto make = [&](const std::string& layout) {
    return Spec::contiguous(mesh, parse_placements(mesh, layout), {8, 4}, kFloat);
  };
  EXPECT_TRUE(same_layout(make("{fsdp: S(0|3,3,2)}"), make("{fsdp: S(0)}")));
  EXPECT_NE(make("{fsdp: S(0|3,3,2)}"), make("{fsdp: S(0)}"));
  EXPECT_FALSE(same_layout(make("{fsdp: S(0|3,2,3)}"), make("{fsdp: S(0)}")));
  EXPECT_TRUE(same_layout(make("{tp: S(0@0), fsdp: S(0|2,2,0@1)}"), make("{tp: S(0), fsdp: S(0)}")));
  // What is inside of parts of several sizes is compared in each.
  EXPECT_FALSE(same_layout(make("{tp: S(0|5,3@0), fsdp: S(0|2,2,1@1)}"), make("{tp: S(0|5,3@0), fsdp: S(0@1)}")));
  EXPECT_TRUE(same_layout(make("{tp: S(0|0,8@0), fsdp: S(0|3,3,2@1)}"), make("{tp: S(0|0,8@0), fsdp: S(0@1)}")));
  EXPECT_TRUE(same_cuts(mesh, make("{fsdp: S(0)}")->placements, {8, 4}, 1, RaggedShard({0}, {3, 3, 2})));
  EXPECT_FALSE(same_cuts(mesh, make("{fsdp: S(0)}")->placements, {8, 4}, 1, RaggedShard({0}, {0, 6, 2})));
  EXPECT_FALSE(same_cuts(mesh, make("{fsdp: S(0)}")->placements, {8, 4}, 1, RaggedShard({0}, {3, 3, 0})))
      << "its last part would end with the run, but it is none of the run";
}

TEST(RaggedShard, GlobalSizesFollowFromItsPlaces) {
  const Mesh mesh = Mesh::parse("tp=2,fsdp=3");
  const auto sizes = [&](const std::string& layout, const std::vector<int64_t>& local) {
    return sizes_of_equal_parts(mesh, parse_placements(mesh, layout), local);
  };
  EXPECT_EQ(sizes("{fsdp: S(0|3,0,5)}", {3, 4}), (std::vector<int64_t>{8, 4}));
  EXPECT_EQ(sizes("{tp: S(1), fsdp: S(0|3,0,5)}", {0, 4}), (std::vector<int64_t>{8, 8}));
  EXPECT_EQ(sizes("{tp: S(0@0), fsdp: S(0|3,0,5@1)}", {5}), (std::vector<int64_t>{16}));
  EXPECT_EQ(sizes("{tp: S(0@1), fsdp: S(0|3,0,5@0)}", {2}), (std::vector<int64_t>{8}));
  EXPECT_EQ(sizes("{fsdp: S(0/2|3,0,5)}", {6}), (std::vector<int64_t>{16}));
}

TEST(RaggedShard, OnAnAxisOfOneIsReplicate) {
  const Mesh mesh = Mesh::parse("fsdp=1,tp=2");
  EXPECT_EQ(Spec::contiguous(mesh, {RaggedShard({0}, {8}), Shard(0)}, {8}, kFloat),
            Spec::contiguous(mesh, {Replicate(), Shard(0)}, {8}, kFloat));
}

}  // namespace
}  // namespace tessera::layout::ragged_test
