#include "tessera/comm/core/wait_hook.h"

namespace tessera::comm {
namespace {

WaitHook the_hook;

}  // namespace

void set_wait_hook(WaitHook hook) { the_hook = hook; }

WaitScope::WaitScope() : token_(the_hook.begin ? the_hook.begin() : nullptr) {}

WaitScope::~WaitScope() {
  if (the_hook.end) {
    the_hook.end(token_);
  }
}

}  // namespace tessera::comm
