#include "tessera/dtensor/record/interception.h"
#include "tessera/watch/step_value.h"

#include <bit>
#include <cstring>

#include <ATen/ops/isnan.h>
#include <fmt/format.h>

#include "tessera/base/error.h"
#include "tessera/base/value_hash.h"
#include "tessera/dtensor/state/state.h"

namespace tessera::watch {
namespace {

using layout::Factor;
using layout::Label;

constexpr uint64_t kNaN = ~uint64_t{0};

// The one factor that counts samples one by one; null if there is none, or if several count them together.
const Factor* samples_of(const layout::SpecData& spec) {
  const Factor* found = nullptr;
  for (const auto& dim : spec.labels) {
    for (const auto& factor : dim) {
      if (factor.label == Label::kBatch && found != nullptr) {
        return nullptr;
      }
      found = factor.label == Label::kBatch ? &factor : found;
    }
  }
  return found;
}

// What this rank holds of a value.
struct Part {
  at::Tensor local;
  layout::Spec spec;  // null: a plain tensor
  const layout::Origin* origin = nullptr;
  std::vector<std::vector<layout::Range>> runs;  // of each dim
  bool is_owner = true;

  std::vector<int64_t> sizes() const { return spec ? step_sizes(*spec) : local.sizes().vec(); }
};

Part held_of(const at::Tensor& tensor) {
  auto& state = dtensor::RankState::require();
  if (!dtensor::is_dtensor(tensor)) {
    Part part{.local = tensor, .spec = {}, .runs = {}};
    for (const auto size : tensor.sizes()) {
      part.runs.push_back({{0, size}});
    }
    part.is_owner = state.ctx.rank == 0;
    return part;
  }
  const auto& meta = *dtensor::meta_of(tensor);
  TESSERA_ASSERT(!meta.spec->has_partial, "the ranks hold terms of a sum: ", meta.spec.str());
  const auto& coord = state.ctx.coord(meta.spec->mesh);
  Part part{.local = meta.local, .spec = meta.spec, .origin = meta.origin, .runs = meta.spec.local_runs(coord)};
  part.is_owner = meta.spec->is_first_holder(coord);
  return part;
}

// Position of index `i` of a dim among all of the step.
int64_t position_of(const Part& part, const layout::DimLabels& dim, const Factor* samples, int64_t i) {
  int64_t position = 0, stride = 1;
  for (auto factor = dim.rbegin(); factor != dim.rend(); ++factor) {
    const auto at = i % factor->extent;
    i /= factor->extent;
    const bool counts_samples = &*factor == samples;
    position += stride * (counts_samples ? layout::sample_of_row(part.origin, factor->offset + at * factor->unit) : at);
    stride *= counts_samples ? factor->total : factor->extent;
  }
  return position;
}

// For each dim and index that this rank holds: how far it is into the row-major step's value.
std::vector<std::vector<uint64_t>> steps_of(const Part& part) {
  const auto sizes = part.sizes();
  const auto* samples = part.spec ? samples_of(*part.spec) : nullptr;
  std::vector<std::vector<uint64_t>> steps(sizes.size());
  uint64_t stride = 1;
  for (size_t d = sizes.size(); d-- > 0;) {
    for (const auto& run : part.runs[d]) {
      for (auto i = run.begin; i < run.end; ++i) {
        const auto position = samples != nullptr && !part.spec->labels[d].empty()
                                  ? position_of(part, part.spec->labels[d], samples, i)
                                  : i;
        steps[d].push_back(stride * static_cast<uint64_t>(position));
      }
    }
    stride *= static_cast<uint64_t>(sizes[d]);
  }
  return steps;
}

// Calls visit(index among the step's value, bits) for every element that this rank owns.
template <typename Visit>
void visit_elements(const Part& part, Visit visit) {
  if (!part.is_owner || part.local.numel() == 0) {
    return;
  }
  const dtensor::LocalScope scope;
  const at::NoGradGuard no_grad;
  const auto local = part.local.contiguous();
  const auto is_nan = local.is_floating_point() ? at::isnan(local) : at::Tensor();
  const auto item = local.itemsize();
  TESSERA_CHECK(item <= sizeof(uint64_t), "[compare] elements of ", local.scalar_type(),
                "; accepted: types of up to 8 bytes");
  const auto* data = static_cast<const char*>(local.const_data_ptr());
  const auto* nan = is_nan.defined() ? is_nan.const_data_ptr<bool>() : nullptr;
  const auto steps = steps_of(part);
  std::vector<size_t> at(steps.size(), 0);
  for (int64_t i = 0; i < local.numel(); ++i) {
    uint64_t index = 0, bits = 0;
    for (size_t d = 0; d < steps.size(); ++d) {
      index += steps[d][at[d]];
    }
    std::memcpy(&bits, data + i * static_cast<int64_t>(item), item);
    visit(index, nan != nullptr && nan[i] ? kNaN : bits);
    for (size_t d = steps.size(); d-- > 0 && ++at[d] == steps[d].size();) {
      at[d] = 0;
    }
  }
}

}  // namespace

bool has_samples(const layout::SpecData& spec) { return samples_of(spec) != nullptr; }

std::vector<int64_t> step_sizes(const layout::SpecData& spec) {
  auto sizes = spec.sizes;
  const auto* samples = samples_of(spec);
  for (size_t d = 0; samples != nullptr && d < sizes.size(); ++d) {
    for (const auto& factor : spec.labels[d]) {
      sizes[d] = &factor == samples ? sizes[d] / factor.extent * factor.total : sizes[d];
    }
  }
  return sizes;
}

uint64_t hash_value(const at::Tensor& tensor) {
  uint64_t sum = 0;
  visit_elements(held_of(tensor), [&](uint64_t index, uint64_t bits) { sum += base::hash_element(index, bits); });
  return sum;
}

void StepValue::add(const at::Tensor& tensor) {
  const auto part = held_of(tensor);
  const std::lock_guard<std::mutex> lock(mutex_);
  if (bits_.empty()) {
    sizes_ = part.sizes();
    dtype_ = tensor.scalar_type();
    bits_.resize(static_cast<size_t>(c10::multiply_integers(sizes_)));
  }
  visit_elements(part, [&](uint64_t index, uint64_t bits) { bits_.at(index) = bits; });
}

std::string StepValue::text_of(size_t element) const {
  const auto bits = bits_.at(element);
  if (c10::isFloatingType(dtype_) && bits == kNaN) {
    return "nan";
  }
  switch (dtype_) {
    case c10::kFloat: return fmt::format("{:.9g}", std::bit_cast<float>(static_cast<uint32_t>(bits)));
    case c10::kDouble: return fmt::format("{:.17g}", std::bit_cast<double>(bits));
    case c10::kHalf:
      return fmt::format("{:.5g}", static_cast<float>(c10::Half(static_cast<uint16_t>(bits), c10::Half::from_bits())));
    case c10::kBFloat16:
      return fmt::format("{:.4g}",
                         static_cast<float>(c10::BFloat16(static_cast<uint16_t>(bits), c10::BFloat16::from_bits())));
    default: return fmt::format("{}", static_cast<int64_t>(bits));
  }
}

std::vector<int64_t> StepValue::index_of(size_t element) const {
  std::vector<int64_t> index(sizes_.size());
  auto rest = static_cast<int64_t>(element);
  for (size_t d = sizes_.size(); d-- > 0;) {
    index[d] = rest % sizes_[d];
    rest /= sizes_[d];
  }
  return index;
}

}  // namespace tessera::watch
