// What the dispatch kernel knows about an operator before any call.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include <ATen/core/dispatch/Dispatcher.h>

#include "tessera/rules/engine/rule.h"

namespace tessera::dtensor {

// One per operator, made when the kernels are registered; immutable afterwards.
struct OpInfo {
  explicit OpInfo(const c10::OperatorHandle& op, int id);

  struct Arg {
    bool written = false;
  };

  c10::OperatorHandle op;
  int id;
  std::string name;  // `aten::add.Tensor`
  std::vector<Arg> args;
  std::vector<int> tensor_args;             // those that may be tensors or lists of them
  std::vector<int> written_return;          // for each return: the argument it is, or -1
  bool is_view = false;                     // returns alias an argument without writing
  bool is_out = false;                      // has out= arguments
  bool writes = false;                      // in place or out=
  bool has_meta = false;                    // runs on meta tensors (a few operators have that kernel in Python only)
  const rules::Rule* rule = nullptr;        // of its functional form, if it has none of its own
  const rules::ExactRule* exact = nullptr;  // likewise
  const rules::Rule& row;                   // what is known of this very operator
  void (*special)(struct RankState&, const OpInfo&, std::vector<c10::IValue>&) = nullptr;  // a kernel of its own

  // `self`; of a list `tensors[1]`.
  std::string argument_name(int arg, int item) const;
  size_t num_args() const { return args.size(); }
  size_t num_returns() const { return written_return.size(); }
};

// Whether the argument may be a tensor, or a list with some.
bool may_hold_tensors(const c10::Argument& argument);

// The operators that have our kernel. Added when the kernels are registered, known for the life of the process.
const OpInfo& add_op(const c10::OperatorHandle& op, decltype(OpInfo::special) special);
// Null for others.
const OpInfo* find_op(const std::string& name);
// How many there are: their ids are smaller.
size_t count_ops();

}  // namespace tessera::dtensor
