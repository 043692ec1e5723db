#include "tessera/rules/exact/products.h"

#include "tessera/kernels/product/product.h"
#include "tessera/rules/engine/dispatch_floats.h"

namespace tessera::rules::exact {

namespace {

template <typename T>
kernels::Matrices<T> matrices(const at::Tensor& tensor) {
  return {tensor.data_ptr<std::remove_const_t<T>>(), tensor.stride(1), tensor.stride(2), tensor.stride(0)};
}

}  // namespace

void run_products(const at::Tensor& a, const at::Tensor& b, const at::Tensor& out, int64_t leaf, bool accumulate) {
  dispatch_floats(out, "product", [&]<typename T>() {
    kernels::run_product(kernels::Product<T>{.batch = out.size(0),
                                             .m = out.size(1),
                                             .n = out.size(2),
                                             .k = a.size(2),
                                             .a = matrices<const T>(a),
                                             .b = matrices<const T>(b),
                                             .out = matrices<T>(out),
                                             .leaf = leaf,
                                             .accumulate = accumulate});
  });
}

}  // namespace tessera::rules::exact
