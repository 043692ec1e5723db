// Embedding: rows of a table by number, and the gradient of the table. The table may be cut by rows between ranks.
#pragma once

#include <cstdint>

#include "tessera/kernels/base/row_views.h"
#include "tessera/kernels/rows/norms.h"

namespace tessera::kernels {

// Rows [begin, end) of the whole table, those that this rank holds. Callers have checked ids against the whole table.
struct TablePart {
  int64_t begin = 0;
  int64_t end = 0;
};

// out[r] = row ids[r] of the table plus +0 (so that -0 becomes +0, as when parts are added), or +0 if another rank
// holds it. Row `part.begin` is table.row(0). T is float or double.
template <typename T>
void embedding(Shape shape, const int64_t* ids, TablePart part, Rows<const T> table, Rows<T> out);

// total.row(id - part.begin) += for each sample, in order, the chain from +0 over those of its tokens in order that
// have this id. Rows that no token has are not touched. Token t of sample s has ids[s * tokens + t] and that row of
// grad.
template <typename T>
void add_embedding_gradient(Samples samples, int64_t n, const int64_t* ids, TablePart part, Rows<const T> grad,
                            Rows<T> total);

}  // namespace tessera::kernels
