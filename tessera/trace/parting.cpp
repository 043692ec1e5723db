#include "tessera/trace/parting.h"

#include <algorithm>
#include <cmath>
#include <map>
#include <optional>
#include <tuple>

#include "tessera/base/error.h"
#include "tessera/base/text.h"

namespace tessera::trace {
namespace {

using Ranks = std::vector<int64_t>;

std::string ranks_text(const Ranks& ranks) {
  return (ranks.size() == 1 ? "rank " : "ranks ") + base::join(ranks, ", ");
}

std::string seconds_text(double us) { return base::human_duration(std::max(us, 0.0) / 1e6); }

// `all_reduce(sum) of Float[4, 8] {tp: P} -> {tp: R} for aten::mm`.
std::string call_text(const LeftRecord& record) {
  std::string text = record.kind;
  if (record.is_message()) {
    text += c10::str(record.kind == "send" ? "(to rank " : "(from rank ", record.peer, ", tag ", record.tag, ")");
  } else if (record.peer >= 0) {
    text += c10::str("(root rank ", record.peer, ")");
  } else if (!record.detail.empty()) {
    text += "(" + record.detail + ")";
  }
  if (record.tensors > 0 || !record.sizes.empty()) {
    text += c10::str(" of ", record.tensors != 1 ? std::to_string(record.tensors) + " " : "", record.dtype, "[",
                     base::join(record.sizes, ", "), "]");
  }
  if (!record.from.empty() || !record.to.empty()) {
    text += " " + record.from + " -> " + record.to;
  }
  return text + (record.op.empty() ? "" : " for " + record.op);
}

// What must be equal on all members.
auto agreed(const LeftRecord& record) {
  return std::tuple(record.kind, record.detail, record.op, record.dtype, record.peer, record.from, record.to,
                    record.is_uniform ? record.sizes : std::vector<int64_t>{});
}

// The collectives of one group on all its members that left something.
class GroupView {
 public:
  GroupView(const LeftGroup& group, const std::vector<LeftFlights>& all) : name_(group.name), ranks_(group.ranks) {
    for (const auto& flights : all) {
      if (std::find(ranks_.begin(), ranks_.end(), flights.rank) != ranks_.end()) {
        add(flights);
      }
    }
  }

  std::string title() const { return c10::str(name_, " {", base::join(ranks_, ", "), "}"); }

  // The number at which the members that are there parted: one calls something else, or did not come.
  std::optional<int64_t> parting() const {
    if (members_.size() < 2) {
      return std::nullopt;
    }
    int64_t from = 0, most = 0, least = INT64_MAX;
    for (const auto& [rank, member] : members_) {
      from = std::max(from, member.records.empty() ? member.begun : member.records.begin()->first);
      most = std::max(most, member.begun);
      least = std::min(least, member.begun);
    }
    for (int64_t number = from; number < least; ++number) {
      if (differs_at(number)) {
        return number;
      }
    }
    return least < most ? std::optional(least) : std::nullopt;
  }

  // Whether those who came call different things.
  bool differs_at(int64_t number) const { return by_call(number).size() > 1; }

  // When the first member began it.
  double begin_of(int64_t number) const {
    double first = INFINITY;
    for (const auto& [rank, member] : members_) {
      if (const auto found = member.records.find(number); found != member.records.end()) {
        first = std::min(first, found->second->begin_us);
      }
    }
    return first;
  }

  std::string describe(int64_t number) const {
    auto text = c10::str(differs_at(number) ? "parted in " : "behind in ", title(), " at collective ", number, ":\n");
    for (const auto& [call, ranks] : by_call(number)) {
      text += "  " + ranks_text(ranks) + ": " + call + "\n";
    }
    Ranks behind;
    for (const auto& [rank, member] : members_) {
      if (member.begun <= number) {
        behind.push_back(rank);
      }
    }
    return text + (behind.empty()
                       ? ""
                       : "  " + ranks_text(behind) + (behind.size() == 1 ? ": has not come\n" : ": have not come\n"));
  }

 private:
  struct Member {
    int64_t begun = 0;
    std::map<int64_t, const LeftRecord*> records;
  };

  void add(const LeftFlights& flights) {
    auto& member = members_[flights.rank];
    for (size_t i = 0; i < flights.groups.size(); ++i) {
      if (flights.groups[i].name != name_ || flights.groups[i].ranks != ranks_) {
        continue;
      }
      member.begun = flights.groups[i].collectives;
      for (const auto& record : flights.records) {
        if (record.group == i && !record.is_message()) {
          member.records[record.number] = &record;
        }
      }
    }
  }

  // Who calls what, the one with most ranks first.
  std::vector<std::pair<std::string, Ranks>> by_call(int64_t number) const {
    std::vector<std::pair<const LeftRecord*, Ranks>> calls;
    for (const auto& [rank, member] : members_) {
      const auto found = member.records.find(number);
      if (found == member.records.end()) {
        continue;
      }
      auto same = std::find_if(calls.begin(), calls.end(),
                               [&](const auto& call) { return agreed(*call.first) == agreed(*found->second); });
      if (same == calls.end()) {
        calls.emplace_back(found->second, Ranks{});
        same = calls.end() - 1;
      }
      same->second.push_back(rank);
    }
    std::stable_sort(calls.begin(), calls.end(),
                     [](const auto& a, const auto& b) { return a.second.size() > b.second.size(); });
    std::vector<std::pair<std::string, Ranks>> texts;
    for (const auto& [record, ranks] : calls) {
      texts.emplace_back(call_text(*record), ranks);
    }
    return texts;
  }

  std::string name_;
  Ranks ranks_;
  std::map<int64_t, Member> members_;  // by rank
};

std::vector<GroupView> groups_of(const std::vector<LeftFlights>& all) {
  std::vector<GroupView> views;
  std::vector<std::pair<std::string, Ranks>> seen;
  for (const auto& flights : all) {
    for (const auto& group : flights.groups) {
      const std::pair key(group.name, group.ranks);
      if (std::find(seen.begin(), seen.end(), key) == seen.end()) {
        seen.push_back(key);
        views.emplace_back(group, all);
      }
    }
  }
  return views;
}

// All partings: different calls first, which explain why others wait; then the earliest.
std::vector<std::string> partings(const std::vector<LeftFlights>& all) {
  std::vector<std::pair<std::pair<bool, double>, std::string>> found;
  for (const auto& view : groups_of(all)) {
    if (const auto number = view.parting()) {
      found.emplace_back(std::pair(!view.differs_at(*number), view.begin_of(*number)), view.describe(*number));
    }
  }
  std::stable_sort(found.begin(), found.end(), [](const auto& a, const auto& b) { return a.first < b.first; });
  std::vector<std::string> texts;
  for (auto& [when, text] : found) {
    texts.push_back(std::move(text));
  }
  return texts;
}

// `in all_reduce(sum) ... over tp {0, 1}, collective 17, for 2.1 s`, or what the rank did last.
std::string doing(const LeftFlights& flights) {
  const auto over = [&](const LeftRecord& record) {
    const auto& group = flights.groups[record.group];
    return c10::str(call_text(record), " over ", group.name, " {", base::join(group.ranks, ", "), "}, ",
                    record.is_message() ? "message " : "collective ", record.number);
  };
  if (flights.records.empty()) {
    return "has begun no collective";
  }
  const auto& last = flights.records.back();
  if (last.is_open()) {
    return "in " + over(last) + ", for " +
           seconds_text((last.state == "failed" ? last.end_us : flights.at_us) - last.begin_us);
  }
  return "in no collective for " + seconds_text(flights.at_us - last.end_us) + "; the last was " + over(last);
}

std::string missing_text(const std::vector<LeftFlights>& all) {
  Ranks missing;
  for (int64_t rank = 0; rank < all.front().world; ++rank) {
    if (std::none_of(all.begin(), all.end(), [&](const auto& flights) { return flights.rank == rank; })) {
      missing.push_back(rank);
    }
  }
  const auto count = c10::str(all.size(), " of ", all.front().world, " ranks left their collectives");
  return count +
         (missing.empty() ? "\n" : "; " + ranks_text(missing) + " did not: finished, killed, or on another disk\n");
}

}  // namespace

std::string parting_text(const std::vector<LeftFlights>& ranks) {
  TESSERA_CHECK(!ranks.empty(), "[trace] what no rank left cannot be compared");
  auto text = missing_text(ranks);
  const auto parted = partings(ranks);
  text += parted.empty() ? "no group in which these ranks differ\n" : base::join(parted, "");
  for (const auto& flights : ranks) {
    text += c10::str("rank ", flights.rank, ": ", doing(flights), "\n  ended by: ", flights.reason, "\n");
  }
  return text;
}

}  // namespace tessera::trace
