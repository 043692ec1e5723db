// The tensors among the arguments of a call.
#pragma once

#include <ATen/core/Tensor.h>
#include <ATen/core/ivalue.h>

namespace tessera::dtensor {

// Calls `visit(tensor, index of the argument, index in a list or -1)` for every defined tensor among the arguments.
template <typename Visit>
void for_each_tensor(c10::ArrayRef<c10::IValue> args, Visit&& visit) {
  for (size_t i = 0; i < args.size(); ++i) {
    const c10::IValue& value = args[i];
    if (value.isTensor()) {
      if (value.toTensor().defined()) {
        visit(value.toTensor(), static_cast<int>(i), -1);
      }
    } else if (value.isTensorList()) {
      const auto list = value.toTensorList();
      for (size_t k = 0; k < list.size(); ++k) {
        visit(list.get(k), static_cast<int>(i), static_cast<int>(k));
      }
    } else if (value.isList() && !value.toListRef().empty()) {
      const auto items = value.toListRef();  // List[Optional[Tensor]]
      for (size_t k = 0; k < items.size(); ++k) {
        if (items[k].isTensor() && items[k].toTensor().defined()) {
          visit(items[k].toTensor(), static_cast<int>(i), static_cast<int>(k));
        }
      }
    }
  }
}

// Replaces one tensor among the arguments.
void replace_tensor(c10::IValue& arg, int item, at::Tensor tensor);

}  // namespace tessera::dtensor
