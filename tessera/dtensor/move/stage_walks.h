// What a rank's walks of a pipeline's schedules were like: whether it may go past modules (front/pass_over.h).
#pragma once

#include <cstdint>
#include <optional>
#include <unordered_map>
#include <unordered_set>

#include "tessera/comm/core/context.h"

namespace tessera::dtensor {

// Note [One message]. Messages of a micro-batch that go the same way between two stages are told apart by their order
// alone, and a rank that goes past a module may come to them in another order than one that runs it. So ranks go past
// modules only of programs that send one: one value forward, and its gradient back. Both ends of a way see what goes
// there, and walk everything as soon as they have seen two. A program's first run is walked whole, so that backward is
// seen, too; and so is the first run of all, in which modules are not given their inputs on their own stages yet.
//
// What a module does is known from walks before, and holds as long as the program around it is the same. So the first
// micro-batch of a step is always walked as it is, and its forward pass says which program that is: a call more, a
// hook, a loss of another value or another size, and everything is tried anew.
class StageWalks {
 public:
  // Those of this rank.
  static StageWalks& of(comm::RankContext& ctx);

  // A schedule is run.
  void begin_run();
  // ... and has come to its end.
  void end_run();
  // A message of a walk, sent or received. `way` names the micro-batch and both stages.
  void note_message(int64_t way) { has_crowded_way_ |= ++ways_[way] > 1 && runs_ > 1; }
  // The forward pass of a stage over the run's first micro-batch made these calls.
  void note_first_forward(int64_t stage, const comm::Program::Stretch& calls);

  bool has_crowded_way() const { return has_crowded_way_; }
  // A hash of those calls; nothing before they were made.
  std::optional<uint64_t> program_of(int64_t stage) const;
  // Whether a run before, in which modules were given their inputs on their own stages, had this program: then it is
  // known which messages it sends, backward too.
  bool is_known(uint64_t program) const { return known_.count(program) > 0; }

 private:
  // Of the run that was last.
  std::unordered_map<int64_t, int64_t> ways_;       // messages
  std::unordered_map<int64_t, uint64_t> programs_;  // by stage
  std::unordered_set<uint64_t> known_;
  int64_t runs_ = 0;
  bool has_crowded_way_ = false;
};

}  // namespace tessera::dtensor
