// What the dims of a tensor mean: which hold samples, positions, features, and where a part of them lies in the whole.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include <c10/util/ArrayRef.h>

namespace tessera::layout {

enum class Label : uint8_t { kNone, kBatch, kSequence, kFeature };

// One factor of a dim: index i names position `offset + i * unit` of a labelled quantity of `total` positions.
//
// `unit` is 1 for consecutive positions; a strided slice multiplies it, and a view that splits a factor of 16 into 4 x
// 4 leaves an outer factor of unit 4 and an inner one of unit 1 and offset 0: the position is the sum over both. For
// kBatch the offset is relative to the micro-batch's first sample (the tensor's origin), so that equal micro-batches
// share one Spec. An unlabelled factor says its extent only (offset 0, total = extent, unit 1).
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

// The normal form: a dim without any label is empty, no dim with a label leaves nothing at all, unlabelled neighbours
// are one factor, and the two halves of a split that stand side by side again are one.
Labels normal_labels(Labels labels);
bool is_normal_labels(const Labels& labels);

// Labels after the sizes of a tensor are regrouped in C order. Factors of extent one stay (a one-sample batch is still
// a batch): a size-one dim takes the next one, else it leads the next dim. Where a labelled factor would be split
// unevenly the labels of the dims concerned are dropped, and all of an empty tensor whose shape changes.
Labels view_labels(const Labels& labels, c10::IntArrayRef from, c10::IntArrayRef to);

// Labels after keeping indices start, start + step, ... of `dim`, `length` of them. A dim of several factors keeps its
// labels where the kept indices are whole runs of its inner factors, or one fixed index of them.
Labels slice_labels(const Labels& labels, c10::IntArrayRef sizes, int64_t dim, int64_t start, int64_t length,
                    int64_t step);

// Labels of dims in a new order (also of transposes).
Labels permute_labels(const Labels& labels, c10::IntArrayRef order);

// The label of a dim that two operands share: the labelled one wins over the unlabelled; of two that name the same
// quantity the first wins (whatever their offsets); of two that name different ones nothing remains.
DimLabels join_labels(const DimLabels& a, const DimLabels& b);

// `[b4@2/8, s16, -]`: extents with offset and total where they are not 0 and the extent, `;unit` where it is not 1; `-`
// for an unlabelled dim, factors of one dim joined by `*`, an unlabelled factor among them as its extent.
std::string str(const Labels& labels);

// The dim whose only or slowest factor is the batch, if any.
std::optional<int64_t> batch_dim(const Labels& labels);

}  // namespace tessera::layout
