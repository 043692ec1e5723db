// Where in the program a random number is drawn, and the step and seed it belongs to.
#pragma once

#include <cstdint>
#include <map>
#include <string>
#include <unordered_map>
#include <vector>

#include "tessera/dtensor/record/meta.h"
#include "tessera/random/counter.h"
#include "tessera/random/stock_cpu.h"

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
    random::StockGenerator stock;
  };

  uint64_t seed = 0;
  uint64_t step = 0;
  uint64_t evaluation =
      0;                // which forward pass without gradients this is since the last one with; 0: one with gradients
  uint64_t passes = 0;  // begun so far
  random::StockGenerator stock;  // if there is one, draws come from it, one after the other, and sites do not matter

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

  // The stream of the next draw.
  random::Stream next();

  Position position() const {
    Position here = position_;
    here.step = step;
    here.evaluation = evaluation;
    here.stock = stock;
    return here;
  }
  void restore(Position position) {
    step = position.step;
    evaluation = position.evaluation;
    stock = position.stock;
    position.stock = {};
    position_ = std::move(position);
  }
  // A new forward pass (a micro-batch, a step). What it draws before it reads a parameter is not what initialisation
  // drew.
  void begin_pass() {
    position_ = {};
    position_.reading = 1;
    graph_tasks_.clear();
    ++passes;
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
  NodeCalls node_calls_;
  std::vector<int> graph_tasks_;  // backward passes of this forward pass, in their order
};

}  // namespace tessera::dtensor
