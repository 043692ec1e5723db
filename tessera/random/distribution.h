// What the `counter` generator can draw.
#pragma once

#include <cstdint>
#include <variant>

namespace tessera::random {

// Uniform in [from, to). Float has 24 random bits, double 53. A value that rounding lifts to `to` becomes `from`, as in
// torch.
struct Uniform {
  double from = 0;
  double to = 1;
};

// Normal by Box-Muller in double precision, rounded once. Equal on every host of a job (one libm), not on a GPU.
struct Normal {
  double mean = 0;
  double std = 1;
};

// 1 where the float uniform in [0, 1) is below p, else 0, for every dtype: the keep mask of dropout for p_keep.
struct Bernoulli {
  double p = 0.5;
};

// Integers in [from, to), the same for every dtype.
struct Integers {
  int64_t from = 0;
  int64_t to = 2;
};

// Exponential of rate lambda, never zero.
struct Exponential {
  double lambda = 1;
};

// The exponential of a normal number.
struct LogNormal {
  double mean = 1;  // of the logarithm
  double std = 2;
};

struct Cauchy {
  double median = 0;
  double sigma = 1;
};

// How many trials of probability p it takes until the first success, 1 or more; an integer dtype's largest value stands
// for more.
struct Geometric {
  double p = 0.5;
};

using Distribution = std::variant<Uniform, Normal, Bernoulli, Integers, Exponential, LogNormal, Cauchy, Geometric>;

}  // namespace tessera::random
