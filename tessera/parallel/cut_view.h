// Views along dims that ranks cut, for constructors that initialise a part of a tensor: `weight[0].zero_()`.
#pragma once

#include <optional>
#include <vector>

#include <ATen/core/Tensor.h>
#include <ATen/core/stack.h>

#include "tessera/layout/placement.h"
#include "tessera/rules/engine/facts.h"

namespace tessera::parallel {

// A box of a DTensor: read and written by range, so that no rank gathers the tensor to reach a row of it.
struct CutView {
  at::Tensor base;
  std::vector<layout::Range> ranges;  // of each dim of the base
  std::vector<int64_t> dims;          // of the base, for each dim of the view; a selected one is left out

  static CutView whole(const at::Tensor& base);
};

// The views that a select, slice, split or unbind with these arguments takes of `of`, one for each
// result; nothing if the kind is another, a slice has steps, or `of` is whole and the dim is not cut: then the op
// itself serves.
std::optional<std::vector<CutView>> take_views(rules::View kind, const torch::jit::Stack& args, const CutView& of);

// The box's content, replicated. Holds the box, not the base. Collective over the base's mesh.
at::Tensor read(const CutView& view);

// Puts a content of the view's sizes into the base. Collective over the base's mesh unless `content` is replicated.
void write(const CutView& view, const at::Tensor& content);

}  // namespace tessera::parallel
