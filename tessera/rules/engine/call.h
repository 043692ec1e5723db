// One operator call as the rules see it: global shapes and layouts, no data, no communicator.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include <ATen/core/function_schema.h>
#include <ATen/core/ivalue.h>

#include "tessera/layout/spec.h"

namespace tessera::rules {

// A tensor that the call reads or writes. Tensor lists count element by element; undefined optional tensors do not
// count.
struct Operand {
  layout::Spec spec;          // a plain tensor counts as replicated
  int arg = 0;                // index of the argument it belongs to
  bool is_plain = false;      // not a DTensor
  bool is_number = false;     // a number that libtorch wrapped: it takes part in type promotion as numbers do
  bool is_parameter = false;  // stays where its plan put it: the rule moves the others
  bool is_fetched = false;    // ... but operators of later stages fetch it, wherever the call runs
  bool is_written = false;    // in place, or out=
};

// A tensor that the call returns, as the one-device program would make it. Tensor lists count element by element;
// results that stay undefined (a gradient that the call's output_mask declines) do not count.
struct Output {
  std::vector<int64_t> sizes;
  std::vector<int64_t> strides;
  c10::ScalarType dtype = c10::ScalarType::Float;
  int written_operand = -1;  // it is this operand, written in place
  bool is_view = false;      // it shares the first operand's storage
};

// The call. `args` are the schema's arguments in order; the tensors among them are not to be read.
struct Call {
  std::string name;  // `aten::add.Tensor`
  const c10::FunctionSchema* schema = nullptr;
  std::vector<c10::IValue> args;
  std::vector<Operand> operands;
  std::vector<Output> outputs;

  const layout::Spec& spec(size_t operand) const { return operands.at(operand).spec; }
  int64_t dim_of(size_t operand) const { return spec(operand)->ndim(); }

  // Arguments by schema name; they throw an internal error if the schema has no such argument.
  const c10::IValue& arg(const char* name) const;
  int arg_index(const char* name) const;
  bool has_arg(const char* name) const;
  std::vector<int64_t> ints(const char* name) const;  // [] for None
  int64_t integer(const char* name, int64_t if_none = 0) const;
  bool flag(const char* name) const;  // false for None
  // Index of the operand that argument `name` became, or -1 if it is undefined; of a list, the first.
  int operand_of(const char* name) const;

  // Dims of an argument, wrapped into [0, ndim) and sorted; all dims for None or [] (as reductions read it).
  std::vector<int64_t> dims(const char* name, int64_t ndim) const;
};

// `mm`, and `mm {tp: S(1)} x {tp: P(max)}`: the call's name, and its layouts, for messages.
std::string short_name(const Call& call);
std::string describe(const Call& call);

// `dim` in [-ndim, ndim) to [0, ndim); of a 0-d tensor, 0.
int64_t wrap_dim(int64_t dim, int64_t ndim);

}  // namespace tessera::rules
