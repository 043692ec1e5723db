// Views that do more than share memory: made again when their base changed, written back when they are written.
#pragma once

#include <ATen/core/ivalue.h>

#include "tessera/dtensor/record/meta.h"
#include "tessera/dtensor/record/op_info.h"
#include "tessera/dtensor/state/state.h"

namespace tessera::dtensor {

// Note [Views]. On one device a view is its base's memory. Here it is so while the view needs no communication;
// `Meta::root` then counts writes for all. Otherwise (a row of a cut dim, a view of a Partial that is merged later) the
// view has a Derived: before it is used it is made again if the base changed, and after a write its value is put back
// into the base, along the chain of views if need be. What cannot be put back (expand, unfold, as_strided) refuses the
// write before anything happened.

// Remembers how `view` came from `base`, the first argument of `op`; `args` are the others.
void record_view(Meta& view, MetaPtr base, const OpInfo& op, std::vector<c10::IValue> args, int64_t output,
                 bool shares_memory);

// Makes the tensor again if its base changed since; returns whether it did. Collective where making the view was.
bool refresh(Meta& meta);

// Throws if a write to the tensor could not reach its base.
void check_writable(const OpInfo& info, const Meta& meta);

// Every write to the part of a DTensor ends with this. Collective where making the view was.
void note_write(Meta& meta);

// Lets go of a base that nobody else can see.
void drop_unseen_base(Meta& meta);

}  // namespace tessera::dtensor
