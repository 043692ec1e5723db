#include "tessera/dtensor/registry.h"

#include <mutex>
#include <unordered_map>

#include <ATen/core/dispatch/Dispatcher.h>

#include "tessera/base/error.h"
#include "tessera/comm/error_hook.h"
#include "tessera/comm/run_ranks.h"
#include "tessera/dtensor/attention.h"
#include "tessera/dtensor/contract.h"
#include "tessera/dtensor/dispatch.h"
#include "tessera/dtensor/dtensor.h"
#include "tessera/dtensor/host_values.h"
#include "tessera/dtensor/inplace_views.h"
#include "tessera/dtensor/part_means.h"
#include "tessera/dtensor/plain.h"
#include "tessera/dtensor/program_call.h"

namespace tessera::dtensor {

namespace {

// The boxed kernel of one operator.
class Kernel final : public c10::OperatorKernel {
 public:
  explicit Kernel(const OpInfo* info) : info_(info) {}
  void operator()(const c10::OperatorHandle&, c10::DispatchKeySet, torch::jit::Stack* stack) {
    comm::leave_to_front([&] {
      try {
        dispatch(*info_, *stack);
      } catch (const c10::Error& error) {
        rethrow_with_call(error, *info_);
      }
    });
  }

 private:
  const OpInfo* info_;
};

struct Registered {
  KernelRegistry registry;
  std::unordered_map<std::string, std::unique_ptr<OpInfo>> ops;
};

bool takes_tensor(const c10::FunctionSchema& schema) {
  for (const c10::Argument& argument : schema.arguments()) {
    if (argument.type()->str().find("Tensor") != std::string::npos) return true;
  }
  return false;
}

// Composite-implicit operators decompose, but for those whose CPU kernel is another function (silu_backward): one call instead
// of many, with the bits of the one-device program.
bool decomposes(const c10::OperatorHandle& op) {
  return op.hasKernelForDispatchKey(c10::DispatchKey::CompositeImplicitAutograd) &&
         !(op.hasKernelForDispatchKey(c10::DispatchKey::CPU) && rules::RuleTable::instance().find(c10::toString(op.operator_name())));
}

void register_op(Registered& all, const c10::OperatorHandle& op) {
  auto info = std::make_unique<OpInfo>(op, static_cast<int>(all.ops.size()));
  info->special = find_special(info->name);
  const OpInfo* stable = info.get();
  all.registry.library(op.operator_name().getNamespace().has_value() ? std::string(*op.operator_name().getNamespace()) : "aten", kKey)
      .impl(info->name.c_str(), torch::CppFunction::makeFromBoxedFunctor(std::make_unique<Kernel>(stable)));
  all.ops.emplace(stable->name, std::move(info));
}

Registered& registered() {
  static auto* all = new Registered();
  return *all;
}

void register_all() {
  Registered& all = registered();
  auto& dispatcher = c10::Dispatcher::singleton();
  for (const c10::OperatorName& name : dispatcher.getAllOpNames()) {
    const bool aten = name.name.rfind("aten::", 0) == 0;
    if (!aten && name.name.rfind("tessera::", 0) != 0) continue;
    const auto op = dispatcher.findSchema(name);
    if (!op || !takes_tensor(op->schema())) continue;
    if (op->hasKernelForDispatchKey(kKey)) continue;  // one of our own, which is no computation
    if (decomposes(*op)) continue;
    register_op(all, *op);
  }
  register_attention_kernel(all.registry);
  register_contract_kernels(all.registry);
  register_host_values(all.registry);
  register_views_in_place(all.registry);
  register_plain_kernels(all.registry);
  register_part_means(all.registry);
}

// Every rank thread is under interception from its first line on, and has libtorch's threads again after its last.
struct RankThread {
  RankThread() = default;
  ~RankThread() {
    if (RankState::current()) set_numerics(Numerics::kFast);
  }
  RankThread(const RankThread&) = delete;
  RankThread& operator=(const RankThread&) = delete;

  std::shared_ptr<void> interception = intercept_this_thread();
};

[[maybe_unused]] const bool hook_added = [] {
  comm::add_rank_hook([] {
    ensure_registered();
    return std::make_shared<RankThread>();
  });
  return true;
}();

}  // namespace

torch::Library& KernelRegistry::library(const std::string& ns, c10::DispatchKey key) {
  for (Entry& entry : entries_) {
    if (entry.ns == ns && entry.key == key) return *entry.library;
  }
  entries_.push_back({ns, key, std::make_unique<torch::Library>(torch::Library::IMPL, ns, key, __FILE__, __LINE__)});
  return *entries_.back().library;
}

void ensure_registered() {
  static std::once_flag once;
  std::call_once(once, register_all);
}

const OpInfo* find_op(const std::string& name) {
  const auto& ops = registered().ops;
  const auto found = ops.find(name);
  return found == ops.end() ? nullptr : found->second.get();
}

}  // namespace tessera::dtensor
