#include "tessera/dtensor/dtensor.h"

#include <ATen/core/Formatting.h>
#include <ATen/ops/_lazy_clone.h>
#include <torch/csrc/autograd/custom_function.h>

#include "tessera/base/error.h"
#include "tessera/base/hash.h"
#include "tessera/base/hints.h"
#include "tessera/dtensor/dispatch.h"
#include "tessera/dtensor/observer.h"
#include "tessera/dtensor/pending.h"
#include "tessera/dtensor/registry.h"
#include "tessera/dtensor/views.h"
#include "tessera/dtensor/wishes.h"

namespace tessera::dtensor {

namespace {

using layout::Mesh;
using layout::Placements;

Meta* require_dtensor(const at::Tensor& tensor, const char* what) {
  TESSERA_CHECK(is_dtensor(tensor), "[", what, "] expected a DTensor, got a plain tensor of ", tensor.defined() ? c10::str(tensor.sizes()) : "nothing",
                ". Make one with ", base::in_library(base::in_language("distribute", "distribute_tensor")), "(x, mesh, placements) or ",
                base::in_library("from_local(part, mesh, placements)"), ".");
  Meta* meta = meta_of(tensor);
  TESSERA_CHECK(meta->spec, "[", what, "] the tensor is deferred: it gets its layout and memory from parallelize.");
  if (RankState::current()) refresh(*meta);
  return meta;
}

// ... whose part is its value.
Meta* require_value(const at::Tensor& tensor, const char* what) {
  Meta* meta = require_dtensor(tensor, what);
  if (!meta->is_pending()) return meta;
  RankState& state = RankState::require();
  const Unobserved unobserved(state);
  settle(state, *meta, what);
  return meta;
}

Placements replicate_all(const Mesh& mesh) { return Placements(mesh.ndim()); }

// The part of `tensor` at these runs of each dim, in memory of its own.
at::Tensor part_of(const at::Tensor& tensor, const std::vector<std::vector<layout::Range>>& runs) {
  at::Tensor part = tensor;
  for (size_t d = 0; d < runs.size(); ++d) {
    std::vector<at::Tensor> pieces;
    for (const layout::Range& run : runs[d]) pieces.push_back(part.narrow(static_cast<int64_t>(d), run.begin, run.size()));
    part = pieces.size() == 1 ? pieces[0] : at::cat(pieces, static_cast<int64_t>(d));
  }
  return part.is_same(tensor) ? tensor.clone() : part.clone(at::MemoryFormat::Contiguous);
}

at::Tensor moved_to(RankState& state, Meta& meta, const Spec& to, const char* what) {
  if (meta.spec == to) return meta.local;
  at::Tensor local = run_move(state.ctx, *state.moves.find_or_plan(meta.spec, to), meta.local, what);
  if (meta.spec->has_partial && !to->has_partial && meta.spec->mesh == to->mesh) meta.replace(local, to);
  return local;
}

Spec spec_like(const Spec& spec, const Mesh& mesh, const Placements& placements) {
  return Spec::make(mesh, placements, spec->sizes, spec->strides, spec->dtype, spec->labels);
}

// The part under another name; writes to it count as writes to the tensor's memory.
at::Tensor shared_part(const Meta& meta) {
  const at::Tensor& owner = meta.memory().local;
  if (!owner.is_inference() && !meta.local.is_inference()) {
    meta.local.unsafeGetTensorImpl()->set_version_counter(owner.unsafeGetTensorImpl()->version_counter());
  }
  return meta.local.detach();
}

struct SpecHolder : torch::CustomClassHolder {
  explicit SpecHolder(Spec held) : spec(held) {}
  Spec spec;
};

// A part of its own, if `local` is still that of `meta`.
at::Tensor unshared(const Meta& meta, at::Tensor local) {
  LocalScope scope;
  if (!local.is_alias_of(meta.local)) return local;
  return local.sizes() == meta.local.sizes() ? at::_lazy_clone(local) : local.clone();
}

// The tensor itself for autograd, elsewhere placed. Its gradient goes back to the mesh that it came from.
class Redistributed : public torch::autograd::Function<Redistributed> {
 public:
  static at::Tensor forward(torch::autograd::AutogradContext* ctx, const at::Tensor& tensor, const c10::intrusive_ptr<SpecHolder>& to) {
    RankState& state = RankState::require();
    Meta* meta = meta_of(tensor);
    const Origin* origin = meta->origin;
    ctx->saved_data["spec"] = c10::IValue::make_capsule(c10::make_intrusive<SpecHolder>(meta->spec));
    state.ctx.program.note("redistribute", base::hash_combine(meta->spec->hash, to->spec->hash));
    at::Tensor local = moved_to(state, *meta, to->spec, "redistribute");
    return wrap(unshared(*meta, std::move(local)), to->spec, origin);
  }

  static torch::autograd::variable_list backward(torch::autograd::AutogradContext* ctx, torch::autograd::variable_list grads) {
    const auto holder = c10::static_intrusive_pointer_cast<SpecHolder>(ctx->saved_data["spec"].toCapsule());
    const Spec& from = holder->spec;
    if (!grads[0].defined() || !is_dtensor(grads[0]) || meta_of(grads[0])->spec->mesh == from->mesh) return {grads[0], at::Tensor()};
    return {redistribute(grads[0], from->mesh, without_partial(from->placements)), at::Tensor()};
  }
};

// Leaves the rank's part (or the whole value) to plain autograd, and takes the gradient back.
class ToPlain : public torch::autograd::Function<ToPlain> {
 public:
  static at::Tensor forward(torch::autograd::AutogradContext* ctx, const at::Tensor& tensor, bool whole) {
    RankState& state = RankState::require();
    Meta* meta = meta_of(tensor);
    const Mesh mesh = meta->spec->mesh;
    state.ctx.program.note(whole ? "full_tensor" : "to_local", meta->spec->hash);
    at::Tensor local = whole ? moved_to(state, *meta, meta->spec.with(replicate_all(mesh)), "full_tensor") : meta->local;
    const Placements back = whole ? replicate_all(mesh) : without_partial(meta->spec->placements);
    ctx->saved_data["spec"] = c10::IValue::make_capsule(c10::make_intrusive<SpecHolder>(meta->spec.with(back)));
    return whole ? unshared(*meta, std::move(local)) : shared_part(*meta);
  }

  static torch::autograd::variable_list backward(torch::autograd::AutogradContext* ctx, torch::autograd::variable_list grads) {
    const auto holder = c10::static_intrusive_pointer_cast<SpecHolder>(ctx->saved_data["spec"].toCapsule());
    return {grads[0].defined() ? wrap(grads[0].contiguous(), holder->spec) : at::Tensor(), at::Tensor()};
  }
};

}  // namespace

at::Tensor distribute(const at::Tensor& tensor, const Mesh& mesh, const Placements& placements, const layout::Labels& labels) {
  RankState& state = RankState::require();
  TESSERA_CHECK(!is_dtensor(tensor), "[distribute] the tensor is already distributed as ", meta_of(tensor)->spec.str(), "; use ",
                base::in_library("redistribute(x, placements)"));
  const Spec spec = Spec::contiguous(mesh, placements, tensor.sizes(), tensor.scalar_type(), labels);
  at::Tensor local;
  {
    LocalScope scope;
    at::NoGradGuard no_grad;
    local = part_of(tensor.detach(), spec.local_runs(state.ctx.coord(mesh)));
  }
  if (spec->has_partial) {
    local = run_move(state.ctx, *state.moves.find_or_plan(spec.with(without_partial(spec->placements)), spec), local, "distribute");
  }
  at::Tensor result = wrap(local, spec);
  if (tensor.requires_grad()) result.set_requires_grad(true);
  return result;
}

at::Tensor distribute(const at::Tensor& tensor, const Mesh& mesh, std::string_view placements) {
  return distribute(tensor, mesh, layout::parse_placements(mesh, placements));
}

at::Tensor from_local(const at::Tensor& local, const Mesh& mesh, const Placements& placements, std::optional<std::vector<int64_t>> sizes) {
  RankState& state = RankState::require();
  TESSERA_CHECK(!is_dtensor(local), "[from_local] expected this rank's plain part, got a DTensor");
  std::vector<int64_t> global = sizes ? *sizes : local.sizes().vec();
  if (!sizes) {
    for (size_t axis = 0; axis < placements.size(); ++axis) {
      const layout::Placement& placement = placements[axis];
      const bool cuts = static_cast<int64_t>(axis) < mesh.ndim() && placement.is_shard() && placement.dim < local.dim();
      if (cuts) global[placement.dim] *= mesh.axis(static_cast<int64_t>(axis)).size;
    }
  }
  const Spec spec = Spec::contiguous(mesh, placements, global, local.scalar_type());
  const auto expected = spec.local_sizes(state.ctx.coord(mesh));
  TESSERA_CHECK(local.sizes() == c10::IntArrayRef(expected), "[from_local] rank ", state.ctx.rank, " passed a part of ", local.sizes(), " where ",
                spec.str(), " gives it ", c10::IntArrayRef(expected), "; ",
                base::in_language("pass the global sizes", "pass shape=, the global one,"), " if the parts differ");
  at::Tensor result = wrap(local.detach(), spec);
  if (local.requires_grad()) result.set_requires_grad(true);
  return result;
}

at::Tensor to_local(const at::Tensor& tensor) {
  require_value(tensor, "to_local");
  return ToPlain::apply(tensor, false);
}

at::Tensor full_tensor(const at::Tensor& tensor) {
  if (!is_dtensor(tensor)) return tensor;
  require_value(tensor, "full_tensor");
  return ToPlain::apply(tensor, true);
}

at::Tensor redistribute(const at::Tensor& tensor, const Mesh& mesh, const Placements& placements) {
  RankState::require();
  const Meta* meta = require_value(tensor, "redistribute");
  return Redistributed::apply(tensor, c10::make_intrusive<SpecHolder>(spec_like(meta->spec, mesh, placements)));
}

at::Tensor redistribute(const at::Tensor& tensor, const Placements& placements) {
  return redistribute(tensor, require_dtensor(tensor, "redistribute")->spec->mesh, placements);
}

at::Tensor redistribute(const at::Tensor& tensor, std::string_view placements) {
  return redistribute(tensor, layout::parse_placements(require_dtensor(tensor, "redistribute")->spec->mesh, placements));
}

const Spec& spec_of(const at::Tensor& tensor) { return require_dtensor(tensor, "spec_of")->spec; }

std::string to_string(const at::Tensor& tensor) {
  const Meta* meta = require_dtensor(tensor, "to_string");
  std::ostringstream out;
  out << "DTensor " << meta->spec.str() << " on " << meta->spec->mesh.str();
  if (const RankState* state = RankState::current()) out << ", rank " << state->ctx.rank << "'s part:\n";
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
  if (tensor.is_leaf() && tensor.grad().defined()) result.mutable_grad() = deep_copy(tensor.grad());
  return result;
}

at::Tensor with_labels(const at::Tensor& tensor, const layout::Labels& labels, const Origin* origin) {
  const Meta* meta = require_value(tensor, "with_labels");
  return wrap(meta->local, meta->spec.with_labels(labels), origin);
}

void manual_seed(uint64_t seed) {
  RankState& state = RankState::require();
  state.ctx.program.note("manual_seed", base::hash_mix(seed));
  Sites fresh;
  fresh.seed = seed;
  if (state.sites.stock) fresh.stock = random::StockGenerator(seed);
  state.sites = fresh;
}

void set_generator(GeneratorKind kind) {
  RankState& state = RankState::require();
  state.ctx.program.note("set_generator", static_cast<uint64_t>(kind));
  if (kind == GeneratorKind::kCounter) state.sites.stock = {};
  if (kind == GeneratorKind::kStock && !state.sites.stock) state.sites.stock = random::StockGenerator(state.sites.seed);
}

at::Generator stock_generator() {
  RankState& state = RankState::require();
  TESSERA_CHECK(state.sites.stock, "[stock_generator] this rank draws from the `counter` generator, which has no state; choose the other with "
                "set_generator(GeneratorKind::kStock)");
  return state.sites.stock.handle();
}

ModeScope::ModeScope(Mode mode) : previous_(RankState::require().mode) { RankState::require().mode = mode; }
ModeScope::~ModeScope() {
  if (RankState* state = RankState::current()) state->mode = previous_;
}

void set_numerics(Numerics numerics, const layout::Lattice& lattice) {
  RankState& state = RankState::require();
  state.lattice.reset();
  if (numerics == Numerics::kExact) state.lattice = lattice;
}

void set_check_plain(bool on) { RankState::require().check_plain = on; }

}  // namespace tessera::dtensor
