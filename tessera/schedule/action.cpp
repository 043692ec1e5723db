#include "tessera/schedule/action.h"

#include <array>
#include <sstream>

#include "tessera/base/text.h"

namespace tessera::schedule {
namespace {

constexpr std::array<const char*, kActionKinds> kNames = {
    "F",       "B",       "I",           "W",         "SEND_F", "RECV_F", "SEND_B",  "RECV_B",
    "UNSHARD", "RESHARD", "REDUCE_GRAD", "RECOMPUTE", "HEAD_F", "HEAD_B", "EMBED_F", "EMBED_B"};

bool is_digit(char c) { return c >= '0' && c <= '9'; }

std::optional<ActionKind> try_kind(std::string_view name) {
  for (size_t i = 0; i < kNames.size(); ++i) {
    if (name == kNames[i]) {
      return static_cast<ActionKind>(i);
    }
  }
  return std::nullopt;
}

}  // namespace

bool has_micro_batch(ActionKind kind) {
  return kind != ActionKind::kGather && kind != ActionKind::kFree && kind != ActionKind::kReduce;
}

bool is_send(ActionKind kind) { return kind == ActionKind::kSendForward || kind == ActionKind::kSendBackward; }

bool is_receive(ActionKind kind) { return kind == ActionKind::kReceiveForward || kind == ActionKind::kReceiveBackward; }

bool is_of_vocabulary(ActionKind kind) { return kind >= ActionKind::kHead; }

bool is_compute(ActionKind kind) { return has_micro_batch(kind) && !is_send(kind) && !is_receive(kind); }

const char* name_of(ActionKind kind) { return kNames.at(static_cast<size_t>(kind)); }

std::string to_string(const Action& action) {
  std::ostringstream out;
  out << action;
  return out.str();
}

std::ostream& operator<<(std::ostream& out, const Action& action) {
  out << action.stage << name_of(action.kind);
  if (has_micro_batch(action.kind)) {
    out << action.micro_batch;
  }
  return out;
}

std::optional<Action> try_parse_action(std::string_view text) {
  size_t begin = 0, end = text.size();
  while (begin < end && is_digit(text[begin])) {
    ++begin;
  }
  while (end > begin && is_digit(text[end - 1])) {
    --end;
  }
  const auto stage = base::try_parse_int(text.substr(0, begin));
  const auto kind = try_kind(text.substr(begin, end - begin));
  const auto micro_batch = base::try_parse_int(text.substr(end));
  if (!stage || !kind || micro_batch.has_value() != has_micro_batch(*kind) || (!micro_batch && end != text.size())) {
    return std::nullopt;
  }
  return Action{*kind, *stage, micro_batch.value_or(-1)};
}

}  // namespace tessera::schedule
