// What one `deferred` block did to tensors, in order.
#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <vector>

#include <ATen/core/Tensor.h>
#include <ATen/core/dispatch/Dispatcher.h>
#include <ATen/core/stack.h>

#include "tessera/dtensor/front/plain.h"
#include "tessera/dtensor/state/state.h"

namespace tessera::parallel {

// A tensor among the arguments of a recorded call: a value of the tape. (Plain tensors stay in the arguments.)
struct Reference {
  int arg = 0;
  int item = -1;  // in a list
  int64_t value = 0;
};

struct Recorded {
  c10::OperatorHandle op;
  std::vector<c10::IValue> args;  // without the tape's own tensors
  std::vector<Reference> references;
  std::vector<int64_t> results;  // values, in the order of the results; a value written in place stands again
  // Where the program was, if this call draws random numbers and a rank recorded it: whenever the tape is replayed,
  // they are those that the constructor would have drawn.
  std::optional<dtensor::ProgramPoint> point;
  std::vector<int64_t> strides;  // of what it draws, on one device
};

// Records calls instead of running them; their shapes (and their errors) come from meta tensors. One thread.
class Tape final : public dtensor::Recorder, public dtensor::FactoryHook, public std::enable_shared_from_this<Tape> {
 public:
  void make(const c10::OperatorHandle& op, torch::jit::Stack* stack) override { record(op, stack); }
  void call(const c10::OperatorHandle& op, torch::jit::Stack* stack) override { record(op, stack); }

  // The constructor has ended: from now on tensors may still be converted and initialised, but not computed with.
  void close() { is_closed_ = true; }

  const std::vector<Recorded>& calls() const { return calls_; }
  // Sizes of each value.
  const std::vector<std::vector<int64_t>>& sizes() const { return sizes_; }

 private:
  void record(const c10::OperatorHandle& op, torch::jit::Stack* stack);
  void note_draw(Recorded& call, const torch::jit::Stack& results);
  void record_turn(const c10::OperatorHandle& view, torch::jit::Stack* stack);
  void check_not_used(const c10::OperatorHandle& op, const std::vector<at::Tensor>& tensors) const;
  at::Tensor wrap_result(const at::Tensor& meta, Recorded& call);

  std::vector<Recorded> calls_;
  std::vector<std::vector<int64_t>> sizes_;
  bool is_closed_ = false;
};

// Which value of its tape a deferred tensor is.
int64_t value_of(const at::Tensor& tensor);

// The recorded call on meta tensors with the sizes of `tensors`, one for each reference.
torch::jit::Stack run_on_meta(const Recorded& call, const std::vector<at::Tensor>& tensors);

}  // namespace tessera::parallel
