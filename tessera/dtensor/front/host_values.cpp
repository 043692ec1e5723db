#include "tessera/dtensor/front/host_values.h"

#include <array>

#include "tessera/dtensor/front/dtensor.h"
#include "tessera/dtensor/record/kernel_registry.h"

namespace tessera::dtensor {

namespace {

using torch::jit::Stack;

struct HostValues {
  const char* op;
  std::array<const char*, 2> read;
};

constexpr HostValues kHostValues[] = {
    {"_pad_packed_sequence", {"batch_sizes"}},
    {"ctc_loss.Tensor", {"input_lengths", "target_lengths"}},
    {"gru.data", {"batch_sizes"}},
    {"lstm.data", {"batch_sizes"}},
    {"rnn_relu.data", {"batch_sizes"}},
    {"rnn_tanh.data", {"batch_sizes"}},
    {"tensor_split.tensor_indices_or_sections", {"tensor_indices_or_sections"}},
};

class Kernel final : public c10::OperatorKernel {
 public:
  explicit Kernel(const HostValues& values) : values_(values) {}

  void operator()(const c10::OperatorHandle& op, c10::DispatchKeySet, Stack* stack) {
    const size_t begin = stack->size() - op.schema().arguments().size();
    for (const char* name : values_.read) {
      if (!name) {
        continue;
      }
      c10::IValue& value = (*stack)[begin + *op.schema().argumentIndexWithName(name)];
      value = full_tensor(value.toTensor().detach());
    }
    op.redispatchBoxed(c10::DispatchKeySet(c10::DispatchKey::CPU),
                       stack);  // what it is made of goes by its own operands
  }

 private:
  const HostValues& values_;
};

}  // namespace

void register_host_values(KernelRegistry& registry) {
  for (const c10::DispatchKey key :
       {c10::DispatchKey::AutogradPrivateUse3, kKey}) {  // tensors of inference mode have no key of autograd
    for (const HostValues& values : kHostValues) {
      registry.library("aten", key)
          .impl(values.op, torch::CppFunction::makeFromBoxedFunctor(std::make_unique<Kernel>(values)));
    }
  }
}

}  // namespace tessera::dtensor
