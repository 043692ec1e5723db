#include "tessera/dtensor/front/host_values.h"

#include <vector>

#include "tessera/dtensor/front/dtensor.h"
#include "tessera/dtensor/record/kernel_registry.h"

namespace tessera::dtensor {

namespace {

using torch::jit::Stack;

class HostValueKernel final : public c10::OperatorKernel {
 public:
  explicit HostValueKernel(const std::vector<const char*>& read) : read_(read) {}

  void operator()(const c10::OperatorHandle& op, c10::DispatchKeySet, Stack* stack) {
    const size_t begin = stack->size() - op.schema().arguments().size();
    for (const char* name : read_) {
      c10::IValue& value = (*stack)[begin + *op.schema().argumentIndexWithName(name)];
      value = full_tensor(value.toTensor().detach());
    }
    op.redispatchBoxed(c10::DispatchKeySet(c10::DispatchKey::CPU),
                       stack);  // what it is made of goes by its own operands
  }

 private:
  const std::vector<const char*>& read_;
};

}  // namespace

void register_host_values(KernelRegistry& registry) {
  for (torch::Library* library : registry.before_autograd()) {
    for (const auto& [op, row] : rules::RuleTable::instance().rows()) {
      if (!row.host_values.empty()) {
        library->impl(op.c_str(),
                      torch::CppFunction::makeFromBoxedFunctor(std::make_unique<HostValueKernel>(row.host_values)));
      }
    }
  }
}

}  // namespace tessera::dtensor
