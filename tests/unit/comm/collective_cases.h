// What every collective must give, as closed forms: one table, which the tests of every backend run.
#pragma once

#include <cstdint>
#include <functional>
#include <ostream>
#include <string>
#include <vector>

#include <ATen/core/Tensor.h>

#include "tessera/comm/core/communicator.h"

namespace tessera::comm {

using Tensors = std::vector<at::Tensor>;

// What a member got from a call, and what it must have got.
struct Outcome {
  std::string what;  // for messages: sum, from root 2
  at::Tensor got, expected;
};
using Outcomes = std::vector<Outcome>;

// What a case is run with.
struct Sample {
  int64_t size = 1031;  // of about so many elements
  at::ScalarType dtype = at::kFloat;
  // The bits of a reduction of the members' `values`; `is_even`: all parts of a reduce_scatter have the same size.
  std::function<at::Tensor(Tensors values, ReduceOp op, bool is_even)> combine;
  at::Device device = at::kCPU;  // where the tensors lie
};

// A row of the table: a collective, what it is called with and what must come out. `run` is collective over `group`,
// which may be of any size; no two of its calls ask for the same values, and what must come out follows from the values
// that each member is known to give.
struct CollectiveCase {
  const char* name;
  bool depends_on_sample = true;  // false: its sizes and dtypes are its own, and once is enough
  std::function<Outcomes(Communicator& group, const Sample& sample)> run;
};

const std::vector<CollectiveCase>& collective_cases();

inline void PrintTo(const CollectiveCase& each, std::ostream* out) { *out << each.name; }

// Member 0 first, as Communicator promises.
at::Tensor combine_members(const Tensors& values, ReduceOp op, bool is_even = true);

// Every dtype that collectives take.
const std::vector<at::ScalarType>& collective_types();

// `AllReduce of Float[1031] over 3, sum`: for messages.
std::string describe(const CollectiveCase& each, const Communicator& group, const Sample& sample,
                     const Outcome& outcome);

}  // namespace tessera::comm
