// What the tests of comm share: values by rank and a serial reference.
#pragma once

#include <chrono>
#include <cmath>
#include <cstdint>
#include <string>
#include <vector>

#include <ATen/TensorOperators.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/full.h>
#include <ATen/ops/maximum.h>
#include <ATen/ops/minimum.h>
#include <ATen/ops/ones.h>
#include <ATen/ops/zeros.h>
#include <gtest/gtest.h>

#include "tessera/base/error.h"
#include "tessera/comm/core/context.h"
#include "tessera/comm/core/errors.h"
#include "tessera/comm/threads/run_ranks.h"

namespace tessera::comm {

inline uint64_t mixed(uint64_t x) {
  x += 0x9e3779b97f4a7c15ull;
  x = (x ^ (x >> 30)) * 0xbf58476d1ce4e5b9ull;
  x = (x ^ (x >> 27)) * 0x94d049bb133111ebull;
  return x ^ (x >> 31);
}

// Values in about [-2, 2] (integers: [-8, 8]) that depend on the key alone and whose sums round.
inline at::Tensor values_of(uint64_t key, at::IntArrayRef sizes, at::ScalarType dtype) {
  auto wide = at::empty(sizes, at::TensorOptions().dtype(at::kDouble));
  auto* data = wide.mutable_data_ptr<double>();
  for (int64_t i = 0; i < wide.numel(); ++i) {
    const auto unit = static_cast<double>(mixed(key * 1000003 + static_cast<uint64_t>(i)) >> 11) * 0x1p-53;
    data[i] = dtype == at::kBool                 ? (unit < 0.4)
              : at::isIntegralType(dtype, false) ? std::floor(unit * 17) - 8
                                                 : unit * 4 - 2;
  }
  return wide.to(dtype);
}

// The combination with member 0 first; half-precision types in float, rounded once.
inline at::Tensor combined(const std::vector<at::Tensor>& values, ReduceOp op) {
  const auto dtype = values[0].scalar_type();
  const bool is_half = dtype == at::kHalf || dtype == at::kBFloat16;
  const auto wide = is_half ? at::kFloat : dtype == at::kBool ? at::kLong : dtype;
  auto total = values[0].to(wide);
  for (size_t i = 1; i < values.size(); ++i) {
    const auto next = values[i].to(wide);
    total = op == ReduceOp::kMax    ? at::maximum(total, next)
            : op == ReduceOp::kMin  ? at::minimum(total, next)
            : op == ReduceOp::kProd ? total * next
                                    : total + next;
  }
  if (op == ReduceOp::kAvg) {
    total = total / at::full({}, static_cast<double>(values.size()), total.options());  // a plain number: its inverse
  }
  return total.to(dtype);
}

// Same dtype, sizes and bits (values without NaN).
inline bool identical(const at::Tensor& a, const at::Tensor& b) {
  return a.scalar_type() == b.scalar_type() && a.sizes() == b.sizes() && a.equal(b);
}

// The message of what `run` throws as an E; fails the test if it throws anything else, or nothing.
template <typename E, typename Run>
std::string message_from(Run run) {
  try {
    run();
  } catch (const E& error) {
    return base::message_of(error);
  } catch (const std::exception& error) {
    ADD_FAILURE() << "another error: " << base::message_of(error);
    return "";
  }
  ADD_FAILURE() << "no error";
  return "";
}

inline bool contains(const std::string& text, const std::string& part) { return text.find(part) != std::string::npos; }

inline RunOptions within(int64_t milliseconds) {
  return {.deadline = std::chrono::milliseconds(milliseconds), .intra_op_threads = 1};
}

inline Communicator& world() { return *RankContext::require().world; }

}  // namespace tessera::comm
