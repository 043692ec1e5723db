// Several axes as one.
#include "tessera/layout/joined_axes.h"

#include <gtest/gtest.h>

#include <c10/util/Exception.h>

namespace tessera::layout::joined_axes_test {
namespace {

using Ranks = std::vector<int64_t>;

TEST(JoinedAxes, AreOneLineOfAllTheirRanks) {
  const Mesh mesh = Mesh::parse("pp=2,dp=2,tp=3");
  const JoinedAxes line = join_axes(mesh, {1, 2});
  EXPECT_EQ(line.name, "dp,tp");
  EXPECT_EQ(line.mesh.line(line.axis, *line.mesh.coord_of(7)), (Ranks{6, 7, 8, 9, 10, 11}));
  const JoinedAxes outer = join_axes(mesh, {0, 2});
  EXPECT_EQ(outer.mesh.line(outer.axis, *outer.mesh.coord_of(3)), (Ranks{3, 4, 5, 9, 10, 11}));
  EXPECT_EQ(ranks_along(mesh, {0, 2}), 6);
}

TEST(JoinedAxes, OfOneIsTheMeshItself) {
  const Mesh mesh = Mesh::parse("dp=2,tp=3");
  const JoinedAxes line = join_axes(mesh, {1});
  EXPECT_EQ(line.mesh, mesh);
  EXPECT_EQ(line.axis, 1);
  EXPECT_EQ(line.name, "tp");
}

TEST(JoinedAxes, MeetNoOtherAxisOfTheirName) {
  const Mesh mesh = Mesh::parse("a=2,b=2,a_b=2");
  const JoinedAxes line = join_axes(mesh, {0, 1});
  EXPECT_EQ(line.mesh.axis(line.axis).size, 4);
  EXPECT_THROW(join_axes(mesh, {0, 0}), c10::Error);
}

}  // namespace
}  // namespace tessera::layout::joined_axes_test
