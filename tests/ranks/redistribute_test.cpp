// Every pair of placements, over rank threads: the value on every rank, its gradient, and the bytes that moved.
#include <atomic>
#include <mutex>

#include "tests/ranks/support.h"
#include "tests/support/sampled.h"

#include "tessera/comm/call/call.h"

namespace tessera::ranks::redistribute_test {
namespace {

using layout::Partial;
using layout::Replicate;
using layout::Shard;

// Of pairs of meshes, unless everything runs.
const std::vector<Sizes> kFewShapes = {{12, 8}, {7, 5}, {11}};
const std::vector<Sizes> kShapes = {{12, 8}, {7, 5}, {1, 3}, {2, 1}, {0, 4}, {3, 0}, {11}, {}};

std::vector<Placement> choices() {
  return {Replicate(),
          Shard(0),
          Shard(1),
          Shard(0, {.unit = 2}),
          Partial(),
          Partial(ReduceOp::kMax),
          Partial(ReduceOp::kAvg)};
}

std::string describe(const at::Tensor& value, const Mesh& from_mesh, const Placements& from, const Mesh& to_mesh,
                     const Placements& to) {
  return c10::str(value.sizes(), " ", layout::str(from_mesh, from), " on ", from_mesh.str(), " -> ",
                  layout::str(to_mesh, to), " on ", to_mesh.str(), ", rank ", comm::RankContext::require().rank);
}

// `found` has the layout asked for, and its part is the one that the layout defines.
// Exactly, but for averages, whose division may round.
bool holds(const at::Tensor& found, const at::Tensor& value, const Mesh& mesh, const Placements& placements) {
  const Spec spec = Spec::contiguous(mesh, placements, value.sizes(), value.scalar_type());
  const at::Tensor part = to_local(found);
  if (spec_of(found) != spec || found.sizes() != value.sizes()) {
    return false;
  }
  const Coord coord = *mesh.coord_of(comm::RankContext::require().rank);
  if (part.sizes() != c10::IntArrayRef(spec.local_sizes(coord))) {
    return false;
  }
  const at::Tensor held = spec->has_partial ? full_tensor(found) : part,
                   expected = spec->has_partial ? value : part_at(value, spec, coord);
  return value.scalar_type() == at::kDouble ? error_of(held, expected) <= 1e-15 : at::equal(held, expected);
}

// Runs pairs of layouts, and counts them.
class Sweep {
 public:
  explicit Sweep(std::vector<Placement> choices) : choices_(std::move(choices)) {}

  void run(const Mesh& from_mesh, const Mesh& to_mesh, const Sizes& sizes) {
    const at::Tensor value = integers(sizes);
    const auto sources = every_layout(from_mesh, value.dim(), choices_),
               targets = every_layout(to_mesh, value.dim(), choices_);
    for (const Placements& from : sources) {
      for (const Placements& to : targets) {
        ++count_;
        const at::Tensor found = redistribute(spread(value, from_mesh, from), to_mesh, to);
        EXPECT_TRUE(holds(found, value, to_mesh, to)) << describe(value, from_mesh, from, to_mesh, to) << "\n"
                                                      << dtensor::to_string(found);
      }
    }
  }

  int64_t count() const { return count_; }

 private:
  std::vector<Placement> choices_;
  int64_t count_ = 0;
};

// The sweep over the shapes, or `most` of them that are drawn for each pair of meshes, by every rank.
void sweep(const std::vector<Mesh>& from, const std::vector<Mesh>& to, const std::vector<Sizes>& shapes = kShapes,
           const std::vector<Placement>& of = choices(), size_t most = kShapes.size()) {
  support::seed_of_samples();  // before the ranks begin
  std::atomic<int64_t> count = 0;
  run_on(from.front(), [&](int64_t rank) {
    Sweep pairs(of);
    for (const Mesh& a : from) {
      for (const Mesh& b : to) {
        for (const Sizes& sizes : support::sampled(shapes, most, a.str() + b.str())) {
          pairs.run(a, b, sizes);
        }
      }
    }
    if (rank == 0) {
      count = pairs.count();
    }
  });
  testing::Test::RecordProperty("pairs", static_cast<int>(count));
  EXPECT_GT(count, 200);
}

TEST(Redistribute, EveryPairOnOneAxis) {
  for (const char* text : {"x=2", "x=3", "x=4"}) {
    sweep({Mesh::parse(text)}, {Mesh::parse(text)});
  }
}

TEST(Redistribute, EveryPairOnTwoAxes) {
  for (const char* text : {"a=2,b=2", "a=2,b=3"}) {
    sweep({Mesh::parse(text)}, {Mesh::parse(text)}, kShapes, choices(), 2);
  }
}

TEST(Redistribute, InterleavedCuts) {
  const std::vector<Sizes> shapes = {{12, 6}, {6, 2}, {18, 5}, {24, 1}, {0, 4}};
  const std::vector<Placement> of = {Replicate(),
                                     Shard(0),
                                     Shard(1),
                                     layout::InterleavedShard(0, 2),
                                     layout::InterleavedShard(0, 3),
                                     layout::InterleavedShard(0, 3, {.unit = 2}),
                                     Partial()};
  for (const char* text : {"x=2", "x=3"}) {
    sweep({Mesh::parse(text)}, {Mesh::parse(text)}, shapes, of);
  }
  sweep({Mesh::parse("a=2,b=2")}, {Mesh::parse("a=2,b=2"), Mesh::parse("x=4")}, shapes, of, 2);
}

TEST(Redistribute, OnOneCoordinate) {
  const std::vector<Placement> of = {layout::On(0), layout::On(1),          Replicate(), Shard(0), Shard(1),
                                     Partial(),     Partial(ReduceOp::kAvg)};
  sweep({Mesh::parse("x=3")}, {Mesh::parse("x=3")}, kShapes, of);
  sweep({Mesh::parse("a=2,b=2")}, {Mesh::parse("a=2,b=2")}, {{7, 5}}, of);
  sweep({Mesh::parse("a=2,b=2")}, {Mesh::parse("a=2,b=2"), Mesh::parse("x=4")}, {{12, 6}, {}},
        {layout::On(1), Replicate(), layout::InterleavedShard(0, 3), Shard(1), Partial()});
}

TEST(Redistribute, FlattenedAndOtherwiseOrderedAxes) {
  const Mesh square = Mesh::parse("a=2,b=2");
  const std::vector<Mesh> four = {square, Mesh::parse("x=4"), square.flatten({"b", "a"}, "x"),
                                  Mesh({{"x", 4}}, {2, 0, 3, 1})};
  const std::vector<Sizes>& shapes = is_full() ? kShapes : kFewShapes;
  sweep(four, four, shapes, choices(), 1);
  const Mesh wide = Mesh::parse("a=2,b=3");
  const std::vector<Mesh> six = {wide, wide.flatten({"a", "b"}, "x"), wide.flatten({"b", "a"}, "x"),
                                 Mesh::parse("c=3,d=2")};
  sweep(six, six, shapes, choices(), 1);
}

TEST(Redistribute, AllIntegerTypes) {
  const Mesh mesh = Mesh::parse("x=3");
  const std::vector<Placement> of_integers = {Replicate(),
                                              Shard(0),
                                              Shard(1),
                                              Partial(),
                                              Partial(ReduceOp::kMax),
                                              Partial(ReduceOp::kMin),
                                              Partial(ReduceOp::kProd)};
  run_on(mesh, [&](int64_t) {
    for (c10::ScalarType dtype : {at::kLong, at::kInt, at::kShort, at::kChar, at::kByte, at::kHalf, at::kBFloat16}) {
      const at::Tensor value = dtype == at::kByte   ? integers({4, 5}).add(9).to(dtype)
                               : dtype == at::kLong ? integers({4, 5}, dtype) * (int64_t{1} << 40)
                                                    : integers({4, 5}, dtype);
      for (const Placements& from : every_layout(mesh, 2, {Replicate(), Shard(0), Shard(1)})) {
        for (const Placements& to : every_layout(mesh, 2, of_integers)) {
          EXPECT_TRUE(holds(redistribute(spread(value, mesh, from), to), value, mesh, to))
              << dtype << " " << describe(value, mesh, from, mesh, to);
        }
      }
    }
    const at::Tensor flags = integers({4, 5}) > 0;
    for (const Placements& from : every_layout(mesh, 2, {Replicate(), Shard(0), Shard(1)})) {
      for (const Placements& to :
           every_layout(mesh, 2, {Replicate(), Shard(0), Shard(1), Partial(), Partial(ReduceOp::kMax)})) {
        EXPECT_TRUE(holds(redistribute(spread(flags, mesh, from), to), flags, mesh, to))
            << describe(flags, mesh, from, mesh, to);
      }
    }
  });
}

// The strides are those of the one-device program, whatever the parts' are.
TEST(Redistribute, KeepsStrides) {
  const Mesh mesh = Mesh::parse("a=2,b=2");
  const at::Tensor value = integers({6, 5});
  run_on(mesh, [&](int64_t) {
    const auto layouts = every_layout(mesh, 2, choices());
    for (size_t i = 0; i < layouts.size(); ++i) {
      const Placements& to = layouts[(i * 7 + 3) % layouts.size()];
      const at::Tensor turned = spread(value, mesh, layouts[i]).t();
      const at::Tensor found = redistribute(turned, to);
      EXPECT_EQ(found.strides(), value.t().strides());
      EXPECT_TRUE(at::equal(full_tensor(found), value.t())) << describe(value, mesh, layouts[i], mesh, to);
    }
  });
}

TEST(Redistribute, IsTheIdentityForGradients) {
  const Mesh square = Mesh::parse("a=2,b=2"), line = Mesh::parse("x=4");
  const at::Tensor value = integers({5, 6}), weights = integers({5, 6}).mul(2).add(1);
  run_on(square, [&](int64_t) {
    const auto layouts = every_layout(square, 2, choices()), others = every_layout(line, 2, choices());
    for (size_t i = 0; i < layouts.size(); ++i) {
      const bool other = i % 2 == 1;
      const Mesh& mesh = other ? line : square;
      const Placements& to = other ? others[i % others.size()] : layouts[(i * 5 + 2) % layouts.size()];
      const at::Tensor x = spread(value, square, layouts[i]).requires_grad_();
      const at::Tensor moved = redistribute(x * 1, mesh, to);
      EXPECT_TRUE(moved.requires_grad());
      (moved * weights).sum().backward();
      ASSERT_TRUE(x.grad().defined());
      EXPECT_TRUE(spec_of(x.grad())->mesh == square);
      EXPECT_TRUE(at::equal(full_tensor(x.grad()), weights)) << describe(value, square, layouts[i], mesh, to);
    }
  });
}

TEST(Redistribute, OfALeafTwiceAddsGradients) {
  const Mesh square = Mesh::parse("a=2,b=2"), line = Mesh::parse("x=4");
  run_on(square, [&](int64_t) {
    const at::Tensor x = distribute(integers({5, 6}), square, "{a: S(0)}").requires_grad_();
    const at::Tensor y = redistribute(x, "{a: R, b: S(1)}").mul(2).sum() + x.sum();
    y.backward();
    redistribute(x, line, {Shard(0)}).mul(3).sum().backward();
    EXPECT_TRUE(at::equal(full_tensor(x.grad()), at::full({5, 6}, 6, at::kDouble)));
  });
}

// Counts the bytes of the tensors that were really given to collectives, as a ring sends them.
class Counter : public comm::Watcher {
 public:
  void on_begin(const comm::Call& call) override {
    const int64_t members = call.group->size(), me = call.group->rank();
    int64_t all = 0;
    for (const at::Tensor& input : call.inputs) {
      all += static_cast<int64_t>(input.nbytes());
    }
    switch (call.kind) {
      case comm::Kind::kAllReduce: bytes += 2 * all * (members - 1) / members; break;
      case comm::Kind::kAllGather: bytes += all * (members - 1); break;
      case comm::Kind::kReduceScatter: bytes += all * (members - 1) / members; break;
      case comm::Kind::kAllToAll: bytes += all - static_cast<int64_t>(call.inputs[me].nbytes()); break;
      case comm::Kind::kSend: bytes += all; break;
      case comm::Kind::kReceive: break;
      case comm::Kind::kBroadcast: bytes += me == call.peer ? all * (members - 1) : 0; break;
      default: ADD_FAILURE() << "unexpected " << call.str();
    }
  }
  void on_end(const comm::Call&, bool) override {}
  int64_t bytes = 0;
};

struct Cost {
  const char *from, *to;
  int64_t numerator, denominator;  // of T, over all ranks
};

TEST(Redistribute, MovesTheBytesOfTheTable) {
  for (int64_t p : {2, 3, 4}) {
    const Mesh mesh({{"x", p}});
    const at::Tensor value = integers({12, 24});
    const Cost table[] = {
        {"S(0)", "S(0)", 0, 1},
        {"S(0)", "S(1)", p - 1, p},
        {"S(1)", "S(0)", p - 1, p},
        {"S(0)", "R", p - 1, 1},
        {"S(1)", "R", p - 1, 1},
        {"R", "S(0)", 0, 1},
        {"R", "S(1)", 0, 1},
        {"R", "P", 0, 1},
        {"P", "S(0)", p - 1, 1},
        {"P", "S(1)", p - 1, 1},
        {"P", "R", 2 * (p - 1), 1},
        {"S(0)", "P", 0, 1},
        {"S(1)", "P", 0, 1},
        {"R", "R", 0, 1},
        {"P", "P", 0, 1},
        {"S(0)", "On(1)", p - 1, p},
        {"On(1)", "S(1)", p - 1, p},
        {"On(0)", "On(1)", 1, 1},
        {"On(0)", "On(0;3)", 0, 1},
        {"On(1)", "R", p - 1, 1},
        {"P", "On(1)", p - 1, 1},
        {"R", "On(0)", 0, 1},
        {"On(1)", "P", 0, 1},
        {"On(1)", "On(1)", 0, 1},
    };
    for (const Cost& cost : table) {
      std::atomic<int64_t> booked = 0, moved = 0;
      run_on(mesh, [&](int64_t) {
        auto& context = comm::RankContext::require();
        const at::Tensor x = spread(value, mesh, {layout::parse_placement(cost.from)});
        const auto counter = std::make_shared<Counter>();
        context.watchers.push_back(counter);
        context.ledger.clear();
        redistribute(x, Placements{layout::parse_placement(cost.to)});
        booked += context.ledger.total_bytes();
        moved += counter->bytes;
      });
      const int64_t expected = static_cast<int64_t>(value.nbytes()) * cost.numerator / cost.denominator;
      EXPECT_EQ(booked, expected) << cost.from << " -> " << cost.to << " over " << p;
      EXPECT_EQ(moved, expected) << cost.from << " -> " << cost.to << " over " << p;
    }
  }
}

TEST(Redistribute, OfWrongPlacementsSaysWhatIsAccepted) {
  const Mesh mesh = Mesh::parse("a=2");
  const auto error = [&](const std::function<void(const at::Tensor&)>& body) {
    return failure_on(2, [&](int64_t) { body(distribute(integers({4, 4}), mesh, "{a: S(0)}")); });
  };
  EXPECT_SAYS(error([](const at::Tensor& x) { redistribute(x, "{tp: R}"); }), "tp");
  EXPECT_SAYS(error([](const at::Tensor& x) { redistribute(x, "{a: Q}"); }), "accepted");
  EXPECT_SAYS(error([](const at::Tensor& x) { redistribute(x, "{a: S(2)}"); }), "S(2)");
  EXPECT_SAYS(error([](const at::Tensor& x) { redistribute(x, Placements{Replicate(), Replicate()}); }),
              "2 placements");
  EXPECT_SAYS(error([](const at::Tensor& x) { redistribute(x, Mesh::parse("x=3"), {Replicate()}); }), "ranks");
  EXPECT_SAYS(error([](const at::Tensor& x) { redistribute(full_tensor(x), "{a: R}"); }), "distribute(");
}

}  // namespace
}  // namespace tessera::ranks::redistribute_test
