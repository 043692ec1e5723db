// The first operator that made a NaN or an infinity out of none.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "tessera/dtensor/state/observer.h"
#include "tessera/watch/places.h"

namespace tessera::watch {

// What a NanFinder does when it has found one.
enum class OnNan : uint8_t { kThrow, kReport };

// One operator on one rank.
struct NanFinding {
  std::string op = {};  // aten::log
  Place place = {};
  int64_t number = 0;  // of the operator since the finder was made, from 1: the same on every rank
  int64_t rank = 0;
  bool is_nan = false;       // else an infinity
  int64_t count = 0;         // of such elements of this rank's part
  int64_t elements = 0;      // of that part
  std::string layouts = {};  // `self Float[8, 4] {tp: S(0)} -> Float[8, 4] {tp: S(0)}`
  // `aten::log gave NaN on rank 1 (3 of 16 elements of its part, operator 12, forward, layers.0.mlp at train.py:30):
  // self ...`
  std::string text() const;
};

struct FindNanOptions {
  OnNan action = OnNan::kThrow;
  Places::Locate locate = {};
};

// Watches the operators on DTensors of the calling rank while it lives, forward, backward and update. An operator is
// found when its result holds a NaN and none of its operands and numbers does, or an infinity and they are all finite.
// kThrow: the operator throws, on the rank that has it, and the others are woken as by any error. kReport: the program
// goes on.
//
// Costs a pass over every result. Looks at this rank's parts, as they are before operands are moved; not at memory that
// nobody has written, nor at gradients that wait for other samples (numerics exact), of which it sees the operators
// that make and read them. One per rank and at a time: of several, or with an Explain, the one made last is told. Every
// rank must have one. Made, used and destroyed by the rank's thread.
class NanFinder : private dtensor::OpObserver {
 public:
  explicit NanFinder(FindNanOptions options = {});
  ~NanFinder() override;
  NanFinder(const NanFinder&) = delete;
  NanFinder& operator=(const NanFinder&) = delete;

  // No longer watches.
  void stop();

  // The first of this rank.
  const std::optional<NanFinding>& own() const { return found_; }
  // The text of the first of any rank, on every rank; nothing if there is none. A rank that got a NaN from another one
  // names the operator that brought it, which is a later one. Collective over all ranks.
  std::optional<std::string> first();

  // The program is inside of the module of this dotted name.
  void enter(std::string module) { places_.enter(std::move(module)); }
  void leave() { places_.leave(); }

 private:
  struct Badness {
    bool has_nan = false, has_infinity = false;
  };
  struct Open {
    const Place* place = nullptr;
    int64_t number = 0;
    std::vector<c10::IValue> args = {};
    std::optional<Badness> given = {};  // what the arguments hold, where the operator overwrites some
  };

  void on_begin(dtensor::RankState& state, const dtensor::OpInfo& info, c10::ArrayRef<c10::IValue> args) override;
  void on_results(dtensor::RankState& state, const dtensor::OpInfo& info, c10::ArrayRef<c10::IValue> results) override;
  void on_end(dtensor::RankState& state, const dtensor::OpInfo& info) noexcept override;
  void look_at(dtensor::RankState& state, const dtensor::OpInfo& info, c10::ArrayRef<c10::IValue> results);
  static Badness of(c10::ArrayRef<c10::IValue> values);
  static void add(Badness& all, const at::Tensor& tensor);

  dtensor::RankState& state_;
  dtensor::OpObserver* const previous_;
  const OnNan action_;
  Places places_;
  int64_t calls_ = 0;
  std::vector<Open> open_;
  std::optional<NanFinding> found_;
};

}  // namespace tessera::watch
