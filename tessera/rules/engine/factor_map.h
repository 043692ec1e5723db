// What an operator does to the dims of its tensors, as data.
#pragma once

#include <cstdint>
#include <initializer_list>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include <c10/util/SmallVector.h>

#include "tessera/rules/engine/call.h"

namespace tessera::rules {

// One index of an operator's loop nest. A product `(i,k),(k,j)->(i,j)` has the factors i, j, k.
struct Factor {
  int64_t extent = 1;
  bool can_shard = true;  // false: the operator needs this factor whole
  std::optional<layout::ReduceOp> reduce =
      layout::ReduceOp::kSum;   // what an output without the factor becomes a Partial of
  int64_t unit = 1;             // cuts fall on multiples of it
  bool may_interleave = false;  // may be cut where it stands behind another factor: see FactorMap
};

// The factors of one dim, slowest first; none for a dim of size one that broadcasts.
using DimFactors = c10::SmallVector<int, 4>;
// The dims of one tensor.
using TensorFactors = std::vector<DimFactors>;

// Which Partials may go through the operator without being merged.
enum class PartialFlow : uint8_t {
  kMerge,   // none: every Partial is merged first (the default)
  kAny,     // the operator only moves values: any Partial in operand 0 passes (views, clone)
  kLinear,  // linear in operand 0, the other operands being replicated: P(sum) and P(avg) pass
  kJoint,   // linear in all operands together (add, sub, cat): passes when every operand is the same P(sum) or P(avg)
};

// An argument that carries sizes of the result and is rewritten for the local call.
struct SizeArg {
  int arg = 0;
  int output = 0;  // becomes the local sizes of this output
  int dim = -1;    // or, for a single integer, of this dim of it
};

// The rule for one call: factors, and where they stand. Axes are the engine's business: a map speaks of one mesh axis.
//
// Sharding factor f means: every operand that has f as the slowest factor of a dim is Shard(that dim), operands without
// f are Replicate, outputs with f are Shard, outputs without it Partial(reduce). A factor that is not the slowest of
// its dim in some operand or output would be an interleaved cut there: it is sharded so if an operand (or a wish) is
// interleaved already, or the factor says `may_interleave`; else not at all.
struct FactorMap {
  std::vector<Factor> factors;
  std::vector<TensorFactors> operands;
  std::vector<TensorFactors> outputs;
  PartialFlow partial = PartialFlow::kMerge;
  std::vector<SizeArg> sizes;
  // The operator looks at shapes only (zeros_like): nothing is redistributed, a Partial counts as Replicate.
  bool metadata_only = false;
  // An operand whose shape and layout are read only: it is not moved, and output 0 should be laid out like it. -1:
  // none.
  int like = -1;
  // What a rank holds of each dim must be one run (a local kernel or an exact sum counts on it): nothing is
  // interleaved.
  bool keeps_runs = false;
  // Every element of a result is made of those at its own index.
  bool is_by_element = false;
  // Labels of the outputs where the factors do not say them (views, slices); empty: from the factors.
  std::vector<layout::Labels> labels;
  // With ShapeSource::kFactors, the dtypes of the outputs; empty: that of operand 0.
  std::vector<c10::ScalarType> dtypes;

  // A new factor; returns its number.
  int add(int64_t extent, bool can_shard = true);
  // One new factor for each dim.
  TensorFactors add_all(c10::IntArrayRef sizes);
  // Gives these factors to the operand that argument `arg` became, if there is one.
  void set_operand(const Call& call, const char* arg, TensorFactors tensor);
  // Forbids cutting the factors of one dim of a tensor.
  void block(const DimFactors& dim);

  // The notation of parse_factors, with letters in order: `(a,b),(b,c)->(a,c)`.
  std::string str() const;
};

// From one notation, as design and documents write it: `(i,k),(k,j)->(i,j)`; several factors in a dim are joined by `*`
// (`(b*s,f)->(b,s,f)`, where extents come from where a factor stands alone, or with known ones), `1` is a dim without a
// factor,
// `!k` in the list after `;` blocks a factor: `(b,i,k),(b,k,j)->(b,i,j);!k`. Extents come from the sizes of the
// operands and outputs. Operands beyond those named must be outputs that the call writes.
FactorMap parse_factors(std::string_view notation, const Call& call);

// The dims of every operand aligned from the right, size-one dims broadcasting, in every output: the map of elementwise
// operators.
FactorMap broadcast_factors(const Call& call);

}  // namespace tessera::rules
