#include "tessera/dtensor/record/interception.h"
#include "tessera/dtensor/state/state.h"
#include "tessera/parallel/cut_view.h"

#include <numeric>

#include <ATen/ops/zeros.h>

#include "tessera/dtensor/front/chunks.h"
#include "tessera/dtensor/front/dtensor.h"

namespace tessera::parallel {

using layout::Placements;
using layout::Range;
using rules::View;

namespace {

bool is_cut(const at::Tensor& base, int64_t dim) {
  const layout::Spec spec = dtensor::spec_of(base);
  return spec->is_cut(dim);
}

int64_t size_of(const CutView& of, int64_t dim) { return of.ranges[of.dims[dim]].size(); }

int64_t wrapped(int64_t index, int64_t size) { return index < 0 ? index + size : index; }

CutView narrowed(const CutView& of, int64_t dim, int64_t begin, int64_t end) {
  CutView view = of;
  Range& range = view.ranges[of.dims[dim]];
  range = {range.begin + begin, range.begin + end};
  return view;
}

CutView selected(const CutView& of, int64_t dim, int64_t index) {
  CutView view = narrowed(of, dim, index, index + 1);
  view.dims.erase(view.dims.begin() + dim);
  return view;
}

std::vector<CutView> pieces(const CutView& of, int64_t dim, const std::vector<int64_t>& sizes) {
  std::vector<CutView> views;
  int64_t begin = 0;
  for (int64_t size : sizes) {
    views.push_back(narrowed(of, dim, begin, begin + size));
    begin += size;
  }
  return views;
}

std::vector<int64_t> equal_sizes(int64_t size, int64_t step) {
  std::vector<int64_t> sizes;
  for (int64_t begin = 0; begin < size; begin += step) {
    sizes.push_back(std::min(step, size - begin));
  }
  return sizes;
}

std::vector<CutView> take_slice(const torch::jit::Stack& args, const CutView& of, int64_t dim) {
  const int64_t size = size_of(of, dim);
  const auto bound = [&](const c10::IValue& value, int64_t if_none) {
    return std::clamp<int64_t>(value.isNone() ? if_none : wrapped(value.toInt(), size), 0, size);
  };
  const int64_t begin = bound(args[2], 0);
  return {narrowed(of, dim, begin, std::max(begin, bound(args[3], size)))};
}

// A part of the box that this rank holds: in its local tensor, and where in the box.
struct Overlap {
  at::Tensor local;
  std::vector<Range> in_box;  // of each dim of the base
};

// One, unless a cut is interleaved or spans dims; none if the rank holds nothing of the box.
std::vector<Overlap> overlaps_of(const CutView& view) {
  const dtensor::Meta& meta = *dtensor::meta_of(view.base);
  const layout::Coord& coord = dtensor::RankState::require().ctx.coord(meta.spec->mesh);
  std::vector<Overlap> overlaps;
  for (const dtensor::Chunk& chunk : dtensor::chunks_of_part(meta.local, meta.spec, coord)) {
    Overlap overlap{chunk.part, {}};
    for (size_t d = 0; d < chunk.offsets.size(); ++d) {
      const Range& box = view.ranges[d];
      const auto dim = static_cast<int64_t>(d);
      const int64_t at = chunk.offsets[d], begin = std::max(at, box.begin);
      const int64_t size = std::max<int64_t>(std::min(at + chunk.part.size(dim), box.end) - begin, 0);
      overlap.local = overlap.local.narrow(dim, size > 0 ? begin - at : 0, size);
      overlap.in_box.push_back({begin - box.begin, begin - box.begin + size});
    }
    if (overlap.local.numel() > 0) {
      overlaps.push_back(std::move(overlap));
    }
  }
  return overlaps;
}

// The same part of a content, with the dims of the base.
at::Tensor part_of(const at::Tensor& content, const CutView& view, const Overlap& overlap) {
  std::vector<int64_t> sizes;
  for (const Range& range : view.ranges) {
    sizes.push_back(range.size());
  }
  at::Tensor part = content.view(sizes);
  for (size_t d = 0; d < sizes.size(); ++d) {
    part = part.narrow(static_cast<int64_t>(d), overlap.in_box[d].begin, overlap.in_box[d].size());
  }
  return part;
}

// Of the ranks that hold the same part one counts, and the sum over all ranks is the content.
bool counts(const layout::Spec& spec) {
  return spec->is_first_holder(dtensor::RankState::require().ctx.coord(spec->mesh));
}

}  // namespace

CutView CutView::whole(const at::Tensor& base) {
  CutView view{base, {}, std::vector<int64_t>(base.dim())};
  for (int64_t size : base.sizes()) {
    view.ranges.push_back({0, size});
  }
  std::iota(view.dims.begin(), view.dims.end(), 0);
  return view;
}

std::optional<std::vector<CutView>> take_views(View kind, const torch::jit::Stack& args, const CutView& of) {
  const bool is_unbind = kind == View::kUnbind, is_split = kind == View::kSplit, is_slice = kind == View::kSlice;
  if (!is_unbind && !is_split && !is_slice && kind != View::kSelect) {
    return std::nullopt;
  }
  if (is_slice && args[4].toInt() != 1) {
    return std::nullopt;
  }
  const int64_t dim = wrapped(args[is_split ? 2 : 1].toInt(), static_cast<int64_t>(of.dims.size()));
  const bool is_whole = of.dims.size() == of.ranges.size() && CutView::whole(of.base).ranges == of.ranges;
  if (is_whole && !is_cut(of.base, of.dims[dim])) {
    return std::nullopt;
  }

  const int64_t size = size_of(of, dim);
  if (is_slice) {
    return take_slice(args, of, dim);
  }
  if (is_split) {
    return pieces(of, dim, args[1].isInt() ? equal_sizes(size, args[1].toInt()) : args[1].toIntVector());
  }
  if (!is_unbind) {
    return std::vector<CutView>{selected(of, dim, wrapped(args[2].toInt(), size))};
  }
  std::vector<CutView> views;
  for (int64_t i = 0; i < size; ++i) {
    views.push_back(selected(of, dim, i));
  }
  return views;
}

at::Tensor read(const CutView& view) {
  const layout::Spec spec = dtensor::spec_of(view.base);
  std::vector<int64_t> sizes;
  for (int64_t dim : view.dims) {
    sizes.push_back(view.ranges[dim].size());
  }
  at::Tensor content;
  {
    dtensor::LocalScope scope;
    content = at::zeros(sizes, at::TensorOptions().dtype(spec->dtype));
    if (counts(spec)) {
      for (const Overlap& overlap : overlaps_of(view)) {
        part_of(content, view, overlap).copy_(overlap.local);
      }
    }
  }
  const Placements terms(spec->mesh.ndim(), layout::Partial());
  return dtensor::redistribute(dtensor::from_local(content, spec->mesh, terms, sizes), Placements(spec->mesh.ndim()));
}

void write(const CutView& view, const at::Tensor& content) {
  const at::Tensor whole = dtensor::redistribute(content, Placements(dtensor::spec_of(content)->mesh.ndim()));
  dtensor::LocalScope scope;
  for (const Overlap& overlap : overlaps_of(view)) {
    at::Tensor local = overlap.local;
    local.copy_(part_of(dtensor::meta_of(whole)->local.contiguous(), view, overlap));
  }
}

}  // namespace tessera::parallel
