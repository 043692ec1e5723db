// The table of the instruction set whose pack_<isa>.h stands before this. For table_<isa>.cpp alone.
#pragma once

#include "tessera/kernels/attention/attention_loops.h"
#include "tessera/kernels/maps/map_loops.h"
#include "tessera/kernels/rows/norm_loops.h"
#include "tessera/kernels/rows/row_loops.h"

namespace tessera::kernels {
namespace {

template <typename T>
constexpr Table<T> make_table() {
  using M = VectorMath<T>;
  Table<T> t = {};
  t.exp = map<T, M::exp>;
  t.log = map<T, M::log>;
  t.tanh = map<T, M::tanh>;
  t.erf = map<T, M::erf>;
  t.sigmoid = map<T, M::sigmoid>;
  t.silu = map<T, M::silu>;
  t.gelu = gelu<T>;
  t.gelu_tanh = map<T, M::gelu_tanh>;
  t.add_zero = map<T, plus_zero<T>>;
  t.silu_backward = map_backward<T, M::silu_backward>;
  t.gelu_backward = map_backward<T, M::gelu_backward>;
  t.gelu_tanh_backward = map_backward<T, M::gelu_tanh_backward>;
  t.dropout = dropout<T>;
  t.row_sum = row_sum<T>;
  t.row_squares = row_squares<T>;
  t.row_max = row_max<T>;
  t.row_exp_sum = row_exp_sum<T>;
  t.softmax = softmax<T>;
  t.log_softmax = log_softmax<T>;
  t.softmax_backward = softmax_backward<T>;
  t.log_softmax_backward = log_softmax_backward<T>;
  t.cross_entropy_backward = cross_entropy_backward<T>;
  t.attention_weights = attention_weights<T>;
  t.attention_slopes = attention_slopes<T>;
  t.is_finite = is_finite<T>;
  t.has_minus_zero = has_minus_zero<T>;
  t.rms_norm = rms_norm<T>;
  t.rms_norm_backward = rms_norm_backward<T>;
  t.layer_norm = layer_norm<T>;
  t.layer_norm_backward = layer_norm_backward<T>;
  t.column_sum = column_sum<T>;
  t.rms_norm_weight = rms_norm_weight<T>;
  t.layer_norm_weight = layer_norm_weight<T>;
  t.picked_sum = picked_sum<T>;
  t.adamw = adamw<T>;
  t.sgd = sgd<T>;
  t.sgd_momentum = sgd_momentum<T>;
  t.lion = lion<T>;
  t.ema = ema<T>;
  return t;
}

constexpr Table<float> kFloatTable = make_table<float>();
constexpr Table<double> kDoubleTable = make_table<double>();

}  // namespace
}  // namespace tessera::kernels
