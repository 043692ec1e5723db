// Cross entropy of rows of logits against one target each, over a vocabulary that may be cut between ranks.
//
// On a cut vocabulary: row_max of each part, the largest of them; row_exp_sum of each part with that maximum (rows.h),
// merged by the tree; pick_targets of each part, added; then cross_entropy_loss. cross_entropy is the same on one part
// and gives the same bits. A negative target marks a row that does not count: its loss and its gradient are +0. T is
// float or double. Targets are vocabulary numbers of the whole vocabulary; the caller has checked that they are below
// its size.
#pragma once

#include <cstdint>

#include "tessera/kernels/base/row_views.h"

namespace tessera::kernels {

// out[r] = the logit of target[r], plus +0, if it lies in this part, which holds the vocabulary from `first` on; else
// +0.
template <typename T>
void pick_targets(Shape shape, Rows<const T> logits, const int64_t* target, int64_t first, T* out);

// loss[r] = log(sum[r]) - (picked[r] - max[r]).
template <typename T>
void cross_entropy_loss(int64_t rows, const T* max, const T* sum, const T* picked, const int64_t* target, T* loss);

// All of it for a whole vocabulary in leaves of `leaf`; max and sum are kept for the backward.
template <typename T>
void cross_entropy(Shape shape, int64_t leaf, Rows<const T> logits, const int64_t* target, T* loss, T* max, T* sum);

// dx = exp(logit - max[r]) * (grad[r] / sum[r]), and less grad[r] at the target if it lies in this part; +0 in rows
// that do not count. max and sum are of the whole vocabulary, grad[r] the gradient of loss[r].
template <typename T>
void cross_entropy_backward(Shape shape, Rows<const T> logits, const T* max, const T* sum, const int64_t* target,
                            int64_t first, const T* grad, Rows<T> dx);

}  // namespace tessera::kernels
