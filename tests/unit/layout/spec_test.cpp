#include "tessera/layout/spec.h"

#include <gtest/gtest.h>

namespace tessera::layout {
namespace {

TEST(Spec, EqualSpecsAreOneRecord) {
  const Mesh mesh = Mesh::parse("dp=2,tp=4");
  const Spec a = Spec::contiguous(mesh, {Shard(0), Replicate()}, {8, 16}, c10::ScalarType::Float);
  const Spec b = Spec::contiguous(Mesh({{"dp", 2}, {"tp", 4}}), parse_placements(mesh, "{dp: S(0)}"), {8, 16},
                                  c10::ScalarType::Float);
  EXPECT_EQ(a, b);
  EXPECT_EQ(a.str(), "float32[8, 16] {dp: S(0), tp: R}");
}

}  // namespace
}  // namespace tessera::layout
