// The canonical product of matrices: every element is one fixed expression of its row, its column and k.
#pragma once

#include <cstdint>

#include <c10/util/BFloat16.h>
#include <c10/util/Half.h>

#include "tessera/kernels/base/chain.h"

namespace tessera::kernels {

// A stack of matrices in memory: element (i, j) of matrix x at data[x * batch + i * row + j * column], in elements.
template <typename T>
struct Matrices {
  T* data = nullptr;
  int64_t row = 0;
  int64_t column = 1;
  int64_t batch = 0;
};

// out[i,j] = sum over k of a[i,k] * b[k,j], for each matrix of the batch. T is float or double, or 16 bits wide with
// sums in float.
//
// The sum, exactly: k is cut into leaves of `leaf` elements and a leaf into pieces of kChainSteps, the last of each may
// be short. A piece is acc = fma(a[i,k], b[k,j], acc) in order of k, from acc = +0. A leaf is the tree of its pieces,
// the result the tree of the leaves (sums/lattice.h; left + right). So a call computes one node of the tree over a
// longer k. Neither sizes, strides, addresses, instruction set nor threads enter: equal rows and columns give equal
// bits, and only the payload of a NaN is left open.
//
// float16 is widened, and all is as for float. The chains of bfloat16 are what vdpbf16ps computes: a piece is taken by
// pairs, of each pair the second element first; one of odd length ends with a +0 in both factors; and in each step
// denormal operands and results are zeros of their sign. In trees and in `accumulate` denormals are kept, as where
// ranks merge nodes.
template <typename T, typename Sum = T>
struct Product {
  int64_t batch = 1;
  int64_t m = 0, n = 0, k = 0;  // any of them may be 0; a sum of nothing is +0
  Matrices<const T> a = {};     // m x k, any strides
  Matrices<const T> b = {};     // k x n, any strides
  Matrices<Sum> out = {};       // m x n, any strides; overlaps neither a nor b
  int64_t leaf = 0;             // elements of a leaf; 0: all of k is one
  int64_t leaves = 0;           // leaves of this node; 0: as many as k fills. Those beyond k are empty and count as +0
  bool accumulate = false;      // out[i,j] = out[i,j] + sum, one addition, instead of out[i,j] = sum
};

// On torch's threads, over batch, m and n only, in the FloatEnvironment of this floor. Throws if a size is negative or
// the leaves do not hold k, or for bfloat16 on other processors than x86-64; nothing is written then.
void run_product(const Product<float>& product);
void run_product(const Product<double>& product);
void run_product(const Product<c10::BFloat16, float>& product);
void run_product(const Product<c10::Half, float>& product);

}  // namespace tessera::kernels
