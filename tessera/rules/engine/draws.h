// Draws that other operators are made of.
#pragma once

#include "tessera/rules/engine/facts.h"

namespace tessera::rules {

// (self, from, to)
inline constexpr Draws kUniform = {
    .counter = [](Draws::Args args, c10::ScalarType) -> random::Distribution {
      return random::Uniform{args[1].isNone() ? 0 : args[1].toScalar().toDouble(),
                             args[2].isNone() ? 1 : args[2].toScalar().toDouble()};
    },
    .stock =
        [](Draws::Args args) {
          const double from = args[1].toScalar().toDouble(), to = args[2].toScalar().toDouble();
          return random::StockDraw{[=](at::Tensor& x, const at::Generator& g) { x.uniform_(from, to, g); }};
        },
};

// (self, p)
inline constexpr Draws kBernoulli = {
    .counter = [](Draws::Args args, c10::ScalarType) -> random::Distribution {
      return random::Bernoulli{args[1].isNone() ? 0.5 : args[1].toScalar().toDouble()};
    },
    .stock =
        [](Draws::Args args) {
          const double p = args[1].toScalar().toDouble();
          return random::StockDraw{[=](at::Tensor& x, const at::Generator& g) { x.bernoulli_(p, g); }};
        },
};

}  // namespace tessera::rules
