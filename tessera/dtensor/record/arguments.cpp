#include "tessera/dtensor/record/arguments.h"

#include <utility>

namespace tessera::dtensor {

using c10::IValue;

void replace_tensor(IValue& arg, int item, at::Tensor tensor) {
  if (item < 0) {
    arg = IValue(std::move(tensor));
  } else if (arg.isTensorList()) {
    auto copy = arg.toTensorList().copy();
    copy.set(item, std::move(tensor));
    arg = IValue(std::move(copy));
  } else {
    auto copy = arg.toOptionalTensorList().copy();
    copy.set(item, std::optional<at::Tensor>(std::move(tensor)));
    arg = IValue(std::move(copy));
  }
}

}  // namespace tessera::dtensor
