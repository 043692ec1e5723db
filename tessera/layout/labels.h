// What the dims of a tensor mean: which hold samples, positions, features, and where a part of them lies in the whole.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include <c10/util/ArrayRef.h>

namespace tessera::layout {

enum class Label : uint8_t { kNone, kBatch, kSequence, kFeature };

// One factor of a dim: `extent` consecutive indices of a labelled quantity of `total`, the first being `offset`.
// For kBatch the offset is relative to the micro-batch's first sample (the tensor's origin), so that equal micro-batches
// share one Spec. `unit`: indices that belong together (1 if none).
struct Factor {
  Label label = Label::kNone;
  int64_t extent = 1;
  int64_t offset = 0;
  int64_t total = 1;
  int64_t unit = 1;
  bool operator==(const Factor&) const = default;
};

// Factors of one dim, slowest first; the product of the extents is the dim's size. Empty: unlabelled.
using DimLabels = std::vector<Factor>;

// One entry for each dim; empty when no dim has a label (the normal form of "all unlabelled").
using Labels = std::vector<DimLabels>;

bool is_labelled(const DimLabels& dim);

// Labels after the sizes of a tensor are regrouped in C order. Factors of extent one stay (a one-sample batch is still a
// batch). Where a labelled factor would be split unevenly the label is dropped.
Labels view_labels(const Labels& labels, c10::IntArrayRef from, c10::IntArrayRef to);

// Labels of dim `dim` after keeping [start, start + length * step) with stride `step`.
Labels slice_labels(const Labels& labels, c10::IntArrayRef sizes, int64_t dim, int64_t start, int64_t length, int64_t step);

// Labels of dims in a new order (also of transposes).
Labels permute_labels(const Labels& labels, c10::IntArrayRef order);

// The label of a dim that two operands share: the labelled one wins over the unlabelled; of two that name the same
// quantity the first wins; of two that name different ones nothing remains.
DimLabels join_labels(const DimLabels& a, const DimLabels& b);

// `[b4@2/8, s16, -]`: extents with offset and total where they are not 0 and the extent; `-` for an unlabelled dim,
// factors of one dim joined by `*`.
std::string str(const Labels& labels);

// The dim whose only or slowest factor is the batch, if any.
std::optional<int64_t> batch_dim(const Labels& labels);

}  // namespace tessera::layout
