// The errors of tessera: two checks, the typed errors, and how an exception reads to a user.
#pragma once

#include <cstdint>
#include <exception>
#include <string>

#include <c10/util/Exception.h>
#include <c10/util/StringUtil.h>

// The caller is wrong. Message: what was attempted, the values in our notation, the rank, what would be accepted:
// `[matmul] no rule for {tp: S(1)} x {tp: P(max)} on mesh {tp=4} (rank 2); accepted: ...`. Throws c10::Error.
#define TESSERA_CHECK(cond, ...) TORCH_CHECK(cond, __VA_ARGS__)

// As TESSERA_CHECK, and throws `Type`, one of the typed errors below: TESSERA_CHECK_AS(ConfigError, n > 0, "[config]
// ...").
#define TESSERA_CHECK_AS(Type, cond, ...) \
  if (C10_UNLIKELY_OR_CONST(!(cond))) {   \
    TESSERA_THROW(Type, __VA_ARGS__);     \
  }

// Throws a typed error with the arguments written one after the other.
#define TESSERA_THROW(Type, ...) \
  throw Type({__func__, __FILE__, static_cast<uint32_t>(__LINE__)}, ::c10::str(__VA_ARGS__))

// We are wrong: unreachable from user input. On torch's internal assert; message arguments are optional.
#define TESSERA_ASSERT(cond, ...)                                                                        \
  if (C10_UNLIKELY_OR_CONST(!(cond))) {                                                                  \
    ::c10::detail::torchInternalAssertFail(__func__, __FILE__, static_cast<uint32_t>(__LINE__),          \
                                           "internal assert of tessera failed, please report it: " #cond \
                                           " at " __FILE__ ":" C10_STRINGIZE(__LINE__) ". ",             \
                                           ::c10::str(__VA_ARGS__));                                     \
  }

namespace tessera::base {

// A collective could not complete. The tensors it wrote to hold unspecified values and its communicator is unusable
// from now on; a retry needs a new communicator.
class CommError : public c10::DistBackendError {
 public:
  using c10::DistBackendError::DistBackendError;
};

// A wait passed its deadline: some rank did not come, or is slow. State as after any CommError.
class CommTimeout : public CommError {
 public:
  using CommError::CommError;
};

// Another rank threw and thereby woke this one. The message ends with that rank's own error. State as after any
// CommError.
class RankFailed : public CommError {
 public:
  // `rank` is the global rank that threw first and `message` its message_of().
  RankFailed(c10::SourceLocation where, int64_t rank, std::string message);

  int64_t rank() const { return rank_; }

 private:
  int64_t rank_;
};

// A data file is missing, empty, torn, or too short for what was asked. Nothing was changed; a retry needs another
// file.
class DataError : public c10::Error {
 public:
  using c10::Error::Error;
};

// A configuration (TOML, command line, option struct) cannot be meant: unknown key, wrong type, values that contradict.
class ConfigError : public c10::ValueError {
 public:
  using c10::ValueError::ValueError;
};

// A plan does not fit its model or its mesh. The model was not touched.
class PlanError : public c10::ValueError {
 public:
  using c10::ValueError::ValueError;
};

// The message of an exception as one paragraph: no C++ frames, no source locations that torch appends, no line breaks.
std::string message_of(const std::exception& error);

// The same for a caught exception of any type; must not be null.
std::string message_of(const std::exception_ptr& error);

}  // namespace tessera::base

namespace tessera {
using base::CommError;
using base::CommTimeout;
using base::ConfigError;
using base::DataError;
using base::PlanError;
using base::RankFailed;
}  // namespace tessera
