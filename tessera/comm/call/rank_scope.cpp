#include "tessera/comm/call/rank_scope.h"

#include <dlfcn.h>

#include <algorithm>
#include <limits>
#include <mutex>
#include <stdexcept>
#include <typeinfo>

#include <ATen/Parallel.h>
#include <c10/core/AutogradState.h>

#include "tessera/base/error.h"
#include "tessera/base/freed_memory.h"
#include "tessera/comm/call/flight.h"
#include "tessera/comm/core/errors.h"
#include "tessera/comm/core/first_use.h"
#include "tessera/comm/core/rank_hooks.h"

namespace tessera::comm {
namespace {

c10::AutogradState& autograd() { return c10::AutogradState::get_tls_state(); }

// Throws `error` anew with `prefix` before its message if it is exactly a T.
template <typename T>
void throw_if_exactly(const std::exception& error, const std::string& prefix) {
  if (typeid(error) != typeid(T)) {
    return;
  }
  const auto message = prefix + base::message_of(error);
  if constexpr (std::is_base_of_v<c10::Error, T>) {
    throw T({__func__, __FILE__, static_cast<uint32_t>(__LINE__)}, message);
  } else {
    throw T(message);
  }
}

template <typename... Types>
void throw_if_one_of(const std::exception& error, const std::string& prefix) {
  (throw_if_exactly<Types>(error, prefix), ...);
}

}  // namespace

RankScope::RankScope() : multithreading_before_(autograd().get_multithreading_enabled()) {
  static std::once_flag first;
  std::call_once(first, base::keep_freed_memory);
  settle_first_use();
  autograd().set_multithreading_enabled(false);
  record_flights(RankContext::require());
  for (const auto& hook : rank_hooks()) {
    guards_.push_back(hook());
  }
}

RankScope::~RankScope() {
  while (!guards_.empty()) {
    guards_.pop_back();
  }
  autograd().set_multithreading_enabled(multithreading_before_);
}

std::chrono::milliseconds deadline_of_rank() {
  const auto* context = RankContext::current();
  return context ? context->deadline : std::chrono::milliseconds(60000);
}

// Asked of the OpenMP that is loaded, which is torch's: it has read its variables when it was, and this code is
// compiled without.
int most_intra_op_threads() {
  static const auto limit = reinterpret_cast<int (*)()>(dlsym(RTLD_DEFAULT, "omp_get_thread_limit"));
  return limit ? std::max(1, limit()) : std::numeric_limits<int>::max();
}

// The count is per thread, but each setter also leaves it as the default of threads that have not asked yet: asking
// first settles that.
void set_intra_op_threads(int count) {
  count = std::min(count, most_intra_op_threads());
  static std::mutex mutex;
  std::lock_guard lock(mutex);
  if (at::get_num_threads() != count) {
    at::set_num_threads(count);
  }
}

void rethrow_of(int64_t rank, const std::exception_ptr& error) {
  try {
    std::rethrow_exception(error);
  } catch (const base::RankFailed& echo) {
    throw;
  } catch (const std::exception& caught) {
    throw_if_one_of<c10::Error, c10::ValueError, c10::IndexError, c10::TypeError, c10::NotImplementedError,
                    c10::LinAlgError, c10::OutOfMemoryError, c10::DistBackendError, base::CommError, base::CommTimeout,
                    DivergenceError, base::DataError, base::ConfigError, base::PlanError, std::runtime_error,
                    std::logic_error, std::invalid_argument, std::out_of_range>(caught, c10::str("rank ", rank, ": "));
    throw;
  }
}

}  // namespace tessera::comm
