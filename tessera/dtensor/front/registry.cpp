#include "tessera/dtensor/front/registry.h"

#include <algorithm>
#include <mutex>

#include <ATen/core/dispatch/Dispatcher.h>
#include <c10/core/AutogradState.h>

#include "tessera/base/error.h"
#include "tessera/comm/core/compared_run.h"
#include "tessera/comm/core/error_hook.h"
#include "tessera/comm/core/rank_hooks.h"
#include "tessera/dtensor/dispatch/dispatch.h"
#include "tessera/dtensor/exact/part_means.h"
#include "tessera/dtensor/front/dtensor.h"
#include "tessera/dtensor/front/host_values.h"
#include "tessera/dtensor/front/plain.h"
#include "tessera/dtensor/front/special.h"
#include "tessera/dtensor/ops/attention.h"
#include "tessera/dtensor/ops/contract.h"
#include "tessera/dtensor/ops/convolution.h"
#include "tessera/dtensor/ops/inplace_views.h"
#include "tessera/dtensor/ops/recurrent.h"
#include "tessera/dtensor/record/kernel_registry.h"
#include "tessera/dtensor/record/op_info.h"
#include "tessera/dtensor/record/program_call.h"
#include "tessera/dtensor/state/state.h"

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
        if (info_->is_view) {
          note_replay();
        }
      } catch (const c10::Error& error) {
        rethrow_with_call(error, *info_);
      }
    });
  }

 private:
  // Views of DTensors are replayed where autograd needs them again, not rebuilt by strides and offsets, which a part
  // does not have. libtorch asks behind this kernel whether to note how; nobody does where no gradients are recorded.
  static void note_replay() {
    c10::AutogradState& modes = c10::AutogradState::get_tls_state();
    modes.set_view_replay_enabled(modes.get_grad_mode());
  }

  const OpInfo* info_;
};

bool takes_tensor(const c10::FunctionSchema& schema) {
  return std::any_of(schema.arguments().begin(), schema.arguments().end(), may_hold_tensors);
}

// Composite-implicit operators decompose, but for those whose CPU kernel is another function (silu_backward): one call
// instead of many, with the bits of the one-device program.
bool decomposes(const c10::OperatorHandle& op) {
  return op.hasKernelForDispatchKey(c10::DispatchKey::CompositeImplicitAutograd) &&
         !(op.hasKernelForDispatchKey(c10::DispatchKey::CPU) &&
           rules::RuleTable::instance().find(c10::toString(op.operator_name())));
}

void register_op(KernelRegistry& registry, const c10::OperatorHandle& op) {
  const OpInfo* info = &add_op(op, special_kernel(rules::RuleTable::instance().row(op).special));
  registry
      .library(op.operator_name().getNamespace().has_value() ? std::string(*op.operator_name().getNamespace()) : "aten",
               kKey)
      .impl(info->name.c_str(), torch::CppFunction::makeFromBoxedFunctor(std::make_unique<Kernel>(info)));
}

void register_all() {
  auto& registry = *new KernelRegistry;  // for the life of the process
  auto& dispatcher = c10::Dispatcher::singleton();
  for (const c10::OperatorName& name : dispatcher.getAllOpNames()) {
    const bool aten = name.name.rfind("aten::", 0) == 0;
    if (!aten && name.name.rfind("tessera::", 0) != 0) {
      continue;
    }
    const auto op = dispatcher.findSchema(name);
    if (!op || !takes_tensor(op->schema())) {
      continue;
    }
    if (op->hasKernelForDispatchKey(kKey)) {
      continue;  // one of our own, which is no computation
    }
    if (decomposes(*op)) {
      continue;
    }
    register_op(registry, *op);
  }
  register_attention_kernel(registry);
  register_contract_kernels(registry);
  register_convolution_kernels(registry);
  register_recurrent_kernels(registry);
  register_host_values(registry);
  register_views_in_place(registry);
  register_plain_kernels(registry);
  register_part_means(registry);
}

// Every rank thread is under interception from its first line on, and has libtorch's threads again after its last.
struct RankKernels {
  RankKernels() {
    if (const auto* run = comm::compared_run(); run && run->is_exact) {
      set_numerics(Numerics::kFast);  // those of the run
    }
  }
  ~RankKernels() {
    if (RankState::current()) {
      set_numerics(Numerics::kFast);
    }
  }
  RankKernels(const RankKernels&) = delete;
  RankKernels& operator=(const RankKernels&) = delete;

  std::shared_ptr<void> interception = intercept_this_thread();
};

[[maybe_unused]] const bool hook_added = [] {
  comm::add_rank_hook([] {
    ensure_registered();
    return std::make_shared<RankKernels>();
  });
  return true;
}();

}  // namespace

void ensure_registered() {
  static std::once_flag once;
  std::call_once(once, register_all);
}

}  // namespace tessera::dtensor
