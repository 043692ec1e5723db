#include "tessera/dtensor/front/stage_walks.h"

#include <algorithm>
#include <limits>
#include <memory>
#include <tuple>
#include <utility>

#include <ATen/SequenceNumber.h>
#include <torch/csrc/autograd/functions/accumulate_grad.h>

#include "tessera/base/hash.h"
#include "tessera/dtensor/record/node.h"

namespace tessera::dtensor {

using torch::autograd::AccumulateGrad;
using torch::autograd::Edge;
using torch::autograd::Node;

namespace {

constexpr uint64_t kOfLeaf = std::numeric_limits<uint64_t>::max();  // the number of every AccumulateGrad

// A node's number among those from `first` on; of a leaf, which tensor it is.
uint64_t name_of(const Node& node, uint64_t first) {
  return node.sequence_nr() == kOfLeaf
             ? reinterpret_cast<uintptr_t>(static_cast<const AccumulateGrad&>(node).variable.unsafeGetTensorImpl())
             : node.sequence_nr() - first;
}

// Whether the program hears of gradients on their way, and may make others of them: not of a leaf's.
bool has_hooks(Node& node) {
  return node.sequence_nr() != kOfLeaf &&
         !(node.tensor_pre_hooks().empty() && node.pre_hooks().empty() && node.post_hooks().empty());
}

// Who reads what, in the graph of nodes from `first` on. A node's number is higher than those that it reads.
uint64_t hash_of_graph(const at::Tensor& loss, uint64_t first) {
  std::vector<Node*> nodes(at::sequence_number::peek() - first + 1);
  const auto note = [&](Node* node) {
    const uint64_t number = node->sequence_nr() - first;
    if (number < nodes.size()) {
      nodes[number] = node;
    }
  };
  if (loss.grad_fn()) {
    note(loss.grad_fn().get());
  }
  uint64_t hash = 0;
  for (size_t i = nodes.size(); i-- > 0;) {
    if (!nodes[i]) {
      continue;
    }
    hash = base::hash_combine(hash, 2 * i + has_hooks(*nodes[i]));
    for (const Edge& edge : nodes[i]->next_edges()) {
      if (edge.is_valid()) {
        note(edge.function.get());
        hash = base::hash_combine(base::hash_combine(hash, name_of(*edge.function, first)), edge.input_nr);
      }
    }
  }
  return hash;
}

// A node's reading of what another one gave.
struct Reading {
  const Node* of;
  uint32_t output;
  uint64_t by;  // the reader's number

  auto what() const { return std::tuple(of, output); }
};

// Nothing if hooks stand somewhere.
std::optional<std::vector<Reading>> readings_in(const at::Tensor& loss) {
  std::vector<Reading> readings;
  bool is_heard = false;
  for_each_node({loss.grad_fn().get()}, [&](Node& node) {
    is_heard |= has_hooks(node);
    for (const Edge& edge : node.next_edges()) {
      if (edge.is_valid()) {
        readings.push_back({edge.function.get(), edge.input_nr, node.sequence_nr()});
      }
    }
    return true;
  });
  return is_heard ? std::nullopt : std::optional(std::move(readings));
}

}  // namespace

StageWalks& StageWalks::of(comm::RankContext& ctx) {
  static const char key = 0;
  std::shared_ptr<void>& slot = ctx.slot(&key);
  if (!slot) {
    slot = std::make_shared<StageWalks>();
  }
  return *static_cast<StageWalks*>(slot.get());
}

void StageWalks::begin_run() {
  bodies_.clear();
  programs_.clear();
  wants_bodies_ = misses_bodies_;
}

void StageWalks::note_first_forward(int64_t stage, const comm::Program::Stretch& calls, uint64_t first,
                                    const at::Tensor& loss) {
  constexpr size_t kMost = 4096;  // programs of inputs that are always of other sizes
  uint64_t program = base::hash_combine(base::hash_combine(calls.sum, calls.count), static_cast<uint64_t>(stage));
  program = base::hash_combine(program, hash_of_graph(loss, first));
  programs_.insert_or_assign(stage, program);
  if (alone_.count(program) == 0 && alone_.size() < kMost) {
    misses_bodies_ = !wants_bodies_;
    if (wants_bodies_) {
      alone_.emplace(program, bodies_alone_in(loss));
    }
  }
  bodies_.clear();
}

std::unordered_set<uint64_t> StageWalks::bodies_alone_in(const at::Tensor& loss) const {
  std::optional<std::vector<Reading>> found = readings_in(loss);
  if (!found) {
    return {};
  }
  std::vector<Reading>& readings = *found;
  std::sort(readings.begin(), readings.end(), [](const auto& a, const auto& b) { return a.what() < b.what(); });
  std::unordered_set<uint64_t> alone;
  for (const Body& body : bodies_) {
    alone.insert(body.id);
  }
  for (auto begin = readings.begin(); begin != readings.end();) {
    const auto end = std::find_if(begin, readings.end(), [&](const auto& r) { return r.what() != begin->what(); });
    for (const Body& body : bodies_) {
      const auto is_inside = [&](uint64_t number) { return number >= body.first && number < body.end; };
      const auto is_own = [&](const Reading& reading) { return is_inside(reading.by); };
      if (!is_inside(begin->of->sequence_nr()) && std::any_of(begin, end, is_own) && !std::all_of(begin, end, is_own)) {
        alone.erase(body.id);
      }
    }
    begin = end;
  }
  return alone;
}

std::optional<uint64_t> StageWalks::program_of(int64_t stage) const {
  const auto found = programs_.find(stage);
  return found == programs_.end() ? std::nullopt : std::optional(found->second);
}

bool StageWalks::is_alone(int64_t stage, uint64_t body) const {
  const auto program = program_of(stage);
  const auto found = program ? alone_.find(*program) : alone_.end();
  return found != alone_.end() && found->second.count(body) > 0;
}

}  // namespace tessera::dtensor
