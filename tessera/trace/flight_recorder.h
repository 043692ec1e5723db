// The last collectives of one rank, kept in memory for the day it fails.
#pragma once

#include <cstdint>
#include <functional>
#include <map>
#include <mutex>
#include <string>
#include <string_view>
#include <tuple>
#include <unordered_map>
#include <vector>

#include <c10/core/ScalarType.h>
#include <c10/util/ArrayRef.h>

namespace tessera::trace {

// What a rank is about to do.
struct Flight {
  const char* kind = "";              // all_reduce, send, ...: a literal
  const char* detail = "";            // sum, ...: a literal
  const std::string& group;           // the axis
  const std::vector<int64_t>& ranks;  // of the group
  std::string_view op = {};           // that asked for it
  c10::ScalarType dtype = c10::ScalarType::Undefined;
  c10::IntArrayRef sizes = {};  // of the first tensor; of a merge, those of every sum
  bool is_uniform = false;      // all members must call it with these sizes
  int64_t tensors = 0;
  int64_t bytes = 0;           // of all of them
  int64_t peer = -1;           // rank of the root or of the message's other end; -1: none
  int64_t tag = -1;            // of a message; -1: no message
  const void* from = nullptr;  // layouts that the tensor has and will have; outlive the recorder; null: not known
  const void* to = nullptr;
};

// A ring of the last kKept flights of one rank, each with a number that is the same on all members of its group:
// collectives count by group, messages by group, direction, other end and tag. Groups of one name and the same ranks
// count as one. A receive counts when it is waited for.
//
// Thread-safe. Costs two short locks and no allocation once its groups, operators and the ring are there.
class FlightRecorder {
 public:
  static constexpr size_t kKept = 1000;

  // Prints a layout.
  using Printer = std::string (*)(const void* layout);

  explicit FlightRecorder(Printer printer = nullptr) : printer_(printer) {}

  // Returns what `end` wants.
  uint64_t begin(const Flight& flight);
  void end(uint64_t flight, bool failed);

  // All that is kept, oldest first, as one JSON object: what `tessera trace` reads (parting.h). `reason` is why it is
  // asked for.
  std::string json(int64_t rank, int64_t world, std::string_view reason) const;

 private:
  enum class State : uint8_t { kRunning, kDone, kFailed };
  static constexpr size_t kDims = 6;

  struct Record {
    const char* kind;
    const char* detail;
    const std::string* op;
    const void* from;
    const void* to;
    size_t group;
    int64_t number, bytes, tensors, peer, tag, begin_ns, end_ns;
    int64_t sizes[kDims];
    uint8_t dims;  // kDims + 1: more than fit
    bool is_uniform;
    c10::ScalarType dtype;
    State state;
  };

  struct Group {
    std::string name;
    std::vector<int64_t> ranks;
    int64_t collectives = 0;
    std::map<std::tuple<const char*, int64_t, int64_t>, int64_t> messages;  // by kind, other end and tag
  };

  size_t group_of(const Flight& flight);
  const std::string* interned(std::string_view op);
  std::string json_of(const Record& record, int64_t to_1970) const;

  const Printer printer_;
  mutable std::mutex mutex_;
  std::vector<Record> ring_;  // number i at i % kKept
  uint64_t count_ = 0;
  std::vector<Group> groups_;
  struct Hash : std::hash<std::string_view> {
    using is_transparent = void;
  };
  std::unordered_map<std::string, char, Hash, std::equal_to<>> ops_;
};

// The file in which `rank` leaves its recorder: flight_rank_3.json.
std::string flight_file(int64_t rank);

}  // namespace tessera::trace
