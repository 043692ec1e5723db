// What the first micro-batch of a schedule's run tells of the program: past which bodies a rank may go (pass_over.h).
#pragma once

#include <cstdint>
#include <optional>
#include <unordered_map>
#include <unordered_set>
#include <vector>

#include <ATen/core/Tensor.h>

#include "tessera/comm/core/context.h"

namespace tessera::dtensor {

// Note [Alone]. Autograd runs a graph's newest node first, and adds the gradients of a value as they come. A body that
// a rank goes past is one node in the place of its own, which stood side by side, and gives a value that it reads one
// gradient, the sum of those of its readings. So the order of everything else is as it was, and messages, which are
// told apart by their order alone, are the same on ranks that run the body; but sums are only if nobody else has
// gradients for what it reads. A rank goes past such bodies alone. Those beside a skip (`block(x) + x * 0.5`), modules
// that share a weight, and layers that read one memory are walked; and everything is where the program has hooks of
// gradients on their way, which run in the name of a node.
//
// What is known of a body holds as long as the program around it is the same. So the first micro-batch of a step is
// always walked as it is, and its forward pass says which program that is, by its calls and by who reads what: a hook,
// a loss of another value or another size make another one, of which everything is found out anew.
class StageWalks {
 public:
  // Those of this rank.
  static StageWalks& of(comm::RankContext& ctx);

  // A schedule is run.
  void begin_run();
  // Whether bodies of the first micro-batch are to be noted: a run before had a program in which they were not.
  bool wants_bodies() const { return wants_bodies_; }
  // In the forward pass that runs this body made nodes of autograd's graph from the number `first` on up to `end`.
  void note_body(uint64_t body, uint64_t first, uint64_t end) { bodies_.push_back({body, first, end}); }
  // The forward pass of a stage over the run's first micro-batch made these calls, nodes from the number `first` on,
  // and this loss.
  void note_first_forward(int64_t stage, const comm::Program::Stretch& calls, uint64_t first, const at::Tensor& loss);

  // A hash of the stage's program in this run; nothing before that pass.
  std::optional<uint64_t> program_of(int64_t stage) const;
  // Whether the body is known to be the only one in that program with gradients for what it reads.
  bool is_alone(int64_t stage, uint64_t body) const;

 private:
  struct Body {
    uint64_t id, first, end;
  };

  std::unordered_set<uint64_t> bodies_alone_in(const at::Tensor& loss) const;

  std::vector<Body> bodies_;                                          // of the pass that runs
  std::unordered_map<int64_t, uint64_t> programs_;                    // of the run that was last, by stage
  std::unordered_map<uint64_t, std::unordered_set<uint64_t>> alone_;  // by program
  bool wants_bodies_ = false;
  bool misses_bodies_ = false;  // of a program
};

}  // namespace tessera::dtensor
