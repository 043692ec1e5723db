// Tensors seen so that what ranks hold are boxes of them.
#include <algorithm>
#include <utility>

#include "tessera/base/error.h"
#include "tessera/layout/spec.h"

namespace tessera::layout {

BoxForm BoxForm::of(const Placements& placements, int64_t ndim) {
  return {.blocks = blocks_of_dims(placements, ndim), .last_spanned = last_spanned_dim(placements)};
}

std::optional<BoxForm> BoxForm::common(const Placements& a, const Placements& b, int64_t ndim) {
  BoxForm form = of(a, ndim);
  const BoxForm other = of(b, ndim);
  for (size_t d = 0; d < form.blocks.size(); ++d) {
    form.blocks[d] = std::max(form.blocks[d], other.blocks[d]);
  }
  form.last_spanned = std::max(form.last_spanned, other.last_spanned);
  const auto fits = [&](const Placement& p) { return !p.is_shard() || form.fits(p); };
  const bool is_common = std::all_of(a.begin(), a.end(), fits) && std::all_of(b.begin(), b.end(), fits);
  return is_common ? std::optional(std::move(form)) : std::nullopt;
}

bool BoxForm::fits(const Placement& cut) const {
  const bool is_of_one_dim = last_spanned == 0 || cut.dim > last_spanned;
  return is_of_one_dim ? cut.blocks == blocks[cut.dim] : is_of_runs(cut, last_spanned);
}

bool BoxForm::is_plain() const {
  return last_spanned == 0 && std::all_of(blocks.begin(), blocks.end(), [](int64_t count) { return count == 1; });
}

bool is_of_runs(const Placement& cut, int64_t last_spanned) {
  const bool is_of_rows = cut.dim == 0 && !cut.spans && cut.blocks == 1;
  return cut.dim > last_spanned || is_of_rows || (cut.spans && cut.dim == last_spanned);
}

Spec in_runs(const Spec& spec, int64_t last_spanned) {
  if (last_spanned == 0) {
    return spec.with_labels({});
  }
  const int64_t each = c10::multiply_integers(spec->sizes.begin() + 1, spec->sizes.begin() + last_spanned + 1);
  Placements placements = spec->placements;
  for (Placement& cut : placements) {
    if (cut.is_shard() && cut.dim <= last_spanned) {
      TESSERA_ASSERT(is_of_runs(cut, last_spanned), spec.str(), " with dims 0 to ", last_spanned, " as one");
      cut.places = cut.spans ? cut.places : cut.places.times(each);
      cut.dim = static_cast<int32_t>(last_spanned);
      cut.spans = false;
    }
  }
  return Spec::make(spec->mesh, placements, sizes_in_runs(spec->sizes, last_spanned), spec->strides, spec->dtype);
}

Spec taken_apart(const Spec& spec, const BoxForm& form) {
  const Spec runs = in_runs(spec, form.last_spanned);
  std::vector<int64_t> sizes;
  std::vector<int64_t> strides;
  std::vector<int32_t> dims;
  for (size_t d = 0; d < form.blocks.size(); ++d) {
    const int64_t size = runs->sizes[d] / form.blocks[d];
    if (form.blocks[d] > 1) {
      sizes.push_back(form.blocks[d]);
      strides.push_back(runs->strides[d] * size);
    }
    dims.push_back(static_cast<int32_t>(sizes.size()));
    sizes.push_back(size);
    strides.push_back(runs->strides[d]);
  }
  Placements placements = runs->placements;
  for (Placement& placement : placements) {
    if (placement.is_shard()) {
      TESSERA_ASSERT(placement.blocks == form.blocks[placement.dim], spec.str(), " in blocks ", form.blocks);
      placement.dim = dims[placement.dim];
      placement.blocks = 1;
    }
  }
  return Spec::make(runs->mesh, placements, sizes, strides, runs->dtype);
}

}  // namespace tessera::layout
