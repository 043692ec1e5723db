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
    bool is_added = false;  // the part is in the sum that the body was given
  };

  // Runs the call. `onto`: null, or a part that the result may be added to instead.
  using Body = std::function<Result(const at::Tensor* onto)>;

  explicit LateCall(Body body) : body_(std::move(body)) {}

  // Runs the call, the first time that it is asked for, and lets go of what it reads.
  const Result& result() { return run(nullptr); }

  // Runs it so that its kernel adds to `sum`. False: it has run before, or its kernel does not (Note [Adding in the
  // kernel]), and result() is to be added.
  bool add_to(const at::Tensor& sum) { return body_ && run(&sum).is_added; }

 private:
  const Result& run(const at::Tensor* onto) {
    if (body_) {
      result_ = std::exchange(body_, nullptr)(onto);
    }
    return result_;
  }

  Body body_;
  Result result_;
};

}  // namespace tessera::dtensor
