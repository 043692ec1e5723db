// Row and elementwise kernels against libtorch's, one thread: the time of ours over the time of theirs, float32.
//
// TESSERA_ISA chooses our instruction set. Both sides write into memory that is there, in turns, the least of many
// repeats.
#include <cmath>
#include <functional>
#include <numeric>

#include <ATen/ATen.h>
#include <ATen/Parallel.h>

#include "benchmarks/measure.h"
#include "tessera/kernels/base/isa.h"
#include "tessera/kernels/maps/elementwise.h"
#include "tessera/kernels/maps/optimizer.h"
#include "tessera/kernels/rows/clip_norm.h"
#include "tessera/kernels/rows/cross_entropy.h"
#include "tessera/kernels/rows/embedding.h"
#include "tessera/kernels/rows/norms.h"
#include "tessera/kernels/rows/rows.h"

namespace tessera::benchmarks {
namespace {

using namespace tessera::kernels;

constexpr int kRepeats = 60;
constexpr int64_t kVocabulary = 1000;

struct Arrays {
  explicit Arrays(Shape s)
      : shape(s),
        x(at::randn({s.rows, s.n})),
        grad(at::randn({s.rows, s.n})),
        y(at::empty({s.rows, s.n})),
        dx(at::empty({s.rows, s.n})),
        positive(at::rand({s.rows, s.n}) + 0.1),
        probabilities(at::softmax(x, 1)),
        logs(at::log_softmax(x, 1)),
        weight(at::randn({s.n})),
        bias(at::randn({s.n})),
        a(at::empty({s.rows})),
        b(at::empty({s.rows})),
        c(at::empty({s.rows})),
        ones(at::ones({s.rows})),
        dw(at::zeros({s.n})),
        db(at::zeros({s.n})),
        target(at::randint(s.n, {s.rows})),
        ids(at::randint(kVocabulary, {s.rows})),
        table(at::randn({kVocabulary, s.n})),
        keep(at::rand({s.rows, s.n}) < 0.9),
        average(at::zeros({s.rows, s.n})),
        square(at::ones({s.rows, s.n})),
        step(at::full({}, 10.0)) {}

  int64_t size() const { return shape.rows * shape.n; }

  Shape shape;
  at::Tensor x, grad, y, dx, positive, probabilities, logs, weight, bias, a, b, c, ones, dw, db, target, ids, table,
      keep, average, square, step, result, mean = at::empty({shape.rows, 1}), rstd = at::empty({shape.rows, 1});
};

float* f(const at::Tensor& t) { return t.data_ptr<float>(); }
Rows<const float> in(const at::Tensor& t) { return {f(t), t.size(-1)}; }
Rows<float> out(const at::Tensor& t) { return {f(t), t.size(-1)}; }
const int64_t* i64(const at::Tensor& t) { return t.data_ptr<int64_t>(); }

struct Case {
  const char* name;
  std::function<void(Arrays&)> ours, theirs;
};

Case map_case(const char* name, Function function, at::Tensor& (*torch)(at::Tensor&, const at::Tensor&)) {
  return {name, [=](Arrays& v) { map(function, v.size(), f(function == Function::kLog ? v.positive : v.x), f(v.y)); },
          [=](Arrays& v) { torch(v.y, function == Function::kLog ? v.positive : v.x); }};
}

void add_elementwise(std::vector<Case>& all) {
  all.push_back(map_case("exp", Function::kExp, at::exp_out));
  all.push_back(map_case("log", Function::kLog, at::log_out));
  all.push_back(map_case("tanh", Function::kTanh, at::tanh_out));
  all.push_back(map_case("erf", Function::kErf, at::erf_out));
  all.push_back(map_case("sigmoid", Function::kSigmoid, at::sigmoid_out));
  all.push_back(map_case("silu", Function::kSilu, at::silu_out));
  all.push_back(map_case("gelu", Function::kGelu,
                         [](at::Tensor& y, const at::Tensor& x) -> at::Tensor& { return at::gelu_out(y, x); }));
  all.push_back(map_case("gelu tanh", Function::kGeluTanh,
                         [](at::Tensor& y, const at::Tensor& x) -> at::Tensor& { return at::gelu_out(y, x, "tanh"); }));
  const auto back = [](Derivative d) {
    return [=](Arrays& v) { map_backward(d, v.size(), f(v.grad), f(v.x), f(v.dx)); };
  };
  all.push_back(
      {"silu backward", back(Derivative::kSilu), [](Arrays& v) { at::silu_backward_out(v.dx, v.grad, v.x); }});
  all.push_back(
      {"gelu backward", back(Derivative::kGelu), [](Arrays& v) { at::gelu_backward_out(v.dx, v.grad, v.x); }});
  all.push_back({"gelu tanh backward", back(Derivative::kGeluTanh),
                 [](Arrays& v) { at::gelu_backward_out(v.dx, v.grad, v.x, "tanh"); }});
  all.push_back({"dropout, mask given",
                 [](Arrays& v) { dropout(v.size(), f(v.x), v.keep.data_ptr<bool>(), 1 / 0.9, f(v.y)); },
                 [](Arrays& v) { at::native_dropout_backward_out(v.y, v.x, v.keep, 1 / 0.9); }});
}

void add_rows(std::vector<Case>& all) {
  all.push_back({"sum", [](Arrays& v) { row_sum(v.shape, kWholeRow, in(v.x), f(v.a)); },
                 [](Arrays& v) { at::sum_out(v.a, v.x, {1}); }});
  all.push_back({"sum, 8 leaves", [](Arrays& v) { row_sum(v.shape, v.shape.n / 8, in(v.x), f(v.a)); },
                 [](Arrays& v) { at::sum_out(v.a, v.x, {1}); }});
  all.push_back({"mean", [](Arrays& v) { row_mean(v.shape, kWholeRow, in(v.x), f(v.a)); },
                 [](Arrays& v) { at::mean_out(v.a, v.x, {1}); }});
  all.push_back(
      {"max", [](Arrays& v) { row_max(v.shape, in(v.x), f(v.a)); }, [](Arrays& v) { at::amax_out(v.a, v.x, {1}); }});
  all.push_back({"clip norm", [](Arrays& v) { f(v.a)[0] = clip_squares(v.shape, in(v.x)); },
                 [](Arrays& v) { v.result = at::linalg_vector_norm(v.x, 2); }});
  all.push_back({"softmax", [](Arrays& v) { softmax(v.shape, in(v.x), out(v.y)); },
                 [](Arrays& v) { at::_softmax_out(v.y, v.x, 1, false); }});
  all.push_back({"log_softmax", [](Arrays& v) { log_softmax(v.shape, in(v.x), out(v.y)); },
                 [](Arrays& v) { at::_log_softmax_out(v.y, v.x, 1, false); }});
  all.push_back({"softmax backward",
                 [](Arrays& v) { softmax_backward(v.shape, in(v.grad), in(v.probabilities), out(v.dx)); },
                 [](Arrays& v) { at::_softmax_backward_data_out(v.dx, v.grad, v.probabilities, 1, at::kFloat); }});
  all.push_back({"log_softmax backward",
                 [](Arrays& v) { log_softmax_backward(v.shape, in(v.grad), in(v.logs), out(v.dx)); },
                 [](Arrays& v) { at::_log_softmax_backward_data_out(v.dx, v.grad, v.logs, 1, at::kFloat); }});
  all.push_back(
      {"cross entropy, 8 leaves",
       [](Arrays& v) { cross_entropy(v.shape, v.shape.n / 8, in(v.x), i64(v.target), f(v.a), f(v.b), f(v.c)); },
       [](Arrays& v) { v.result = at::cross_entropy_loss(v.x, v.target, {}, at::Reduction::None); }});
  all.push_back({"cross entropy backward",
                 [](Arrays& v) {
                   cross_entropy_backward(v.shape, in(v.x), f(v.ones), f(v.ones), i64(v.target), 0, f(v.ones),
                                          out(v.dx));
                 },
                 [](Arrays& v) {
                   const at::Tensor back =
                       at::nll_loss_backward(v.ones, v.logs, v.target, {}, at::Reduction::None, -100, at::empty({}));
                   at::_log_softmax_backward_data_out(v.dx, back, v.logs, 1, at::kFloat);
                 }});
}

void add_norms(std::vector<Case>& all) {
  all.push_back({"rms_norm", [](Arrays& v) { rms_norm(v.shape, in(v.x), f(v.weight), 1e-5, out(v.y), f(v.a)); },
                 [](Arrays& v) { v.y = at::rms_norm(v.x, {v.shape.n}, v.weight, 1e-5); }});
  all.push_back(
      {"layer_norm",
       [](Arrays& v) { layer_norm(v.shape, in(v.x), f(v.weight), f(v.bias), 1e-5, out(v.y), f(v.a), f(v.b)); },
       [](Arrays& v) { at::native_layer_norm_out(v.y, v.mean, v.rstd, v.x, {v.shape.n}, v.weight, v.bias, 1e-5); }});
  all.push_back({"layer_norm backward",
                 [](Arrays& v) {
                   const Samples samples{4, v.shape.rows / 4};
                   layer_norm_backward(v.shape, in(v.grad), in(v.x), f(v.weight), f(v.ones), f(v.ones), out(v.dx));
                   add_layer_norm_weight(samples, v.shape.n, in(v.grad), in(v.x), f(v.ones), f(v.ones), f(v.dw));
                   add_column_sum(samples, v.shape.n, in(v.grad), f(v.db));
                 },
                 [](Arrays& v) {
                   const at::Tensor ones = v.ones.view({-1, 1});
                   at::native_layer_norm_backward_out(v.dx, v.dw, v.db, v.grad, v.x, {v.shape.n}, ones, ones, v.weight,
                                                      v.bias, {true, true, true});
                 }});
  all.push_back({"rms_norm backward",
                 [](Arrays& v) {
                   rms_norm_backward(v.shape, in(v.grad), in(v.x), f(v.weight), f(v.ones), out(v.dx));
                   add_rms_norm_weight({4, v.shape.rows / 4}, v.shape.n, in(v.grad), in(v.x), f(v.ones), f(v.dw));
                 },
                 [](Arrays& v) {  // as its autograd does it on the CPU
                   const at::Tensor scale = v.ones.view({-1, 1}), normed = v.x * scale, weighted = v.grad * v.weight;
                   v.result = (weighted - normed * at::mean(weighted * normed, {1}, true)) * scale;
                   at::sum_out(v.dw, v.grad * normed, {0});
                 }});
  all.push_back({"bias gradient",
                 [](Arrays& v) { add_column_sum({4, v.shape.rows / 4}, v.shape.n, in(v.grad), f(v.db)); },
                 [](Arrays& v) { at::sum_out(v.db, v.grad, {0}); }});
  all.push_back({"embedding",
                 [](Arrays& v) { embedding(v.shape, i64(v.ids), {0, kVocabulary}, in(v.table), out(v.y)); },
                 [](Arrays& v) { at::index_select_out(v.y, v.table, 0, v.ids); }});
  all.push_back({"embedding gradient",
                 [](Arrays& v) {
                   add_embedding_gradient({4, v.shape.rows / 4}, v.shape.n, i64(v.ids), {0, kVocabulary}, in(v.grad),
                                          out(v.table));
                 },
                 [](Arrays& v) { v.table.index_add_(0, v.ids, v.grad); }});
  all.push_back({"AdamW",
                 [](Arrays& v) { adamw_step({.step = 10}, v.size(), f(v.y), f(v.grad), f(v.average), f(v.square)); },
                 [](Arrays& v) {
                   at::_fused_adamw_({v.y}, {v.grad}, {v.average}, {v.square}, {}, {v.step}, 1e-3, 0.9, 0.999, 1e-2,
                                     1e-8, false, false);
                 }});
  all.push_back(
      {"SGD, momentum", [](Arrays& v) { sgd_step({.momentum = 0.9}, v.size(), f(v.y), f(v.grad), f(v.average)); },
       [](Arrays& v) { at::_fused_sgd_({v.y}, {v.grad}, {v.average}, 0, 0.9, 1e-3, 0, false, false, false); }});
}

double ratio(const Case& one, Arrays& arrays) {
  Least ours, theirs;
  for (int repeat = 0; repeat < kRepeats; ++repeat) {
    ours.add(microseconds(3, [&] { one.ours(arrays); }));
    theirs.add(microseconds(3, [&] { one.theirs(arrays); }));
  }
  return ours.value() / theirs.value();
}

void run() {
  at::set_num_threads(1);
  const c10::InferenceMode no_grad;
  at::manual_seed(1);
  std::vector<Case> all;
  add_elementwise(all);
  add_rows(all);
  add_norms(all);
  std::vector<Arrays> shapes;
  for (const Shape shape : {Shape{1024, 256}, Shape{1024, 1024}, Shape{256, 4096}}) {
    shapes.emplace_back(shape);
  }
  print_header(std::string("ours / libtorch, ") + name_of(current_isa()), {"1024x256", "1024x1024", "256x4096"});
  double logs = 0;
  for (const Case& one : all) {
    std::vector<double> ratios;
    for (Arrays& arrays : shapes) {
      ratios.push_back(ratio(one, arrays));
    }
    for (const double value : ratios) {
      logs += std::log(value);
    }
    print_row(one.name, ratios, "%10.2f");
  }
  print_row("geometric mean", {std::exp(logs / static_cast<double>(all.size() * shapes.size()))}, "%10.2f");
}

}  // namespace
}  // namespace tessera::benchmarks

int main() { tessera::benchmarks::run(); }
