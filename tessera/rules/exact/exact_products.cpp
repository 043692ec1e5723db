// Matrix products by name, in `exact` numerics: contractions.
#include "tessera/rules/exact/exact_kernels.h"

#include <ATen/ops/add.h>
#include <ATen/ops/mul.h>

#include "tessera/base/error.h"
#include "tessera/rules/engine/equation.h"
#include "tessera/rules/engine/local_args.h"

namespace tessera::rules::exact {

namespace {

struct Named {
  const char* op;
  const char* equation;
  const char* a;  // names of the factors
  const char* b;
};

constexpr Named kProducts[] = {
    {"aten::mm", "xy,yz->xz", "self", "mat2"},    {"aten::bmm", "bxy,byz->bxz", "self", "mat2"},
    {"aten::mv", "xy,y->x", "self", "vec"},       {"aten::dot", "y,y->", "self", "tensor"},
    {"aten::addmm", "xy,yz->xz", "mat1", "mat2"}, {"aten::baddbmm", "bxy,byz->bxz", "batch1", "batch2"},
    {"aten::addmv", "xy,y->x", "mat", "vec"},
};

const Named& product_of(const c10::OperatorHandle& op) {
  const std::string name = functional_name(c10::toString(op.operator_name()));
  for (const Named& product : kProducts) {
    if (name == product.op) {
      return product;
    }
  }
  TESSERA_ASSERT(false, name);
}

at::Tensor scaled(const at::Tensor& tensor, const c10::Scalar& by) {
  return by.equal(1) ? tensor : at::mul(tensor, by);
}

}  // namespace

std::vector<std::string_view> product_names() {
  std::vector<std::string_view> names;
  for (const Named& product : kProducts) {
    names.push_back(product.op);
  }
  return names;
}

void decompose_product(const c10::OperatorHandle& op, torch::jit::Stack& stack) {
  StackArgs args(op, stack);
  const Named& named = product_of(op);
  const at::Tensor product = contract(args.tensor(named.a), args.tensor(named.b), named.equation);
  if (!args.has("beta")) {
    return args.give_value(product);
  }
  const c10::Scalar alpha = args["alpha"].toScalar(), beta = args["beta"].toScalar();
  const at::Tensor result = scaled(product, alpha);
  args.give_value(beta.equal(0) ? result : at::add(scaled(args.tensor("self"), beta), result));
}

}  // namespace tessera::rules::exact
