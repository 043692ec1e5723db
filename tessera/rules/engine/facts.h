// What else is known of an operator than how its dims go through it, in words that the rules can say: the floors above
// have one table each from such a word to what they do (dtensor/front/special.cpp, dtensor/view/views.cpp, ...).
#pragma once

#include <cstdint>

#include <ATen/core/Tensor.h>
#include <ATen/core/ivalue.h>

#include "tessera/random/distribution.h"
#include "tessera/random/stock_cpu.h"

namespace tessera::rules {

// A call on DTensors that no map describes (dtensor/front/special.cpp).
enum class Special : uint8_t {
  kNone,
  kAlias,         // a new tensor that shares everything with the old one
  kBernoulli,     // a draw for the probability of each element
  kConjugate,     // libtorch's lazy conjugation, as a copy
  kDrawByValues,  // draws that depend on the operand's values
  kDropout,
  kEqual,
  kEye,
  kFusedUpdate,   // an optimizer's step for lists of tensors
  kItem,          // a value that the program reads
  kList,          // lists of tensors, element by element
  kListNorm,      // ... their euclidean norms, which may be merged together
  kListOfWholes,  // ... combining the elements of each tensor
  kRandomFill,    // in place
  kRandomLike,    // of another tensor's sizes
  kRefused,       // memory that a DTensor does not have
  kSameSize,
  kSameStorage,
  kUnscale,          // gradients in place, and whether they are finite
  kValueSizes,       // the result's size, or a plain answer, depends on the values: computed whole on every rank
  kViewInPlace,      // the tensor becomes a view of itself: Rule::becomes
  kWhole,            // a function of all elements at once, computed on every rank; it writes nothing and gives no view
  kZerosLikePrimal,  // of forward mode
};

// A call that is caught on the threads of ranks before it is known whether a DTensor takes part
// (dtensor/front/plain.cpp, dtensor/exact/part_means.cpp).
enum class Caught : uint8_t {
  kNo,
  kBernoulli,
  kComposite,     // made of others above autograd, and calls factories
  kCrossEntropy,  // a loss whose parts are means in `exact`
  kDrawByValues,
  kFactory,
  kLinearAlgebra,  // what LAPACK computes
  kLoss,           // its `reduction` may be a mean
  kMean,
  kNanQuantile,
  kOutOfPlace,  // a composite that writes into what a factory made: of DTensors it is Rule::out_of_place
  kQuantile,
  kRandomFactory,
  kRandomFill,
};

// How a view lies in its base, where a write through it can be put back (dtensor/view/views.cpp).
enum class View : uint8_t {
  kNone,
  kComplex,
  kConjugate,
  kDiagonal,
  kPermute,
  kReal,
  kRegroup,  // other sizes of the same elements in the same order
  kSelect,
  kSlice,
  kSplit,
  kTranspose,
  kTurn,  // the transposed matrix
  kUnbind,
};

// Whether a gradient that waits passes the operator without a value (dtensor/exact/carry.cpp).
enum class Carry : uint8_t {
  kNo,
  kInFirst,   // linear in its first argument
  kInEither,  // linear in each of its first two
  kAdd,
  kCat,
  kCopy,
  kMaskedFill,  // of (self, mask, value): linear in the first where the value is zero
  kWhere,       // of (condition, self, other): linear in one of them where the other is zero
};

// What a new tensor holds.
enum class Makes : uint8_t {
  kValues,
  kNothing,  // memory that nobody has written yet
  kZeros,
  kOnes,
  kNumber,  // its second argument, everywhere
};

// A loss that is taken apart where the step has more samples than the call (dtensor/exact/exact_loss.cpp).
enum class StepLoss : uint8_t { kNone, kScores, kSquaresBackward };

// What a random operator draws, from its arguments.
struct Draws {
  using Args = c10::ArrayRef<c10::IValue>;

  random::Distribution (*counter)(Args args, c10::ScalarType dtype) = nullptr;  // from the `counter` generator
  random::StockDraw (*stock)(Args args) = nullptr;                              // as libtorch's own kernel does
  at::Tensor (*by_values)(Args args) = nullptr;  // `counter`, by other draws; runs below autograd
};

}  // namespace tessera::rules
