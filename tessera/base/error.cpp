#include "tessera/base/error.h"

#include <algorithm>
#include <iterator>
#include <new>
#include <string_view>
#include <typeinfo>

#include <c10/util/Type.h>

#include "tessera/base/hints.h"

namespace tessera::base {
namespace {

// Where torch begins to write frames into a message that was flattened to text before it reached us.
constexpr std::string_view kFrameMarks[] = {"\nException raised from ", "Exception raised from ", "\nframe #0:"};

// What libtorch says of a DTensor whose memory is asked for.
constexpr std::string_view kAsksForMemory[] = {"Cannot access data pointer of Tensor that doesn't have storage",
                                               "Cannot access storage of TensorImpl"};

std::string with_hint(std::string message) {
  const bool asks = std::any_of(std::begin(kAsksForMemory), std::end(kAsksForMemory),
                                [&](std::string_view end) { return message.ends_with(end); });
  if (!asks) {
    return message;
  }
  return message + ": a DTensor has no storage of its own; print " + in_language("tessera::to_string(x)", "x") +
         ", read or save " + in_library("full_tensor(x)") + ", or take this rank's part with " +
         in_library("to_local(x)");
}

std::string one_paragraph(std::string_view text) {
  for (const auto mark : kFrameMarks) {
    text = text.substr(0, text.find(mark));
  }
  std::string out;
  bool gap = false;
  for (const char c : text) {
    if (c == ' ' || c == '\n' || c == '\t' || c == '\r') {
      gap = !out.empty();
      continue;
    }
    if (gap) {
      out += ' ';
    }
    gap = false;
    out += c;
  }
  return out;
}

}  // namespace

RankFailed::RankFailed(c10::SourceLocation where, int64_t rank, std::string message)
    : CommError(where, std::move(message)), rank_(rank) {}

std::string message_of(const std::exception& error) {
  if (dynamic_cast<const std::bad_alloc*>(&error)) {
    return "out of memory: an allocation by the C++ runtime failed";
  }
  const auto* torch_error = dynamic_cast<const c10::Error*>(&error);
  auto message = with_hint(one_paragraph(torch_error ? torch_error->what_without_backtrace() : error.what()));
  return message.empty() ? "an error of type " + c10::demangle(typeid(error).name()) + " without a message" : message;
}

std::string message_of(const std::exception_ptr& error) {
  TESSERA_ASSERT(error != nullptr, "message_of was given no exception");
  try {
    std::rethrow_exception(error);
  } catch (const std::exception& caught) {
    return message_of(caught);
  } catch (...) {
    return "an exception that is not a std::exception";
  }
}

}  // namespace tessera::base
