#include "tessera/rules/engine/dtypes.h"

#include <ATen/native/TypeProperties.h>
#include <c10/core/DefaultDtype.h>

namespace tessera::rules {

namespace {

void add(c10::ScalarType& slot, c10::ScalarType dtype) {
  slot = slot == c10::ScalarType::Undefined ? dtype : c10::promoteTypes(slot, dtype);
}

c10::ScalarType number_dtype(c10::ScalarType dtype) {
  return c10::isFloatingType(dtype) ? c10::get_default_dtype_as_scalartype() : dtype;
}

}  // namespace

c10::ScalarType promoted_dtype(const Call& call, size_t first) {
  at::native::ResultTypeState state;
  for (size_t i = 0; i < call.operands.size(); ++i) {
    const Operand& operand = call.operands[i];
    const c10::ScalarType dtype = operand.spec->dtype;
    if (operand.is_written) {
      return dtype;
    }
    if (i < first) {
      continue;
    }
    if (operand.is_number) {
      add(state.wrappedResult, number_dtype(dtype));
    } else {
      add(operand.spec->ndim() > 0 ? state.dimResult : state.zeroResult, dtype);
    }
  }
  const auto& arguments = call.schema->arguments();
  for (size_t i = 0; i < arguments.size(); ++i) {
    if (arguments[i].type()->kind() == c10::TypeKind::NumberType && call.args[i].isScalar()) {
      add(state.wrappedResult, number_dtype(call.args[i].toScalar().type()));
    }
  }
  return at::native::result_type(state);
}

c10::ScalarType fractional_dtype(c10::ScalarType dtype) {
  return c10::isIntegralType(dtype, /*includeBool=*/true) ? c10::get_default_dtype_as_scalartype() : dtype;
}

c10::ScalarType asked_dtype(const Call& call, c10::ScalarType otherwise) {
  if (!call.has_arg("dtype") || call.arg("dtype").isNone()) {
    return otherwise;
  }
  return call.arg("dtype").toScalarType();
}

at::Tensor widened(const at::Tensor& x) {
  return x.is_floating_point() && x.element_size() < 4 ? x.to(c10::kFloat) : x;
}

}  // namespace tessera::rules
