#include "tessera/dtensor/ops/optimizer_ops.h"

#include <initializer_list>
#include <string>
#include <utility>

#include <ATen/core/dispatch/Dispatcher.h>
#include <ATen/core/LegacyTypeDispatch.h>
#include <torch/library.h>

#include "tessera/base/error.h"
#include "tessera/kernels/maps/adamw_8bit.h"
#include "tessera/kernels/maps/optimizer.h"

namespace tessera::dtensor {

namespace {

using Tensors = std::vector<at::Tensor>;
using List = at::TensorList;

// A tensor's elements in row-major order: its own memory where they lie so, else a copy that put_back() writes back.
class RowMajor {
 public:
  explicit RowMajor(const at::Tensor& tensor) : tensor_(tensor), elements_(tensor.contiguous()) {}

  template <typename T>
  T* data() const {
    return elements_.data_ptr<T>();
  }
  void put_back() const {
    if (!elements_.is_same(tensor_)) {
      tensor_.copy_(elements_);
    }
  }

 private:
  const at::Tensor& tensor_;
  const at::Tensor elements_;
};

void check_lists(const char* name, List parameters, std::initializer_list<List> others) {
  for (const List& other : others) {
    TESSERA_CHECK(other.size() == parameters.size(), "[", name, "] ", parameters.size(), " parameters and a list of ",
                  other.size(), "; accepted: lists of one length");
  }
}

void check_state(const char* name, const at::Tensor& parameter, const at::Tensor& other, c10::IntArrayRef sizes,
                 c10::ScalarType dtype) {
  TESSERA_CHECK(other.sizes() == sizes && other.scalar_type() == dtype, "[", name, "] with a parameter ",
                parameter.scalar_type(), parameter.sizes(), " stands ", other.scalar_type(), other.sizes(),
                "; accepted: ", dtype, sizes);
}

void check_floats(const char* name, const at::Tensor& parameter) {
  const auto dtype = parameter.scalar_type();
  TESSERA_CHECK(parameter.is_cpu(), "[", name, "] a parameter on ", parameter.device(),
                "; accepted: the CPU. On a GPU, use torch's AdamW or SGD");
  TESSERA_CHECK(dtype == at::kFloat || dtype == at::kDouble, "[", name, "] a parameter of ", dtype,
                "; accepted: float32 and float64");
}

template <typename T>
void lion_of(const kernels::Lion& options, const at::Tensor& parameter, const at::Tensor& grad,
             const at::Tensor& average) {
  const RowMajor p(parameter), g(grad), m(average);
  kernels::lion_step<T>(options, parameter.numel(), p.data<T>(), g.data<T>(), m.data<T>());
  p.put_back(), m.put_back();
}

void lion_plain(List parameters, List grads, List averages, double lr, double beta1, double beta2, double weight_decay,
                bool maximize) {
  constexpr const char* kName = "lion_";
  const kernels::Lion options{lr, beta1, beta2, weight_decay, maximize};
  check_lists(kName, parameters, {grads, averages});
  for (size_t i = 0; i < parameters.size(); ++i) {
    const at::Tensor& parameter = parameters[i];
    const auto dtype = parameter.scalar_type();
    check_state(kName, parameter, grads[i], parameter.sizes(), dtype);
    check_state(kName, parameter, averages[i], parameter.sizes(), dtype);
    check_floats(kName, parameter);
    (dtype == at::kFloat ? lion_of<float> : lion_of<double>)(options, parameter, grads[i], averages[i]);
  }
}

template <typename T>
void ema_of(double decay, const at::Tensor& average, const at::Tensor& value) {
  const RowMajor m(average), x(value);
  kernels::ema_step<T>(decay, average.numel(), m.data<T>(), x.data<T>());
  m.put_back();
}

void ema_plain(List averages, List values, double decay) {
  constexpr const char* kName = "ema_";
  check_lists(kName, averages, {values});
  for (size_t i = 0; i < averages.size(); ++i) {
    check_floats(kName, averages[i]);
    check_state(kName, averages[i], values[i], averages[i].sizes(), averages[i].scalar_type());
    (averages[i].scalar_type() == at::kFloat ? ema_of<float> : ema_of<double>)(decay, averages[i], values[i]);
  }
}

struct Matrix {
  int64_t rows, columns;
};

Matrix matrix_of(c10::IntArrayRef sizes) {
  return sizes.size() < 2 ? Matrix{1, c10::multiply_integers(sizes)}
                          : Matrix{sizes[0], c10::multiply_integers(sizes.slice(1))};
}

void adamw_8bit_plain(List parameters, List grads, List average_codes, List average_scales, List square_codes,
                      List square_scales, at::IntArrayRef steps, double lr, double beta1, double beta2, double eps,
                      double weight_decay, bool maximize) {
  constexpr const char* kName = "adamw_8bit_";
  kernels::AdamW options{lr, beta1, beta2, eps, weight_decay};
  options.maximize = maximize;
  check_lists(kName, parameters, {grads, average_codes, average_scales, square_codes, square_scales});
  TESSERA_CHECK(steps.size() == parameters.size(), "[", kName, "] ", parameters.size(), " parameters and ",
                steps.size(), " steps; accepted: one each");
  for (size_t i = 0; i < parameters.size(); ++i) {
    const at::Tensor& parameter = parameters[i];
    const auto [rows, columns] = matrix_of(parameter.sizes());
    TESSERA_CHECK(parameter.scalar_type() == at::kFloat, "[", kName, "] a parameter of ", parameter.scalar_type(),
                  "; accepted: float32");
    check_state(kName, parameter, grads[i], parameter.sizes(), at::kFloat);
    for (const auto& [codes, scales] :
         {std::pair(average_codes[i], average_scales[i]), std::pair(square_codes[i], square_scales[i])}) {
      check_state(kName, parameter, codes, parameter.sizes(), at::kByte);
      check_state(kName, parameter, scales, sizes_of_scales(parameter.sizes()), at::kFloat);
    }
    if (rows * columns == 0) {
      continue;
    }
    const RowMajor p(parameter), g(grads[i]), codes1(average_codes[i]), scales1(average_scales[i]),
        codes2(square_codes[i]), scales2(square_scales[i]);
    options.step = steps[i];
    kernels::adamw_8bit_step(options, rows, columns, p.data<float>(), g.data<float>(),
                             {codes1.data<uint8_t>(), scales1.data<float>()},
                             {codes2.data<uint8_t>(), scales2.data<float>()});
    for (const RowMajor* written : {&p, &codes1, &scales1, &codes2, &scales2}) {
      written->put_back();
    }
  }
}

// One of the operators below.
template <typename Function>
auto find_step(const std::string& name) {
  return c10::Dispatcher::singleton().findSchemaOrThrow(("tessera::" + name).c_str(), "").typed<Function>();
}

// For autograd, below which a step is taken: what it saved of these tensors is not what they are.
void count_write(List tensors) {
  for (const at::Tensor& tensor : tensors) {
    if (!tensor.is_inference()) {
      tensor.unsafeGetTensorImpl()->bump_version();
    }
  }
}

}  // namespace

TORCH_LIBRARY_FRAGMENT(tessera, m) {
  m.def(
      "lion_(Tensor(a!)[] self, Tensor[] grads, Tensor(b!)[] exp_avgs, *, float lr, float beta1, float beta2, float "
      "weight_decay, bool maximize) -> ()");
  m.impl("lion_", c10::DispatchKey::CompositeExplicitAutograd, TORCH_FN(lion_plain));
  m.impl("lion_", torch::dispatch(c10::DispatchKey::Autograd, torch::CppFunction::makeFallthrough()));
  m.def("ema_(Tensor(a!)[] self, Tensor[] values, *, float decay) -> ()");
  m.impl("ema_", c10::DispatchKey::CompositeExplicitAutograd, TORCH_FN(ema_plain));
  m.impl("ema_", torch::dispatch(c10::DispatchKey::Autograd, torch::CppFunction::makeFallthrough()));
  m.def(
      "adamw_8bit_(Tensor(a!)[] self, Tensor[] grads, Tensor(b!)[] exp_avg_codes, Tensor(c!)[] exp_avg_scales, "
      "Tensor(d!)[] exp_avg_sq_codes, Tensor(e!)[] exp_avg_sq_scales, int[] steps, *, float lr, float beta1, float "
      "beta2, float eps, float weight_decay, bool maximize) -> ()");
  m.impl("adamw_8bit_", c10::DispatchKey::CompositeExplicitAutograd, TORCH_FN(adamw_8bit_plain));
  m.impl("adamw_8bit_", torch::dispatch(c10::DispatchKey::Autograd, torch::CppFunction::makeFallthrough()));
}

void lion_step(const Tensors& parameters, const Tensors& gradients, const Tensors& averages,
               const kernels::Lion& options) {
  static const auto op = find_step<decltype(lion_plain)>("lion_");
  const at::AutoDispatchBelowADInplaceOrView below;
  op.call(parameters, gradients, averages, options.lr, options.beta1, options.beta2, options.weight_decay,
          options.maximize);
  count_write(parameters), count_write(averages);
}

void ema_step(const Tensors& averages, const Tensors& values, double decay) {
  static const auto op = find_step<decltype(ema_plain)>("ema_");
  const at::AutoDispatchBelowADInplaceOrView below;
  op.call(averages, values, decay);
  count_write(averages);
}

std::vector<int64_t> sizes_of_scales(c10::IntArrayRef parameter) {
  const auto [rows, columns] = matrix_of(parameter);
  const int64_t blocks = kernels::moment_blocks(columns);
  return parameter.size() < 2 ? std::vector<int64_t>{blocks} : std::vector<int64_t>{rows, blocks};
}

void adamw_8bit_step(const Tensors& parameters, const Tensors& gradients, const Moments8bit& averages,
                     const Moments8bit& squares, const std::vector<int64_t>& steps, const kernels::AdamW& options) {
  static const auto op = find_step<decltype(adamw_8bit_plain)>("adamw_8bit_");
  const at::AutoDispatchBelowADInplaceOrView below;
  op.call(parameters, gradients, averages.codes, averages.scales, squares.codes, squares.scales, steps, options.lr,
          options.beta1, options.beta2, options.eps, options.weight_decay, options.maximize);
  for (const Tensors* written : {&parameters, &averages.codes, &averages.scales, &squares.codes, &squares.scales}) {
    count_write(*written);
  }
}

}  // namespace tessera::dtensor
