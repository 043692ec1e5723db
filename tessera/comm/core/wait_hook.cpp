#include "tessera/comm/core/wait_hook.h"

namespace tessera::comm {
namespace {

WaitHook the_wait_hook;

}  // namespace

void set_wait_hook(WaitHook hook) { the_wait_hook = hook; }

WaitScope::WaitScope() : token_(the_wait_hook.begin ? the_wait_hook.begin() : nullptr) {}

WaitScope::~WaitScope() {
  if (the_wait_hook.end) {
    the_wait_hook.end(token_);
  }
}

}  // namespace tessera::comm
