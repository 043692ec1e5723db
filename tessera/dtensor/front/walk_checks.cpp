#include "tessera/dtensor/front/walk_checks.h"

#include <algorithm>
#include <iterator>
#include <unordered_set>

#include <torch/csrc/autograd/functions/utils.h>
#include <torch/csrc/autograd/variable.h>

#include "tessera/dtensor/record/node.h"
#include "tessera/dtensor/record/same_tensor.h"

namespace tessera::dtensor {

using Tensors = std::vector<at::Tensor>;
using torch::autograd::Node;

bool is_absent(const RankState& state, const at::Tensor& tensor) {
  return is_dtensor(tensor) && !state.has_part(meta_of(tensor)->spec);
}

bool is_passable_input(const at::Tensor& input) {
  return !input.defined() || !input.requires_grad() || (is_dtensor(input) && !meta_of(input)->spec->is_everywhere);
}

bool wants_gradient(const at::Tensor& tensor) { return tensor.defined() && tensor.requires_grad(); }

Tensors wanting(const Tensors& tensors) {
  Tensors found;
  std::copy_if(tensors.begin(), tensors.end(), std::back_inserter(found), wants_gradient);
  return found;
}

std::optional<size_t> find_origin(const Origin* origin, const Tensors& tensors) {
  if (!origin) {
    return kNone;
  }
  for (size_t i = 0; i < tensors.size(); ++i) {
    if (is_dtensor(tensors[i]) && meta_of(tensors[i])->origin == origin) {
      return i;
    }
  }
  return std::nullopt;
}

namespace {

bool shows_memory_of(const at::Tensor& output, const Tensors& inputs) {
  return std::any_of(inputs.begin(), inputs.end(), [&](const at::Tensor& input) {
    return is_dtensor(input) && &meta_of(output)->memory() == &meta_of(input)->memory();
  });
}

// Whether others can stand for these results.
bool can_be_replaced(const RankState& state, const at::Tensor& output, const Tensors& inputs) {
  return !output.defined() || find_same(inputs, output) ||
         (is_absent(state, output) && !meta_of(output)->derived() && !meta_of(output)->is_pending() &&
          !shows_memory_of(output, inputs) && find_origin(meta_of(output)->origin, inputs));
}

}  // namespace

Untouched::Untouched(const RankState& state, const Tensors& inputs)
    : state_(state), inputs_(inputs), messages_(state.ctx.all_messages()), drawn_(drawn()) {
  for (const at::Tensor& input : inputs) {
    versions_.push_back(input.defined() ? version_of(input) : 0);
    specs_.push_back(spec_of_present(input));
  }
}

bool Untouched::holds() const {
  for (size_t i = 0; i < inputs_.size(); ++i) {
    const at::Tensor& input = inputs_[i];
    if ((input.defined() && version_of(input) != versions_[i]) || spec_of_present(input) != specs_[i]) {
      return false;
    }
  }
  return drawn() == drawn_;
}

bool Untouched::is_silent() const { return state_.ctx.all_messages() == messages_; }

uint64_t Untouched::drawn() const { return state_.random.stock() ? state_.random.stock().mark() : 0; }

// A Partial that is read is merged where it lies. Undefined for what has no part here: there that is a name alone.
Spec Untouched::spec_of_present(const at::Tensor& tensor) const {
  return is_dtensor(tensor) && !is_absent(state_, tensor) ? meta_of(tensor)->spec : Spec();
}

bool can_be_replaced(const RankState& state, const Tensors& results, const Tensors& inputs) {
  size_t count = 0;
  return std::all_of(results.begin(), results.end(), [&](const at::Tensor& result) {
    count += wants_gradient(result) && !find_same(inputs, result);
    return count <= 1 && can_be_replaced(state, result, inputs);
  });
}

bool is_differentiated_whole(const Tensors& results, const Tensors& inputs) {
  std::unordered_set<const Node*> ends;
  for (const at::Tensor& input : inputs) {
    if (wants_gradient(input)) {
      ends.insert(torch::autograd::impl::gradient_edge(input).function.get());
    }
  }
  if (ends.empty()) {
    return std::none_of(results.begin(), results.end(), wants_gradient);
  }
  bool begins = false;
  for (const at::Tensor& result : results) {
    if (wants_gradient(result) && !find_same(inputs, result)) {
      begins = true;
      for_each_node({result.grad_fn().get()}, [&](Node& node) { return ends.erase(&node) == 0; });
    }
  }
  return !begins || ends.empty();
}

bool is_at_same_place(const Spec& a, const Spec& b) {
  return a->mesh == b->mesh && std::equal(a->placements.begin(), a->placements.end(), b->placements.begin(),
                                          [](const layout::Placement& on_a, const layout::Placement& on_b) {
                                            return on_a == on_b || (!on_a.is_on() && !on_b.is_on());
                                          });
}

}  // namespace tessera::dtensor
