// Operators that no rule cuts: functions of whole tensors.
#pragma once

#include <string>

namespace tessera::dtensor {

// Whether `op` (with overload, as in aten::linalg_cross) is computed on every rank from operands that are gathered: its
// results need all of their elements, and no rule says how parts could be combined. None of them writes an operand or
// gives a view.
bool is_whole_op(const std::string& op);

// Whether result `index` stays a plain tensor, equal on every rank: counts that the program reads from memory.
bool is_plain_result(const std::string& op, size_t index);

}  // namespace tessera::dtensor
