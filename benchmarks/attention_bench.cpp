// Attention by blocks against its parts run whole and against libtorch's, one thread, float32, causal and not:
// milliseconds.
#include <cmath>
#include <functional>

#include <ATen/ATen.h>
#include <ATen/Parallel.h>

#include "benchmarks/measure.h"
#include "tessera/kernels/attention/attention.h"
#include "tessera/kernels/base/isa.h"
#include "tessera/kernels/product/product.h"
#include "tessera/kernels/rows/rows.h"

namespace tessera::benchmarks {
namespace {

using namespace tessera::kernels;

struct Problem {
  Problem(AttentionShape s, bool causal)
      : shape(s),
        is_causal(causal),
        q(at::randn({s.batch, s.heads, s.queries, s.width})),
        k(at::randn_like(q)),
        v(at::randn_like(q)),
        grad(at::randn_like(q)),
        out(at::empty_like(q)),
        dq(at::empty_like(q)),
        dk(at::empty_like(q)),
        dv(at::empty_like(q)),
        later(at::ones({s.queries, s.keys}, at::kBool).triu(1)) {}

  AttentionShape shape;
  bool is_causal;
  at::Tensor q, k, v, grad, out, dq, dk, dv, later, weights;
  double scale() const { return 1 / std::sqrt(static_cast<double>(shape.width)); }
};

Heads<float> heads(const at::Tensor& x) { return {x.data_ptr<float>(), x.stride(0), x.stride(1), x.stride(2)}; }
Heads<const float> read(const at::Tensor& x) { return {x.data_ptr<float>(), x.stride(0), x.stride(1), x.stride(2)}; }

Attention<float> call_of(const Problem& p) {
  return {
      .shape = p.shape, .q = read(p.q), .k = read(p.k), .v = read(p.v), .scale = p.scale(), .is_causal = p.is_causal};
}

at::Tensor product(const at::Tensor& a, const at::Tensor& b) {
  const at::Tensor x = a.flatten(0, 1), y = b.flatten(0, 1), out = at::empty({x.size(0), x.size(1), y.size(2)});
  const auto view = [](const at::Tensor& t) {
    return Matrices<const float>{t.data_ptr<float>(), t.stride(1), t.stride(2), t.stride(0)};
  };
  run_product(Product<float>{.batch = x.size(0),
                             .m = x.size(1),
                             .n = y.size(2),
                             .k = x.size(2),
                             .a = view(x),
                             .b = view(y),
                             .out = {out.data_ptr<float>(), out.stride(1), 1, out.stride(0)}});
  return out.unflatten(0, {a.size(0), a.size(1)});
}

void run_parts(Problem& p) {
  at::Tensor scores = product(p.q, p.k.transpose(-2, -1)) * p.scale();
  if (p.is_causal) {
    scores = scores.masked_fill(p.later, -INFINITY);
  }
  const int64_t n = p.shape.keys;
  p.weights = at::empty_like(scores);
  softmax<float>({scores.numel() / n, n}, {scores.data_ptr<float>(), n}, {p.weights.data_ptr<float>(), n});
  p.out = product(p.weights, p.v);
}

void run_parts_backward(Problem& p) {
  const int64_t n = p.shape.keys;
  p.dv = product(p.weights.transpose(-2, -1), p.grad);
  at::Tensor slopes = product(p.grad, p.v.transpose(-2, -1));
  softmax_backward<float>({slopes.numel() / n, n}, {slopes.data_ptr<float>(), n}, {p.weights.data_ptr<float>(), n},
                          {slopes.data_ptr<float>(), n});
  if (p.is_causal) {
    slopes = slopes.masked_fill(p.later, 0);
  }
  slopes = slopes * p.scale();
  p.dq = product(slopes, p.k);
  p.dk = product(slopes.transpose(-2, -1), p.q);
}

double least_ms(const std::function<void()>& body) {
  Least least;
  for (int repeat = 0; repeat < 12; ++repeat) {
    least.add(microseconds(1, body) / 1000);
  }
  return least.value();
}

void print_case(const char* name, AttentionShape shape, bool is_causal) {
  Problem p(shape, is_causal);
  const auto forward = [&] { attention(call_of(p), heads(p.out)); };
  const auto backward = [&] {
    attention_backward(call_of(p), read(p.grad), {.q = heads(p.dq), .k = heads(p.dk), .v = heads(p.dv)});
  };
  const double ours = least_ms(forward), ours_back = least_ms(backward);
  const double parts = least_ms([&] { run_parts(p); }), parts_back = least_ms([&] { run_parts_backward(p); });
  const auto [out, log_sums] = at::_scaled_dot_product_flash_attention_for_cpu(p.q, p.k, p.v, 0, is_causal);
  const double stock = least_ms([&] { at::_scaled_dot_product_flash_attention_for_cpu(p.q, p.k, p.v, 0, is_causal); });
  const double stock_back = least_ms([&, &o = out, &l = log_sums] {
    at::_scaled_dot_product_flash_attention_for_cpu_backward(p.grad, p.q, p.k, p.v, o, l, 0, is_causal);
  });
  print_row(name, {ours, parts, stock, ours_back, parts_back, stock_back}, "%10.2f");
}

void run() {
  at::set_num_threads(1);
  const c10::InferenceMode no_grad;
  at::manual_seed(1);
  print_header(std::string("ms, ") + name_of(current_isa()),
               {"blocks", "parts", "libtorch", "back", "parts", "libtorch"});
  for (bool is_causal : {false, true}) {
    print_case(is_causal ? "4x8x256x32 causal" : "4x8x256x32", {4, 8, 8, 256, 256, 32, 32}, is_causal);
    print_case(is_causal ? "4x8x1024x64 causal" : "4x8x1024x64", {4, 8, 8, 1024, 1024, 64, 64}, is_causal);
  }
}

}  // namespace
}  // namespace tessera::benchmarks

int main() { tessera::benchmarks::run(); }
