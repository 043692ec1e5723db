#include "tessera/dtensor/dtensor.h"

#include <ATen/core/Formatting.h>
#include <ATen/ops/alias.h>
#include <torch/csrc/autograd/custom_function.h>

#include "tessera/base/error.h"
#include "tessera/dtensor/dispatch.h"
#include "tessera/dtensor/registry.h"

namespace tessera::dtensor {

namespace {

using layout::Mesh;
using layout::Placements;

Meta* require_dtensor(const at::Tensor& tensor, const char* what) {
  TESSERA_CHECK(is_dtensor(tensor), "[", what, "] expected a DTensor, got a plain tensor of ", tensor.defined() ? c10::str(tensor.sizes()) : "nothing",
                ". Make one with distribute(x, mesh, placements) or from_local(part, mesh, placements).");
  Meta* meta = meta_of(tensor);
  TESSERA_CHECK(meta->spec, "[", what, "] the tensor is deferred: it gets its layout and memory from parallelize.");
  return meta;
}

Placements replicate_all(const Mesh& mesh) { return Placements(mesh.ndim()); }

// The part of `tensor` at `ranges`, in memory of its own.
at::Tensor part_of(const at::Tensor& tensor, const std::vector<layout::Range>& ranges) {
  at::Tensor part = tensor;
  for (size_t d = 0; d < ranges.size(); ++d) part = part.narrow(static_cast<int64_t>(d), ranges[d].begin, ranges[d].size());
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

struct SpecHolder : torch::CustomClassHolder {
  explicit SpecHolder(Spec held) : spec(held) {}
  Spec spec;
};

// Leaves the rank's part (or the whole value) to plain autograd, and takes the gradient back.
class ToPlain : public torch::autograd::Function<ToPlain> {
 public:
  static at::Tensor forward(torch::autograd::AutogradContext* ctx, const at::Tensor& tensor, bool whole) {
    RankState& state = RankState::require();
    Meta* meta = meta_of(tensor);
    const Mesh mesh = meta->spec->mesh;
    at::Tensor local = whole ? moved_to(state, *meta, meta->spec.with(replicate_all(mesh)), "full_tensor") : meta->local;
    Placements back = whole ? replicate_all(mesh) : meta->spec->placements;
    for (layout::Placement& placement : back) {
      if (placement.is_partial()) placement = layout::Replicate();
    }
    ctx->saved_data["spec"] = c10::IValue::make_capsule(c10::make_intrusive<SpecHolder>(meta->spec.with(back)));
    return local.alias();
  }

  static torch::autograd::variable_list backward(torch::autograd::AutogradContext* ctx, torch::autograd::variable_list grads) {
    const auto holder = c10::static_intrusive_pointer_cast<SpecHolder>(ctx->saved_data["spec"].toCapsule());
    return {grads[0].defined() ? wrap(grads[0].contiguous(), holder->spec) : at::Tensor(), at::Tensor()};
  }
};

}  // namespace

at::Tensor distribute(const at::Tensor& tensor, const Mesh& mesh, const Placements& placements, const layout::Labels& labels) {
  RankState& state = RankState::require();
  TESSERA_CHECK(!is_dtensor(tensor), "[distribute] the tensor is already distributed as ", meta_of(tensor)->spec.str(), "; use redistribute");
  const Spec spec = Spec::contiguous(mesh, placements, tensor.sizes(), tensor.scalar_type(), labels);
  at::Tensor local;
  {
    LocalScope scope;
    at::NoGradGuard no_grad;
    local = part_of(tensor.detach(), spec.local_ranges(state.ctx.coord(mesh)));
  }
  if (spec->has_partial) {
    Placements merged = spec->placements;
    for (layout::Placement& placement : merged) placement = placement.is_partial() ? layout::Replicate() : placement;
    local = run_move(state.ctx, *state.moves.find_or_plan(spec.with(merged), spec), local, "distribute");
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
    for (int64_t axis = 0; axis < mesh.ndim(); ++axis) {
      if (placements.at(axis).is_shard()) global.at(placements[axis].dim) *= mesh.axis(axis).size;
    }
  }
  const Spec spec = Spec::contiguous(mesh, placements, global, local.scalar_type());
  const auto expected = spec.local_sizes(state.ctx.coord(mesh));
  TESSERA_CHECK(local.sizes() == c10::IntArrayRef(expected), "[from_local] rank ", state.ctx.rank, " passed a part of ", local.sizes(), " where ",
                spec.str(), " gives it ", c10::IntArrayRef(expected), "; pass the global sizes if the parts differ");
  at::Tensor result = wrap(local.detach(), spec);
  if (local.requires_grad()) result.set_requires_grad(true);
  return result;
}

at::Tensor to_local(const at::Tensor& tensor) {
  require_dtensor(tensor, "to_local");
  return ToPlain::apply(tensor, false);
}

at::Tensor full_tensor(const at::Tensor& tensor) {
  if (!is_dtensor(tensor)) return tensor;
  require_dtensor(tensor, "full_tensor");
  return ToPlain::apply(tensor, true);
}

at::Tensor redistribute(const at::Tensor& tensor, const Mesh& mesh, const Placements& placements) {
  RankState& state = RankState::require();
  Meta* meta = require_dtensor(tensor, "redistribute");
  const Spec to = spec_like(meta->spec, mesh, placements);
  at::Tensor local = moved_to(state, *meta, to, "redistribute");
  // An alias in the graph: its gradient is the same tensor's, whatever its layout.
  at::Tensor result = at::alias(tensor);
  auto fresh = c10::make_intrusive<Meta>();
  fresh->local = std::move(local);
  fresh->spec = to;
  fresh->origin = meta->origin;
  result.unsafeGetTensorImpl()->set_backend_meta(std::move(fresh));
  return result;
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
  const Meta* meta = require_dtensor(tensor, "deep_copy");
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
  const Meta* meta = require_dtensor(tensor, "with_labels");
  return wrap(meta->local, meta->spec.with_labels(labels), origin);
}

void manual_seed(uint64_t seed) {
  Sites& sites = RankState::require().sites;
  sites = {};
  sites.seed = seed;
}

ModeScope::ModeScope(Mode mode) : previous_(RankState::require().mode) { RankState::require().mode = mode; }
ModeScope::~ModeScope() {
  if (RankState* state = RankState::current()) state->mode = previous_;
}

void set_check_plain(bool on) { RankState::require().check_plain = on; }

}  // namespace tessera::dtensor
