// The Work of a receive.
#pragma once

#include <functional>
#include <memory>
#include <utility>

#include "tessera/comm/call/call_scope.h"

namespace tessera::comm {

// A message to come: `receive` fills the output of the call that it is given, in the first wait. What numbers it is
// drawn when it is issued, so that waits may come in any order.
class ReceiveWork : public Work {
 public:
  ReceiveWork(std::shared_ptr<Communicator> owner, Call call, at::Tensor output,
              std::function<void(const Call&)> receive)
      : owner_(std::move(owner)), call_(call), output_(std::move(output)), receive_(std::move(receive)) {
    call_.outputs = output_;
  }

  void wait() override {
    if (!is_done_) {
      CallScope scope(call_);
      receive_(call_);
      is_done_ = true;
    }
  }

 private:
  std::shared_ptr<Communicator> owner_;
  Call call_;
  at::Tensor output_;
  std::function<void(const Call&)> receive_;
  bool is_done_ = false;
};

}  // namespace tessera::comm
