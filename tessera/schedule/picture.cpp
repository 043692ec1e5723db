#include "tessera/schedule/picture.h"

#include <algorithm>
#include <array>
#include <cctype>
#include <cmath>
#include <functional>
#include <sstream>

#include "tessera/base/text.h"

namespace tessera::schedule {
namespace {

struct Look {
  char letter;
  const char* colour;        // of a rank's first stage
  const char* later_colour;  // of the others
  const char* what;
};

// Of the kinds that take time.
Look look_of(ActionKind kind) {
  switch (kind) {
    case ActionKind::kForward: return {'F', "#9ecae1", "#4292c6", "forward"};
    case ActionKind::kBackward: return {'B', "#a1d99b", "#41ab5d", "backward"};
    case ActionKind::kInput: return {'I', "#fdd0a2", "#fd8d3c", "input backward"};
    case ActionKind::kWeight: return {'W', "#dadaeb", "#9e9ac8", "weight backward"};
    case ActionKind::kRecompute: return {'R', "#deebf7", "#c6dbef", "recompute"};
    case ActionKind::kHead: return {'S', "#fee391", "#fee391", "head"};
    case ActionKind::kHeadBackward: return {'T', "#fec44f", "#fec44f", "head backward"};
    case ActionKind::kEmbed: return {'E', "#fcc5c0", "#fcc5c0", "embedding"};
    default: return {'D', "#f768a1", "#f768a1", "embedding backward"};
  }
}

// What is drawn of an action.
struct Box {
  const Action* action;
  int64_t rank;
  bool is_later;  // of a stage of the rank that is not its first
  double begin, end;

  std::string label() const {
    const char letter = look_of(action->kind).letter;
    return (is_later ? static_cast<char>(std::tolower(letter)) : letter) + std::to_string(action->micro_batch);
  }
};

std::vector<Box> boxes_of(const Schedule& schedule, const Replay& replay) {
  std::vector<Box> boxes;
  for (int64_t rank = 0; rank < schedule.num_ranks(); ++rank) {
    const auto index = static_cast<size_t>(rank);
    const auto stages = schedule.stages_of(rank);
    for (size_t i = 0; i < schedule.ranks[index].size(); ++i) {
      const Action& action = schedule.ranks[index][i];
      const Interval& time = replay.times[index][i];
      if (is_compute(action.kind) && time.end > time.begin) {
        const bool is_later = !is_of_vocabulary(action.kind) && !stages.empty() && action.stage != stages.front();
        boxes.push_back({&action, rank, is_later, time.begin, time.end});
      }
    }
  }
  return boxes;
}

double shortest(const std::vector<Box>& boxes) {
  double unit = boxes.empty() ? 1 : boxes.front().end - boxes.front().begin;
  for (const Box& box : boxes) {
    unit = std::min(unit, box.end - box.begin);
  }
  return unit;
}

// The kinds that are drawn, each once.
std::vector<ActionKind> kinds_of(const std::vector<Box>& boxes) {
  std::vector<ActionKind> kinds;
  for (const Box& box : boxes) {
    if (std::find(kinds.begin(), kinds.end(), box.action->kind) == kinds.end()) {
      kinds.push_back(box.action->kind);
    }
  }
  std::sort(kinds.begin(), kinds.end());
  return kinds;
}

constexpr double kBox = 24, kLeft = 64, kTop = 12, kLegend = 150;  // of the SVG, in pixels

void add_box(std::ostream& out, const Box& box, double scale) {
  const Look look = look_of(box.action->kind);
  const double x = kLeft + box.begin * scale, width = (box.end - box.begin) * scale;
  const double y = kTop + kBox * static_cast<double>(box.rank);
  out << "<rect x=\"" << x << "\" y=\"" << y << "\" width=\"" << width << "\" height=\"" << kBox - 2 << "\" fill=\""
      << (box.is_later ? look.later_colour : look.colour) << "\" stroke=\"#fff\"><title>" << *box.action << ": "
      << box.begin << " to " << box.end << "</title></rect><text x=\"" << x + width / 2 << "\" y=\"" << y + 15
      << "\" text-anchor=\"middle\">" << box.action->micro_batch << "</text>\n";
}

}  // namespace

std::string to_text(const Schedule& schedule, const Replay& replay) {
  const auto boxes = boxes_of(schedule, replay);
  size_t widest = 0;
  for (const Box& box : boxes) {
    widest = std::max(widest, box.label().size());
  }
  const double scale = static_cast<double>(widest + 1) / shortest(boxes);
  const auto column = [scale](double time) { return static_cast<size_t>(std::lround(time * scale)); };
  std::vector<std::string> lines(schedule.ranks.size());
  for (const Box& box : boxes) {
    auto& line = lines[static_cast<size_t>(box.rank)];
    line.resize(column(box.begin), ' ');
    auto label = box.label();
    label.resize(column(box.end) - column(box.begin), '-');
    label.back() = ' ';
    line += label;
  }
  std::ostringstream out;
  for (size_t rank = 0; rank < lines.size(); ++rank) {
    const auto number = std::to_string(rank);
    const auto end = lines[rank].find_last_not_of(' ');
    out << "rank " << number << std::string(std::to_string(lines.size() - 1).size() - number.size() + 1, ' ') << "|"
        << lines[rank].substr(0, end == std::string::npos ? 0 : end + 1) << "\n";
  }
  return out.str();
}

std::string to_svg(const Schedule& schedule, const Replay& replay) {
  const auto boxes = boxes_of(schedule, replay);
  const double scale = kBox / shortest(boxes);
  const auto kinds = kinds_of(boxes);
  const double below = kTop + kBox * static_cast<double>(schedule.num_ranks());
  const double width =
      std::max(kLeft + replay.makespan * scale + kTop, kLeft + kLegend * static_cast<double>(kinds.size()));
  std::ostringstream out;
  out << "<svg xmlns=\"http://www.w3.org/2000/svg\" width=\"" << width << "\" height=\"" << below + 2 * kBox
      << "\" font-family=\"sans-serif\" font-size=\"11\">\n<rect width=\"100%\" height=\"100%\" fill=\"#fff\"/>\n";
  for (int64_t rank = 0; rank < schedule.num_ranks(); ++rank) {
    const double y = kTop + kBox * static_cast<double>(rank);
    out << "<text x=\"8\" y=\"" << y + 15 << "\">rank " << rank << "</text><rect x=\"" << kLeft << "\" y=\"" << y
        << "\" width=\"" << replay.makespan * scale << "\" height=\"" << kBox - 2 << "\" fill=\"#f0f0f0\"/>\n";
  }
  for (const Box& box : boxes) {
    add_box(out, box, scale);
  }
  for (size_t i = 0; i < kinds.size(); ++i) {
    const double x = kLeft + kLegend * static_cast<double>(i);
    out << "<rect x=\"" << x << "\" y=\"" << below + 8 << "\" width=\"14\" height=\"14\" fill=\""
        << look_of(kinds[i]).colour << "\"/><text x=\"" << x + 20 << "\" y=\"" << below + 20 << "\">"
        << look_of(kinds[i]).what << "</text>\n";
  }
  out << "</svg>\n";
  return out.str();
}

std::string to_chrome_trace(const Schedule& schedule, const Replay& replay) {
  constexpr double kMicroseconds = 1000;  // of a unit of the costs
  std::ostringstream out;
  out.precision(17);
  out << "{\"traceEvents\": [";
  const char* separator = "\n";
  for (size_t rank = 0; rank < schedule.ranks.size(); ++rank) {
    out << separator << R"({"name": "thread_name", "ph": "M", "pid": 0, "tid": )" << rank
        << R"(, "args": {"name": "rank )" << rank << "\"}}";
    separator = ",\n";
    for (size_t i = 0; i < schedule.ranks[rank].size(); ++i) {
      const Action& action = schedule.ranks[rank][i];
      const Interval& time = replay.times[rank][i];
      out << separator << R"({"name": ")" << action << R"(", "cat": ")" << name_of(action.kind)
          << R"(", "ph": "X", "pid": 0, "tid": )" << rank << ", \"ts\": " << time.begin * kMicroseconds
          << ", \"dur\": " << (time.end - time.begin) * kMicroseconds << "}";
    }
  }
  out << "\n]}\n";
  return out.str();
}

}  // namespace tessera::schedule
