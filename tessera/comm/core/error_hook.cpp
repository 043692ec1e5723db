#include "tessera/comm/core/error_hook.h"

namespace tessera::comm {
namespace {

ErrorHook the_error_hook = nullptr;

}  // namespace

void set_error_hook(ErrorHook hook) { the_error_hook = hook; }

void throw_in_front(const base::CommError& error) {
  if (the_error_hook) {
    the_error_hook(error);
  }
}

}  // namespace tessera::comm
