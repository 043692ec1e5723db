// Bodies of other stages that a rank goes past instead of walking them.
#pragma once

#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <unordered_map>
#include <vector>

#include <ATen/core/Tensor.h>

#include "tessera/dtensor/front/walk_checks.h"
#include "tessera/dtensor/front/walk_sends.h"

namespace tessera::dtensor {

class WalkRecord;

// Note [Going past]. In a pipeline's schedule a rank walks the whole program, once for each micro-batch and each of its
// stages; of a module of another stage each operator costs it a lookup, and with many stages nearly all modules are of
// others. What such a module does here is known after one micro-batch: results without elements, readings of
// parameters, places of random numbers, calls that ranks compare. So one walk of it is recorded, and micro-batches go
// past it, where it is given what it was given there but for the elements: its results are one node of autograd's
// graph, and the program stands afterwards where the walk would have left it, in backward too. The first micro-batch of
// each step walks everything as it is, which tells whether the program is the one of which that is known, and past
// which bodies a rank may go (StageWalks), and makes gradients of parameters of other stages what they were.
//
// A body is tried out before. Its first walk tells whether it gives results without elements and nothing else: it must
// not write to its inputs, have this rank communicate anything but inputs that it reads on another stage, or draw from
// libtorch's own stream. A walk between two marks in the graph tells the same of backward, which communicates where the
// gradient of what the body gives comes from this rank. What is communicated is known then, and from the next walk on
// sent before it. A body that fails is walked always. So are all under `exact`, whose sums over samples name each of a
// step's passes, under autocast, which keeps casts between micro-batches, and while anybody observes calls.

// A body of the program, such as the forward of a module. One of each rank, on its thread.
class PassableBody {
 public:
  using Tensors = std::vector<at::Tensor>;
  // Nothing: its results are more than tensors and what can be told from `arguments`, or it does more than giving them.
  using Body = std::function<std::optional<Tensors>(const Tensors&)>;

  // With all parameters that the body reads. None: it is walked always.
  explicit PassableBody(Tensors parameters);
  PassableBody(const PassableBody&) = delete;
  PassableBody& operator=(const PassableBody&) = delete;
  ~PassableBody();

  // Whether `run` may do anything else than calling the body. False outside of a rank.
  bool needs_run();

  // body(inputs), or what stands for its results. `arguments` names what else the body is given, and so what is around
  // its results: the same for the same. Throws what the body throws, and where it writes to an input from another
  // stage, which it did not do when it was called first.
  std::optional<Tensors> run(uint64_t arguments, const Tensors& inputs, const Body& body);

 private:
  enum class Phase : uint8_t { kTried, kMarked, kPassed, kFailed };
  // What is known of it when it is given such inputs.
  struct Trial {
    Phase phase = Phase::kFailed;
    WalkSends sends = {}, sends_back = {};
    std::shared_ptr<WalkRecord> record = nullptr;  // of the walk between marks

    void judge_record();
  };
  // Of one of the rank's stages, in the run of a schedule that was last.
  struct Stage {
    int64_t schedule = -1;
    bool is_elsewhere = false;
    std::optional<bool> is_border = std::nullopt;  // inputs come from another stage; nothing: it was not called yet
  };

  Stage& stage_of(RankState& state);
  bool may_go_past(const RankState& state, const Stage& stage) const;
  bool is_noted(const RankState& state, const Stage& stage) const;
  bool may_bring(const RankState& state) const;
  std::optional<Tensors> go_past(RankState& state, uint64_t arguments, const Tensors& inputs, const Body& body);
  std::optional<Tensors> try_out(RankState& state, uint64_t key, const Tensors& inputs, const Body& body);
  std::optional<Tensors> record(RankState& state, Trial& trial, const Tensors& inputs, const Body& body);

  const uint64_t id_;  // which no other body of this process had
  Tensors parameters_;
  int64_t first_schedule_ = -1;    // in the run of which it was called first; -1: in none yet
  bool writes_to_inputs_ = false;  // as they came from another stage
  std::map<int64_t, Stage> stages_;
  std::unordered_map<uint64_t, Trial> trials_;  // by what it was given
};

}  // namespace tessera::dtensor
