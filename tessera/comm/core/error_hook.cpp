#include "tessera/comm/core/error_hook.h"

namespace tessera::comm {
namespace {

ErrorHook the_hook = nullptr;

}  // namespace

void set_error_hook(ErrorHook hook) { the_hook = hook; }

void throw_in_front(const base::CommError& error) {
  if (the_hook) {
    the_hook(error);
  }
}

}  // namespace tessera::comm
