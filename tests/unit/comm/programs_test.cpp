// Random programs of collectives over the axes of a mesh, against a serial simulation of all ranks.
#include "support.h"

#include <random>

#include "tessera/layout/mesh.h"

namespace tessera::comm::programs_test {
namespace {

constexpr uint64_t kSeed = 20240611;

struct Step {
  int kind;
  int64_t axis;
  ReduceOp op;
  int64_t root;
};

struct Example {
  layout::Mesh mesh;
  int64_t size;  // elements; a multiple of every axis size
  std::vector<Step> steps;
};

Example make_example(uint64_t seed) {
  std::mt19937_64 random(seed);
  const auto below = [&](uint64_t n) { return static_cast<int64_t>(random() % n); };
  const char* const meshes[] = {"a=2,b=2", "a=3,b=2", "a=1,b=4", "a=2,b=1,c=3", "a=5", "a=2,b=2,c=2"};
  Example example{layout::Mesh::parse(meshes[below(6)]), 60 * (1 + below(3)), {}};
  if (below(4) == 0) {
    example.size *= 40;  // beyond what one rank does alone
  }
  for (int64_t i = 0, count = 3 + below(12); i < count; ++i) {
    const auto axis = below(static_cast<uint64_t>(example.mesh.ndim()));
    const ReduceOp ops[] = {ReduceOp::kSum, ReduceOp::kMax, ReduceOp::kMin, ReduceOp::kAvg};
    example.steps.push_back(
        {static_cast<int>(below(6)), axis, ops[below(4)], below(static_cast<uint64_t>(example.mesh.axis(axis).size))});
  }
  return example;
}

// The members of `rank`'s line and its position in it.
std::pair<std::vector<int64_t>, int64_t> line_of(const Example& example, const Step& step, int64_t rank) {
  const auto coord = *example.mesh.coord_of(rank);
  return {example.mesh.line(step.axis, coord), coord[static_cast<size_t>(step.axis)]};
}

// All ranks' values after one step. Every step maps [size] to [size].
std::vector<at::Tensor> simulate(const Example& example, const Step& step, const std::vector<at::Tensor>& before) {
  std::vector<at::Tensor> after;
  for (int64_t rank = 0; rank < example.mesh.size(); ++rank) {
    const auto [line, position] = line_of(example, step, rank);
    std::vector<at::Tensor> given;
    for (const auto member : line) {
      given.push_back(before[static_cast<size_t>(member)]);
    }
    const auto parts = static_cast<int64_t>(line.size()), part = example.size / parts;
    auto mine = before[static_cast<size_t>(rank)].clone();
    switch (step.kind) {
      case 0:  // all_reduce
        mine = combined(given, step.op);
        break;
      case 1:  // all_gather of own part
      case 3:  // all_to_all
        for (int64_t i = 0; i < parts; ++i) {
          const auto from = step.kind == 1 ? i : position;
          mine.narrow(0, i * part, part).copy_(given[static_cast<size_t>(i)].narrow(0, from * part, part));
        }
        break;
      case 2:  // reduce_scatter onto own part
        mine.narrow(0, position * part, part).copy_(combined(given, step.op).narrow(0, position * part, part));
        break;
      case 4:  // broadcast
        mine = given[static_cast<size_t>(step.root)].clone();
        break;
      default:  // to the next member
        mine = given[static_cast<size_t>((position + parts - 1) % parts)].clone();
        break;
    }
    after.push_back(mine);
  }
  return after;
}

void run_step(const Example& example, const Step& step, at::Tensor& mine) {
  auto& group = RankContext::require().axis(example.mesh, step.axis);
  const auto parts = group.size(), part = example.size / parts, position = group.rank();
  std::vector<at::Tensor> inputs, outputs;
  const auto old = mine.clone();
  for (int64_t i = 0; i < parts; ++i) {
    inputs.push_back(old.narrow(0, i * part, part));
    outputs.push_back(mine.narrow(0, i * part, part));
  }
  switch (step.kind) {
    case 0: return group.all_reduce(mine, step.op)->wait();
    case 1: return group.all_gather(outputs, inputs[static_cast<size_t>(position)])->wait();
    case 2: return group.reduce_scatter(outputs[static_cast<size_t>(position)], inputs, step.op)->wait();
    case 3: return group.all_to_all(outputs, inputs)->wait();
    case 4: return group.broadcast(mine, step.root)->wait();
    default:
      if (parts > 1) {
        auto receive = group.receive(mine, (position + parts - 1) % parts, 3);
        group.send(old, (position + 1) % parts, 3)->wait();
        receive->wait();
      }
  }
}

TEST(Programs, TwoHundredRandomOnesEqualTheirSimulation) {
  for (uint64_t i = 0; i < 200; ++i) {
    const auto example = make_example(kSeed + i);
    const auto ranks = example.mesh.size();
    std::vector<at::Tensor> start;
    for (int64_t rank = 0; rank < ranks; ++rank) {
      start.push_back(values_of(i * 100 + static_cast<uint64_t>(rank), {example.size}, at::kFloat));
    }
    auto expected = start;
    for (const auto& step : example.steps) {
      expected = simulate(example, step, expected);
    }
    run_ranks(
        ranks,
        [&](int64_t rank) {
          auto mine = start[static_cast<size_t>(rank)].clone();
          for (const auto& step : example.steps) {
            run_step(example, step, mine);
          }
          EXPECT_TRUE(identical(mine, expected[static_cast<size_t>(rank)]))
              << "seed " << kSeed + i << ", mesh " << example.mesh.str() << ", rank " << rank;
        },
        within(20000));
  }
}

TEST(Programs, AxesOfOneMeshWorkAtTheSameTime) {
  const auto mesh = layout::Mesh::parse("dp=2,tp=3");
  run_ranks(
      6,
      [&](int64_t rank) {
        auto& context = RankContext::require();
        const auto& coord = context.coord(mesh);
        for (int64_t i = 0; i < 200; ++i) {
          // Lines run out of step: each waits only for its own.
          auto a = at::ones({1}, at::kLong) * (rank + i);
          auto b = a.clone();
          context.axis(mesh, 1).all_reduce(a, ReduceOp::kSum)->wait();
          EXPECT_EQ(a.item<int64_t>(), 3 * (coord[0] * 3 + i) + 3);
          if (i % 10 == rank % 3) {
            context.axis(mesh, 0).all_reduce(b, ReduceOp::kMax)->wait();
            EXPECT_EQ(b.item<int64_t>(), 3 + coord[1] + i);
          }
        }
        EXPECT_EQ(&context.axis(mesh, 0), &context.axis(mesh, 0));
        EXPECT_EQ(context.axis(mesh, 1).name(), "tp");
        EXPECT_EQ(context.whole(mesh).size(), 6);
      },
      within(5000));
}

}  // namespace
}  // namespace tessera::comm::programs_test
