// What prints reads back.
#include <gtest/gtest.h>

#include "tessera/base/error.h"
#include "tests/unit/layout/random_layout.h"

namespace tessera::layout::notation_test {
namespace {

TEST(Notation, OfPlacements) {
  const std::vector<std::pair<Placement, std::string>> cases = {
      {Replicate(), "R"},
      {Shard(0), "S(0)"},
      {Shard(12, {.unit = 64}), "S(12;64)"},
      {Shard(0, {.order = 1}), "S(0@1)"},
      {Shard(0, {.unit = 64, .order = 1}), "S(0;64@1)"},
      {InterleavedShard(1, 3), "S(1/3)"},
      {InterleavedShard(0, 2, {.unit = 64, .order = 1}), "S(0/2;64@1)"},
      {RaggedShard({0}, {3, 0, 5}), "S(0|3,0,5)"},
      {RaggedShard({0}, {3, 0, 5}, {.order = 1}), "S(0|3,0,5@1)"},
      {RaggedShard({2}, {4, 4, 3}), "S(2|2*4,3)"},
      {RaggedShard({0}, {0, 0, 0, 8, 1, 1}), "S(0|3*0,8,2*1)"},
      {RaggedShard({0}, {7}), "S(0|7)"},
      {RaggedShard({0}, {2, 1}, {.order = 1, .blocks = 3}), "S(0/3|2,1@1)"},
      {RaggedShard({0, 1}, {3, 0, 5}), "S(0-1|3,0,5)"},
      {RaggedShard({0, 1, 2}, {4, 4}, {.order = 1}), "S(0-2|2*4@1)"},
      {spanning(Shard(1, {.unit = 6})), "S(0-1;6)"},
      {Partial(), "P"},
      {Partial(ReduceOp::kMax), "P(max)"},
      {Partial(ReduceOp::kMin), "P(min)"},
      {Partial(ReduceOp::kProd), "P(prod)"},
      {Partial(ReduceOp::kAvg), "P(avg)"},
      {On(0), "On(0)"},
      {On(17), "On(17)"},
      {On(0, 3), "On(0;3)"}};
  for (const auto& [placement, text] : cases) {
    EXPECT_EQ(placement.str(), text);
    EXPECT_EQ(parse_placement(text), placement);
  }
  EXPECT_EQ(parse_placement("P(sum)"), Partial());
  EXPECT_EQ(parse_placement(" S( 1 ; 2 ) "), Shard(1, {.unit = 2}));
  EXPECT_EQ(parse_placement("S(0|3, 1*0, 5)"), RaggedShard({0}, {3, 0, 5}));
  EXPECT_EQ(parse_placement("S(0|4,4)"), parse_placement("S(0|2*4)"));
}

TEST(Notation, OfMeshesRoundTrips) {
  const uint32_t seed = std::random_device{}();
  SCOPED_TRACE("seed " + std::to_string(seed));
  RandomLayouts random(seed);
  for (int i = 0; i < 200; ++i) {
    const Mesh mesh = random.mesh(4, 12);
    EXPECT_EQ(Mesh::parse(mesh.str()), mesh) << mesh.str();
  }
  EXPECT_EQ(Mesh::parse(" dp = 2 , tp=4 ").str(), "dp=2,tp=4");
}

TEST(Notation, OfPlacementListsRoundTrips) {
  const uint32_t seed = std::random_device{}();
  SCOPED_TRACE("seed " + std::to_string(seed));
  RandomLayouts random(seed);
  for (int i = 0; i < 1000; ++i) {
    const Mesh mesh = random.mesh(4, 4);
    const Placements placements =
        random.with_ragged_cuts(mesh, random.placements(mesh, 3, true), {random.number(0, 99), 7, 1});
    const std::string text = str(mesh, placements);
    EXPECT_EQ(parse_placements(mesh, text), placements) << text;
    const Placements normal = normal_form(mesh, placements);
    EXPECT_EQ(normal_form(mesh, parse_placements(mesh, str(mesh, normal))), normal) << text;
  }
}

TEST(Notation, OfPlacementLists) {
  const Mesh mesh = Mesh::parse("dp=2,tp=4");
  EXPECT_EQ(str(mesh, {Shard(0), Replicate()}), "{dp: S(0), tp: R}");
  EXPECT_EQ(parse_placements(mesh, "{tp: P(max)}"), (Placements{Replicate(), Partial(ReduceOp::kMax)}));
  EXPECT_EQ(parse_placements(mesh, " { } "), (Placements{Replicate(), Replicate()}));
  EXPECT_EQ(str(Mesh(), {}), "{}");
  EXPECT_EQ(parse_placements(Mesh(), "{}"), Placements{});
  EXPECT_EQ(parse_placements(mesh, "{dp: S(0|3,5), tp: S(1|2,0,1,1)}"),
            (Placements{RaggedShard({0}, {3, 5}), RaggedShard({1}, {2, 0, 1, 1})}));
}

TEST(Notation, OfSpecs) {
  const Mesh mesh = Mesh::parse("dp=2,tp=4");
  EXPECT_EQ(Spec::contiguous(mesh, {Shard(0), Partial()}, {8, 16}, c10::ScalarType::BFloat16).str(),
            "bfloat16[8, 16] {dp: S(0), tp: P}");
  EXPECT_EQ(Spec::contiguous(mesh, {Shard(0), Replicate()}, {8, 16}, c10::ScalarType::Long,
                             {{{Label::kBatch, 8, 2, 32, 1}}, {}})
                .str(),
            "int64[8, 16] {dp: S(0), tp: R} [b8@2/32, -]");
  EXPECT_EQ(Spec::contiguous(Mesh(), {}, {}, c10::ScalarType::Bool).str(), "bool[] {}");
}

TEST(Notation, ErrorsSayWhatIsAccepted) {
  const Mesh mesh = Mesh::parse("dp=2,tp=4");
  for (const char* text : {"",
                           "S",
                           "S(",
                           "S()",
                           "S(-1)",
                           "S(0",
                           "S(0;)",
                           "S(0;0)",
                           "S(0@)",
                           "S(0@1;2)",
                           "P(mean)",
                           "Q",
                           "S(0)x",
                           "S(99999999999)",
                           "S(0@999999)",
                           "S(0|)",
                           "S(0|3,)",
                           "S(0|-1,4)",
                           "S(0|2*)",
                           "S(0|0*2)",
                           "S(0|3@0|5)",
                           "S(0;2|3,5)",
                           "S(0|3,5;2)",
                           "S(0|99999999*1)",
                           "S(0|9999999999999999999)"}) {
    EXPECT_THROW(parse_placement(text), ConfigError) << text;
  }
  for (const char* text : {"", "dp: R", "{dp}", "{dp: }", "{pp: R}", "{dp: R, dp: R}", "{dp: R,}"}) {
    EXPECT_THROW(parse_placements(mesh, text), ConfigError) << text;
  }
  for (const char* text : {"", "dp", "dp=", "dp=x", "dp=0", "dp=-2", "dp=2,", "dp=2,dp=2", "2", "a b=2"}) {
    EXPECT_THROW(Mesh::parse(text), ConfigError) << text;
  }
  try {
    parse_placements(mesh, "{tq: S(0)}");
    FAIL();
  } catch (const ConfigError& error) {
    const std::string message = base::message_of(error);
    EXPECT_NE(message.find("dp=2,tp=4"), std::string::npos) << message;
    EXPECT_NE(message.find("did you mean \"tp\""), std::string::npos) << message;
  }
}

}  // namespace
}  // namespace tessera::layout::notation_test
