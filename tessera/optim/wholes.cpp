#include "tessera/optim/wholes.h"

#include <algorithm>

#include <ATen/core/grad_mode.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/zeros.h>

#include "tessera/base/error.h"
#include "tessera/dtensor/front/dtensor.h"
#include "tessera/dtensor/record/interception.h"
#include "tessera/kernels/base/threads.h"

namespace tessera::optim {
namespace {

using layout::Placements;

bool holds(const layout::Mesh& mesh, const Placements& placements) {
  const auto coord = mesh.coord_of(dtensor::RankState::require().ctx.rank);
  for (int64_t axis = 0; coord && axis < mesh.ndim(); ++axis) {
    if (!placements[axis].holds((*coord)[axis])) {
      return false;
    }
  }
  return coord.has_value();
}

at::Tensor plain_zeros(c10::IntArrayRef sizes, c10::ScalarType dtype) {
  const dtensor::LocalScope scope;
  return at::zeros(sizes, at::TensorOptions().dtype(dtype));
}

}  // namespace

struct PlainScope::Scopes {
  dtensor::LocalScope local;
  kernels::OneThread thread;
};

PlainScope::PlainScope() : scopes_(std::make_unique<Scopes>()) {}
PlainScope::~PlainScope() = default;

void Wholes::plan(const std::vector<at::Tensor>& parameters) {
  if (!all_.empty()) {
    const bool are_same = std::equal(all_.begin(), all_.end(), parameters.begin(), parameters.end(),
                                     [](const Lent& a, const at::Tensor& b) { return a.parameter.is_same(b); });
    TESSERA_CHECK(are_same, "[owned] ", parameters.size(), " parameters, not the ", all_.size(),
                  " of the first step; accepted: the same in the same order, or another owned optimizer");
    return;
  }
  std::vector<layout::Spec> specs;
  for (const at::Tensor& parameter : parameters) {
    specs.push_back(dtensor::spec_of(parameter));
  }
  const std::vector<Placements> owners = plan_owners(specs, over_);
  for (size_t i = 0; i < parameters.size(); ++i) {
    all_.push_back({parameters[i], owners[i], {}, {}});
  }
}

// A load may write some ranks' parts alone, and a gather needs all.
std::vector<bool> Wholes::agree_on_writes() const {
  at::Tensor written = plain_zeros({static_cast<int64_t>(all_.size())}, at::kInt);
  for (size_t i = 0; i < all_.size(); ++i) {
    const auto& then = all_[i].then;
    written.data_ptr<int32_t>()[i] = !then || !dtensor::meta_of(all_[i].parameter)->unchanged_since(*then);
  }
  const layout::Mesh& mesh = dtensor::spec_of(all_.front().parameter)->mesh;
  const Placements anywhere(mesh.ndim(), layout::Partial(layout::ReduceOp::kMax));
  const at::Tensor found = dtensor::full_tensor(dtensor::from_local(written, mesh, anywhere));
  const int32_t* flags = found.const_data_ptr<int32_t>();
  return std::vector<bool>(flags, flags + all_.size());
}

at::Tensor Wholes::to_owner(size_t place, const at::Tensor& value) const {
  const Lent& lent = all_.at(place);
  const at::Tensor there = dtensor::to_local(dtensor::redistribute(value.detach(), lent.owner));
  // In one order of memory, on which the bits of products depend: a gradient that nothing moves may be transposed.
  return is_here(place) ? there.detach().contiguous() : at::Tensor();
}

at::Tensor Wholes::from_owner(size_t place, const at::Tensor& kept, const std::vector<int64_t>& sizes,
                              c10::ScalarType dtype) const {
  const Lent& lent = all_.at(place);
  const at::Tensor part = kept.defined() ? kept : plain_zeros({0}, dtype);
  return dtensor::from_local(part, dtensor::spec_of(lent.parameter)->mesh, lent.owner, sizes);
}

bool Wholes::is_here(size_t place) const {
  const Lent& lent = all_.at(place);
  return holds(dtensor::spec_of(lent.parameter)->mesh, lent.owner);
}

void Wholes::gather(size_t place) {
  Lent& lent = all_[place];
  lent.whole = to_owner(place, lent.parameter);
  if (lent.owner == dtensor::spec_of(lent.parameter)->placements) {
    lent.whole = lent.whole.clone();  // the part was whole, and is the parameter's own
  }
}

std::vector<at::Tensor> Wholes::lend(const std::vector<at::Tensor>& parameters) {
  const at::NoGradGuard no_grad;
  std::vector<at::Tensor> wholes(parameters.size());
  if (parameters.empty()) {
    return wholes;
  }
  plan(parameters);
  const std::vector<bool> written = agree_on_writes();
  for (size_t i = 0; i < all_.size(); ++i) {
    const at::Tensor& gradient = parameters[i].grad();
    all_[i].is_lent = gradient.defined();
    if (!gradient.defined()) {
      continue;
    }
    if (written[i]) {
      gather(i);
    }
    const at::Tensor whole_gradient = to_owner(i, gradient);
    if (is_here(i)) {
      wholes[i] = all_[i].whole;
      wholes[i].mutable_grad() = whole_gradient;
    }
  }
  return wholes;
}

void Wholes::take_back() {
  const at::NoGradGuard no_grad;
  for (size_t i = 0; i < all_.size(); ++i) {
    Lent& lent = all_[i];
    if (!lent.is_lent) {
      continue;
    }
    const layout::Spec spec = dtensor::spec_of(lent.parameter);
    if (lent.whole.defined()) {
      lent.whole.mutable_grad() = at::Tensor();
    }
    const at::Tensor value = from_owner(i, lent.whole, {spec->sizes.begin(), spec->sizes.end()}, spec->dtype);
    lent.parameter.detach().copy_(dtensor::redistribute(value, spec->placements));
    lent.then = dtensor::meta_of(lent.parameter)->moment();
    lent.is_lent = false;
  }
}

std::vector<std::string> Wholes::exchange(const std::string& own) const {
  const layout::Mesh& mesh = dtensor::spec_of(all_.at(0).parameter)->mesh;
  const auto from_all = [&](const at::Tensor& part) {
    return dtensor::full_tensor(dtensor::from_local(part, mesh, Placements(mesh.ndim(), layout::Shard(0))));
  };
  const at::Tensor length = plain_zeros({1}, at::kLong);
  *length.data_ptr<int64_t>() = static_cast<int64_t>(own.size());
  const at::Tensor lengths = from_all(length);
  const int64_t* sizes = lengths.const_data_ptr<int64_t>();
  const int64_t most = std::max<int64_t>(1, *std::max_element(sizes, sizes + lengths.numel()));
  const at::Tensor text = plain_zeros({most}, at::kByte);
  std::copy(own.begin(), own.end(), text.data_ptr<uint8_t>());
  const at::Tensor texts = from_all(text);
  std::vector<std::string> all;
  for (int64_t rank = 0; rank < lengths.numel(); ++rank) {
    const auto* begin = reinterpret_cast<const char*>(texts.const_data_ptr<uint8_t>() + rank * most);
    all.emplace_back(begin, static_cast<size_t>(sizes[rank]));
  }
  return all;
}

}  // namespace tessera::optim
