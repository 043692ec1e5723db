// Small programs in `exact` numerics, run on every layout and for every cut of the step into micro-batches: the bits
// must be those of one rank that sees all samples at once, or the program is refused with what would work.
#pragma once

#include <mutex>
#include <numeric>

#include <torch/torch.h>

#include "tessera/base/hash.h"
#include "tests/ranks/support.h"

namespace tessera::ranks {

using dtensor::Numerics;
using dtensor::RankState;
using layout::Label;
using sums::Lattice;
using torch::indexing::Slice;

constexpr int64_t kSamples = 6, kLength = 4, kWidth = 8, kHidden = 16, kClasses = 10;

// A layout and the sizes of the micro-batches that each data-parallel rank makes of its samples.
struct Cell {
  const char* mesh;
  std::vector<int64_t> cuts;
  std::string str() const { return c10::str(mesh, " in ", c10::Join("+", cuts)); }
};

inline const Cell kWhole = {"1", {6}};
inline const std::vector<Cell> kLayouts = {
    {"dp=2", {3}}, {"tp=2", {6}}, {"tp=4", {6}}, {"dp=2,tp=2", {3}}, {"dp=3", {2}}};
inline const std::vector<Cell> kCuts = {
    {"1", {3, 3}},    {"1", {2, 2, 2}},    {"1", {1, 3, 2}},      {"1", {1, 1, 1, 1, 1, 1}},
    {"dp=2", {1, 2}}, {"tp=2", {1, 3, 2}}, {"dp=2,tp=2", {2, 1}}, {"dp=2", {1, 1, 1}}};

// Deterministic values of both signs over some binary orders.
inline at::Tensor values(c10::IntArrayRef sizes, int64_t salt) {
  const at::Tensor index = at::arange(c10::multiply_integers(sizes), at::kLong) * 2654435761 + salt * 40503 + 7;
  const at::Tensor mantissa = index.remainder(100003).to(at::kDouble) / 50001.5 - 1;
  return (mantissa * (index.floor_divide(64) + salt).remainder(5).sub(2).to(at::kDouble).exp2()).reshape(sizes);
}

struct Batch {
  at::Tensor x, y;  // [samples, length, width], [samples, length]
  int64_t index = 0;
  bool is_last = false;
};

// What a program sees: its rank's mesh, parameters and micro-batches, and where it leaves its results.
class World {
 public:
  World(const Cell& cell, Numerics numerics) : mesh(Mesh::parse(cell.mesh)), cell_(cell), numerics_(numerics) {}

  const Mesh mesh;
  std::map<std::string, at::Tensor> results;
  at::ScalarType dtype = at::kDouble;
  bool begins_passes = true;

  Placements on(const char* axis, Placement placement) const {
    Placements placements(mesh.ndim());
    if (const auto index = mesh.find_axis(axis)) {
      placements[*index] = placement;
    }
    return placements;
  }

  at::Tensor parameter(const std::string& name, c10::IntArrayRef sizes, Placement on_tp = layout::Replicate()) {
    return parameter(name, sizes, on("tp", on_tp));
  }

  at::Tensor parameter(const std::string& name, c10::IntArrayRef sizes, const Placements& placements) {
    at::Tensor result = distribute(values(sizes, static_cast<int64_t>(name.back())).to(dtype) / 3, mesh, placements)
                            .set_requires_grad(true);
    RankState::require().engine.parameters.add(result, {name, base::hash_string(name), {}, {}});
    return result;
  }

  void each_batch(const std::function<void(const Batch&)>& body) {
    for (size_t i = 0; i < cell_.cuts.size(); ++i) {
      run_batch(i, body);
    }
  }

  // The same in another order: that in which `permuted` puts the numbers of the micro-batches.
  void each_batch(const std::function<void(std::vector<size_t>&)>& permuted,
                  const std::function<void(const Batch&)>& body) {
    std::vector<size_t> order(cell_.cuts.size());
    std::iota(order.begin(), order.end(), 0);
    permuted(order);
    for (size_t i : order) {
      run_batch(i, body);
    }
  }

  bool is_cut() const { return cell_.cuts.size() > 1; }

  void keep(const std::string& name, const at::Tensor& tensor) { results[name] = full_tensor(tensor.detach()).clone(); }

 private:
  void run_batch(size_t index, const std::function<void(const Batch&)>& body) const {
    if (numerics_ == Numerics::kExact && begins_passes) {
      RankState::require().pass.sites.begin_pass();
    }
    const int64_t begin =
        std::accumulate(cell_.cuts.begin(), cell_.cuts.begin() + static_cast<int64_t>(index), int64_t{0});
    body(batch(static_cast<int64_t>(index), begin, cell_.cuts[index]));
  }

  // Rows [begin, begin + size) of every rank's block of samples.
  Batch batch(int64_t index, int64_t begin, int64_t size) const {
    const auto axis = mesh.find_axis("dp");
    const int64_t blocks = axis ? mesh.axis(*axis).size : 1;
    const at::Tensor x = values({kSamples, kLength, kWidth}, 3).to(dtype),
                     y = values({kSamples, kLength}, 4).abs().mul(1000).to(at::kLong).remainder(kClasses);
    std::vector<at::Tensor> xs, ys;
    std::vector<dtensor::Origin::Piece> pieces;
    for (int64_t block = 0; block < blocks; ++block) {
      const int64_t sample = block * kSamples / blocks + begin;
      pieces.push_back({block * size, sample});
      xs.push_back(x.narrow(0, sample, size));
      ys.push_back(y.narrow(0, sample, size));
    }
    return {labelled(at::cat(xs), pieces), labelled(at::cat(ys), pieces), index,
            index + 1 == static_cast<int64_t>(cell_.cuts.size())};
  }

  at::Tensor labelled(const at::Tensor& rows, std::vector<dtensor::Origin::Piece> pieces) const {
    layout::Labels labels(rows.dim());
    labels[0] = {{.label = Label::kBatch, .extent = rows.size(0), .total = kSamples}};
    labels[1] = {{.label = Label::kSequence, .extent = kLength, .total = kLength}};
    return dtensor::with_labels(distribute(rows, mesh, on("dp", layout::Shard(0))), labels,
                                dtensor::Origin::make(std::move(pieces)));
  }

  Cell cell_;
  Numerics numerics_;
};

using Program = std::function<void(World&)>;

struct Outcome {
  std::map<std::string, at::Tensor> results;
  std::string error;
};

inline Outcome run_program(const Program& program, const Cell& cell, Numerics numerics, const Lattice& lattice) {
  Outcome outcome;
  std::mutex mutex;
  outcome.error = failure_on(Mesh::parse(cell.mesh).size(), [&](int64_t rank) {
    dtensor::manual_seed(11);
    dtensor::set_numerics(numerics, lattice);
    World world(cell, numerics);
    program(world);
    const std::lock_guard lock(mutex);
    if (rank == 0) {
      outcome.results = world.results;
    }
  });
  return outcome;
}

// The first result that differs, or is not a number.
inline std::string difference(const Outcome& found, const Outcome& expected) {
  if (!found.error.empty()) {
    return found.error;
  }
  for (const auto& [name, value] : expected.results) {
    const auto other = found.results.find(name);
    if (other == found.results.end()) {
      return name + " is missing";
    }
    if (value.isnan().any().item<bool>()) {
      return name + " is not a number";
    }
    const int64_t differ = value.ne(other->second).sum().item<int64_t>();
    if (differ > 0) {
      return c10::str(name, ": ", differ, " of ", value.numel(), " elements differ");
    }
  }
  return "";
}

// Whether micro-batches, or everything, are refused.
enum class Refuses : uint8_t { kNothing, kCuts, kAll };

inline void check(const char* name, const Program& program, Refuses refuses = Refuses::kNothing,
                  const char* words = "numerics exact") {
  SCOPED_TRACE(name);
  for (const Lattice& lattice : {Lattice{2, 1, 8}, Lattice{8, 2, 8}}) {
    const Outcome whole = run_program(program, kWhole, Numerics::kExact, lattice);
    if (refuses == Refuses::kAll) {
      EXPECT_SAYS(whole.error, words);
      continue;
    }
    EXPECT_EQ(difference(whole, whole), "");
    if (!whole.error.empty()) {
      continue;
    }
    // Three ranks cut the finer lattice only; of the other cells it takes every third.
    const bool is_fine = lattice.sequence > 1;
    size_t index = 0;
    const auto is_left_out = [&](const Cell& cell) {
      return std::string(cell.mesh) == "dp=3" ? !is_fine : is_fine && index++ % 3 != 1 && !is_full();
    };
    for (const Cell& cell : kLayouts) {
      if (is_left_out(cell)) {
        continue;
      }
      EXPECT_EQ(difference(run_program(program, cell, Numerics::kExact, lattice), whole), "")
          << cell.str() << ", lattice " << lattice.str();
    }
    for (const Cell& cell : kCuts) {
      if (is_left_out(cell)) {
        continue;
      }
      const Outcome found = run_program(program, cell, Numerics::kExact, lattice);
      if (refuses == Refuses::kCuts) {
        EXPECT_SAYS(found.error, words) << cell.str();
      } else {
        EXPECT_EQ(difference(found, whole), "") << cell.str() << ", lattice " << lattice.str();
      }
    }
    if (is_fine) {
      continue;
    }
    // The same training as in `fast`.
    const Outcome fast = run_program(program, kWhole, Numerics::kFast, lattice);
    EXPECT_EQ(fast.error, "");
    for (const auto& [key, value] : fast.results) {
      EXPECT_LE(error_of(whole.results.at(key), value), value.scalar_type() == at::kDouble ? 1e-12 : 1e-4) << key;
    }
  }
}

// A two-layer net with a cross entropy over 24 tokens.
struct Net {
  explicit Net(World& world)
      : world(world),
        w1(world.parameter("w1", {kHidden, kWidth}, layout::Shard(0))),
        b1(world.parameter("b1", {kHidden}, layout::Shard(0))),
        w2(world.parameter("w2", {kClasses, kHidden}, layout::Shard(1))) {}

  at::Tensor hidden(const at::Tensor& x) const { return at::linear(x, w1, b1).tanh(); }
  at::Tensor loss_of(const at::Tensor& logits, const at::Tensor& y) const {
    return at::cross_entropy_loss(logits.flatten(0, 1), y.flatten());
  }
  at::Tensor loss(const Batch& batch) const { return loss_of(at::linear(hidden(batch.x), w2), batch.y); }
  std::vector<at::Tensor> parameters() const { return {w1, b1, w2}; }

  void backward(const std::function<void(const Batch&)>& after = {}) {
    world.each_batch([&](const Batch& batch) {
      loss(batch).backward();
      if (after) {
        after(batch);
      }
    });
  }

  void keep(const std::string& suffix = "") const {
    world.keep("w1" + suffix, w1), world.keep("b1" + suffix, b1), world.keep("w2" + suffix, w2);
  }
  void keep_gradients(const std::string& suffix = "") const {
    world.keep("gradient of w1" + suffix, w1.grad()), world.keep("gradient of b1" + suffix, b1.grad()),
        world.keep("gradient of w2" + suffix, w2.grad());
  }

  World& world;
  at::Tensor w1, b1, w2;
};

}  // namespace tessera::ranks
