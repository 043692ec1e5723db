#include "tessera/dtensor/front/brought.h"

#include <utility>

#include <torch/csrc/autograd/variable.h>

#include "tessera/dtensor/dispatch/operands.h"
#include "tessera/dtensor/view/views.h"

namespace tessera::dtensor {

namespace {

// The place of all parameters that are On, by axis; Replicate where there are none, or at two places.
layout::Placements common_place(const std::vector<at::Tensor>& parameters, const layout::Mesh& mesh) {
  layout::Placements places(mesh.ndim());
  for (int64_t axis = 0; axis < mesh.ndim(); ++axis) {
    bool is_at_one = true;
    for (const at::Tensor& parameter : parameters) {
      if (!is_dtensor(parameter) || meta_of(parameter)->spec->mesh != mesh) {
        continue;
      }
      const layout::Placement& place = meta_of(parameter)->spec->placements[axis];
      is_at_one &= !place.is_on() || !places[axis].is_on() || place == places[axis];
      places[axis] = place.is_on() ? place : places[axis];
    }
    places[axis] = is_at_one ? places[axis] : layout::Replicate();
  }
  return places;
}

}  // namespace

std::optional<Spec> place_for(const at::Tensor& value, const std::vector<at::Tensor>& parameters) {
  if (!value.defined() || !value.requires_grad() || !is_dtensor(value) || meta_of(value)->spec->is_everywhere) {
    return std::nullopt;
  }
  const Spec& spec = meta_of(value)->spec;
  const auto there = layout::sent_to(spec->placements, common_place(parameters, spec->mesh));
  return there == spec->placements ? std::nullopt : std::optional(spec.with(there));
}

at::Tensor at_stage(RankState& state, const char* reader, const at::Tensor& value, const Spec& there) {
  Meta& meta = *meta_of(value);
  refresh(meta);
  send_ahead(state, reader, meta, there);
  auto arrived = c10::make_intrusive<Meta>();
  arrived->local = meta.find_sent(there)->part;
  arrived->spec = there;
  arrived->origin = meta.origin;
  at::Tensor result = wrap_view(std::move(arrived), value.unsafeGetTensorImpl()->version_counter());
  torch::autograd::impl::set_gradient_edge(result, torch::autograd::impl::gradient_edge(value));
  return result;
}

}  // namespace tessera::dtensor
