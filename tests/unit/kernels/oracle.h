// The canonical sums as their definition reads, one element at a time. Shares nothing with the kernels.
#pragma once

#include <cstdint>
#include <functional>

namespace tessera::kernels::oracle {

// The root of the tree over things [begin, end): split after the largest power of two below their number; left + right.
template <typename T>
T tree(int64_t begin, int64_t end, const std::function<T(int64_t)>& thing);

// Element of a product whose factors at step s are a(s) and b(s), for s in [0, k). Leaf i of `leaves` is the steps
// [i * leaf, (i + 1) * leaf) that are below k, and +0 if there are none.
template <typename T>
T product(int64_t k, int64_t leaf, int64_t leaves, const std::function<T(int64_t)>& a,
          const std::function<T(int64_t)>& b);

// Likewise, of bfloat16: a(s) and b(s) are exact in float and taken by pairs, the second of each first; denormals are
// zeros in every step.
float product_of_pairs(int64_t k, int64_t leaf, int64_t leaves, const std::function<float(int64_t)>& a,
                       const std::function<float(int64_t)>& b);

}  // namespace tessera::kernels::oracle
