#include "tessera/watch/explain_report.h"

#include <algorithm>
#include <cctype>
#include <iomanip>
#include <map>
#include <sstream>

#include <nlohmann/json.hpp>

#include "tessera/base/hints.h"
#include "tessera/base/text.h"

namespace tessera::watch {
namespace {

using base::human_bytes;
using base::human_duration;
using Json = nlohmann::ordered_json;

const char* remark_of(Remedy remedy) {
  switch (remedy) {
    case Remedy::kStore: return "kept as it is read: more memory on each rank, nothing gathered";
    case Remedy::kKeep: return "in forward: what is computed from it then stays where it is";
    case Remedy::kPlanPart: return "sequence parallel: norms and sums work on parts; as many bytes, half of them here";
    case Remedy::kMergePart: return "merged into parts: half of the bytes, if nothing needs it whole";
    default: return "";
  }
}

std::string of_count(int64_t count, const char* what) { return c10::str(count, " ", what, count == 1 ? "" : "s"); }

// The index of what was added under `key` before, or of a new last element.
template <typename Item, typename Key>
Item& item_of(std::vector<Item>& items, std::map<Key, size_t>& by_key, const Key& key) {
  const auto [entry, is_new] = by_key.try_emplace(key, items.size());
  if (is_new) {
    items.emplace_back();
  }
  return items[entry->second];
}

std::string key_of(const ExplainedCall& call) {
  std::string key = c10::str(static_cast<int>(call.place.phase), "\n", call.place.module, "\n", call.place.line, "\n",
                             call.op, "\n", base::join(call.inputs, ";"), "\n", base::join(call.outputs, ";"));
  for (const Redistribution& move : call.moves) {
    key += c10::str("\n", move.argument, " ", move.parameter, " ", move.from, move.to, move.line);
  }
  return key;
}

void add(Redistribution& all, const Redistribution& one) {
  all.count += one.count;
  all.collective_calls += one.collective_calls;
  all.bytes += one.bytes;
}

// A text of lines no longer than a width.
class Lines {
 public:
  explicit Lines(size_t width) : width_(std::max<size_t>(width, 20)) {}

  void add(const std::string& line) {
    text_ += line.size() <= width_ ? line : line.substr(0, width_ - 3) + "...";
    text_ += "\n";
  }
  // Continued on lines that are indented further, at spaces.
  void add_wrapped(std::string line, size_t indent) {
    while (line.size() > width_) {
      const size_t space = line.rfind(' ', width_);
      if (space == std::string::npos || space <= indent) {
        break;
      }
      add(line.substr(0, space));
      line = std::string(indent, ' ') + line.substr(space + 1);
    }
    add(line);
  }
  std::string text() && { return std::move(text_); }

 private:
  size_t width_;
  std::string text_;
};

void write_worst(const ExplainReport& report, Lines& lines) {
  const auto worst = report.worst();
  lines.add(worst.empty() ? "no redistribution is worth removing" : "most worth removing:");
  for (const Worst& one : worst) {
    std::ostringstream head;
    head << std::setw(10) << human_bytes(one.move.bytes) << "  " << name_of(one.place.phase) << " " << str(one.place)
         << ": " << one.op << " " << one.move.argument << " " << one.move.from << " -> " << one.move.to << " ("
         << of_count(one.operators, "operator")
         << (one.move.saved() > 0 ? ", saves up to " + human_bytes(one.move.saved()) : "") << ")";
    lines.add_wrapped(head.str(), 14);
    lines.add_wrapped(std::string(12, ' ') + one.text(), 14);
  }
}

void write_modules(const ExplainReport& report, Lines& lines) {
  lines.add("modules:");
  lines.add("     calls       time       sent  redistributions  module");
  for (const ModuleTotal& total : report.modules()) {
    std::ostringstream row;
    row << std::setw(10) << total.calls << std::setw(11) << human_duration(total.seconds) << std::setw(11)
        << human_bytes(total.bytes) << std::setw(17) << total.redistributions << "  "
        << (total.module.empty() ? "(none)" : total.module);
    lines.add(row.str());
  }
}

// The tensors of a list of parameters are many.
std::string first_few(const std::vector<std::string>& tensors) {
  constexpr size_t kMost = 6;
  if (tensors.size() <= kMost) {
    return base::join(tensors, ", ");
  }
  return base::join(std::vector(tensors.begin(), tensors.begin() + kMost), ", ") +
         c10::str(" and ", tensors.size() - kMost, " more");
}

void write_calls(const ExplainReport& report, Lines& lines) {
  lines.add("operators:");
  lines.add("     calls       time       sent  phase     operator, module");
  for (const ExplainedCall& call : report.calls) {
    std::ostringstream row;
    row << std::setw(10) << call.calls << std::setw(11) << human_duration(call.seconds) << std::setw(11)
        << human_bytes(call.bytes()) << "  " << std::left << std::setw(10) << name_of(call.place.phase) << call.op
        << " in " << str(call.place);
    lines.add_wrapped(row.str(), 36);
    if (call.is_op) {
      lines.add_wrapped(std::string(34, ' ') + first_few(call.inputs) + " -> " + first_few(call.outputs), 36);
    }
    for (const Redistribution& move : call.moves) {
      lines.add_wrapped(
          c10::str(std::string(34, ' '), "* ", move.argument, move.argument.empty() ? "" : " ", move.from, " -> ",
                   move.to, " by ", move.collectives, ", ", move.count, "x, ", human_bytes(move.bytes)),
          36);
    }
  }
}

Json json_of(const Redistribution& move) {
  return {{"argument", move.argument},
          {"parameter", move.parameter},
          {"from", move.from},
          {"to", move.to},
          {"collectives", move.collectives},
          {"count", move.count},
          {"collective_calls", move.collective_calls},
          {"bytes", move.bytes},
          {"saved", move.saved()},
          {"line", move.line}};
}

Json json_of(const ExplainedCall& call) {
  Json moves = Json::array();
  for (const Redistribution& move : call.moves) {
    moves.push_back(json_of(move));
  }
  return {{"phase", name_of(call.place.phase)},
          {"module", call.place.module},
          {"line", call.place.line},
          {"op", call.op},
          {"is_op", call.is_op},
          {"inputs", call.inputs},
          {"outputs", call.outputs},
          {"calls", call.calls},
          {"seconds", call.seconds},
          {"bytes", call.bytes()},
          {"redistributions", std::move(moves)}};
}

}  // namespace

int64_t Redistribution::saved() const {
  const bool is_removed = remedy == Remedy::kStore || remedy == Remedy::kOnce || remedy == Remedy::kKeep;
  return is_removed ? bytes : 0;
}

int64_t ExplainedCall::bytes() const {
  int64_t total = 0;
  for (const Redistribution& move : moves) {
    total += move.bytes;
  }
  return total;
}

int64_t ExplainedCall::redistributions() const {
  int64_t total = 0;
  for (const Redistribution& move : moves) {
    total += move.count;
  }
  return total;
}

int64_t ExplainReport::bytes() const {
  int64_t total = 0;
  for (const ExplainedCall& call : calls) {
    total += call.bytes();
  }
  return total;
}

int64_t ExplainReport::collective_calls() const {
  int64_t total = 0;
  for (const ExplainedCall& call : calls) {
    for (const Redistribution& move : call.moves) {
      total += move.collective_calls;
    }
  }
  return total;
}

int64_t ExplainReport::redistributions() const {
  int64_t total = 0;
  for (const ExplainedCall& call : calls) {
    total += call.redistributions();
  }
  return total;
}

double ExplainReport::seconds() const {
  double total = 0;
  for (const ExplainedCall& call : calls) {
    total += call.seconds;
  }
  return total;
}

std::vector<ModuleTotal> ExplainReport::modules() const {
  std::vector<ModuleTotal> totals;
  std::map<std::string, size_t> by_module;
  for (const ExplainedCall& call : calls) {
    ModuleTotal& total = item_of(totals, by_module, call.place.module);
    total.module = call.place.module;
    total.calls += call.is_op ? call.calls : 0;
    total.redistributions += call.redistributions();
    total.bytes += call.bytes();
    total.seconds += call.seconds;
  }
  return totals;
}

ExplainReport ExplainReport::folded() const {
  ExplainReport result{.rank = rank, .world_size = world_size, .calls = {}};
  std::map<std::string, size_t> by_key;
  for (ExplainedCall call : calls) {
    call.place.module = folded_name(call.place.module);
    call.place.parameter = folded_name(call.place.parameter);
    for (Redistribution& move : call.moves) {
      move.parameter = folded_name(move.parameter);
    }
    ExplainedCall& all = item_of(result.calls, by_key, key_of(call));
    if (all.calls == 0) {
      all = std::move(call);
      continue;
    }
    all.calls += call.calls;
    all.seconds += call.seconds;
    for (size_t i = 0; i < all.moves.size(); ++i) {
      add(all.moves[i], call.moves[i]);
    }
  }
  return result;
}

std::vector<Worst> ExplainReport::worst(size_t count) const {
  std::vector<Worst> all;
  std::map<std::string, size_t> by_key;
  const ExplainReport folded = this->folded();
  for (const ExplainedCall& call : folded.calls) {
    for (const Redistribution& move : call.moves) {
      if (move.remedy == Remedy::kNone) {
        continue;
      }
      Worst& one = item_of(all, by_key,
                           c10::str(static_cast<int>(call.place.phase), "\n", str(call.place), "\n", call.op, "\n",
                                    move.argument, "\n", move.from, move.to, move.line));
      if (one.operators == 0) {
        one = {.move = move, .place = call.place, .op = call.op, .operators = 0};
      } else {
        add(one.move, move);
      }
      one.operators += move.count;
    }
  }
  const auto worth = [](const Worst& one) { return std::pair(one.move.saved(), one.move.bytes); };
  std::stable_sort(all.begin(), all.end(), [&](const Worst& a, const Worst& b) { return worth(a) > worth(b); });
  if (all.size() > count) {
    all.resize(count);
  }
  return all;
}

std::string Worst::text() const {
  const std::string once = operators == 1 ? "before this operator, where it is made"
                                          : c10::str("once, before these ", operators, " operators");
  const char* comment = move.line.starts_with("plan:") ? "  # " : base::in_language("  // ", "  # ");
  return c10::str(move.line, comment, move.remedy == Remedy::kOnce ? once : remark_of(move.remedy));
}

std::string ExplainReport::text(size_t width) const {
  const ExplainReport folded = this->folded();
  int64_t operators = 0;
  for (const ExplainedCall& call : calls) {
    operators += call.is_op ? call.calls : 0;
  }
  Lines lines(width);
  lines.add(c10::str("rank ", rank, " of ", world_size, ": ", of_count(operators, "operator"), " in ",
                     human_duration(seconds()), "; ", of_count(redistributions(), "redistribution"), " sent ",
                     human_bytes(bytes()), " in ", of_count(collective_calls(), "collective")));
  write_worst(folded, lines);
  write_modules(folded, lines);
  write_calls(folded, lines);
  return std::move(lines).text();
}

std::string ExplainReport::json() const {
  Json all = {{"rank", rank},
              {"world_size", world_size},
              {"bytes", bytes()},
              {"collective_calls", collective_calls()},
              {"redistributions", redistributions()},
              {"seconds", seconds()},
              {"calls", Json::array()},
              {"modules", Json::array()},
              {"worst", Json::array()}};
  for (const ExplainedCall& call : calls) {
    all["calls"].push_back(json_of(call));
  }
  for (const ModuleTotal& total : modules()) {
    all["modules"].push_back({{"module", total.module},
                              {"calls", total.calls},
                              {"redistributions", total.redistributions},
                              {"bytes", total.bytes},
                              {"seconds", total.seconds}});
  }
  for (const Worst& one : worst()) {
    Json move = json_of(one.move);
    move.update({{"phase", name_of(one.place.phase)},
                 {"module", one.place.module},
                 {"op", one.op},
                 {"operators", one.operators},
                 {"text", one.text()}});
    all["worst"].push_back(std::move(move));
  }
  return all.dump(-1, ' ', false, Json::error_handler_t::replace);
}

std::string folded_name(const std::string& name) {
  return base::join(base::split(name, '.'), ".", [](std::ostream& out, const std::string& part) {
    const bool is_number =
        !part.empty() && std::all_of(part.begin(), part.end(), [](unsigned char c) { return std::isdigit(c); });
    out << (is_number ? "*" : part);
  });
}

}  // namespace tessera::watch
