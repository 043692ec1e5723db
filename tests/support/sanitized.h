// Whether a test runs with sanitizers: they look at memory and threads, and take their time and memory for it.
#pragma once

namespace tessera::support {

#ifdef __SANITIZE_THREAD__
constexpr bool kHasThreadSanitizer = true;
#else
constexpr bool kHasThreadSanitizer = false;
#endif

#ifdef __SANITIZE_ADDRESS__
constexpr bool kIsSanitized = true;
#else
constexpr bool kIsSanitized = kHasThreadSanitizer;
#endif

}  // namespace tessera::support
