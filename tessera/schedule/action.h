// One thing that a rank of a pipeline does: what, for which stage, of which micro-batch.
#pragma once

#include <cstdint>
#include <optional>
#include <ostream>
#include <string>
#include <string_view>

namespace tessera::schedule {

// The texts are those of torch.distributed.pipelining, but for those behind kReduce, which it does not know.
//
// LOAD and EVICT are reserved for schedules that move what a stage holds; nothing reads or writes them yet.
enum class ActionKind : uint8_t {
  kForward,          // F
  kBackward,         // B: both halves, input and weight
  kInput,            // I: the half of backward that the stage before waits for
  kWeight,           // W: the half that makes gradients of parameters; it may come late
  kSendForward,      // SEND_F: the stage's output, to the stage behind it
  kReceiveForward,   // RECV_F: the stage's input, from the stage before it
  kSendBackward,     // SEND_B: the gradient of the stage's input, to the stage before it
  kReceiveBackward,  // RECV_B: the gradient of the stage's output, from the stage behind it
  kGather,           // UNSHARD: the stage's parameters become whole on the rank
  kFree,             // RESHARD: the rank keeps its part of them
  kReduce,           // REDUCE_GRAD: the stage's gradients are summed over ranks, after the last weight pass
  kRecompute,        // RECOMPUTE: forward again, right before backward, of a stage that kept its input alone
  kHead,             // HEAD_F: a rank's part of the head and of the loss (the S pass)
  kHeadBackward,     // HEAD_B: the gradients of that part (the T pass)
  kEmbed,            // EMBED_F: a rank's part of the embedding
  kEmbedBackward,    // EMBED_B: its gradient
};

constexpr int64_t kActionKinds = static_cast<int64_t>(ActionKind::kEmbedBackward) + 1;

// A value. Its text is stage, kind, micro-batch: `2F0`, `1SEND_B3`, `0UNSHARD`.
struct Action {
  ActionKind kind = ActionKind::kForward;
  int64_t stage = 0;         // of a pass of the vocabulary: the rank, whose part it is
  int64_t micro_batch = -1;  // none of kGather, kFree and kReduce

  friend bool operator==(const Action&, const Action&) = default;
  friend auto operator<=>(const Action&, const Action&) = default;
};

// Whether the action is of one micro-batch; the others are of a stage.
bool has_micro_batch(ActionKind kind);

bool is_send(ActionKind kind);
bool is_receive(ActionKind kind);

// HEAD_F, HEAD_B, EMBED_F or EMBED_B.
bool is_of_vocabulary(ActionKind kind);

// What takes a rank's time: F, B, I, W, RECOMPUTE and the passes of the vocabulary.
bool is_compute(ActionKind kind);

// F, RECV_B, ...
const char* name_of(ActionKind kind);

std::string to_string(const Action& action);
std::ostream& operator<<(std::ostream& out, const Action& action);

// The action of a text, or nothing if it is none: an unknown kind, no number where one belongs, one too many.
std::optional<Action> try_parse_action(std::string_view text);

}  // namespace tessera::schedule
