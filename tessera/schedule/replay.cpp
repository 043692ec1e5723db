#include "tessera/schedule/replay.h"

#include <algorithm>
#include <array>
#include <cmath>
#include <cstdlib>

#include "tessera/base/error.h"
#include "tessera/base/text.h"
#include "tessera/schedule/memory.h"
#include "tessera/schedule/results.h"

namespace tessera::schedule {
namespace {

constexpr double kNever = -1;

struct CostName {
  const char* name;
  double Costs::* cost;
};

constexpr std::array kCostNames = {
    CostName{"F", &Costs::forward}, CostName{"B", &Costs::input}, CostName{"W", &Costs::weight},
    CostName{"send", &Costs::send}, CostName{"S", &Costs::head},  CostName{"T", &Costs::head_backward},
    CostName{"E", &Costs::embed},
};

double duration_of(const Action& action, const Costs& costs, double share) {
  switch (action.kind) {
    case ActionKind::kForward:
    case ActionKind::kRecompute: return share * costs.forward;
    case ActionKind::kBackward: return share * (costs.input + costs.weight);
    case ActionKind::kInput: return share * costs.input;
    case ActionKind::kWeight: return share * costs.weight;
    case ActionKind::kHead: return costs.head;
    case ActionKind::kHeadBackward: return costs.head_backward;
    case ActionKind::kEmbed:
    case ActionKind::kEmbedBackward: return costs.embed;
    default: return 0;
  }
}

class Clock {
 public:
  Clock(const Schedule& schedule, const Costs& costs)
      : schedule_(schedule),
        costs_(costs),
        share_(share_of_stage(schedule)),
        ends_(schedule, kNever),
        arrivals_(schedule, kNever),
        now_(schedule.ranks.size(), 0) {
    replay_.times.resize(schedule.ranks.size());
    replay_.busy.resize(schedule.ranks.size(), 0);
  }

  Replay run() {
    for (bool moves = true; moves;) {
      moves = false;
      for (int64_t rank = 0; rank < schedule_.num_ranks(); ++rank) {
        while (try_step(rank)) {
          moves = true;
        }
      }
    }
    for (size_t rank = 0; rank < schedule_.ranks.size(); ++rank) {
      const auto position = replay_.times[rank].size();
      TESSERA_CHECK_AS(PlanError, position == schedule_.ranks[rank].size(), "[schedule] rank ", rank,
                       " waits for ever at action ", position, " (", schedule_.ranks[rank][position],
                       "); accepted: schedules that verify_schedule does not refuse");
      replay_.makespan = std::max(replay_.makespan, now_[rank]);
    }
    return std::move(replay_);
  }

 private:
  bool try_step(int64_t rank) {
    const auto index = static_cast<size_t>(rank);
    const auto position = replay_.times[index].size();
    if (position == schedule_.ranks[index].size()) {
      return false;
    }
    const Action& action = schedule_.ranks[index][position];
    double begin = now_[index];
    if (is_compute(action.kind) && !(try_have_needs(rank, action, begin) && try_meet(action, begin))) {
      return false;
    }
    const double duration = duration_of(action, costs_, share_);
    for (const Result& result : results_of(action)) {
      ends_[result] = begin + duration;
    }
    now_[index] = begin + duration;
    replay_.busy[index] += duration;
    replay_.times[index].push_back({begin, begin + duration});
    return true;
  }

  // Puts `begin` off to when all is there that the pass needs, or says that it is not yet known when.
  bool try_have_needs(int64_t rank, const Action& action, double& begin) {
    for (const Result& need : needs_of(schedule_, action)) {
      const double end = ends_[need];
      if (end == kNever) {
        return false;
      }
      begin = std::max(begin, end + (maker_of(schedule_, need) == rank ? 0 : costs_.send));
    }
    return true;
  }

  // The same for when all ranks have come to the pass, if they meet in it.
  bool try_meet(const Action& action, double& begin) {
    for (const Result& result : results_of(action)) {
      arrivals_[result] = begin;
    }
    for (const Result& other : met_by(schedule_, action)) {
      if (arrivals_[other] == kNever) {
        return false;
      }
      begin = std::max(begin, arrivals_[other]);
    }
    return true;
  }

  const Schedule& schedule_;
  const Costs& costs_;
  const double share_;
  ResultTable<double> ends_, arrivals_;  // of passes, by what they make; arrivals: of those in which ranks meet
  std::vector<double> now_;
  Replay replay_;
};

}  // namespace

Costs parse_costs(std::string_view text) {
  Costs costs;
  if (base::trim(text).empty()) {
    return costs;
  }
  for (const auto& part : base::split(text, ',')) {
    const auto equals = part.find('=');
    const auto name = std::string(base::trim(std::string_view(part).substr(0, equals)));
    const auto* found =
        std::find_if(kCostNames.begin(), kCostNames.end(), [&](const CostName& known) { return name == known.name; });
    const auto value = equals == std::string::npos ? std::string() : std::string(base::trim(part.substr(equals + 1)));
    char* end = nullptr;
    const double cost = std::strtod(value.c_str(), &end);
    TESSERA_CHECK_AS(ConfigError,
                     found != kCostNames.end() && !value.empty() && *end == '\0' && std::isfinite(cost) && cost >= 0,
                     "[schedule] costs \"", part, "\"; accepted: a name of ",
                     base::join(kCostNames, ", ", [](std::ostream& out, const CostName& known) { out << known.name; }),
                     " and a number that is not negative, as F=1,B=1,W=1,send=0.1");
    costs.*(found->cost) = cost;
  }
  return costs;
}

double Replay::idle() const {
  double all = 0;
  for (const double time : busy) {
    all += time;
  }
  return makespan == 0 ? 0 : 1 - all / (makespan * static_cast<double>(busy.size()));
}

double Replay::idle_in_window(int64_t rank) const {
  const auto& of_rank = times[static_cast<size_t>(rank)];
  const auto works = [](const Interval& interval) { return interval.end > interval.begin; };
  const auto first = std::find_if(of_rank.begin(), of_rank.end(), works);
  if (first == of_rank.end()) {
    return 0;
  }
  const auto last = std::find_if(of_rank.rbegin(), of_rank.rend(), works);
  return last->end - first->begin - busy[static_cast<size_t>(rank)];
}

Replay replay_schedule(const Schedule& schedule, const Costs& costs) { return Clock(schedule, costs).run(); }

}  // namespace tessera::schedule
