#include "tessera/dtensor/ops/convolution.h"

#include <ATen/ops/conv1d_native.h>
#include <ATen/ops/conv2d_native.h>
#include <ATen/ops/conv3d_native.h>

#include "tessera/dtensor/record/kernel_registry.h"
#include "tessera/dtensor/record/meta.h"

namespace tessera::dtensor {

namespace {

bool is_read_in_own_dtype(const at::Tensor& tensor) {
  const ParameterInfo* parameter = is_dtensor(tensor) ? meta_of(tensor)->parameter : nullptr;
  return !parameter || !parameter->gather || !parameter->gather->dtype;
}

// libtorch's composite wants a bias in the dtype of the input. A parameter may be read in another than its own, and
// what it meets with it (GatherPolicy): then the input takes the bias's own dtype on the way, of which nothing remains.
template <auto kNative, typename Padding>
at::Tensor convolution(const at::Tensor& input, const at::Tensor& weight, const std::optional<at::Tensor>& bias,
                       c10::SymIntArrayRef stride, Padding padding, c10::SymIntArrayRef dilation, c10::SymInt groups) {
  const bool differs = bias && bias->defined() && !is_read_in_own_dtype(*bias);
  return kNative(differs ? input.to(bias->scalar_type()) : input, weight, bias, stride, padding, dilation,
                 std::move(groups));
}

template <auto kNative, auto kNativePadding>
void add(torch::Library& library, const std::string& name) {
  library.impl(name.c_str(), TORCH_FN((convolution<kNative, c10::SymIntArrayRef>)));
  library.impl((name + ".padding").c_str(), TORCH_FN((convolution<kNativePadding, c10::string_view>)));
}

}  // namespace

void register_convolution_kernels(KernelRegistry& registry) {
  for (torch::Library* library : registry.before_autograd()) {
    add<at::native::conv1d_symint, at::native::conv1d_padding_symint>(*library, "conv1d");
    add<at::native::conv2d_symint, at::native::conv2d_padding_symint>(*library, "conv2d");
    add<at::native::conv3d_symint, at::native::conv3d_padding_symint>(*library, "conv3d");
  }
}

}  // namespace tessera::dtensor
