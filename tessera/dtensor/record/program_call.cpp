#include "tessera/dtensor/record/program_call.h"

#include <array>
#include <charconv>
#include <string_view>
#include <typeinfo>

#include <dlfcn.h>
#include <execinfo.h>
#include <torch/csrc/autograd/function.h>

#include "tessera/base/hints.h"

namespace tessera::dtensor {

namespace {

constexpr size_t kMostFrames = 256;

// `cdist` of the symbol of at::_ops::cdist::call, which every call of the function passes; empty for other symbols.
std::string_view function_of(std::string_view symbol) {
  constexpr std::string_view kBegin = "_ZN2at4_ops", kEnd = "4call";
  if (!symbol.starts_with(kBegin)) {
    return {};
  }
  symbol.remove_prefix(kBegin.size());
  size_t length = 0;
  const auto [rest, error] = std::from_chars(symbol.data(), symbol.data() + symbol.size(), length);
  symbol.remove_prefix(static_cast<size_t>(rest - symbol.data()));
  return error == std::errc() && length <= symbol.size() && symbol.substr(length).starts_with(kEnd)
             ? symbol.substr(0, length)
             : std::string_view();
}

// The operator of such a function without its overload: `add` of `add_Tensor`.
std::string operator_of(std::string_view function) {
  for (const c10::OperatorName& name : c10::Dispatcher::singleton().getAllOpNames()) {
    const std::string base = name.name.substr(name.name.find("::") + 2);
    if (name.name.starts_with("aten::") &&
        function == (name.overload_name.empty() ? base : base + "_" + name.overload_name)) {
      return base;
    }
  }
  return std::string(function);
}

// `add.Tensor` of `aten::add.Tensor`.
std::string_view without_namespace(std::string_view name) { return name.starts_with("aten::") ? name.substr(6) : name; }

// Only libtorch knows which line of the forward pass a node is of, and only if it is asked to.
std::string where_it_was_written() {
  return c10::str(
      " (The line whose gradient this is: ",
      base::in_language("torch::autograd::AnomalyMode::set_enabled(true);", "torch.autograd.set_detect_anomaly(True)"),
      ".)");
}

}  // namespace

std::optional<std::string> call_of_program() {
  std::array<void*, kMostFrames> frames;
  const int count = backtrace(frames.data(), static_cast<int>(frames.size()));
  for (int i = count - 1; i >= 0; --i) {
    Dl_info info;
    if (dladdr(frames[i], &info) == 0 || !info.dli_sname) {
      continue;
    }
    if (const std::string_view function = function_of(info.dli_sname); !function.empty()) {
      return operator_of(function);
    }
  }
  return std::nullopt;
}

void rethrow_with_call(const c10::Error& error, const OpInfo& info) {
  const std::string_view name = without_namespace(info.name), base = name.substr(0, name.find('.'));
  std::string_view message = error.msg();
  if (typeid(error) != typeid(c10::Error) || !message.starts_with('[') ||
      !without_namespace(message.substr(1)).starts_with(name)) {
    throw;
  }
  std::optional<std::string> call = call_of_program();
  const auto node = torch::autograd::get_current_node();
  if (node && (!call || *call == base)) {
    call = node->name();
  }
  if (!call || *call == base) {
    throw;
  }
  message.remove_prefix(1);
  throw c10::Error({__func__, __FILE__, static_cast<uint32_t>(__LINE__)},
                   c10::str("[", *call, " -> ", without_namespace(message), node ? where_it_was_written() : ""));
}

}  // namespace tessera::dtensor
