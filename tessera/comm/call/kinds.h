// The kinds of collectives: one row of facts each, from which calls are checked, printed, compared and carried out.
#pragma once

#include <cstddef>
#include <cstdint>
#include <iterator>

namespace tessera::comm {

enum class Kind : uint8_t {
  kAllReduce,
  kAllGather,
  kReduceScatter,
  kAllToAll,
  kBroadcast,
  kSend,
  kReceive,
  kBarrier,
  kMerge
};

// What a kind is. A member has one input and one output (Call), where a row says nothing else.
struct KindFacts {
  Kind kind;
  const char* name;              // all_reduce
  bool gives_to_each = false;    // an input for every member
  bool takes_from_each = false;  // an output from every member
  bool reduces = false;          // inputs are combined by Call::reduce; otherwise they come out as they are
  bool has_root = false;         // Call::peer, the same on all members
  bool is_message = false;       // between two members: a send or a receive
};

inline constexpr KindFacts kKinds[] = {
    {.kind = Kind::kAllReduce, .name = "all_reduce", .reduces = true},
    {.kind = Kind::kAllGather, .name = "all_gather", .takes_from_each = true},
    {.kind = Kind::kReduceScatter, .name = "reduce_scatter", .gives_to_each = true, .reduces = true},
    {.kind = Kind::kAllToAll, .name = "all_to_all", .gives_to_each = true, .takes_from_each = true},
    {.kind = Kind::kBroadcast, .name = "broadcast", .has_root = true},
    {.kind = Kind::kSend, .name = "send", .is_message = true},
    {.kind = Kind::kReceive, .name = "receive", .is_message = true},
    {.kind = Kind::kBarrier, .name = "barrier"},
    {.kind = Kind::kMerge, .name = "merge"},
};

constexpr const KindFacts& facts_of(Kind kind) { return kKinds[static_cast<size_t>(kind)]; }
constexpr const char* name_of(Kind kind) { return facts_of(kind).name; }
constexpr bool is_message(Kind kind) { return facts_of(kind).is_message; }
// Whether all members bring tensors of the same sizes. (Those of a merge may bring different numbers of them.)
constexpr bool is_uniform(Kind kind) {
  const KindFacts& facts = facts_of(kind);
  return !facts.gives_to_each && !facts.takes_from_each && !facts.is_message;
}

static_assert(
    [] {
      for (size_t i = 0; i < std::size(kKinds); ++i) {
        if (kKinds[i].kind != static_cast<Kind>(i)) {
          return false;
        }
      }
      return std::size(kKinds) == static_cast<size_t>(Kind::kMerge) + 1;
    }(),
    "a row for every kind, in their order");

}  // namespace tessera::comm
