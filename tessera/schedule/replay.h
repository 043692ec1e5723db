// How long a schedule takes, if passes took what they are said to.
#pragma once

#include <string>
#include <string_view>
#include <vector>

#include "tessera/schedule/schedule.h"

namespace tessera::schedule {

// Times, in any one unit. Those of passes are of a rank's equal share of the model: a stage that is half of that takes
// half of them.
struct Costs {
  double forward = 1;
  double input = 1;   // the half of backward that goes on to the stage before
  double weight = 1;  // the other half; a full backward takes both
  double send = 0;    // from the end of a pass to when another rank can use what it made; takes no rank's time
  // A rank's part of the head (forward, backward) and of the embedding (either); not less on a rank with more stages.
  double head = 0, head_backward = 0, embed = 0;

  friend bool operator==(const Costs&, const Costs&) = default;
};

// The costs of a text as `F=1,B=1,W=1,send=0.1`: forward, input half of backward, weight half, send, S, T and E (head,
// head_backward, embed). What is not named stays as above. Throws ConfigError, with the names that there are.
Costs parse_costs(std::string_view text);

// When an action took its rank's time. Those that take none begin and end at once.
struct Interval {
  double begin = 0, end = 0;
};

struct Replay {
  std::vector<std::vector<Interval>> times;  // of each rank's actions, in their order

  // When the last pass ends; the first begins at 0.
  double makespan = 0;

  // How long each rank works.
  std::vector<double> busy;

  // The share of all ranks' time until `makespan` in which they wait.
  double idle() const;

  // How long a rank waits between its own first action that takes time and its last.
  double idle_in_window(int64_t rank) const;
};

// Walks the schedule as an executor does that posts receives early and does not wait in sends: a pass begins when its
// rank is free and what it needs is there, and one in which ranks meet (of the head of a cut vocabulary) when all of
// them are so far. Recomputing takes as long as forward; gathers and reductions take none. What `verify_schedule`
// refuses throws PlanError here too if ranks do not come to an end.
Replay replay_schedule(const Schedule& schedule, const Costs& costs = {});

}  // namespace tessera::schedule
