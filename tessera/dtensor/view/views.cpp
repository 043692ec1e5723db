#include "tessera/dtensor/view/views.h"

#include <numeric>

#include <ATen/core/LegacyTypeDispatch.h>
#include <ATen/ops/_conj_physical.h>
#include <ATen/ops/diagonal_scatter.h>
#include <ATen/ops/permute.h>
#include <ATen/ops/reshape.h>
#include <ATen/ops/select_scatter.h>
#include <ATen/ops/slice_scatter.h>
#include <ATen/ops/t.h>
#include <ATen/ops/transpose.h>
#include <ATen/ops/view_as_complex.h>
#include <ATen/ops/view_as_real.h>

#include "tessera/base/error.h"
#include "tessera/dtensor/record/interception.h"

namespace tessera::dtensor {

namespace {

using rules::View;
using Args = std::vector<c10::IValue>;

std::optional<int64_t> maybe_int(const c10::IValue& value) {
  return value.isNone() ? std::nullopt : std::optional(value.toInt());
}

at::Tensor put_rows(const at::Tensor& base, const at::Tensor& view, int64_t dim, int64_t begin) {
  return at::slice_scatter(base, view, dim, begin, begin + view.size(dim));
}

at::Tensor put_split(const Args& args, int64_t output, const at::Tensor& base, const at::Tensor& view) {
  if (args[0].isInt()) {
    return put_rows(base, view, args[1].toInt(), output * args[0].toInt());
  }
  const auto sizes = args[0].toIntVector();
  return put_rows(base, view, args[1].toInt(), std::accumulate(sizes.begin(), sizes.begin() + output, int64_t{0}));
}

at::Tensor put_permuted(const Args& args, const at::Tensor& view) {
  const auto dims = args[0].toIntVector();
  std::vector<int64_t> back(dims.size());
  for (size_t i = 0; i < dims.size(); ++i) {
    back[dims[i] < 0 ? dims[i] + dims.size() : dims[i]] = static_cast<int64_t>(i);
  }
  return view.permute(back);
}

// The base's value when the view's is `view`; undefined if that kind of view cannot be put back.
at::Tensor base_with(View kind, const Args& args, int64_t output, const at::Tensor& base, const at::Tensor& view) {
  switch (kind) {
    case View::kNone: break;
    case View::kComplex: return at::view_as_real(view);
    case View::kConjugate: return at::_conj_physical(view);
    case View::kDiagonal: return at::diagonal_scatter(base, view, args[0].toInt(), args[1].toInt(), args[2].toInt());
    case View::kPermute: return put_permuted(args, view);
    case View::kReal: return at::view_as_complex(view);
    case View::kRegroup: return view.reshape(base.sizes());
    case View::kSelect: return at::select_scatter(base, view, args[0].toInt(), args[1].toInt());
    case View::kSlice:
      return at::slice_scatter(base, view, args[0].toInt(), maybe_int(args[1]), maybe_int(args[2]), args[3].toInt());
    case View::kSplit: return put_split(args, output, base, view);
    case View::kTranspose: return view.transpose(args[0].toInt(), args[1].toInt());
    case View::kTurn: return view.t();
    case View::kUnbind: return at::select_scatter(base, view, args[0].toInt(), output);
  }
  return {};
}

// Operators that the program did not write: no history, no site, no trace in the program that ranks compare.
class Unseen {
 public:
  Unseen() : program_(comm::RankContext::require().program) {}
  ~Unseen() { comm::RankContext::require().program = program_; }
  Unseen(const Unseen&) = delete;
  Unseen& operator=(const Unseen&) = delete;

 private:
  comm::Program program_;
  at::AutoDispatchBelowADInplaceOrView below_;
};

// A tensor of the same part that is neither a parameter nor a view.
at::Tensor stand_in(const Meta& meta) { return wrap(meta.local, meta.spec, meta.origin); }

void put_back(Meta& meta, Derived& derived) {
  Unseen unseen;
  Meta& base = *derived.base;
  const at::Tensor value =
      base_with(derived.op->row.view, derived.args, derived.output, stand_in(base), stand_in(meta));
  const Meta& whole = *meta_of(value);
  if (base.spec->has_partial) {
    base.replace(whole.local, whole.spec);
    return;
  }
  RankState& state = RankState::require();
  const Spec target = whole.spec.with(base.spec->placements);
  const at::Tensor local =
      run_move(state.ctx, *state.engine.moves.find_or_plan(whole.spec, target), whole.local, derived.op->name.c_str());
  LocalScope scope;
  base.local.copy_(local);
}

}  // namespace

void record_view(Meta& view, MetaPtr base, const OpInfo& op, Args args, int64_t output, bool shares_memory) {
  auto derived = std::make_unique<Derived>();
  if (shares_memory) {
    view.root = base->root ? base->root : base;
  }
  derived->made = base->moment();
  derived->base = std::move(base);
  derived->op = &op;
  derived->args = std::move(args);
  derived->output = output;
  derived->shares_memory = shares_memory;
  view.make_rare().derived = std::move(derived);
}

bool refresh(Meta& meta) {
  Derived* derived = meta.derived();
  if (C10_LIKELY(!derived)) {
    return false;
  }
  Meta& base = *derived->base;
  refresh(base);
  const bool current = derived->shares_memory ? base.epoch == derived->made.epoch : base.unchanged_since(derived->made);
  if (current) {
    return false;
  }
  Unseen unseen;
  torch::jit::Stack stack = {stand_in(base)};
  stack.insert(stack.end(), derived->args.begin(), derived->args.end());
  derived->op->op.callBoxed(stack);
  const at::Tensor made =
      stack.back().isTensor() ? stack.back().toTensor() : stack.back().toTensorList().get(derived->output);
  const Meta& fresh = *meta_of(made);
  const Derived* how = fresh.derived();
  meta.replace(fresh.local, fresh.spec);
  derived->shares_memory = !how || how->shares_memory;
  if (derived->shares_memory) {
    meta.root = base.root ? base.root : derived->base;
  }
  return true;
}

void check_writable(const OpInfo& info, const Meta& meta) {
  for (const Meta* view = &meta; const Derived* derived = view->derived(); view = derived->base.get()) {
    TESSERA_CHECK(
        derived->shares_memory || derived->op->row.view != View::kNone, "[", info.name,
        "] cannot write through a view made by ", derived->op->name,
        " whose elements had to be moved to other ranks (the view is ", meta.spec.str(), ", its base ",
        derived->base->spec.str(),
        "): the write would not reach its base. Write into the base itself (index_put_, masked_fill_, copy_), "
        "or redistribute the base so that the view needs no communication.");
  }
}

void note_write(Meta& meta) {
  ++meta.memory().writes;
  if (C10_UNLIKELY(meta.is_pending())) {
    meta.rare->pending.reset();  // the value is the program's own now
  }
  Derived* derived = meta.derived();
  if (C10_LIKELY(!derived)) {
    return;
  }
  if (!derived->shares_memory) {
    put_back(meta, *derived);
  }
  note_write(*derived->base);
  derived->made = derived->base->moment();
}

void drop_unseen_base(Meta& meta) {
  const Derived* derived = meta.derived();
  if (derived && derived->base.use_count() == 1 && !derived->base->derived()) {
    meta.rare->derived.reset();
  }
}

}  // namespace tessera::dtensor
