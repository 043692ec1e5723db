#include "tessera/dtensor/front/walk_record.h"

#include <algorithm>
#include <utility>

#include <ATen/SequenceNumber.h>
#include <torch/csrc/autograd/functions/utils.h>
#include <torch/csrc/autograd/variable.h>

#include "tessera/base/error.h"
#include "tessera/dtensor/plan/plan_cache.h"
#include "tessera/dtensor/record/same_tensor.h"

namespace tessera::dtensor {

using torch::autograd::edge_list;
using torch::autograd::Node;
using torch::autograd::variable_list;
using Tensors = WalkRecord::Tensors;

at::Tensor Absent::make(const Tensors& computed_from) {
  auto meta = c10::make_intrusive<Meta>();
  meta->local = part_;
  meta->spec = spec_;
  meta->origin = origin_ == kNone ? nullptr : meta_of(computed_from[origin_])->origin;
  return wrap(std::move(meta), prototype_);
}

namespace {

// Note [Gradients that meet]. The engine adds the gradients of a tensor as they come, in the name of the node that gave
// the last one, whose forward call says where the sum lies. Behind a body the sum of its own stands for all of them, so
// it is given in the name of the body's last. Which of them meet where is not for ranks to compare (sum_key_of).

// A node of this kind before those of the tensors, which want gradients. No later call is taken for its own.
template <typename Kind>
auto node_before(const Tensors& tensors) {
  auto node = make_node<Kind>();
  at::sequence_number::get_and_increment();
  edge_list edges;
  for (const at::Tensor& tensor : tensors) {
    edges.push_back(torch::autograd::impl::gradient_edge(tensor));
  }
  node->set_next_edges(std::move(edges));
  return node;
}

// The same tensor, in the graph behind this node: no call that ranks compare.
at::Tensor alias_behind(const NodePtr& node, const at::Tensor& tensor) {
  at::Tensor alias = wrap(MetaPtr::reclaim_copy(meta_of(tensor)));
  torch::autograd::create_gradient_edge(alias, node);
  return alias;
}

void give_name(RankState& state, const Node& node, const ForwardPlans::Slot& of) {
  if (of.plan) {
    state.engine.forward_plans.record(node.sequence_nr(), *of.plan, of.use);
  }
}

// Whether sums in these names lie at the same place.
bool lie_together(const ForwardPlans::Slot& a, const ForwardPlans::Slot& b) {
  return a.plan && b.plan ? is_at_same_place(a.plan->outputs.at(0).final_spec, b.plan->outputs.at(0).final_spec)
                          : a.plan == b.plan;
}

// The nodes that give `exit` gradients, in the graph behind this one, the last of them first.
std::vector<const Node*> givers_of(const Node& exit, Node* from) {
  std::vector<const Node*> givers;
  for_each_node({from}, [&](Node& node) {
    const auto& edges = node.next_edges();
    if (std::any_of(edges.begin(), edges.end(), [&](const auto& edge) { return edge.function.get() == &exit; })) {
      givers.push_back(&node);
    }
    return &node != &exit;
  });
  std::sort(givers.begin(), givers.end(),
            [](const Node* a, const Node* b) { return a->sequence_nr() < b->sequence_nr(); });
  return givers;
}

}  // namespace

// Where a backward pass comes into a body's graph, and where it leaves it. They pass on what they are given.
struct WalkRecord::EntryBack final : Node {
  std::shared_ptr<WalkRecord> record;

  variable_list apply(variable_list&& grads) override {
    record->enter_back(grads);
    return std::move(grads);
  }
  std::string name() const override { return "RecordedBackward"; }
};

struct WalkRecord::ExitBack final : Node {
  std::shared_ptr<WalkRecord> record;
  size_t input = 0;

  variable_list apply(variable_list&& grads) override {
    record->leave_back(input, grads[0]);
    return std::move(grads);
  }
  std::string name() const override { return "RecordedBackward"; }
};

// Stands for a body's graph.
struct WalkRecord::PassedBack final : Node {
  std::shared_ptr<WalkRecord> record;

  variable_list apply(variable_list&& grads) override { return record->go_past_back(grads); }
  std::string name() const override { return "PassedBackward"; }
};

// Behind it: gives one of several gradients in its name.
struct WalkRecord::PassedOn final : Node {
  variable_list apply(variable_list&& grads) override { return std::move(grads); }
  std::string name() const override { return "PassedBackward"; }
};

WalkRecord::WalkRecord(RankState& state, const Tensors& inputs, WalkSends sends, WalkSends sends_back)
    : state_(state),
      sends_(std::move(sends)),
      sends_back_(std::move(sends_back)),
      given_(inputs),
      untouched_(state, given_),
      position_(state.pass.sites.position()),
      counts_(counts()) {}

WalkRecord::Counts WalkRecord::counts() const { return {state_.ctx.program.place(), state_.ctx.ledger.entries()}; }

WalkRecord::Counts WalkRecord::counts_since(const Counts& then) const {
  return {state_.ctx.program.since(then.program), state_.ctx.ledger.since(then.ledger)};
}

void WalkRecord::add(const Counts& counts) {
  state_.ctx.program.go_past(counts.program);
  state_.ctx.ledger.add(counts.ledger);
}

Tensors WalkRecord::begin() {
  entered_ = given_;
  for (at::Tensor& input : entered_) {
    if (wants_gradient(input)) {
      auto node = node_before<ExitBack>({input});
      node->record = shared_from_this();
      node->input = exits_++;
      input = alias_behind(node, input);
    }
  }
  gradients_.resize(exits_);
  return entered_;
}

Tensors WalkRecord::end(Tensors results) {
  sites_ = state_.pass.sites.since(position_);
  counts_ = counts_since(counts_);
  std::for_each(given_.begin(), given_.end(), [this](const at::Tensor& input) { note_input(input); });
  for (at::Tensor& result : results) {
    const auto input = find_same(entered_, result);
    result = input ? given_[*input] : result;
  }
  is_usable_ = untouched_.holds() && untouched_.is_silent() && can_be_replaced(state_, results, given_);
  for (size_t i = 0; is_usable_ && i < results.size(); ++i) {
    at::Tensor& result = results[i];
    Output& output = outputs_.emplace_back();
    output.input = find_same(given_, result);
    if (!result.defined() || output.input) {
      continue;
    }
    output.absent.emplace(result, *find_origin(meta_of(result)->origin, given_));
    output.wants_gradient = result.requires_grad();
    if (output.wants_gradient) {
      is_usable_ = find_names(result);
      auto node = node_before<EntryBack>({result});
      node->record = shared_from_this();
      result = alias_behind(node, result);
    }
  }
  return results;
}

void WalkRecord::let_go() {
  given_.clear();
  entered_.clear();
}

// In which names the inputs' gradients are given; false if those of one input are sums at several places.
bool WalkRecord::find_names(const at::Tensor& result) {
  const Tensors inputs = wanting(entered_);
  bool are_clear = true;
  for (size_t i = 0; i < inputs.size(); ++i) {
    const Node& exit = *inputs[i].grad_fn();
    std::vector<ForwardPlans::Slot> names;
    for (const Node* giver : givers_of(exit, result.grad_fn().get())) {
      const ForwardPlans::Slot* slot = state_.engine.forward_plans.peek(giver->sequence_nr());
      names.push_back(slot ? *slot : ForwardPlans::Slot());
    }
    are_clear = are_clear && std::all_of(names.begin(), names.end(),
                                         [&](const auto& name) { return lie_together(name, names.front()); });
    gradients_[i].name = names.empty() ? ForwardPlans::Slot() : names.front();
    if (const auto& name = gradients_[i].name; name.plan) {
      PlanCache::keep(*name.plan);
      state_.engine.forward_plans.record(exit.sequence_nr(), *name.plan, name.use);
    }
  }
  return are_clear;
}

void WalkRecord::note_input(const at::Tensor& tensor) {
  Input& input = inputs_.emplace_back();
  if (is_dtensor(tensor)) {
    const Meta& meta = *meta_of(tensor);
    input.merged = meta.spec;
    for (size_t i = 0; meta.rare && i < meta.rare->sent.size(); ++i) {
      input.sent.push_back(meta.rare->sent[i].spec);
    }
  }
}

// An input of another micro-batch becomes one that the walk left.
void WalkRecord::leave(Meta& meta, const Input& input) const {
  if (meta.spec != input.merged) {
    meta.replace(meta.local, input.merged);
  }
  for (const Spec& spec : input.sent) {
    if (!meta.find_sent(spec)) {
      meta.keep_sent(spec, meta.local);
    }
  }
}

// Between a result and these inputs.
NodePtr WalkRecord::node_for(Tensors inputs) {
  const bool is_one = inputs.size() == 1;
  for (size_t i = 0; i < inputs.size() && !is_one; ++i) {
    const auto node = node_before<PassedOn>({inputs[i]});
    give_name(state_, *node, gradients_[i].name);
    inputs[i] = alias_behind(node, inputs[i]);
  }
  auto node = node_before<PassedBack>(inputs);
  node->record = shared_from_this();
  if (is_one) {
    give_name(state_, *node, gradients_[0].name);
  }
  return node;
}

Tensors WalkRecord::go_past(const Tensors& inputs) {
  check_same(sends_.run(state_, inputs), "inputs");
  for (size_t i = 0; i < inputs.size(); ++i) {
    if (is_absent(state_, inputs[i])) {
      leave(*meta_of(inputs[i]), inputs_[i]);
    }
  }
  state_.pass.sites.go_past(sites_);
  add(counts_);
  Tensors results;
  for (Output& output : outputs_) {
    results.push_back(output.input    ? inputs[*output.input]
                      : output.absent ? output.absent->make(inputs)
                                      : at::Tensor());
    if (output.wants_gradient) {
      torch::autograd::create_gradient_edge(results.back(), node_for(wanting(inputs)));
    }
  }
  return results;
}

void WalkRecord::enter_back(const Tensors& grads) {
  given_back_ = grads;
  for (const at::Tensor& grad : grads) {
    results_back_.push_back({grad.defined(), is_absent(state_, grad)});
  }
  is_clean_back_ = sends_back_.run(state_, grads);
  messages_back_ = state_.ctx.all_messages();
  sent_back_ = state_.engine.sent.size();
  counts_back_ = counts();
}

// The engine adds gradients up as they come, and runs the newest node first: when the first of them leaves, all of the
// body's nodes have run.
void WalkRecord::leave_back(size_t input, const at::Tensor& grad) {
  if (!std::exchange(has_left_, true)) {
    counts_back_ = counts_since(counts_back_);
    is_clean_back_ &= state_.ctx.all_messages() == messages_back_;
    found_back_ = WalkSends::since(state_, sent_back_, given_back_);
  }
  if (grad.defined()) {
    const auto origin = find_origin(meta_of(grad)->origin, given_back_);
    is_clean_back_ &= is_absent(state_, grad) && origin.has_value();
    gradients_[input].absent.emplace(grad, origin.value_or(kNone));
  }
  has_run_back_ = --exits_ == 0;
  if (has_run_back_) {
    given_back_.clear();
  }
}

Tensors WalkRecord::go_past_back(const Tensors& grads) {
  bool is_as_recorded = has_run_back_ && is_clean_back_;
  for (size_t i = 0; is_as_recorded && i < grads.size(); ++i) {
    is_as_recorded =
        grads[i].defined() == results_back_[i].is_defined && is_absent(state_, grads[i]) == results_back_[i].is_absent;
  }
  check_same(is_as_recorded && sends_back_.run(state_, grads), "gradients");
  add(counts_back_);
  Tensors gradients;
  for (Gradient& gradient : gradients_) {
    gradients.push_back(gradient.absent ? gradient.absent->make(grads) : at::Tensor());
  }
  return gradients;
}

void WalkRecord::check_same(bool is_same, const char* what) const {
  TESSERA_CHECK(is_same, "[job] a module of another stage has other ", what, " in micro-batch ",
                state_.ctx.walk.micro_batch, " than when it was walked (rank ", state_.ctx.rank,
                "); accepted: programs that use the same results in each, or a plan whose \"always_walked\" has the "
                "module");
}

}  // namespace tessera::dtensor
