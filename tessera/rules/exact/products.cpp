#include "tessera/rules/exact/products.h"

#include "tessera/base/error.h"
#include "tessera/kernels/product/product.h"

namespace tessera::rules::exact {

namespace {

template <typename T>
kernels::Matrices<T> matrices(const at::Tensor& tensor) {
  return {tensor.data_ptr<std::remove_const_t<T>>(), tensor.stride(1), tensor.stride(2), tensor.stride(0)};
}

template <typename T, typename Sum = T>
void run(const at::Tensor& a, const at::Tensor& b, const at::Tensor& out, int64_t leaf, bool accumulate) {
  kernels::run_product(kernels::Product<T, Sum>{.batch = out.size(0),
                                                .m = out.size(1),
                                                .n = out.size(2),
                                                .k = a.size(2),
                                                .a = matrices<const T>(a),
                                                .b = matrices<const T>(b),
                                                .out = matrices<Sum>(out),
                                                .leaf = leaf,
                                                .accumulate = accumulate});
}

}  // namespace

void run_products(const at::Tensor& a, const at::Tensor& b, const at::Tensor& out, int64_t leaf, bool accumulate) {
  switch (a.scalar_type()) {
    case at::kFloat: return run<float>(a, b, out, leaf, accumulate);
    case at::kDouble: return run<double>(a, b, out, leaf, accumulate);
    case at::kBFloat16: return run<c10::BFloat16, float>(a, b, out, leaf, accumulate);
    case at::kHalf: return run<c10::Half, float>(a, b, out, leaf, accumulate);
    default:
      TESSERA_CHECK(false, "[product] has no exact form in ", a.scalar_type(),
                    "; accepted: float32, float64, bfloat16 and float16, or numerics fast");
  }
}

}  // namespace tessera::rules::exact
