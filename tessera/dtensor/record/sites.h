// Where in the program a rank is: what names a random number, and a sum over samples.
#pragma once

#include <cstdint>
#include <map>
#include <string>
#include <unordered_map>
#include <utility>
#include <vector>

#include "tessera/dtensor/record/meta.h"

namespace tessera::dtensor {

// A site is the parameter that the program read last, which reading of it in this forward pass, and the index of the
// draw since: known below autograd without module hooks, the same under every layout, schedule and micro-batch count.
class Sites {
 public:
  // A value that recomputation takes at the entry of what it will run again, and restores before it does.
  struct Position {
    uint64_t step = 0, evaluation = 0;
    const ParameterInfo* parameter = nullptr;
    uint64_t reading = 0;
    uint64_t draws = 0;
    uint64_t calls = 0;  // since the reading
    std::unordered_map<const ParameterInfo*, uint64_t> readings;
  };

  // What part of a forward pass does to the position that it began at.
  struct Stretch {
    std::vector<std::pair<const ParameterInfo*, uint64_t>> readings;
    const ParameterInfo* parameter = nullptr;  // the one read last; null: none was read
    uint64_t draws = 0, calls = 0;             // since then
  };

  uint64_t step() const { return position_.step; }
  // Which forward pass without gradients this is since the last one with; 0: one with gradients.
  uint64_t evaluation() const { return position_.evaluation; }
  // Begun so far.
  uint64_t passes() const { return passes_; }
  // The one that the program read last; null before the first.
  const ParameterInfo* parameter() const { return position_.parameter; }

  void note_read(const ParameterInfo* parameter) {
    position_.parameter = parameter;
    position_.reading = position_.readings[parameter]++;
    position_.draws = 0;
    position_.calls = 0;
  }

  // What names a call of the forward pass: the parameter that it reads and which reading it is, or else the place after
  // the last reading. Equal on every rank and in every micro-batch.
  uint64_t use(bool reads_parameter);

  // What names a sum that the autograd node `node` makes, of a forward call's `use`: which backward pass of this
  // forward pass it is in (one for each graph task), and which of the node's sums it is.
  uint64_t use_of_sum(uint64_t use, int graph_task, uint64_t node);

  // The same for a call that will be differentiated again (create_graph).
  uint64_t use_in_backward(uint64_t use, int graph_task, uint64_t node);

  // Until it is set to another, every backward pass counts as part of this graph task (-1: as itself): what runs again
  // has its gradients taken by passes of its own, inside of one. Gives back what was there.
  int set_backward(int graph_task) { return std::exchange(backward_, graph_task); }

  // What names the next draw: the hash of (name, reading, draw), as the name's own hash is the parameter's site.
  uint64_t next_draw();

  const Position& position() const { return position_; }
  void restore(Position position) { position_ = std::move(position); }
  // ... of another time, when so many passes had begun.
  void restore(Position position, uint64_t passes) {
    restore(std::move(position));
    passes_ = passes;
  }

  // Since the position was this one.
  Stretch since(const Position& then) const;
  // Goes past such a part.
  void go_past(const Stretch& part);

  // What is drawn and read from now on belongs to this step, and to this evaluation of it.
  void begin_step(uint64_t step, uint64_t evaluation) {
    position_.step = step;
    position_.evaluation = evaluation;
  }
  // A new forward pass of the step (a micro-batch). What it draws before it reads a parameter is not what
  // initialisation drew.
  void begin_pass() {
    position_ = {.step = position_.step, .evaluation = position_.evaluation, .reading = 1, .readings = {}};
    graph_tasks_.clear();
    ++passes_;
  }

 private:
  // The calls of the node that runs now.
  struct NodeCalls {
    uint64_t node = ~uint64_t{0};
    uint64_t sums = 0, others = 0;
  };

  NodeCalls& calls_of(uint64_t node);
  uint64_t number_of(int graph_task);

  Position position_;
  uint64_t passes_ = 0;
  NodeCalls node_calls_;
  std::vector<int> graph_tasks_;  // backward passes of this forward pass, in their order
  int backward_ = -1;
};

}  // namespace tessera::dtensor
