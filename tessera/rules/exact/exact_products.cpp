// Matrix products by name, in `exact` numerics: contractions.
#include "tessera/rules/exact/exact_kernels.h"

#include <ATen/ops/add.h>
#include <ATen/ops/mul.h>

#include "tessera/rules/engine/equation.h"
#include "tessera/rules/engine/local_args.h"

namespace tessera::rules::exact {

namespace {

at::Tensor scaled(const at::Tensor& tensor, const c10::Scalar& by) {
  return by.equal(1) ? tensor : at::mul(tensor, by);
}

}  // namespace

void run_product(const Product& named, const c10::OperatorHandle& op, torch::jit::Stack& stack) {
  StackArgs args(op, stack);
  const at::Tensor product = contract(args.tensor(named.a), args.tensor(named.b), named.equation);
  if (!args.has("beta")) {
    return args.give_value(product);
  }
  const c10::Scalar alpha = args["alpha"].toScalar(), beta = args["beta"].toScalar();
  const at::Tensor result = scaled(product, alpha);
  args.give_value(beta.equal(0) ? result : at::add(scaled(args.tensor("self"), beta), result));
}

}  // namespace tessera::rules::exact
