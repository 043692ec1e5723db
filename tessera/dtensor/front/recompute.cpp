#include <algorithm>
#include <utility>

#include <ATen/SequenceNumber.h>
#include <ATen/ThreadLocalState.h>
#include <ATen/autocast_mode.h>
#include <ATen/core/grad_mode.h>
#include <torch/csrc/autograd/engine.h>
#include <torch/csrc/autograd/functions/accumulate_grad.h>
#include <torch/csrc/autograd/functions/utils.h>
#include <torch/csrc/autograd/graph_task.h>
#include <torch/csrc/autograd/saved_variable.h>
#include <torch/csrc/autograd/variable.h>

#include "tessera/base/error.h"
#include "tessera/dtensor/dispatch/kept_results.h"
#include "tessera/dtensor/exact/pending.h"
#include "tessera/dtensor/front/brought.h"
#include "tessera/dtensor/front/dtensor.h"
#include "tessera/dtensor/record/node.h"
#include "tessera/dtensor/record/same_tensor.h"
#include "tessera/dtensor/state/state.h"
#include "tessera/rules/families/operators_named.h"

namespace tessera::dtensor {

namespace {

using torch::autograd::Edge;
using torch::autograd::edge_list;
using torch::autograd::Node;
using torch::autograd::variable_list;
using torch::autograd::impl::gradient_edge;
using Tensors = std::vector<at::Tensor>;
using Body = std::function<Tensors(const Tensors&)>;

// Where the program stood before the first run, and under which modes (autocast).
struct Entry {
  explicit Entry(const RankState& state) : point(state.point()), region(state.pass.region()) {}

  ProgramPoint point;
  std::optional<layout::Mesh> region;
  at::ThreadLocalState modes;
};

// The rank stands there again.
class Again {
 public:
  Again(RankState& state, const Entry& then)
      : state_(state),
        modes_(then.modes),
        here_(state.point()),
        region_(state.pass.set_region(then.region)),
        recomputing_(state.pass.set_recomputing(true)) {
    state.go_to(then.point);
  }
  ~Again() {
    state_.go_to(here_);
    state_.pass.set_region(std::move(region_));
    state_.pass.set_recomputing(recomputing_);
  }
  Again(const Again&) = delete;
  Again& operator=(const Again&) = delete;

 private:
  RankState& state_;
  const at::ThreadLocalStateGuard modes_;
  ProgramPoint here_;
  std::optional<layout::Mesh> region_;
  bool recomputing_;
};

// Backward passes inside of the one that runs count as part of it.
class PartOfBackward {
 public:
  explicit PartOfBackward(Sites& sites) : sites_(sites), before_(sites.set_backward(-1)) {
    sites.set_backward(before_ == -1 ? torch::autograd::get_current_graph_task_id() : before_);
  }
  ~PartOfBackward() { sites_.set_backward(before_); }
  PartOfBackward(const PartOfBackward&) = delete;
  PartOfBackward& operator=(const PartOfBackward&) = delete;

 private:
  Sites& sites_;
  int before_;
};

// Casts that autocast kept belong to the graph that made them, so neither run shares them with what is around it.
Tensors run_body(const Body& body, const Tensors& inputs) {
  at::autocast::clear_cache();
  return body(inputs);
}

// The body's inputs, at the beginning of a graph of its own.
Tensors cut_off(const Tensors& inputs) {
  Tensors all;
  for (const at::Tensor& input : inputs) {
    all.push_back(input.defined() ? input.detach().set_requires_grad(input.requires_grad()) : input);
  }
  return all;
}

// An edge of the body's graph that ends at a leaf: one use of an input, or of a parameter.
struct End {
  Node* node;
  size_t edge;
  at::Tensor leaf;
};

// In the order in which a backward pass comes to them: the engine runs the newest node first. `first` is the sequence
// number of the body's first node.
std::vector<End> ends_of(const Tensors& outputs, uint64_t first) {
  std::vector<End> ends;
  std::vector<Node*> open;
  for (const at::Tensor& output : outputs) {
    open.push_back(output.grad_fn().get());
  }
  for_each_node(std::move(open), [&](Node& node) {
    if (is_accumulating(&node)) {
      return false;
    }
    TESSERA_CHECK(node.sequence_nr() >= first,
                  "[recompute] the body reads a tensor that was computed before it and wants a gradient (of ",
                  node.name(), ") without being told: give it to the body as an input (rank ",
                  RankState::require().ctx.rank, ").");
    for (size_t i = 0; i < node.num_outputs(); ++i) {
      Node* next = node.next_edge(i).function.get();
      if (next && is_accumulating(next)) {
        ends.push_back({&node, i, static_cast<torch::autograd::AccumulateGrad*>(next)->variable});
      }
    }
    return true;
  });
  std::sort(ends.begin(), ends.end(), [](const End& a, const End& b) {
    const auto at = a.node->sequence_nr(), bt = b.node->sequence_nr();
    return at != bt ? at > bt : a.edge < b.edge;
  });
  return ends;
}

// Stands in place of the leaves, one input for each end.
struct Ends final : Node {
  variable_list apply(variable_list&&) override {
    TESSERA_ASSERT(false);
    return {};
  }
};

// Cuts the graph from its leaves. What arrives at the edges returned is for whoever asks the engine: nothing is added
// up here that the backward pass around would add to something else first, in the order of one graph.
edge_list cut_ends(const std::vector<End>& ends) {
  const auto node = make_node<Ends>();
  edge_list edges;
  for (const End& end : ends) {
    edges.emplace_back(node, node->add_input_metadata(end.leaf));
    end.node->next_edges()[end.edge] = edges.back();
  }
  return edges;
}

// Runs the body again and differentiates it: for each use of its inputs, and of the leaves that it read.
struct Recompute final : Node {
  Body body;
  std::optional<Entry> entry;
  std::vector<torch::autograd::SavedVariable> inputs;
  std::unique_ptr<KeptResults> kept;  // null: all runs again
  Tensors leaves;
  std::vector<size_t> outputs;  // which of the body's results this is the node of
  std::vector<size_t> uses;     // by edge: of which input, or after these of which leaf

  // Once only: what the second run builds is gone when it returns.
  variable_list apply(variable_list&& grads) override {
    TESSERA_CHECK(!at::GradMode::is_enabled(),
                  "[recompute] its gradient cannot be differentiated again (create_graph): call the body directly");
    RankState& state = RankState::require();
    Tensors saved;
    for (const auto& input : inputs) {
      saved.push_back(input.unpack());
    }
    const Tensors fresh = cut_off(saved);
    const uint64_t first = at::sequence_number::peek();
    const Tensors results = run_again(state, fresh);
    const std::vector<End> ends = ends_of(results, first);
    verify(state, ends, fresh);
    const edge_list wanted = cut_ends(ends);
    edge_list roots;
    variable_list given;
    for (size_t i = 0; i < results.size(); ++i) {
      if (grads.at(i).defined()) {
        roots.push_back(gradient_edge(results[i]));
        given.push_back(std::move(grads[i]));
      }
    }
    if (roots.empty()) {
      return variable_list(wanted.size());
    }
    const PartOfBackward part(state.pass.sites);
    return torch::autograd::Engine::get_default_engine().execute(roots, given, /*keep_graph=*/false,
                                                                 /*create_graph=*/false, /*accumulate_grad=*/false,
                                                                 wanted);
  }

  // Those of its results that want a gradient.
  Tensors run_again(RankState& state, const Tensors& fresh) const {
    const Again again(state, *entry);
    const at::AutoGradMode with_grad(true);
    const Tensors all = run_again_with_kept(state, fresh);
    at::autocast::clear_cache();
    Tensors results;
    for (const size_t i : outputs) {
      TESSERA_CHECK(i < all.size() && all[i].defined() && all[i].grad_fn(), "[recompute] result ", i,
                    " of the body wanted a gradient the first time and ", i < all.size() ? "wants none" : "is missing",
                    " the second time (rank ", state.ctx.rank, "); accepted: a body that does the same twice");
      results.push_back(all[i]);
    }
    return results;
  }

  Tensors run_again_with_kept(RankState& state, const Tensors& fresh) const {
    if (!kept) {
      return run_body(body, fresh);
    }
    const KeptResults::Run run(state, *kept, !torch::autograd::get_current_graph_task_keep_graph());
    Tensors all = run_body(body, fresh);
    kept->end_again(state);
    return all;
  }

  size_t source_of(const at::Tensor& leaf, const Tensors& fresh) const {
    const auto input = find_same(fresh, leaf);
    return input ? *input : fresh.size() + find_same(leaves, leaf).value_or(leaves.size());
  }

  void verify(const RankState& state, const std::vector<End>& ends, const Tensors& fresh) const {
    const bool is_same = std::equal(ends.begin(), ends.end(), uses.begin(), uses.end(),
                                    [&](const End& end, size_t use) { return source_of(end.leaf, fresh) == use; });
    TESSERA_CHECK(is_same,
                  "[recompute] the body's second run reads other inputs or parameters than its first, or in "
                  "another order (",
                  ends.size(), " and ", uses.size(), " readings, rank ", state.ctx.rank,
                  "); accepted: a body that does the same twice");
  }

  void release_variables() override {
    for (auto& input : inputs) {
      input.reset_data();
    }
    kept.reset();
  }
  std::string name() const override { return "RecomputeBackward"; }
};

// The inputs, on the stage of the parameters.
Tensors brought(const Tensors& inputs, const Tensors& parameters) {
  Tensors all = inputs;
  for (at::Tensor& input : all) {
    if (const auto there = place_for(input, parameters)) {
      input = redistribute(input, (*there)->placements);
    }
  }
  return all;
}

// The first run. What it is to keep is told to `kept`, which stays null where that is nothing.
Tensors run_first(const Body& body, const Tensors& fresh, const RecomputeOptions& options,
                  std::unique_ptr<KeptResults>& kept) {
  if (options.keep.empty()) {
    return run_body(body, fresh);
  }
  RankState& state = RankState::require();
  kept = std::make_unique<KeptResults>(OperatorSet::of(options.keep));
  const KeptResults::Run run(state, *kept);
  Tensors results = run_body(body, fresh);
  kept->end_first(state);
  return results;
}

}  // namespace

void verify_operators_to_keep(const std::vector<std::string>& names) {
  for (const std::string& name : names) {
    rules::operators_named(name);
  }
}

Tensors recompute(const Body& body, const Tensors& given, const RecomputeOptions& options) {
  if (!at::GradMode::is_enabled()) {
    return body(given);
  }
  const Tensors inputs = brought(given, options.parameters);
  Entry entry(RankState::require());
  const Tensors fresh = cut_off(inputs);
  const uint64_t first = at::sequence_number::peek();
  std::unique_ptr<KeptResults> kept;
  Tensors results = run_first(body, fresh, options, kept);
  std::vector<size_t> wanting;
  Tensors differentiated;
  for (size_t i = 0; i < results.size(); ++i) {
    const auto input = find_same(fresh, results[i]);
    if (results[i].defined() && results[i].grad_fn()) {
      wanting.push_back(i);
      differentiated.push_back(results[i]);
    } else if (results[i].defined() && input) {
      results[i] = inputs[*input];
    }
  }
  if (wanting.empty()) {
    return results;
  }
  auto node = make_node<Recompute>();
  node->body = body;
  node->entry.emplace(std::move(entry));
  node->kept = std::move(kept);
  for (const at::Tensor& input : inputs) {
    node->inputs.emplace_back(input, /*is_output=*/false);
  }
  edge_list edges;
  for (const End& end : ends_of(differentiated, first)) {
    const auto input = find_same(fresh, end.leaf);
    if (!input && !find_same(node->leaves, end.leaf)) {
      node->leaves.push_back(end.leaf);
    }
    node->uses.push_back(node->source_of(end.leaf, fresh));
    edges.push_back(gradient_edge(input ? inputs[*input] : end.leaf));
  }
  node->set_next_edges(std::move(edges));
  for (const size_t i : wanting) {
    node->outputs.push_back(i);
    results[i] = results[i].detach();
    torch::autograd::create_gradient_edge(results[i], node);
  }
  return results;
}

at::Tensor recompute(const std::function<at::Tensor(const Tensors&)>& body, const Tensors& inputs,
                     const RecomputeOptions& options) {
  return recompute([body](const Tensors& in) { return Tensors{body(in)}; }, inputs, options)[0];
}

}  // namespace tessera::dtensor
