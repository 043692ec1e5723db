// Where a rank's random numbers come from.
#pragma once

#include <cstdint>

#include "tessera/random/stock_cpu.h"

namespace tessera::dtensor {

// The seed, and libtorch's own stream of bits where the program wants that. A value: a copy draws on its own.
class Random {
 public:
  uint64_t seed() const { return seed_; }
  // A stream of bits begins anew.
  void set_seed(uint64_t seed) {
    seed_ = seed;
    if (stock_) {
      stock_ = tessera::random::StockGenerator(seed);
    }
  }

  // If there is one, draws come from it, one after the other, and sites do not matter.
  tessera::random::StockGenerator& stock() { return stock_; }
  const tessera::random::StockGenerator& stock() const { return stock_; }
  // From now on there is one, of the last seed given; or none.
  void set_stock(bool on) {
    if (!on) {
      stock_ = {};
    } else if (!stock_) {
      stock_ = tessera::random::StockGenerator(seed_);
    }
  }

 private:
  uint64_t seed_ = 0;
  tessera::random::StockGenerator stock_;
};

}  // namespace tessera::dtensor
