#include "tests/unit/schedule/brute_force.h"

#include <algorithm>
#include <map>
#include <vector>

namespace tessera::schedule {
namespace {

struct Place {
  size_t rank, position;
};

class Force {
 public:
  Force(const Schedule& schedule, int64_t buffers)
      : schedule_(schedule), stages_(schedule.num_stages()), buffers_(static_cast<size_t>(buffers)) {
    for (size_t rank = 0; rank < schedule.ranks.size(); ++rank) {
      begins_.push_back(count_);
      for (size_t position = 0; position < schedule.ranks[rank].size(); ++position, ++count_) {
        places_[to_string(schedule.ranks[rank][position])].push_back({rank, position});
        const auto text = to_string(schedule.ranks[rank][position]);
        has_messages_ = has_messages_ || text.find('_') != std::string::npos;
      }
    }
    before_.resize(count_);
  }

  bool run() { return knows_all() && has_each_once() && is_in_order() && pairs_match() && has_no_circle(); }

 private:
  int64_t rank_of(int64_t stage) const { return schedule_.rank_of_stage.at(static_cast<size_t>(stage)); }
  bool is_apart(int64_t a, int64_t b) const { return rank_of(a) != rank_of(b); }
  static std::string text(int64_t stage, const std::string& kind, int64_t k) {
    return std::to_string(stage) + kind + std::to_string(k);
  }
  size_t times(const std::string& action) const { return places_.count(action) == 0 ? 0 : places_.at(action).size(); }
  size_t number(const Place& place) const { return begins_[place.rank] + place.position; }

  // Texts that a right schedule may have, and how often they are there at most. Others are wrong.
  bool knows_all() const {
    for (const auto& [action, places] : places_) {
      bool is_known = false;
      for (int64_t s = 0; s < stages_ && !is_known; ++s) {
        for (int64_t k = 0; k < schedule_.micro_batches && !is_known; ++k) {
          is_known = action == text(s, "F", k) || action == text(s, "B", k) || action == text(s, "I", k) ||
                     action == text(s, "W", k);
          if (s + 1 < stages_ && is_apart(s, s + 1)) {
            is_known = is_known || action == text(s, "SEND_F", k) || action == text(s + 1, "RECV_F", k) ||
                       action == text(s + 1, "SEND_B", k) || action == text(s, "RECV_B", k);
          }
          if (is_known && static_cast<int64_t>(places[0].rank) !=
                              rank_of(s + (action == text(s + 1, "RECV_F", k) || action == text(s + 1, "SEND_B", k)))) {
            return false;
          }
        }
      }
      if (!is_known || places.size() != 1) {
        return false;
      }
    }
    return true;
  }

  bool has_each_once() const {
    for (int64_t s = 0; s < stages_; ++s) {
      for (int64_t k = 0; k < schedule_.micro_batches; ++k) {
        const auto full = times(text(s, "B", k)), input = times(text(s, "I", k)), weight = times(text(s, "W", k));
        if (times(text(s, "F", k)) != 1 || full + input != 1 || full + weight != 1) {
          return false;
        }
        const bool is_sent = has_messages_ && s + 1 < stages_ && is_apart(s, s + 1);
        for (const auto& message : {text(s, "SEND_F", k), text(s, "RECV_B", k)}) {
          if (times(message) != (is_sent ? 1 : 0)) {
            return false;
          }
        }
        for (const auto& message : {text(s + 1, "SEND_B", k), text(s + 1, "RECV_F", k)}) {
          if (times(message) != (is_sent ? 1 : 0)) {
            return false;
          }
        }
      }
    }
    return true;
  }

  // The one place of the input gradient's pass.
  Place gradient(int64_t s, int64_t k) const {
    return places_.at(times(text(s, "B", k)) == 1 ? text(s, "B", k) : text(s, "I", k))[0];
  }
  Place place(const std::string& action) const { return places_.at(action)[0]; }

  // `first` must end before `second` begins; on one rank it must stand before it.
  bool demand(const Place& first, const Place& second) {
    if (first.rank == second.rank) {
      return first.position < second.position;
    }
    before_[number(second)].push_back(number(first));
    return true;
  }

  bool is_in_order() {
    bool is_right = true;
    for (int64_t k = 0; k < schedule_.micro_batches; ++k) {
      for (int64_t s = 0; s < stages_; ++s) {
        is_right = is_right && demand(place(text(s, "F", k)), gradient(s, k));
        if (times(text(s, "W", k)) == 1) {
          is_right = is_right && demand(gradient(s, k), place(text(s, "W", k)));
        }
        if (s + 1 == stages_) {
          continue;
        }
        if (!has_messages_ || !is_apart(s, s + 1)) {
          is_right = is_right && demand(place(text(s, "F", k)), place(text(s + 1, "F", k))) &&
                     demand(gradient(s + 1, k), gradient(s, k));
          continue;
        }
        is_right = is_right && demand(place(text(s, "F", k)), place(text(s, "SEND_F", k))) &&
                   demand(place(text(s, "SEND_F", k)), place(text(s + 1, "RECV_F", k))) &&
                   demand(place(text(s + 1, "RECV_F", k)), place(text(s + 1, "F", k))) &&
                   demand(gradient(s + 1, k), place(text(s + 1, "SEND_B", k))) &&
                   demand(place(text(s + 1, "SEND_B", k)), place(text(s, "RECV_B", k))) &&
                   demand(place(text(s, "RECV_B", k)), gradient(s, k));
      }
    }
    return is_right;
  }

  // The n-th message from one rank to another is the n-th that the other takes, and waits until there is room.
  bool pairs_match() {
    std::map<std::pair<int64_t, int64_t>, std::vector<std::string>> sent, taken;
    for (size_t rank = 0; rank < schedule_.ranks.size(); ++rank) {
      const auto r = static_cast<int64_t>(rank);
      for (const Action& action : schedule_.ranks[rank]) {
        const auto s = action.stage, k = action.micro_batch;
        switch (action.kind) {
          case ActionKind::kSendForward: sent[{r, rank_of(s + 1)}].push_back(text(s, "forward", k)); break;
          case ActionKind::kSendBackward: sent[{r, rank_of(s - 1)}].push_back(text(s, "backward", k)); break;
          case ActionKind::kReceiveForward: taken[{rank_of(s - 1), r}].push_back(text(s - 1, "forward", k)); break;
          case ActionKind::kReceiveBackward: taken[{rank_of(s + 1), r}].push_back(text(s + 1, "backward", k)); break;
          default: break;
        }
      }
    }
    for (const auto& [pair, messages] : sent) {
      for (size_t n = buffers_; n < messages.size(); ++n) {
        before_[number(end_of(messages[n], true))].push_back(number(end_of(messages[n - buffers_], false)));
      }
    }
    return sent == taken;
  }

  // Where a message is sent, or where it is received.
  Place end_of(const std::string& message, bool is_send) const {
    const auto at = message.find("ward") - (message.find("back") == std::string::npos ? 3 : 4);
    const auto s = std::stoll(message.substr(0, at));
    const auto k = std::stoll(message.substr(message.find("ward") + 4));
    const bool is_forward = message.find("back") == std::string::npos;
    const auto other = is_forward ? s + 1 : s - 1;
    const std::string way = is_forward ? "F" : "B";
    return place(is_send ? text(s, "SEND_" + way, k) : text(other, "RECV_" + way, k));
  }

  // Takes away, again and again, an action before which nothing is left.
  bool has_no_circle() const {
    std::vector<bool> is_gone(count_, false);
    for (size_t left = count_, last = count_ + 1; left > 0 && left < last;) {
      last = left;
      for (size_t rank = 0; rank < begins_.size(); ++rank) {
        for (size_t position = 0; position < schedule_.ranks[rank].size(); ++position) {
          const auto i = begins_[rank] + position;
          const bool is_free = (position == 0 || is_gone[i - 1]) &&
                               std::all_of(before_[i].begin(), before_[i].end(), [&](size_t j) { return is_gone[j]; });
          if (!is_gone[i] && is_free) {
            is_gone[i] = true;
            --left;
          }
        }
      }
    }
    return std::all_of(is_gone.begin(), is_gone.end(), [](bool gone) { return gone; });
  }

  const Schedule& schedule_;
  const int64_t stages_;
  const size_t buffers_;
  size_t count_ = 0;
  bool has_messages_ = false;
  std::vector<size_t> begins_;
  std::map<std::string, std::vector<Place>> places_;
  std::vector<std::vector<size_t>> before_;
};

}  // namespace

bool can_run_by_force(const Schedule& schedule, int64_t buffers) { return Force(schedule, buffers).run(); }

}  // namespace tessera::schedule
