#include "tessera/optim/adamw_8bit.h"

#include <algorithm>
#include <numeric>

#include <ATen/core/grad_mode.h>
#include <ATen/ops/zeros.h>

#include "tessera/base/error.h"
#include "tessera/dtensor/front/dtensor.h"
#include "tessera/dtensor/ops/optimizer_ops.h"
#include "tessera/dtensor/record/interception.h"
#include "tessera/kernels/maps/adamw_8bit.h"
#include "tessera/optim/closure.h"

namespace tessera::optim {
namespace {

using kernels::kMomentBlock;
using layout::Placement;
using layout::Placements;

void verify(const AdamW8bitOptions& o) {
  const auto [beta1, beta2] = o.betas();
  const auto is_share = [](double beta) { return beta >= 0 && beta < 1; };
  TESSERA_CHECK(std::min({o.lr(), o.eps(), o.weight_decay()}) >= 0 && is_share(beta1) && is_share(beta2),
                "[AdamW8bit] lr ", o.lr(), ", betas ", beta1, " and ", beta2, ", eps ", o.eps(), ", weight_decay ",
                o.weight_decay(), "; accepted: lr, eps and weight_decay of 0 or more, betas in [0, 1)");
}

// Whether the cut is inside of rows.
bool is_inside(const Placement& cut, int64_t ndim) { return cut.is_shard() && (ndim < 2 || cut.dim > 0); }

// Where blocks of the parameter are whole: as it lies, but for cuts inside of rows. Those of a matrix fall on multiples
// of a block; with more dims, of which several make a row, rows are cut instead.
Placements between_blocks(const layout::Spec& parameter) {
  Placements placements = parameter->placements;
  const int64_t ndim = parameter->ndim();
  const bool cuts_rows =
      std::any_of(placements.begin(), placements.end(), [&](const Placement& cut) { return is_inside(cut, ndim); });
  for (Placement& cut : placements) {
    if (ndim > 2 && cuts_rows && cut.is_shard()) {
      cut = layout::Shard(0);
    } else if (is_inside(cut, ndim)) {
      cut = layout::Shard(cut.dim, {.unit = std::lcm(cut.places.unit(), kMomentBlock), .order = cut.order});
    }
  }
  return placements;
}

// The scales of what lies so.
Placements of_scales(Placements placements, int64_t ndim) {
  for (Placement& cut : placements) {
    if (ndim <= 2 && is_inside(cut, ndim)) {
      cut.places = layout::Places::in_units(cut.places.unit() / kMomentBlock);
    }
  }
  return placements;
}

at::Tensor zeros_at(const at::Tensor& parameter, const Placements& placements, const std::vector<int64_t>& sizes,
                    c10::ScalarType dtype) {
  const dtensor::LocalScope scope;
  if (!dtensor::is_dtensor(parameter)) {
    return at::zeros(sizes, parameter.options().dtype(dtype).requires_grad(false));
  }
  const layout::Mesh& mesh = dtensor::spec_of(parameter)->mesh;
  const auto spec = layout::Spec::contiguous(mesh, placements, sizes, dtype);
  const auto part = spec.local_sizes(*mesh.coord_of(dtensor::RankState::require().ctx.rank));
  return dtensor::from_local(at::zeros(part, at::TensorOptions().dtype(dtype)), mesh, placements, sizes);
}

void move_to(const at::Tensor& state, const Placements& placements) {
  if (!(dtensor::spec_of(state)->placements == placements)) {
    dtensor::become(state, dtensor::redistribute(state, placements));
  }
}

// A parameter where its blocks are whole.
class Moved {
 public:
  Moved(const at::Tensor& parameter, const AdamW8bitParamState& state) : parameter_(parameter), moved_(parameter) {
    if (!dtensor::is_dtensor(parameter)) {
      return;
    }
    const layout::Spec spec = dtensor::spec_of(parameter);
    const Placements placements = between_blocks(spec);
    for (const at::Tensor& codes : {state.exp_avg_codes(), state.exp_avg_sq_codes()}) {
      move_to(codes, placements);
    }
    for (const at::Tensor& scales : {state.exp_avg_scales(), state.exp_avg_sq_scales()}) {
      move_to(scales, of_scales(placements, spec->ndim()));
    }
    if (!(placements == spec->placements)) {
      moved_ = dtensor::redistribute(parameter.detach(), placements);
    }
  }

  const at::Tensor& tensor() const { return moved_; }
  void put_back() const {
    if (!moved_.is_same(parameter_)) {
      parameter_.detach().copy_(dtensor::redistribute(moved_, dtensor::spec_of(parameter_)->placements));
    }
  }

 private:
  const at::Tensor& parameter_;
  at::Tensor moved_;
};

}  // namespace

AdamW8bit::AdamW8bit(const std::vector<torch::optim::OptimizerParamGroup>& groups, AdamW8bitOptions defaults)
    : Optimizer(groups, std::make_unique<AdamW8bitOptions>(defaults)) {
  for (const auto& group : param_groups()) {
    verify(static_cast<const AdamW8bitOptions&>(group.options()));
  }
}

AdamW8bit::AdamW8bit(std::vector<at::Tensor> parameters, AdamW8bitOptions defaults)
    : AdamW8bit({torch::optim::OptimizerParamGroup(std::move(parameters))}, defaults) {}

torch::Tensor AdamW8bit::step(LossClosure closure) {
  const at::Tensor loss = loss_of(closure);
  for (auto& group : param_groups()) {
    std::vector<at::Tensor> parameters, gradients;
    std::vector<AdamW8bitParamState*> states;
    for (const at::Tensor& parameter : group.params()) {
      if (!parameter.grad().defined()) {
        continue;
      }
      auto& state = state_[parameter.unsafeGetTensorImpl()];
      if (!state) {
        state = std::make_unique<AdamW8bitParamState>(make_state_8bit(parameter));
      }
      parameters.push_back(parameter), gradients.push_back(parameter.grad());
      states.push_back(static_cast<AdamW8bitParamState*>(state.get()));
    }
    adamw_8bit_step(parameters, gradients, states, static_cast<const AdamW8bitOptions&>(group.options()));
  }
  return loss;
}

AdamW8bitParamState make_state_8bit(const at::Tensor& parameter) {
  const std::vector<int64_t> sizes = parameter.sizes().vec(), scales = dtensor::sizes_of_scales(parameter.sizes());
  const bool is_placed = dtensor::is_dtensor(parameter);
  const Placements whole = is_placed ? between_blocks(dtensor::spec_of(parameter)) : Placements();
  const Placements of_blocks = of_scales(whole, parameter.dim());
  AdamW8bitParamState state;
  state.exp_avg_codes(zeros_at(parameter, whole, sizes, at::kByte));
  state.exp_avg_scales(zeros_at(parameter, of_blocks, scales, at::kFloat));
  state.exp_avg_sq_codes(zeros_at(parameter, whole, sizes, at::kByte));
  state.exp_avg_sq_scales(zeros_at(parameter, of_blocks, scales, at::kFloat));
  return state;
}

void adamw_8bit_step(const std::vector<at::Tensor>& parameters, const std::vector<at::Tensor>& gradients,
                     const std::vector<AdamW8bitParamState*>& states, const AdamW8bitOptions& options) {
  if (parameters.empty()) {
    return;
  }
  const at::NoGradGuard no_grad;
  std::vector<Moved> moved;
  std::vector<at::Tensor> stepped;
  std::vector<int64_t> steps;
  dtensor::Moments8bit averages, squares;
  for (size_t i = 0; i < parameters.size(); ++i) {
    AdamW8bitParamState& state = *states[i];
    moved.emplace_back(parameters[i], state);
    stepped.push_back(moved.back().tensor());
    averages.codes.push_back(state.exp_avg_codes()), averages.scales.push_back(state.exp_avg_scales());
    squares.codes.push_back(state.exp_avg_sq_codes()), squares.scales.push_back(state.exp_avg_sq_scales());
    state.step(state.step() + 1);
    steps.push_back(state.step());
  }
  const auto [beta1, beta2] = options.betas();
  kernels::AdamW factors{options.lr(), beta1, beta2, options.eps(), options.weight_decay()};
  factors.maximize = options.maximize();
  dtensor::adamw_8bit_step(stepped, gradients, averages, squares, steps, factors);
  for (const Moved& each : moved) {
    each.put_back();
  }
}

}  // namespace tessera::optim
