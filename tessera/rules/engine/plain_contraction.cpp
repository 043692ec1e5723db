#include "tessera/rules/engine/plain_contraction.h"

#include <vector>

#include <ATen/TensorSubclassLikeUtils.h>
#include <ATen/ops/add.h>
#include <ATen/ops/addmm.h>
#include <ATen/ops/bmm.h>
#include <ATen/ops/mm.h>
#include <c10/util/strides.h>

#include "tessera/base/error.h"
#include "tessera/rules/engine/equation.h"

namespace tessera::rules {

namespace {

// Dims that lie as one.
struct Flat {
  int64_t extent = 1, stride = 1;
};

// The dims [begin, end) of a tensor's dims in `order` as one; nothing if they lie apart.
std::optional<Flat> flattened(const at::Tensor& tensor, const std::vector<int64_t>& order, size_t begin, size_t end) {
  Flat flat;
  for (size_t i = end; i-- > begin;) {
    const int64_t dim = order.empty() ? static_cast<int64_t>(i) : order[i];
    const int64_t size = tensor.size(dim), stride = tensor.stride(dim);
    if (size == 1) {
      continue;
    }
    if (flat.extent > 1 && stride != flat.extent * flat.stride) {
      return std::nullopt;
    }
    flat.stride = flat.extent > 1 ? flat.stride : stride;
    flat.extent *= size;
  }
  return flat;
}

// The same memory in other sizes, without a call of an operator: it is read by a kernel, or what a kernel made.
at::Tensor seen_as(const at::Tensor& tensor, c10::IntArrayRef sizes, c10::IntArrayRef strides) {
  at::Tensor seen = at::detail::make_tensor<c10::TensorImpl>(c10::TensorImpl::VIEW, c10::Storage(tensor.storage()),
                                                             tensor.key_set(), tensor.dtype());
  seen.unsafeGetTensorImpl()->set_sizes_and_strides(sizes, strides, tensor.storage_offset());
  return seen;
}

bool has_memory(const at::Tensor& tensor) { return tensor.has_storage() && !at::isTensorSubclassLike(tensor); }

// A plain tensor, its dims in `order` (empty: as they are), with the groups of dims flattened: `batch` of them (if
// any), then `rows`, then the rest.
at::Tensor as_matrix(const at::Tensor& tensor, const std::vector<int64_t>& order, size_t batch, size_t rows) {
  if (batch == 0 && rows == 1 && tensor.dim() == 2) {
    return order.empty() ? tensor : tensor.permute(order);
  }
  if (batch == 0 && has_memory(tensor)) {
    const auto head = flattened(tensor, order, 0, rows), rest = flattened(tensor, order, rows, tensor.dim());
    if (head && rest && head->extent > 1 && rest->extent > 1) {
      return seen_as(tensor, {head->extent, rest->extent}, {head->stride, rest->stride});
    }
  }
  const at::Tensor ordered = order.empty() ? tensor : tensor.permute(order);
  const c10::IntArrayRef sizes = ordered.sizes();
  const auto extent = [&](size_t begin, size_t end) { return c10::multiply_integers(sizes.slice(begin, end - begin)); };
  c10::SmallVector<int64_t, 3> shape;
  if (batch > 0) {
    shape.push_back(extent(0, batch));
  }
  shape.push_back(extent(batch, batch + rows));
  shape.push_back(extent(batch + rows, sizes.size()));
  return ordered.reshape(shape);
}

}  // namespace

at::Tensor contract_plain(const at::Tensor& a, const at::Tensor& b, c10::string_view text,
                          const std::optional<at::Tensor>& like, const std::optional<at::Tensor>& addend) {
  const Equation& equation = Equation::of(text);
  TESSERA_CHECK(
      a.dim() == static_cast<int64_t>(equation.a.size()) && b.dim() == static_cast<int64_t>(equation.b.size()),
      "[contract] `", text, "` does not fit operands of ", a.dim(), " and ", b.dim(), " dims");
  const size_t batch = equation.batch.size();
  const at::Tensor left = as_matrix(a, equation.order_a, batch, equation.rows.size());
  const at::Tensor right = as_matrix(b, equation.order_b, batch, equation.summed.size());
  const bool adds_to_columns = batch == 0 && equation.columns.size() == 1 && equation.order_out.empty();
  if (addend && !(adds_to_columns && addend->dim() == 1)) {
    return at::add(contract_plain(a, b, text, like, std::nullopt), *addend);
  }
  at::Tensor product = addend       ? at::addmm(*addend, left, right)
                       : batch == 0 ? at::mm(left, right)
                                    : at::bmm(left, right);
  if (batch <= 1 && equation.rows.size() == 1 && equation.columns.size() == 1 && equation.order_out.empty()) {
    return product;
  }

  c10::SmallVector<int64_t, 6> sizes;
  for (const std::string* letters : {&equation.batch, &equation.rows}) {
    for (char letter : *letters) {
      sizes.push_back(a.size(static_cast<int64_t>(equation.a.find(letter))));
    }
  }
  for (char letter : equation.columns) {
    sizes.push_back(b.size(static_cast<int64_t>(equation.b.find(letter))));
  }
  const at::Tensor shaped = has_memory(product) && product.is_contiguous()
                                ? seen_as(product, sizes, c10::contiguous_strides(sizes))
                                : product.view(sizes);
  return equation.order_out.empty() ? shaped : shaped.permute(equation.order_out).contiguous();
}

bool add_contraction(const at::Tensor& sum, c10::ArrayRef<c10::IValue> args) {
  const at::Tensor &a = args[0].toTensor(), &b = args[1].toTensor();
  const Equation& equation = Equation::of(args[2].toStringView());
  const bool is_product = equation.batch.empty() && equation.order_out.empty() && args[4].isNone();
  if (!is_product || !sum.is_contiguous() || sum.scalar_type() != a.scalar_type()) {
    return false;
  }
  const at::Tensor left = as_matrix(a, equation.order_a, 0, equation.rows.size());
  const at::Tensor right = as_matrix(b, equation.order_b, 0, equation.summed.size());
  sum.view({left.size(0), right.size(1)}).addmm_(left, right);
  return true;
}

}  // namespace tessera::rules
