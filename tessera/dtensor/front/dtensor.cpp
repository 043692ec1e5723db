#include "tessera/dtensor/front/dtensor.h"

#include <ATen/core/Formatting.h>

#include "tessera/base/error.h"
#include "tessera/base/hash.h"
#include "tessera/base/hints.h"
#include "tessera/comm/core/compared_run.h"
#include "tessera/dtensor/exact/pending.h"
#include "tessera/dtensor/ops/layout_ops.h"
#include "tessera/dtensor/record/interception.h"
#include "tessera/dtensor/state/observer.h"
#include "tessera/dtensor/view/views.h"
#include "tessera/kernels/base/threads.h"

namespace tessera::dtensor {

namespace {

using layout::Mesh;
using layout::Placements;

Meta* require_dtensor(const at::Tensor& tensor, const char* what) {
  TESSERA_CHECK(is_dtensor(tensor), "[", what, "] expected a DTensor, got a plain tensor of ",
                tensor.defined() ? c10::str(tensor.sizes()) : "nothing", ". Make one with ",
                base::in_library(base::in_language("distribute", "distribute_tensor")), "(x, mesh, placements) or ",
                base::in_library("from_local(part, mesh, placements)"), ".");
  Meta* meta = meta_of(tensor);
  TESSERA_CHECK(meta->spec, "[", what, "] the tensor is deferred: it gets its layout and memory from parallelize.");
  if (RankState::current()) {
    refresh(*meta);
  }
  return meta;
}

// ... whose part is its value.
Meta* require_value(const at::Tensor& tensor, const char* what) {
  Meta* meta = require_dtensor(tensor, what);
  if (!meta->is_pending()) {
    return meta;
  }
  RankState& state = RankState::require();
  const Unobserved unobserved(state);
  settle(state, *meta, what);
  return meta;
}

// The part of `tensor` at these runs of each dim, in memory of its own.
at::Tensor part_of(const at::Tensor& tensor, const std::vector<std::vector<layout::Range>>& runs) {
  at::Tensor part = tensor;
  for (size_t d = 0; d < runs.size(); ++d) {
    std::vector<at::Tensor> pieces;
    for (const layout::Range& run : runs[d]) {
      pieces.push_back(part.narrow(static_cast<int64_t>(d), run.begin, run.size()));
    }
    part = pieces.size() == 1 ? pieces[0] : at::cat(pieces, static_cast<int64_t>(d));
  }
  return part.is_same(tensor) ? tensor.clone() : part.clone(at::MemoryFormat::Contiguous);
}

Spec spec_like(const Spec& spec, const Mesh& mesh, const Placements& placements) {
  return Spec::make(mesh, placements, spec->sizes, spec->strides, spec->dtype, spec->labels);
}

}  // namespace

at::Tensor distribute(const at::Tensor& tensor, const Mesh& mesh, const Placements& placements,
                      const layout::Labels& labels) {
  RankState& state = RankState::require();
  TESSERA_CHECK(!is_dtensor(tensor), "[distribute] the tensor is already distributed as ", meta_of(tensor)->spec.str(),
                "; use ", base::in_library("redistribute(x, placements)"));
  const Spec spec = Spec::contiguous(mesh, placements, tensor.sizes(), tensor.scalar_type(), labels);
  const Spec whole = spec.with(layout::settled(spec->placements));
  at::Tensor local;
  {
    LocalScope scope;
    at::NoGradGuard no_grad;
    local = part_of(tensor.detach().reshape(whole->run_sizes()), whole.local_runs(state.ctx.coord(mesh)));
  }
  if (spec != whole) {
    local = run_move(state.ctx, *state.engine.moves.find_or_plan(whole, spec), local, "distribute");
  }
  at::Tensor result = wrap(local, spec);
  if (tensor.requires_grad()) {
    result.set_requires_grad(true);
  }
  return result;
}

at::Tensor distribute(const at::Tensor& tensor, const Mesh& mesh, std::string_view placements) {
  return distribute(tensor, mesh, layout::parse_placements(mesh, placements));
}

at::Tensor from_local(const at::Tensor& local, const Mesh& mesh, const Placements& placements,
                      std::optional<std::vector<int64_t>> sizes) {
  RankState& state = RankState::require();
  TESSERA_CHECK(!is_dtensor(local), "[from_local] expected this rank's plain part, got a DTensor");
  const std::vector<int64_t> global = sizes ? *sizes : sizes_of_equal_parts(mesh, placements, local.sizes());
  const Spec spec = Spec::contiguous(mesh, placements, global, local.scalar_type());
  const auto expected = spec.local_sizes(state.ctx.coord(mesh));
  TESSERA_CHECK(local.sizes() == c10::IntArrayRef(expected), "[from_local] rank ", state.ctx.rank, " passed a part of ",
                local.sizes(), " where ", spec.str(), " gives it ", c10::IntArrayRef(expected), "; ",
                base::in_language("pass the global sizes", "pass shape=, the global one,"), " if the parts differ");
  state.ctx.program.note("from_local", spec->hash);
  at::Tensor result = wrap(local.detach(), spec);
  if (local.requires_grad()) {
    result.set_requires_grad(true);
  }
  tell_given(state, "from_local", result);
  return result;
}

at::Tensor to_local(const at::Tensor& tensor) {
  require_value(unwrapped(tensor), "to_local");
  TESSERA_CHECK(unwrapped(tensor).dim() == tensor.dim(), "[to_local] vmap maps over a dim of the DTensor, ",
                meta_of(unwrapped(tensor))->spec.str(),
                ": which part of one sample a rank has depends on that dim. Take ", base::in_library("full_tensor(x)"),
                ", or to_local outside of vmap.");
  return call_to_plain(tensor, /*whole=*/false);
}

at::Tensor full_tensor(const at::Tensor& tensor) {
  if (!is_dtensor(unwrapped(tensor))) {
    return tensor;
  }
  require_value(unwrapped(tensor), "full_tensor");
  return call_to_plain(tensor, /*whole=*/true);
}

at::Tensor redistribute(const at::Tensor& tensor, const Mesh& mesh, const Placements& placements) {
  RankState::require();
  const Meta* meta = require_value(unwrapped(tensor), "redistribute");
  return call_redistribute(tensor, spec_like(meta->spec, mesh, placements));
}

at::Tensor redistribute(const at::Tensor& tensor, const Placements& placements) {
  return redistribute(tensor, require_dtensor(unwrapped(tensor), "redistribute")->spec->mesh, placements);
}

at::Tensor redistribute(const at::Tensor& tensor, std::string_view placements) {
  return redistribute(
      tensor, layout::parse_placements(require_dtensor(unwrapped(tensor), "redistribute")->spec->mesh, placements));
}

const Spec& spec_of(const at::Tensor& tensor) { return require_dtensor(unwrapped(tensor), "spec_of")->spec; }

std::string to_string(const at::Tensor& tensor) {
  const Meta* meta = require_dtensor(tensor, "to_string");
  std::ostringstream out;
  out << "DTensor " << meta->spec.str() << " on " << meta->spec->mesh.str();
  if (const RankState* state = RankState::current()) {
    out << ", rank " << state->ctx.rank << "'s part:\n";
  }
  at::print(out, meta->local, 120);
  return out.str();
}

at::Tensor deep_copy(const at::Tensor& tensor) {
  const Meta* meta = require_value(tensor, "deep_copy");
  LocalScope scope;
  auto copy = c10::make_intrusive<Meta>();
  copy->local = meta->local.clone();
  copy->spec = meta->spec;
  copy->origin = meta->origin;
  copy->parameter = meta->parameter;
  at::Tensor result = wrap(std::move(copy));
  result.set_requires_grad(tensor.requires_grad());
  if (tensor.is_leaf() && tensor.grad().defined()) {
    result.mutable_grad() = deep_copy(tensor.grad());
  }
  return result;
}

at::Tensor with_labels(const at::Tensor& tensor, const layout::Labels& labels, const Origin* origin) {
  const Meta* meta = require_value(tensor, "with_labels");
  return wrap(meta->local, meta->spec.with_labels(labels), origin);
}

void manual_seed(uint64_t seed) {
  RankState& state = RankState::require();
  state.ctx.program.note("manual_seed", base::hash_mix(seed));
  state.pass.sites = Sites();
  state.random.set_seed(seed);
}

void set_generator(GeneratorKind kind) {
  RankState& state = RankState::require();
  state.ctx.program.note("set_generator", static_cast<uint64_t>(kind));
  state.random.set_stock(kind == GeneratorKind::kStock);
}

at::Generator stock_generator() {
  RankState& state = RankState::require();
  TESSERA_CHECK(
      state.random.stock(),
      "[stock_generator] this rank draws from the `counter` generator, which has no state; choose the other with "
      "set_generator(GeneratorKind::kStock)");
  return state.random.stock().handle();
}

ModeScope::ModeScope(Mode mode) : previous_(RankState::require().watch.set_mode(mode)) {}
ModeScope::~ModeScope() {
  if (RankState* state = RankState::current()) {
    state->watch.set_mode(previous_);
  }
}

namespace {

// While the rank computes in `exact`, libtorch does on one thread (Note [Threads]).
std::optional<kernels::OneThread>& one_thread_of(comm::RankContext& ctx) {
  using Slot = std::optional<kernels::OneThread>;
  static const char kSlot = 0;
  std::shared_ptr<void>& slot = ctx.slot(&kSlot);
  if (!slot) {
    slot = std::make_shared<Slot>();
  }
  return *static_cast<Slot*>(slot.get());
}

}  // namespace

void set_numerics(Numerics asked, const sums::Lattice& lattice) {
  const auto* run = comm::compared_run();
  const auto numerics = run && run->is_exact ? (*run->is_exact ? Numerics::kExact : Numerics::kFast) : asked;
  RankState& state = RankState::require();
  state.exact.set_lattice(std::nullopt);
  one_thread_of(state.ctx).reset();
  if (numerics == Numerics::kFast) {
    return;
  }
  state.exact.set_lattice(lattice);
  one_thread_of(state.ctx).emplace();
}

void set_step_tokens(int64_t tokens) { RankState::require().exact.set_step_tokens(tokens); }

void set_check_plain(bool on) { RankState::require().watch.set_checks_plain(on); }

}  // namespace tessera::dtensor
