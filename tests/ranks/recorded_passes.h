// The passes of a schedule that a rank ran, as libtorch's observers are told.
#pragma once

#include <memory>
#include <vector>

#include <ATen/record_function.h>

#include "tessera/schedule/action.h"

namespace tessera::ranks {

// While it lives, keeps those of this thread in their order.
class RecordedPasses {
 public:
  RecordedPasses() : outer_(recording) { recording = this; }
  ~RecordedPasses() {
    at::removeCallback(handle_);
    recording = outer_;
  }
  RecordedPasses(const RecordedPasses&) = delete;
  RecordedPasses& operator=(const RecordedPasses&) = delete;

  const std::vector<schedule::Action>& actions() const { return actions_; }

 private:
  static std::unique_ptr<at::ObserverContext> keep(const at::RecordFunction& span) {
    if (const auto action = schedule::try_parse_action(span.name())) {
      recording->actions_.push_back(*action);
    }
    return nullptr;
  }

  inline static thread_local RecordedPasses* recording = nullptr;

  RecordedPasses* outer_;
  std::vector<schedule::Action> actions_;
  at::CallbackHandle handle_ =
      at::addThreadLocalCallback(at::RecordFunctionCallback(keep).scopes({at::RecordScope::USER_SCOPE}));
};

}  // namespace tessera::ranks
