// How errors of the world leave an operator for a program in another language.
#pragma once

#include "tessera/base/error.h"

namespace tessera::comm {

// Called with a CommError that is about to leave an operator: throws what a language front has for it. libtorch's own
// bindings know c10's families of errors alone, and would make one of them of all kinds of CommError; an exception of
// the language they hand on.
using ErrorHook = void (*)(const base::CommError& error);

// For the whole process, before any rank runs.
void set_error_hook(ErrorHook hook);

// Has the hook throw, if there is one.
void throw_in_front(const base::CommError& error);

// What `run`, the body of an operator's kernel, returns.
template <typename Run>
decltype(auto) leave_to_front(const Run& run) {
  try {
    return run();
  } catch (const base::CommError& error) {
    throw_in_front(error);
    throw;
  }
}

}  // namespace tessera::comm
