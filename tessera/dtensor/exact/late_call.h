// Calls of a backward pass that are put off: what makes a parameter's gradient, which no other derivative waits for.
#pragma once

#include <functional>
#include <optional>
#include <utility>

#include <ATen/core/Tensor.h>

#include "tessera/dtensor/exact/sample_sum.h"

namespace tessera::dtensor {

// One such call, with the parts that it reads. Shared by the handles (pending.h) that stand for its result, or for what
// was made of it.
class LateCall {
 public:
  // What the call gives: this rank's part of the gradient, or the sum over samples that it is a term of.
  struct Result {
    at::Tensor part = {};
    std::optional<SampleSum> sum = std::nullopt;
  };

  explicit LateCall(std::function<Result()> body) : body_(std::move(body)) {}

  // Runs the call, the first time that it is asked for, and lets go of what it reads.
  const Result& result() {
    if (body_) {
      result_ = std::exchange(body_, nullptr)();
    }
    return result_;
  }

 private:
  std::function<Result()> body_;
  Result result_;
};

}  // namespace tessera::dtensor
