#include "tessera/layout/mesh.h"

#include <set>
#include <thread>

#include <gtest/gtest.h>

#include <c10/util/Exception.h>

#include "tessera/base/error.h"
#include "tests/unit/layout/random_layout.h"

namespace tessera::layout::mesh_test {
namespace {

using Ranks = std::vector<int64_t>;

TEST(Mesh, CountsRowMajorOverItsAxes) {
  const Mesh mesh({{"dp", 2}, {"tp", 3}});
  EXPECT_EQ(mesh.ranks(), (Ranks{0, 1, 2, 3, 4, 5}));
  EXPECT_EQ(mesh.rank_at({1, 2}), 5);
  EXPECT_EQ(mesh.coord_of(4), (Coord{1, 1}));
  EXPECT_EQ(mesh.coord_of(6), std::nullopt);
  EXPECT_EQ(mesh.coord_of(-1), std::nullopt);
  EXPECT_EQ(mesh.line(0, {1, 2}), (Ranks{2, 5}));
  EXPECT_EQ(mesh.line(1, {1, 0}), (Ranks{3, 4, 5}));
  EXPECT_EQ(mesh.axis_index("tp"), 1);
  EXPECT_FALSE(mesh.find_axis("pp"));
}

TEST(Mesh, OfOneHasNoAxes) {
  EXPECT_EQ(Mesh().size(), 1);
  EXPECT_EQ(Mesh().coord_of(0), Coord{});
  EXPECT_EQ(Mesh().rank_at({}), 0);
  EXPECT_EQ(Mesh(), Mesh::parse("1"));
  EXPECT_NE(Mesh(), Mesh::parse("dp=1"));
}

TEST(Mesh, EqualMeshesShareOneRecord) {
  const Mesh mesh({{"dp", 2}, {"tp", 2}});
  EXPECT_EQ(mesh, Mesh({{"dp", 2}, {"tp", 2}}, {0, 1, 2, 3}));
  EXPECT_EQ(mesh.id(), Mesh::parse("dp=2,tp=2").id());
  EXPECT_EQ(mesh.hash(), Mesh::parse("dp=2,tp=2").hash());
  EXPECT_NE(mesh, Mesh({{"dp", 2}, {"tp", 2}}, {0, 2, 1, 3}));
  EXPECT_NE(mesh, Mesh({{"dp", 2}, {"cp", 2}}));
  std::vector<const void*> ids(4);
  std::vector<std::thread> threads;
  for (auto& id : ids) {
    threads.emplace_back([&id] { id = Mesh({{"made_by_many", 7}}).id(); });
  }
  for (auto& thread : threads) {
    thread.join();
  }
  EXPECT_EQ(std::set<const void*>(ids.begin(), ids.end()).size(), 1u);
}

TEST(Mesh, SlicesAndFlattens) {
  const Mesh mesh({{"pp", 2}, {"dp", 2}, {"tp", 3}});
  EXPECT_EQ(mesh.submesh({"tp"}, 7).ranks(), (Ranks{6, 7, 8}));
  EXPECT_EQ(mesh.submesh({"dp"}, 7).ranks(), (Ranks{7, 10}));
  EXPECT_EQ(mesh.submesh({"dp", "pp"}, 7), Mesh({{"dp", 2}, {"pp", 2}}, {1, 7, 4, 10}));
  EXPECT_EQ(mesh.submesh({}, 7), Mesh({}, {7}));
  EXPECT_EQ(mesh.flatten({"dp", "tp"}, "model"), Mesh({{"pp", 2}, {"model", 6}}));
  EXPECT_EQ(mesh.flatten({"pp", "tp"}, "x"), Mesh({{"x", 6}, {"dp", 2}}, {0, 3, 1, 4, 2, 5, 6, 9, 7, 10, 8, 11}));
  EXPECT_EQ(mesh.flatten({"tp", "pp"}, "x").ranks(), (Ranks{0, 6, 1, 7, 2, 8, 3, 9, 4, 10, 5, 11}));
  EXPECT_EQ(mesh.flatten({"dp"}, "data"), Mesh({{"pp", 2}, {"data", 2}, {"tp", 3}}));
}

TEST(Mesh, RanksAndCoordinatesAgreeOnRandomMeshes) {
  const uint32_t seed = std::random_device{}();
  SCOPED_TRACE("seed " + std::to_string(seed));
  RandomLayouts random(seed);
  for (int i = 0; i < 100; ++i) {
    const Mesh plain = random.mesh(4, 4);
    const Mesh mesh(plain.axes(), random.permutation(plain.size()));
    for (int64_t rank : mesh.ranks()) {
      const Coord coord = *mesh.coord_of(rank);
      EXPECT_EQ(mesh.rank_at(coord), rank);
      for (int64_t a = 0; a < mesh.ndim(); ++a) {
        const auto line = mesh.line(a, coord);
        EXPECT_EQ(static_cast<int64_t>(line.size()), mesh.axis(a).size);
        EXPECT_EQ(line[coord[a]], rank);
        EXPECT_EQ(mesh.submesh({mesh.axis(a).name}, rank).ranks(), line);
      }
    }
  }
}

TEST(Mesh, RefusesNonsense) {
  EXPECT_THROW(Mesh({{"dp", 0}}), c10::Error);
  EXPECT_THROW(Mesh({{"", 2}}), c10::Error);
  EXPECT_THROW(Mesh({{"a b", 2}}), c10::Error);
  EXPECT_THROW(Mesh({{"dp", 2}, {"dp", 2}}), c10::Error);
  EXPECT_THROW(Mesh({{"dp", 2}}, {0}), c10::Error);
  EXPECT_THROW(Mesh({{"dp", 2}}, {1, 1}), c10::Error);
  const Mesh mesh({{"dp", 2}, {"tp", 2}});
  EXPECT_THROW(mesh.axis_index("pp"), c10::Error);
  EXPECT_THROW(mesh.axis(2), c10::Error);
  EXPECT_THROW(mesh.rank_at({0}), c10::Error);
  EXPECT_THROW(mesh.rank_at({0, 2}), c10::Error);
  EXPECT_THROW(mesh.submesh({"tp", "tp"}, 0), c10::Error);
  EXPECT_THROW(mesh.submesh({"tp"}, 4), c10::Error);
  EXPECT_THROW(mesh.flatten({}, "x"), c10::Error);
  EXPECT_THROW(mesh.flatten({"dp"}, "tp"), c10::Error);
}

TEST(Mesh, ErrorsSayTheirTextOnce) {
  const auto error_of = [](const char* text) {
    try {
      Mesh::parse(text);
    } catch (const ConfigError& error) {
      return base::message_of(error);
    }
    return std::string("none");
  };
  const std::string form = "; accepted: dp=2,tp=4 (distinct names, sizes of at least 1), or 1 for the mesh of one";
  EXPECT_EQ(error_of("dp:2"), "[mesh] \"dp:2\" is no mesh" + form);
  EXPECT_EQ(error_of("dp=2,tp"), "[mesh] \"dp=2,tp\" is no mesh: \"tp\"" + form);
  EXPECT_EQ(error_of("dp=2,dp=2"), "[mesh] the axis dp is named twice; accepted: distinct names, as in dp=2,tp=4");
  EXPECT_EQ(error_of("d-p=2"),
            "[mesh] \"d-p\" cannot name an axis; accepted: letters, digits and _, not beginning with a digit");
  EXPECT_EQ(error_of("dp=4,tp=99999999999"),
            "[mesh] more than 16777216 ranks, with axis tp=99999999999; accepted: sizes whose product is smaller");
}

}  // namespace
}  // namespace tessera::layout::mesh_test
