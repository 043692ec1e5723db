#include "tessera/dtensor/front/special.h"

#include <ATen/core/Tensor.h>
#include <ATen/ops/all.h>
#include <ATen/ops/empty_strided.h>
#include <ATen/ops/eq.h>

#include "tessera/base/error.h"
#include "tessera/base/hints.h"
#include "tessera/dtensor/front/chunks.h"
#include "tessera/dtensor/front/dtensor.h"
#include "tessera/dtensor/ops/inplace_views.h"
#include "tessera/dtensor/ops/fused_update.h"
#include "tessera/dtensor/ops/lists.h"
#include "tessera/dtensor/random/random_ops.h"
#include "tessera/dtensor/record/arguments.h"
#include "tessera/dtensor/record/interception.h"
#include "tessera/dtensor/view/part_at.h"
#include "tessera/dtensor/view/views.h"
#include "tessera/rules/exact/exact.h"

namespace tessera::dtensor {

namespace {

using c10::IValue;
using torch::jit::Stack;

IValue& argument(const OpInfo& info, Stack& stack, size_t index) {
  return stack[stack.size() - info.num_args() + index];
}

void leave(const OpInfo& info, Stack& stack, IValue result) {
  stack.resize(stack.size() - info.num_args());
  stack.push_back(std::move(result));
}

// The whole value on this rank, merged in place if it was partial.
at::Tensor whole_local(RankState& state, const OpInfo& info, const at::Tensor& tensor) {
  return is_dtensor(tensor) ? part_at(state, info, tensor, layout::Placements(meta_of(tensor)->spec->mesh.ndim()))
                            : tensor;
}

// A new tensor that shares everything with the old one.
void alias(RankState& state, const OpInfo& info, Stack& stack) {
  const at::Tensor self = argument(info, stack, 0).toTensor();
  state.ctx.program.note(info.name.c_str(), meta_of(self)->spec->hash);
  leave(info, stack, wrap_view(MetaPtr::reclaim_copy(meta_of(self)), self.unsafeGetTensorImpl()->version_counter()));
}

void item(RankState& state, const OpInfo& info, Stack& stack) {
  const at::Tensor self = argument(info, stack, 0).toTensor();
  state.ctx.program.note(info.name.c_str(), meta_of(self)->spec->hash);
  leave(info, stack, whole_local(state, info, self).item());
}

// Results whose size depends on the values: computed whole on every rank.
void whole_call(RankState& state, const OpInfo& info, Stack& stack) {
  const size_t begin = stack.size() - info.num_args();
  const layout::Mesh* mesh = nullptr;
  for (size_t i = begin; i < stack.size(); ++i) {
    const IValue value = stack[i];
    for_each_tensor({value}, [&](const at::Tensor& tensor, int, int item) {
      if (!is_dtensor(tensor)) {
        return;
      }
      mesh = &meta_of(tensor)->spec->mesh;
      state.ctx.program.note(info.name.c_str(), meta_of(tensor)->spec->hash);
      replace_tensor(stack[i], item, whole_local(state, info, tensor));
    });
  }
  TESSERA_ASSERT(mesh);
  {
    LocalScope scope;
    info.op.callBoxed(stack);
  }
  for (size_t i = stack.size() - info.num_returns(); i < stack.size(); ++i) {
    if (static_cast<int64_t>(i + info.num_returns() - stack.size()) == info.row.plain_result) {
      continue;
    }
    const IValue results = stack[i];
    for_each_tensor({results}, [&](const at::Tensor& local, int, int item) {
      replace_tensor(stack[i], item,
                     wrap(local, Spec::make(*mesh, layout::Placements(mesh->ndim()), local.sizes(), local.strides(),
                                            local.scalar_type())));
    });
  }
}

// Special::kWhole: a sum over samples among others, of which `exact` knows nothing.
void whole_function(RankState& state, const OpInfo& info, Stack& stack) {
  TESSERA_ASSERT(!info.writes, info.name, " would write into what it gathered");
  for (size_t i = 0; state.exact.lattice() && i < info.num_args(); ++i) {
    for_each_tensor({argument(info, stack, i)}, [&](const at::Tensor& tensor, int, int) {
      TESSERA_CHECK(!is_dtensor(tensor) || !rules::holds_samples(meta_of(tensor)->spec->labels), "[", info.name,
                    "] numerics exact: no exact rule for this operator on ", meta_of(tensor)->spec.str(),
                    ", which holds samples of the step (rank ", state.ctx.rank,
                    "). Call it on full_tensor(x), outside of what is trained, or use numerics fast.");
    });
  }
  whole_call(state, info, stack);
}

// `counter`: values that belong to the samples of a micro-batch must be drawn by sample.
void check_is_step(const OpInfo& info, const Meta& meta) {
  TESSERA_CHECK(starts_at_first_sample(meta.origin), "[", info.name, "] of ", meta.spec.str(),
                ", a micro-batch: the `counter` generator draws it for a whole batch only, so its random numbers would "
                "depend on the micro-batches. "
                "Compute it from uniform, normal or exponential numbers, or take the step in one micro-batch.");
}

// Draws according to values of which one needs as many random numbers as it happens to need (poisson, gamma): as one
// device does, on every rank. What the operator writes is copied back.
void draw_whole(RankState& state, const OpInfo& info, Stack& stack) {
  std::vector<std::pair<at::Tensor, at::Tensor>> written;  // what the program gave, and the whole of it
  for (size_t i = 0; i < info.num_args(); ++i) {
    IValue& value = argument(info, stack, i);
    if (value.isNone() && info.op.schema().arguments()[i].name() == "generator") {
      value = state.random.stock() ? state.random.stock().handle() : generator_for_draw(state);
    }
    if (!value.isTensor() || !is_dtensor(value.toTensor())) {
      continue;
    }
    const at::Tensor tensor = value.toTensor();
    if (!state.random.stock()) {
      check_is_step(info, *meta_of(tensor));
    }
    const at::Tensor local = whole_local(state, info, tensor);
    LocalScope scope;  // laid out as on one device: the stream runs along memory
    const at::Tensor like = at::empty_strided(local.sizes(), tensor.strides(), local.options());
    value = wrap(like.copy_(local), meta_of(tensor)->spec.with(layout::Placements(meta_of(tensor)->spec->mesh.ndim())));
    if (info.args[i].written) {
      written.emplace_back(tensor, value.toTensor());
    }
  }
  whole_call(state, info, stack);
  for (const auto& [own, whole] : written) {
    own.copy_(whole);
  }
  for (size_t i = 0; i < info.num_returns(); ++i) {
    if (info.written_return[i] >= 0) {
      stack[stack.size() - info.num_returns() + i] = written.at(0).first;
    }
  }
}

// Draws according to values: multinomial, normal of tensors, poisson.
void draw_by_values(RankState& state, const OpInfo& info, Stack& stack) {
  const c10::ArrayRef<IValue> args(&argument(info, stack, 0), info.num_args());
  if (info.row.draws.by_values && !stock_generator_of(state, args).defined()) {
    return leave(info, stack, info.row.draws.by_values(args));
  }
  state.ctx.program.note(info.name.c_str(), state.random.stock() ? state.random.stock().mark() : 0);
  draw_whole(state, info, stack);
}

void same_size(RankState&, const OpInfo& info, Stack& stack) {
  const bool same = argument(info, stack, 0).toTensor().sizes() == argument(info, stack, 1).toTensor().sizes();
  leave(info, stack, same);
}

// Forward mode asks before it keeps a tangent as it is; sizes and strides it compares itself.
void same_storage(RankState&, const OpInfo& info, Stack& stack) { leave(info, stack, true); }

// The zeros that forward mode copies a tangent (the first argument) into, so that it lies as its primal (the second)
// does in one program's memory; `self_num_batch_dims` dims of the tangent stand before the primal's.
void zeros_like_primal(RankState&, const OpInfo& info, Stack& stack) {
  const at::Tensor tangent = argument(info, stack, 0).toTensor(), primal = argument(info, stack, 1).toTensor();
  const int64_t batch_dims = argument(info, stack, 2).toInt();
  std::vector<int64_t> sizes = primal.sizes().vec(), strides = primal.strides().vec();
  int64_t stride = std::max<int64_t>(primal.numel(), 1);
  for (int64_t d = batch_dims; d-- > 0;) {
    sizes.insert(sizes.begin(), tangent.size(d));
    strides.insert(strides.begin(), stride);
    stride *= tangent.size(d);
  }
  const at::Tensor& like = is_dtensor(primal) ? primal : tangent;
  leave(info, stack, like.new_empty_strided(sizes, strides, tangent.scalar_type()).zero_());
}

void equal(RankState&, const OpInfo& info, Stack& stack) {
  const at::Tensor a = argument(info, stack, 0).toTensor(), b = argument(info, stack, 1).toTensor();
  const bool same = a.sizes() == b.sizes() && at::all(at::eq(a, b)).item().toBool();
  leave(info, stack, same);
}

// Ones where the row is the column.
void fill_diagonal(const Chunk& chunk) {
  const int64_t row = chunk.offsets[0], column = chunk.offsets[1];
  const int64_t end = std::min(row + chunk.part.size(0), column + chunk.part.size(1));
  for (int64_t i = std::max(row, column); i < end; ++i) {
    chunk.part.select(0, i - row).select(0, i - column).fill_(1);
  }
}

// The ones of an identity matrix that this rank holds.
void eye_out(RankState& state, const OpInfo& info, Stack& stack) {
  const at::Tensor out = argument(info, stack, info.num_args() - 1).toTensor();
  const int64_t rows = argument(info, stack, 0).toInt(),
                columns = info.num_args() == 3 ? argument(info, stack, 1).toInt() : rows;
  TESSERA_CHECK(out.sizes() == c10::IntArrayRef({rows, columns}), "[", info.name, "] the result has ", rows,
                " rows and ", columns, " columns, but out= is a DTensor of ", out.sizes());
  Meta& meta = *meta_of(out);
  check_writable(info, meta);
  drop_terms(meta);
  {
    LocalScope scope;
    meta.local.zero_();
    for (const Chunk& chunk : chunks_of_part(meta.local, meta.spec, state.ctx.coord(meta.spec->mesh))) {
      fill_diagonal(chunk);
    }
  }
  note_write(meta);
  leave(info, stack, out);
}

void refuse(RankState&, const OpInfo& info, Stack&) {
  TESSERA_CHECK(false, "[", info.name, "] a DTensor has no storage to set, resize or share. Build a new one with ",
                base::in_library(base::in_language("distribute", "distribute_tensor")), "(value, mesh, placements) or ",
                base::in_library("from_local(part, mesh, placements)"), ", or copy_ into this one.");
}

}  // namespace

SpecialKernel special_kernel(rules::Special special) {
  using rules::Special;
  switch (special) {
    case Special::kNone: break;
    case Special::kAlias: return alias;
    case Special::kBernoulli: return bernoulli_tensor;
    case Special::kConjugate: return conjugate;
    case Special::kDrawByValues: return draw_by_values;
    case Special::kDropout: return native_dropout;
    case Special::kEqual: return equal;
    case Special::kEye: return eye_out;
    case Special::kFusedUpdate: return fused_update;
    case Special::kItem: return item;
    case Special::kList:
    case Special::kListNorm:
    case Special::kListOfWholes: return foreach_call;
    case Special::kRandomFill: return random_inplace;
    case Special::kRandomLike: return random_like;
    case Special::kRefused: return refuse;
    case Special::kSameSize: return same_size;
    case Special::kSameStorage: return same_storage;
    case Special::kUnscale: return unscale;
    case Special::kValueSizes: return whole_call;
    case Special::kViewInPlace: return view_in_place;
    case Special::kWhole: return whole_function;
    case Special::kZerosLikePrimal: return zeros_like_primal;
  }
  return nullptr;
}

}  // namespace tessera::dtensor
