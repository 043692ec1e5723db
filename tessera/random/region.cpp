#include "tessera/random/region.h"

#include "tessera/base/error.h"

namespace tessera::random {
namespace {

// Where the batch factor lies inside its dim, with the defaults filled in.
struct Geometry {
  explicit Geometry(const Region& region);

  int64_t extent_of(int64_t dim) const { return dim == batch_dim ? outer * inner : sizes[dim]; }

  const std::vector<int64_t>& sizes;
  int64_t batch_dim;
  int64_t outer = 1;
  int64_t samples = 1;
  int64_t inner = 1;
};

Geometry::Geometry(const Region& region) : sizes(region.sizes), batch_dim(region.batch_dim) {
  const auto dims = static_cast<int64_t>(sizes.size());
  TESSERA_CHECK(region.held.size() == sizes.size(), "[random region] ", region.held.size(),
                " lists of ranges for a tensor of ", dims, " dims; give one list for each dim");
  TESSERA_CHECK(batch_dim >= -1 && batch_dim < dims, "[random region] batch dim ", batch_dim, " of a tensor of ", dims,
                " dims; accepted: -1 (no samples) to ", dims - 1);
  for (int64_t dim = 0; dim < dims; ++dim) {
    for (const Range& range : region.held[dim]) {
      TESSERA_CHECK(0 <= range.begin && range.begin <= range.end && range.end <= sizes[dim], "[random region] range [",
                    range.begin, ", ", range.end, ") is not inside dim ", dim, " of size ", sizes[dim]);
    }
  }
  if (batch_dim < 0) {
    return;
  }
  inner = region.batch_inner;
  TESSERA_CHECK(inner > 0, "[random region] batch_inner is ", inner, "; it must be positive");
  samples = region.batch_extent > 0 ? region.batch_extent : sizes[batch_dim] / inner;
  if (sizes[batch_dim] == 0) {
    outer = 0;
    return;
  }
  TESSERA_CHECK(samples > 0 && sizes[batch_dim] % (samples * inner) == 0, "[random region] batch dim of size ",
                sizes[batch_dim], " is not a multiple of ", samples, " samples x ", inner, " inner indices");
  outer = sizes[batch_dim] / (samples * inner);
}

std::vector<int64_t> strides_of(const Geometry& geometry) {
  std::vector<int64_t> strides(geometry.sizes.size());
  int64_t stride = 1;
  for (auto dim = static_cast<int64_t>(strides.size()) - 1; dim >= 0; --dim) {
    strides[dim] = stride;
    stride *= geometry.extent_of(dim);
    TESSERA_CHECK(stride <= (int64_t{1} << 40), "[random region] more than 2^40 elements in one sample");
  }
  return strides;
}

bool is_whole(const Region& region, int64_t dim) {
  const auto& ranges = region.held[dim];
  return ranges.size() == 1 && ranges[0].begin == 0 && ranges[0].end == region.sizes[dim];
}

// The held indices of one dim, as runs of at most `longest` indices in which only the element number grows.
std::vector<ElementRun> pieces_of(const Region& region, const Geometry& geometry, int64_t dim, int64_t stride,
                                  int64_t longest) {
  std::vector<ElementRun> pieces;
  const bool has_samples = dim == geometry.batch_dim;
  const int64_t inner = geometry.inner;
  for (const Range& range : region.held[dim]) {
    for (int64_t at = range.begin; at < range.end;) {
      int64_t end = std::min(range.end, longest < range.end - at ? at + longest : range.end);
      ElementRun piece{0, at * stride, 0};
      if (has_samples) {
        end = std::min(end, (at / inner + 1) * inner);
        const int64_t place = at / (geometry.samples * inner) * inner + at % inner;
        piece = {region.batch_offset + at / inner % geometry.samples, place * stride, 0};
      }
      piece.count = (end - at) * stride;
      pieces.push_back(piece);
      at = end;
    }
  }
  return pieces;
}

}  // namespace

Region whole_region(std::vector<int64_t> sizes) {
  Region region;
  for (const int64_t size : sizes) {
    region.held.push_back({{0, size}});
  }
  region.sizes = std::move(sizes);
  return region;
}

std::vector<int64_t> local_sizes(const Region& region) {
  std::vector<int64_t> sizes;
  for (const auto& ranges : region.held) {
    int64_t size = 0;
    for (const Range& range : ranges) {
      size += range.end - range.begin;
    }
    sizes.push_back(size);
  }
  return sizes;
}

void for_each_run(const Region& region, c10::function_ref<void(const ElementRun&)> visit) {
  const Geometry geometry(region);
  TESSERA_CHECK(region.batch_offset >= 0 && region.batch_offset + geometry.samples <= (int64_t{1} << 32),
                "[random region] samples ", region.batch_offset, " to ", region.batch_offset + geometry.samples,
                "; a step has at most 2^32, counted from 0");
  for (const int64_t size : local_sizes(region)) {
    if (size == 0) {
      return;
    }
  }
  const std::vector<int64_t> strides = strides_of(geometry);
  auto run_dim = static_cast<int64_t>(strides.size()) - 1;
  if (run_dim < 0) {
    visit({0, 0, 1});
    return;
  }
  while (run_dim > 0 && run_dim != geometry.batch_dim && is_whole(region, run_dim)) {
    --run_dim;
  }
  std::vector<std::vector<ElementRun>> outer;
  for (int64_t dim = 0; dim < run_dim; ++dim) {
    outer.push_back(pieces_of(region, geometry, dim, strides[dim], 1));
  }
  const std::vector<ElementRun> runs = pieces_of(region, geometry, run_dim, strides[run_dim], region.sizes[run_dim]);
  std::vector<size_t> at(outer.size(), 0);
  while (true) {
    ElementRun base;
    for (size_t dim = 0; dim < outer.size(); ++dim) {
      base.sample += outer[dim][at[dim]].sample;
      base.element += outer[dim][at[dim]].element;
    }
    for (const ElementRun& run : runs) {
      visit({base.sample + run.sample, base.element + run.element, run.count});
    }
    auto dim = static_cast<int64_t>(outer.size()) - 1;
    while (dim >= 0 && ++at[dim] == outer[dim].size()) {
      at[dim--] = 0;
    }
    if (dim < 0) {
      return;
    }
  }
}

}  // namespace tessera::random
