// Scaled dot-product attention by blocks of query rows, with the bits of the products and rows it is made of.
//
// scores = (q k^T) scale, masked; weights = their softmax over whole rows (rows.h); out = (weights keep) v. The
// products are canonical (product.h): q k^T and its like sum over the width in one leaf, sums over positions have
// leaves of the length that the call gives. A block's rows are all that is ever held of a [queries, keys] matrix. T is
// float or double. The last dim of every tensor is contiguous. Outputs overlap no input.
#pragma once

#include <cstdint>

namespace tessera::kernels {

// Row p of head h of sample b begins at data[b * batch + h * head + p * row], in elements. A stride of 0 repeats.
template <typename T>
struct Heads {
  T* data = nullptr;
  int64_t batch = 0, head = 0, row = 0;

  T* at(int64_t b, int64_t h, int64_t p = 0) const { return data + b * batch + h * head + p * row; }
};

// Query head h uses key head h / (heads / key_heads).
struct AttentionShape {
  int64_t batch = 0, heads = 0, key_heads = 0;
  int64_t queries = 0, keys = 0;
  int64_t width = 0, value_width = 0;  // of q and k; of v and out
};

// What both directions read. At most one of `is_causal`, `allowed` and `added` may be set.
template <typename T>
struct Attention {
  AttentionShape shape;
  Heads<const T> q, k, v;
  double scale = 1;                // rounded to T once
  bool is_causal = false;          // query i sees keys 0 ... i
  Heads<const bool> allowed = {};  // [batch, heads, queries, keys]: false becomes minus infinity
  Heads<const T> added = {};       // likewise: added to the scaled score
  Heads<const T> keep = {};        // likewise: factor of the weight (dropout: 0 or 1 / (1 - p)); none: 1
  int64_t key_leaf = 0;            // leaves of sums over keys (out, dq); 0: all keys are one
};

// Rows whose scores are all minus infinity get weights of +0 if there is a mask, NaN if not.
// Throws if sizes or heads do not fit or two masks are given; nothing is written then.
template <typename T>
void attention(const Attention<T>& call, Heads<T> out);

// Where the gradients go.
template <typename T>
struct AttentionGradients {
  Heads<T> q, k, v;
  int64_t query_leaf = 0;  // leaves of sums over queries (dk, dv); 0: all queries are one
  int64_t group_leaf =
      0;  // query heads of one key head are added as a row (rows.h) of leaves of this length; 0: one leaf
};

// With dw = (grad v^T) keep: ds = weights (dw - sum of dw weights), +0 where masked, times scale; dq = ds k, dk = ds^T
// q, dv = (weights keep)^T grad. The weights are computed again. A mask that is added gets no gradient here.
template <typename T>
void attention_backward(const Attention<T>& call, Heads<const T> grad, const AttentionGradients<T>& out);

}  // namespace tessera::kernels
