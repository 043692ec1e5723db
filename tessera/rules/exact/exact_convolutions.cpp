// Convolutions in `exact` numerics: products of a weight with windows of its input, one sample at a time.
//
// The input of a convolution and the result of a transposed one are `large`: a window of kernel places stands at each
// place of the other, the `small` one. Every element is one fixed expression of a sample's values, whatever channels
// and samples are here.
#include "tessera/rules/exact/exact_kernels.h"

#include <ATen/ops/constant_pad_nd.h>
#include <ATen/ops/convolution.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/sum.h>
#include <ATen/ops/zeros.h>
#include <torch/library.h>

#include "tessera/base/error.h"
#include "tessera/rules/engine/dtypes.h"
#include "tessera/rules/engine/local_args.h"
#include "tessera/rules/engine/lookups.h"
#include "tessera/rules/exact/products.h"

namespace tessera::rules::exact {

namespace {

using Ints = std::vector<int64_t>;

// A list of one number holds for every dim.
Ints for_each_place(const c10::IValue& list, size_t count) {
  Ints all = list.toIntVector();
  if (all.size() == 1) {
    all.resize(count, all[0]);
  }
  return all;
}

// How windows lie in the large tensor: of `kernel` places each, for each of the small one's `places`.
struct Windows {
  int64_t groups = 1;
  Ints kernel, stride, padding, dilation, places;

  // Elements of a padded dim: all windows, and all of the large tensor.
  int64_t padded(size_t dim, int64_t large) const {
    return std::max((places[dim] - 1) * stride[dim] + dilation[dim] * (kernel[dim] - 1) + 1, padding[dim] + large);
  }

  // [samples, channels, places...] with zeros around the places.
  at::Tensor pad(const at::Tensor& large) const {
    Ints around;  // of the last dim first
    for (size_t d = kernel.size(); d-- > 0;) {
      const int64_t size = large.size(static_cast<int64_t>(d) + 2);
      around.insert(around.end(), {padding[d], padded(d, size) - padding[d] - size});
    }
    const bool is_padded = std::any_of(around.begin(), around.end(), [](int64_t zeros) { return zeros != 0; });
    return (is_padded ? at::constant_pad_nd(large, around) : large).contiguous();
  }

  // [samples, groups, channels of a group, kernel..., places...] of a padded tensor, as a view.
  at::Tensor of(const at::Tensor& padded) const {
    const int64_t channels = padded.size(1) / groups;
    Ints sizes = {padded.size(0), groups, channels},
         strides = {padded.stride(0), padded.stride(1) * channels, padded.stride(1)};
    sizes.insert(sizes.end(), kernel.begin(), kernel.end());
    sizes.insert(sizes.end(), places.begin(), places.end());
    for (const Ints* step : {&dilation, &stride}) {
      for (size_t d = 0; d < kernel.size(); ++d) {
        strides.push_back(padded.stride(static_cast<int64_t>(d) + 2) * step->at(d));
      }
    }
    return padded.as_strided(sizes, strides);
  }
};

// `get` gives an argument by name.
template <typename Get>
Windows windows_of(Get&& get, c10::IntArrayRef weight, const at::Tensor& small, int64_t groups) {
  const Ints kernel = weight.slice(2).vec(), places = small.sizes().slice(2).vec();
  const auto list = [&](const char* name) { return for_each_place(get(name), kernel.size()); };
  return {.groups = groups,
          .kernel = kernel,
          .stride = list("stride"),
          .padding = list("padding"),
          .dilation = list("dilation"),
          .places = places};
}

// The groups that are here; operand `input` has their channels in dim 1.
int64_t groups_here(const LocalCall& call, int64_t groups, size_t input) {
  return groups == 1 ? 1 : groups * call.operand_ranges[input][1].size() / call.operands[input]->sizes[1];
}

// A sum is one leaf.
void multiply(const at::Tensor& a, const at::Tensor& b, const at::Tensor& out, bool accumulate) {
  run_products(a, b, out, /*leaf=*/0, accumulate);
}

// out[g] = weight[g] windows[g] for each sample. `weight` is [groups, channels of a group, window].
void gather(const Windows& windows, const at::Tensor& large, const at::Tensor& weight, const at::Tensor& out) {
  const at::Tensor all = windows.of(windows.pad(large));
  for (int64_t n = 0; n < out.size(0); ++n) {
    multiply(weight, all[n].reshape({windows.groups, weight.size(2), -1}),
             out[n].view({windows.groups, weight.size(1), -1}), /*accumulate=*/false);
  }
}

// The windows weight[g]^T x[g] of each sample, added up where they overlap, one kernel place after the other. `weight`
// is [groups, channels of a group, window].
void scatter(const Windows& windows, const at::Tensor& x, const at::Tensor& weight, const at::Tensor& out) {
  const int64_t groups = windows.groups, kernel = c10::multiply_integers(windows.kernel),
                channels = weight.size(2) / kernel;
  Ints sizes = out.sizes().vec();
  for (size_t d = 0; d < windows.kernel.size(); ++d) {
    sizes[d + 2] = windows.padded(d, sizes[d + 2]);
  }
  at::Tensor sums = at::zeros(sizes, out.options());
  const at::Tensor all = windows.of(sums);
  const at::Tensor terms = at::empty({groups, weight.size(2), c10::multiply_integers(windows.places)}, out.options());
  Ints shape = {groups, channels, kernel};
  shape.insert(shape.end(), windows.places.begin(), windows.places.end());
  for (int64_t n = 0; n < out.size(0); ++n) {
    multiply(weight.transpose(1, 2), x[n].reshape({groups, weight.size(1), -1}), terms, /*accumulate=*/false);
    for (int64_t k = 0; k < kernel; ++k) {
      at::Tensor target = all[n];
      for (size_t d = windows.kernel.size(), rest = static_cast<size_t>(k); d-- > 0;
           rest /= static_cast<size_t>(windows.kernel[d])) {
        target = target.select(static_cast<int64_t>(d) + 2, static_cast<int64_t>(rest) % windows.kernel[d]);
      }
      target.add_(terms.view(shape).select(2, k));
    }
  }
  for (size_t d = 0; d < windows.kernel.size(); ++d) {
    sums = sums.narrow(static_cast<int64_t>(d) + 2, windows.padding[d], out.size(static_cast<int64_t>(d) + 2));
  }
  out.copy_(sums);
}

// Adds the gradient of a weight, the sum over all places of all samples that are here, onto `onto` by one addition.
void add_weight_gradient(const Windows& windows, const at::Tensor& small, const at::Tensor& large,
                         const at::Tensor& onto) {
  const int64_t groups = windows.groups, window = onto.numel() / std::max<int64_t>(onto.size(0), 1),
                samples = small.size(0);
  const at::Tensor rows = small.reshape({samples, groups, onto.size(0) / groups, -1})
                              .movedim(0, 2)
                              .reshape({groups, onto.size(0) / groups, -1});
  const int64_t behind =
      2 + static_cast<int64_t>(windows.kernel.size());  // the kernel's last dim, without that of the samples
  const at::Tensor columns = windows.of(windows.pad(large)).movedim(0, behind).reshape({groups, window, -1});
  multiply(rows, columns.transpose(1, 2), onto.view({groups, onto.size(0) / groups, window}), /*accumulate=*/true);
}

// The same by the arguments of tessera::convolution_weight.
template <typename Get>
void add_weight_gradient(Get&& get, int64_t groups, const at::Tensor& onto) {
  const at::Tensor grad = widened(get("grad").toTensor()), input = widened(get("input").toTensor());
  if (onto.numel() == 0 || grad.numel() == 0 || input.numel() == 0) {
    return;
  }
  const bool transposed = get("transposed").toBool();
  const at::Tensor &small = transposed ? input : grad, &large = transposed ? grad : input;
  add_weight_gradient(windows_of(get, onto.sizes(), small, groups), small, large, onto);
}

constexpr size_t kInputOfWeight = 1;  // which operand of tessera::convolution_weight

at::Tensor convolution_weight(const at::Tensor& grad, const at::Tensor& input, StackArgs& args, bool transposed) {
  static const auto op = c10::Dispatcher::singleton()
                             .findSchemaOrThrow("tessera::convolution_weight", "")
                             .typed<at::Tensor(const at::Tensor&, const at::Tensor&, c10::IntArrayRef, c10::IntArrayRef,
                                               c10::IntArrayRef, c10::IntArrayRef, bool, int64_t)>();
  return op.call(grad, input, args.tensor("weight").sizes(), args["stride"].toIntVector(),
                 args["padding"].toIntVector(), args["dilation"].toIntVector(), transposed, args["groups"].toInt());
}

// The gradient of the input: the transposed convolution, and the other way round.
at::Tensor convolution_input(const at::Tensor& grad, const at::Tensor& input, StackArgs& args, bool transposed) {
  const at::Tensor weight = args.tensor("weight");
  const size_t count = static_cast<size_t>(input.dim()) - 2;
  const auto list = [&](const char* name) { return for_each_place(args[name], count); };
  const Ints stride = list("stride"), padding = list("padding"), dilation = list("dilation");
  Ints extra(count, 0);
  for (size_t d = 0; d < count && !transposed; ++d) {
    const auto dim = static_cast<int64_t>(d) + 2;
    extra[d] = input.size(dim) -
               ((grad.size(dim) - 1) * stride[d] - 2 * padding[d] + dilation[d] * (weight.size(dim) - 1) + 1);
  }
  at::Tensor result =
      at::convolution(grad, weight, {}, stride, padding, dilation, !transposed, extra, args["groups"].toInt());
  for (int64_t dim = 2; dim < input.dim(); ++dim) {  // a long output_padding leaves places that no input had
    if (result.size(dim) != input.size(dim)) {
      result = result.narrow(dim, 0, input.size(dim));
    }
  }
  return result;
}

}  // namespace

// libtorch would choose another kernel for other sizes, threads and processors.
void run_convolution(const LocalCall& call, torch::jit::Stack& stack) {
  StackArgs args(*call.op, stack);
  const at::Tensor input = args.tensor("input").contiguous(), weight = args.tensor("weight").contiguous(),
                   bias = args.tensor("bias");
  const at::Tensor out = at::zeros(sizes_of(call.output_ranges[0]), input.options());
  if (out.numel() == 0 || input.numel() == 0 || weight.numel() == 0) {
    return args.give_value(out);
  }
  const int64_t groups = groups_here(call, args["groups"].toInt(), 0);
  const bool transposed = args["transposed"].toBool();
  const auto get = [&](const char* name) -> const c10::IValue& { return args[name]; };
  const Windows windows = windows_of(get, weight.sizes(), transposed ? input : out, groups);
  const at::Tensor grouped = weight.view({groups, weight.size(0) / groups, -1});
  transposed ? scatter(windows, input, grouped, out) : gather(windows, input, grouped, out);
  if (bias.defined()) {
    Ints shape(static_cast<size_t>(out.dim()), 1);
    shape[1] = bias.size(0);
    out.add_(bias.view(shape));
  }
  args.give_value(out);
}

void run_convolution_weight(const LocalCall& call, torch::jit::Stack& stack) {
  StackArgs args(*call.op, stack);
  const at::Tensor onto = at::zeros(sizes_of(call.output_ranges[0]), args.tensor("grad").options());
  add_weight_gradient([&](const char* name) -> const c10::IValue& { return args[name]; },
                      groups_here(call, args["groups"].toInt(), kInputOfWeight), onto);
  args.give_value(onto);
}

void convolution_weight_sample(const ExactCall& call, c10::ArrayRef<c10::IValue> args, const at::Tensor& onto) {
  const auto& schema = call.local->op->schema();
  const auto get = [&](const char* name) -> const c10::IValue& { return args[*schema.argumentIndexWithName(name)]; };
  add_weight_gradient(get, groups_here(*call.local, get("groups").toInt(), kInputOfWeight), onto);
}

void decompose_convolution_backward(const c10::OperatorHandle& op, torch::jit::Stack& stack) {
  StackArgs args(op, stack);
  const at::Tensor grad = args.tensor("grad_output"), input = args.tensor("input");
  const bool transposed = args["transposed"].toBool();
  const std::vector<bool> asked = args["output_mask"].toBoolList().vec();
  at::Tensor of_input, of_weight, of_bias;
  if (asked.at(0)) {
    of_input = convolution_input(grad, input, args, transposed);
  }
  if (asked.at(1)) {
    of_weight = convolution_weight(grad, input, args, transposed);
  }
  if (asked.at(2)) {
    Ints others = {0};
    for (int64_t d = 2; d < grad.dim(); ++d) {
      others.push_back(d);
    }
    of_bias = at::sum(grad, others);
  }
  args.give(of_input, of_weight, of_bias);
}

}  // namespace tessera::rules::exact

// The gradient of a convolution's weight, which is a sum over samples; `weight_sizes` are the weight's. Of DTensors
// only.
TORCH_LIBRARY_FRAGMENT(tessera, m) {
  m.def(
      "convolution_weight(Tensor grad, Tensor input, int[] weight_sizes, int[] stride, int[] padding, int[] dilation, "
      "bool transposed, int groups) -> Tensor");
  m.impl("convolution_weight", torch::dispatch(c10::DispatchKey::Autograd, torch::CppFunction::makeFallthrough()));
}
