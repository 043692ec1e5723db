// The float environment that kernels compute in, whatever their caller set.
#pragma once

#if defined(__x86_64__)
#include <xmmintrin.h>
#else
#include <cfenv>
#endif

namespace tessera::kernels {

// While it lives, this thread rounds to nearest, keeps denormals and traps nothing; then the caller's environment is
// back, its exception flags included. On x86-64 that is MXCSR: kernels use no x87 unit. A few nanoseconds. It belongs
// to one thread: parallel_for makes one in each of its own.
class FloatEnvironment {
 public:
#if defined(__x86_64__)
  FloatEnvironment() : before_(_mm_getcsr()) { _mm_setcsr(kDefault); }
  ~FloatEnvironment() { _mm_setcsr(before_); }
#else
  FloatEnvironment() {
    std::fegetenv(&before_);
    std::fesetenv(FE_DFL_ENV);
  }
  ~FloatEnvironment() { std::fesetenv(&before_); }
#endif
  FloatEnvironment(const FloatEnvironment&) = delete;
  FloatEnvironment& operator=(const FloatEnvironment&) = delete;

 private:
#if defined(__x86_64__)
  static constexpr unsigned kDefault = 0x1f80;
  unsigned before_;
#else
  std::fenv_t before_;
#endif
};

}  // namespace tessera::kernels
