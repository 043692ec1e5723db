#include <unordered_set>

#include <ATen/SequenceNumber.h>
#include <ATen/core/grad_mode.h>
#include <torch/csrc/autograd/autograd.h>
#include <torch/csrc/autograd/functions/accumulate_grad.h>
#include <torch/csrc/autograd/functions/utils.h>
#include <torch/csrc/autograd/saved_variable.h>
#include <torch/csrc/autograd/variable.h>

#include "tessera/base/error.h"
#include "tessera/dtensor/exact/pending.h"
#include "tessera/dtensor/front/dtensor.h"
#include "tessera/dtensor/record/node.h"
#include "tessera/dtensor/record/without_hooks.h"
#include "tessera/dtensor/state/state.h"

namespace tessera::dtensor {

namespace {

using torch::autograd::Node;
using torch::autograd::variable_list;
using Body = std::function<at::Tensor(const std::vector<at::Tensor>&)>;

// The rank stands where it stood before the first run.
class Again {
 public:
  Again(RankState& state, const ProgramPoint& then)
      : state_(state), here_(state.point()), recomputing_(state.pass.is_recomputing()) {
    state.go_to(then);
    state.pass.set_recomputing(true);
  }
  ~Again() {
    state_.go_to(here_);
    state_.pass.set_recomputing(recomputing_);
  }
  Again(const Again&) = delete;
  Again& operator=(const Again&) = delete;

 private:
  RankState& state_;
  ProgramPoint here_;
  bool recomputing_;
};

// The body's inputs, at the beginning of a graph of its own.
std::vector<at::Tensor> cut_off(const std::vector<at::Tensor>& inputs) {
  std::vector<at::Tensor> all;
  for (const at::Tensor& input : inputs) {
    all.push_back(input.defined() ? input.detach().set_requires_grad(input.requires_grad()) : input);
  }
  return all;
}

bool is_one_of(const at::Tensor& tensor, const std::vector<at::Tensor>& all) {
  return std::any_of(all.begin(), all.end(), [&](const at::Tensor& each) { return each.is_same(tensor); });
}

// The leaves that the body read besides its inputs: parameters. `first` is the sequence number of the body's first
// node.
std::vector<at::Tensor> leaves_of(const at::Tensor& output, const std::vector<at::Tensor>& inputs, uint64_t first) {
  std::vector<at::Tensor> leaves;
  std::unordered_set<const Node*> seen;
  std::vector<Node*> open = {torch::autograd::impl::gradient_edge(output).function.get()};
  while (!open.empty()) {
    Node* node = open.back();
    open.pop_back();
    if (!node || !seen.insert(node).second) {
      continue;
    }
    if (is_accumulating(node)) {
      const at::Tensor& leaf = static_cast<torch::autograd::AccumulateGrad*>(node)->variable;
      if (!is_one_of(leaf, inputs)) {
        leaves.push_back(leaf);
      }
      continue;
    }
    TESSERA_CHECK(node->sequence_nr() >= first,
                  "[recompute] the body reads a tensor that was computed before it and wants a gradient (of ",
                  node->name(), ") without being told: give it to the body as an input (rank ",
                  RankState::require().ctx.rank, ").");
    for (const auto& edge : node->next_edges()) {
      open.push_back(edge.function.get());
    }
  }
  return leaves;
}

// Runs the body again and differentiates it: for its inputs, and for the leaves that it read.
struct Recompute final : Node {
  Body body;
  ProgramPoint entry;
  std::vector<torch::autograd::SavedVariable> inputs;
  std::vector<at::Tensor> leaves;

  // Once only: what the second run builds is gone when it returns.
  variable_list apply(variable_list&& grads) override {
    TESSERA_CHECK(!at::GradMode::is_enabled(),
                  "[recompute] its gradient cannot be differentiated again (create_graph): call the body directly");
    RankState& state = RankState::require();
    std::vector<at::Tensor> saved;
    for (const auto& input : inputs) {
      saved.push_back(input.unpack());
    }
    const std::vector<at::Tensor> fresh = cut_off(saved);
    variable_list result(fresh.size() + leaves.size());
    if (!grads.at(0).defined()) {
      return result;
    }
    at::Tensor output;
    {
      const Again again(state, entry);
      at::AutoGradMode with_grad(true);
      output = body(fresh);
    }
    if (!output.requires_grad()) {
      return result;
    }
    std::vector<size_t> wanted;
    variable_list sources;
    for (size_t i = 0; i < result.size(); ++i) {
      const at::Tensor& source = i < fresh.size() ? fresh[i] : leaves[i - fresh.size()];
      if (!source.defined() || !source.requires_grad()) {
        continue;
      }
      wanted.push_back(i);
      sources.push_back(source);
    }
    const WithoutHooks without_hooks(leaves);
    variable_list found = torch::autograd::grad({output}, sources, {grads[0]}, std::nullopt, /*create_graph=*/false,
                                                /*allow_unused=*/true);
    for (size_t i = 0; i < wanted.size(); ++i) {
      result[wanted[i]] = std::move(found[i]);
    }
    return result;
  }

  void release_variables() override {
    for (auto& input : inputs) {
      input.reset_data();
    }
  }
  std::string name() const override { return "RecomputeBackward"; }
};

}  // namespace

at::Tensor recompute(const Body& body, const std::vector<at::Tensor>& inputs) {
  if (!at::GradMode::is_enabled()) {
    return body(inputs);
  }
  const ProgramPoint entry = RankState::require().point();
  const std::vector<at::Tensor> fresh = cut_off(inputs);
  const uint64_t first = at::sequence_number::peek();
  const at::Tensor output = body(fresh);
  at::Tensor result = output.detach();
  if (!output.requires_grad()) {
    return result;
  }
  auto node = make_node<Recompute>();
  node->leaves = leaves_of(output, fresh, first);
  node->body = body;
  node->entry = entry;
  torch::autograd::edge_list edges;
  for (const at::Tensor& input : inputs) {
    node->inputs.emplace_back(input, /*is_output=*/false);
    edges.push_back(input.requires_grad() ? torch::autograd::impl::gradient_edge(input) : torch::autograd::Edge());
  }
  for (const at::Tensor& leaf : node->leaves) {
    edges.push_back(torch::autograd::impl::gradient_edge(leaf));
  }
  node->set_next_edges(std::move(edges));
  torch::autograd::create_gradient_edge(result, node);
  return result;
}

}  // namespace tessera::dtensor
