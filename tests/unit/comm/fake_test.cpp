#include "support.h"

#include <ATen/ops/full.h>

#include "tessera/comm/merge/exact_merge.h"
#include "tessera/layout/mesh.h"

namespace tessera::comm::fake_test {
namespace {

TEST(Fake, AnyMeshSizeOnOneThreadAndNothingMoves) {
  const auto mesh = layout::Mesh::parse("dp=1024,tp=8");
  run_fake(8192, 4321, [&] {
    auto& context = RankContext::require();
    EXPECT_EQ(context.rank, 4321);
    EXPECT_EQ(context.world_size, 8192);
    EXPECT_EQ(context.coord(mesh), (layout::Coord{540, 1}));
    auto& tp = context.axis(mesh, 1);
    EXPECT_EQ(tp.size(), 8);
    EXPECT_EQ(tp.rank(), 1);
    EXPECT_EQ(context.axis(mesh, 0).ranks()[540], 4321);
    auto tensor = at::full({3}, 5.0);
    tp.all_reduce(tensor, ReduceOp::kSum)->wait();
    std::vector<at::Tensor> outputs(8, at::full({3}, 1.0));
    tp.all_gather(outputs, tensor)->wait();
    tp.receive(tensor, 3, 0)->wait();
    tp.barrier();
    EXPECT_TRUE(tensor.equal(at::full({3}, 5.0)));
    EXPECT_TRUE(outputs[0].equal(at::full({3}, 1.0)));
    const sums::MergePlan plan({{}, {{0, 1}}, {}, {}, {}, {}, {{1, 2}}, {}}, {0, 2});
    const Merge merge{.plan = plan,
                      .sums = {tensor},
                      .sizes = {3},
                      .options = tensor.options(),
                      .scatter = sums::Scatter{.parts = {8, {0, 2}}}};
    const auto merged = tp.merge(merge);
    EXPECT_EQ(merged.at(0).node, (sums::Node{0, 2}));
    EXPECT_EQ(merged.at(0).sum.sizes(), (std::vector<int64_t>{2}));
    EXPECT_THROW(tp.broadcast(tensor, 8), c10::Error);
  });
  EXPECT_EQ(RankContext::current(), nullptr);
}

}  // namespace
}  // namespace tessera::comm::fake_test
