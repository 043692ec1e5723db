#include "tessera/rules/engine/local_args.h"

#include "tessera/base/error.h"

namespace tessera::rules {

StackArgs::StackArgs(const c10::OperatorHandle& op, torch::jit::Stack& stack)
    : op_(op), stack_(stack), begin_(stack.size() - op.schema().arguments().size()) {}

int StackArgs::find(const char* name) const {
  const auto& arguments = op_.schema().arguments();
  for (size_t i = 0; i < arguments.size(); ++i) {
    if (arguments[i].name() == name) {
      return static_cast<int>(i);
    }
  }
  return -1;
}

bool StackArgs::has(const char* name) const { return find(name) >= 0; }

c10::IValue& StackArgs::operator[](const char* name) {
  const int index = find(name);
  TESSERA_ASSERT(index >= 0, op_.operator_name().name, " has no argument ", name);
  return stack_[begin_ + index];
}

at::Tensor StackArgs::tensor(const char* name) {
  const c10::IValue& value = (*this)[name];
  return value.isNone() ? at::Tensor() : value.toTensor();
}

void StackArgs::close_gaps() {
  for (size_t i = begin_; i < stack_.size(); ++i) {
    if (stack_[i].isTensor() && stack_[i].toTensor().defined() &&
        !stack_[i].toTensor().is_non_overlapping_and_dense()) {
      stack_[i] = stack_[i].toTensor().contiguous();
    }
  }
}

void StackArgs::run() { op_.callBoxed(stack_); }

at::Tensor StackArgs::written() const {
  const auto& arguments = op_.schema().arguments();
  for (size_t i = 0; i < arguments.size(); ++i) {
    const c10::AliasInfo* alias = arguments[i].alias_info();
    if (alias != nullptr && alias->isWrite()) {
      return stack_[begin_ + i].toTensor();
    }
  }
  return {};
}

void StackArgs::give_value(at::Tensor result) {
  const at::Tensor target = written();
  give(target.defined() ? target.copy_(result) : std::move(result));
}

void StackArgs::drop() { stack_.resize(begin_); }

}  // namespace tessera::rules
