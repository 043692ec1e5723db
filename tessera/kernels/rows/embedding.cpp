#include "tessera/kernels/rows/embedding.h"

#include <algorithm>
#include <vector>

#include "tessera/kernels/base/table.h"
#include "tessera/kernels/rows/row_ranges.h"

namespace tessera::kernels {
namespace {

bool holds(TablePart part, int64_t id) { return id >= part.begin && id < part.end; }

// The tokens whose rows this rank holds, those of one id together and in order.
std::vector<int64_t> tokens_by_id(int64_t count, const int64_t* ids, TablePart part) {
  std::vector<int64_t> tokens;
  tokens.reserve(static_cast<size_t>(count));
  for (int64_t t = 0; t < count; ++t) {
    if (holds(part, ids[t])) {
      tokens.push_back(t);
    }
  }
  std::sort(tokens.begin(), tokens.end(),
            [=](int64_t a, int64_t b) { return ids[a] != ids[b] ? ids[a] < ids[b] : a < b; });
  return tokens;
}

// Where the tokens of one sample and id begin, with the end of all.
std::vector<int64_t> group_bounds(const std::vector<int64_t>& tokens, const int64_t* ids, int64_t sample_tokens) {
  std::vector<int64_t> bounds;
  const int64_t count = static_cast<int64_t>(tokens.size());
  for (int64_t i = 0; i < count; ++i) {
    const bool joins =
        i > 0 && ids[tokens[i]] == ids[tokens[i - 1]] && tokens[i] / sample_tokens == tokens[i - 1] / sample_tokens;
    if (!joins) {
      bounds.push_back(i);
    }
  }
  bounds.push_back(count);
  return bounds;
}

}  // namespace

template <typename T>
void embedding(Shape shape, const int64_t* ids, TablePart part, Rows<const T> table, Rows<T> out) {
  const auto copy = kernels::table<T>().add_zero;
  for_row_ranges(shape, [=](Shape range, int64_t begin) {
    for (int64_t r = begin; r < begin + range.rows; ++r) {
      if (holds(part, ids[r])) {
        copy(shape.n, table.row(ids[r] - part.begin), out.row(r));
      } else {
        std::fill_n(out.row(r), shape.n, T(0));
      }
    }
  });
}

template <typename T>
void add_embedding_gradient(Samples samples, int64_t n, const int64_t* ids, TablePart part, Rows<const T> grad,
                            Rows<T> total) {
  const std::vector<int64_t> tokens = tokens_by_id(samples.samples * samples.tokens, ids, part);
  const std::vector<int64_t> bounds = group_bounds(tokens, ids, samples.tokens);
  const auto run = table<T>().picked_sum;
  const int64_t grain =
      std::max<int64_t>(64, kElementGrain / std::max<int64_t>(1, static_cast<int64_t>(tokens.size())));
  parallel_for(n, grain, [&](int64_t begin, int64_t end) {
    const Rows<const T> columns{grad.data + begin, grad.stride};
    for (size_t g = 0; g + 1 < bounds.size(); ++g) {
      const int64_t* picked = tokens.data() + bounds[g];
      run(bounds[g + 1] - bounds[g], picked, end - begin, columns, total.row(ids[*picked] - part.begin) + begin);
    }
  });
}

#define TESSERA_INSTANTIATE(T)                                                       \
  template void embedding(Shape, const int64_t*, TablePart, Rows<const T>, Rows<T>); \
  template void add_embedding_gradient(Samples, int64_t, const int64_t*, TablePart, Rows<const T>, Rows<T>);
TESSERA_INSTANTIATE(float)
TESSERA_INSTANTIATE(double)
#undef TESSERA_INSTANTIATE

}  // namespace tessera::kernels
