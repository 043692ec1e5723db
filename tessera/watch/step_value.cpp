#include "tessera/dtensor/record/interception.h"
#include "tessera/watch/step_value.h"

#include <algorithm>
#include <bit>
#include <cmath>
#include <cstring>
#include <fstream>

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
  double weight = 1;  // of a term of a mean

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
  const auto& coord = state.ctx.coord(meta.spec->mesh);
  Part part{.local = meta.local, .spec = meta.spec, .origin = meta.origin, .runs = meta.spec.local_runs(coord)};
  const auto& placements = meta.spec->placements;
  for (size_t axis = 0; axis < placements.size(); ++axis) {
    if (placements[axis].is_partial()) {
      const bool is_mean = placements[axis].op == layout::ReduceOp::kAvg;
      part.weight /= is_mean ? static_cast<double>(meta.spec->mesh.axis(static_cast<int64_t>(axis)).size) : 1.0;
    } else {
      part.is_owner &= placements[axis].is_first(coord[axis]);
    }
  }
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
  const auto sizes = part.spec && part.spec->is_spanned() ? part.spec->run_sizes() : part.sizes();  // the same order
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

// Calls visit(index among the step's value, bits, position in the part) for every element that this rank owns.
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
    visit(index, nan != nullptr && nan[i] ? kNaN : bits, i);
    for (size_t d = steps.size(); d-- > 0 && ++at[d] == steps[d].size();) {
      at[d] = 0;
    }
  }
}

// Its elements as numbers of 64 bits, in row-major order.
at::Tensor wide(const at::Tensor& local) {
  const dtensor::LocalScope scope;
  const at::NoGradGuard no_grad;
  return local.to(at::kDouble).contiguous();
}

void add_element(Digest& digest, uint64_t index, double value) {
  if (!std::isfinite(value)) {
    digest.not_finite += base::hash_element(index, std::isnan(value) ? kNaN : std::bit_cast<uint64_t>(value));
    return;
  }
  const uint64_t signs = base::hash_element(index, 0);
  for (size_t i = 0; i < Digest::kSums; ++i) {
    digest.sums[i] += (signs >> i & 1) != 0 ? -value : value;
  }
}

template <typename Value>
void write_all(std::ofstream& file, const std::vector<Value>& values) {
  file.write(reinterpret_cast<const char*>(values.data()), static_cast<std::streamsize>(values.size() * sizeof(Value)));
}

template <typename Value>
void read_all(std::ifstream& file, std::vector<Value>& values) {
  file.read(reinterpret_cast<char*>(values.data()), static_cast<std::streamsize>(values.size() * sizeof(Value)));
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
  TESSERA_ASSERT(!dtensor::is_dtensor(tensor) || !dtensor::meta_of(tensor)->spec->has_partial,
                 "the ranks hold terms of a sum");
  uint64_t sum = 0;
  visit_elements(held_of(tensor),
                 [&](uint64_t index, uint64_t bits, int64_t) { sum += base::hash_element(index, bits); });
  return sum;
}

Digest& Digest::operator+=(const Digest& other) {
  hash += other.hash;
  not_finite += other.not_finite;
  for (size_t i = 0; i < kSums; ++i) {
    sums[i] += other.sums[i];
  }
  return *this;
}

Digest Digest::operator-(const Digest& other) const {
  Digest result{hash - other.hash, not_finite - other.not_finite, sums};
  for (size_t i = 0; i < kSums; ++i) {
    result.sums[i] -= other.sums[i];
  }
  return result;
}

double Digest::size() const {
  double squares = 0;
  for (const double sum : sums) {
    squares += sum * sum;
  }
  return std::sqrt(squares / kSums);
}

double Digest::one_element() const {
  return not_finite != 0 ? std::nan("") : (base::hash_element(0, 0) & 1) != 0 ? -sums[0] : sums[0];
}

bool has_digest(const at::Tensor& tensor) {
  if (!tensor.defined() || tensor.is_complex() || tensor.itemsize() > sizeof(uint64_t)) {
    return false;
  }
  if (!dtensor::is_dtensor(tensor)) {
    return true;
  }
  const auto& placements = dtensor::meta_of(tensor)->spec->placements;
  return std::all_of(placements.begin(), placements.end(), [](const layout::Placement& placement) {
    return !placement.is_partial() || layout::is_linear(placement.op);
  });
}

Digest digest_value(const at::Tensor& tensor) {
  const auto part = held_of(tensor);
  Digest digest;
  if (!part.is_owner || part.local.numel() == 0) {
    return digest;
  }
  const auto numbers = wide(part.local);
  const auto* values = numbers.const_data_ptr<double>();
  visit_elements(part, [&](uint64_t index, uint64_t bits, int64_t at) {
    digest.hash += base::hash_element(index, bits);
    add_element(digest, index, part.weight * values[at]);
  });
  return digest;
}

void StepValue::resize(std::vector<int64_t> sizes, c10::ScalarType dtype) {
  if (!sums_.empty()) {
    return;
  }
  sizes_ = std::move(sizes);
  dtype_ = dtype;
  const auto elements = static_cast<size_t>(c10::multiply_integers(sizes_));
  bits_.resize(elements), sums_.resize(elements), terms_.resize(elements);
}

void StepValue::add(const at::Tensor& tensor) {
  const auto part = held_of(tensor);
  const auto numbers = wide(part.local);
  const auto* values = numbers.const_data_ptr<double>();
  const std::lock_guard<std::mutex> lock(mutex_);
  resize(part.sizes(), tensor.scalar_type());
  visit_elements(part, [&](uint64_t index, uint64_t bits, int64_t at) {
    bits_.at(index) = bits;
    sums_.at(index) += part.weight * values[at];
    terms_.at(index) = static_cast<uint8_t>(std::min(2, terms_.at(index) + 1));
  });
}

void StepValue::add(const StepValue& other) {
  const std::lock_guard<std::mutex> lock(mutex_);
  resize(other.sizes_, other.dtype_);
  for (size_t i = 0; i < other.sums_.size(); ++i) {
    bits_.at(i) = other.terms_[i] > 0 ? other.bits_[i] : bits_[i];
    sums_[i] += other.sums_[i];
    terms_[i] = static_cast<uint8_t>(std::min(2, terms_[i] + other.terms_[i]));
  }
}

StepValue::StepValue(StepValue&& other) noexcept
    : sizes_(std::move(other.sizes_)),
      bits_(std::move(other.bits_)),
      sums_(std::move(other.sums_)),
      terms_(std::move(other.terms_)),
      dtype_(other.dtype_) {}

void StepValue::write(const std::string& path) const {
  std::ofstream file(path, std::ios::binary);
  write_all<int64_t>(
      file, {static_cast<int64_t>(dtype_), static_cast<int64_t>(sizes_.size()), static_cast<int64_t>(sums_.size())});
  write_all(file, sizes_);
  write_all(file, bits_);
  write_all(file, sums_);
  write_all(file, terms_);
}

StepValue StepValue::read(const std::string& path) {
  std::ifstream file(path, std::ios::binary);
  std::vector<int64_t> head(3);
  read_all(file, head);
  TESSERA_CHECK_AS(DataError, file, "[compare] ", path, " is not what a rank wrote of a value");
  StepValue value;
  value.dtype_ = static_cast<c10::ScalarType>(head[0]);
  value.sizes_.resize(static_cast<size_t>(head[1]));
  const auto elements = static_cast<size_t>(head[2]);
  value.bits_.resize(elements), value.sums_.resize(elements), value.terms_.resize(elements);
  read_all(file, value.sizes_);
  read_all(file, value.bits_);
  read_all(file, value.sums_);
  read_all(file, value.terms_);
  TESSERA_CHECK_AS(DataError, file, "[compare] ", path, " is cut short");
  return value;
}

std::string StepValue::text_of(size_t element) const {
  if (terms_.at(element) > 1) {
    return fmt::format("{:.9g}", sums_[element]);  // added here, not by the program
  }
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
