#include "tessera/dtensor/pending.h"

#include <limits>

#include <ATen/ops/add.h>
#include <ATen/ops/full.h>
#include <ATen/ops/zeros.h>
#include <torch/csrc/autograd/function.h>
#include <torch/csrc/autograd/functions/accumulate_grad.h>

#include "tessera/base/error.h"
#include "tessera/dtensor/dispatch.h"
#include "tessera/dtensor/state.h"

namespace tessera::dtensor {

namespace {

using c10::IValue;
using comm::NodeSum;
using layout::Node;
using layout::Range;

constexpr const char* kOnce =
    "Take the gradients of each micro-batch once and set them to zero before the next step. Of two losses over one trunk take the backward of their sum.";

// The sample that stands in row `row` of a micro-batch.
int64_t sample_of_row(const Origin* origin, int64_t row) {
  if (!origin) return row;
  const auto after = std::upper_bound(origin->pieces.begin(), origin->pieces.end(), row, [](int64_t r, const Origin::Piece& piece) { return r < piece.row; });
  const Origin::Piece& piece = *std::prev(after);
  return piece.sample + (row - piece.row);
}

// The arguments with their operands cut to some tokens of one local row.
std::vector<IValue> cut_to(const SamplePlan& plan, c10::ArrayRef<IValue> args, int64_t row, const SamplePlan::Piece& piece) {
  std::vector<IValue> cut(args.begin(), args.end());
  for (const SamplePlan::Operand& operand : plan.operands) {
    at::Tensor tensor = cut[operand.arg].toTensor();
    if (operand.positions >= 0) {
      tensor = tensor.narrow(operand.samples, row, 1).narrow(operand.positions, piece.begin, piece.length);
    } else if (plan.positions > 1) {
      tensor = tensor.narrow(operand.samples, row * plan.positions + piece.begin, piece.length);
    } else {
      tensor = tensor.narrow(operand.samples, row, 1);
    }
    cut[operand.arg] = std::move(tensor);
  }
  return cut;
}

at::Tensor not_a_number(at::TensorOptions options, c10::IntArrayRef sizes) {
  return at::full({}, std::numeric_limits<double>::quiet_NaN(), options).expand(sizes);
}

at::Tensor zeros_as(const at::Tensor& like) { return at::zeros(like.sizes(), like.options()); }

// Whether the operator is part of a derivative, not a look at a gradient from a hook.
bool computes_gradient(const char* op) {
  const auto node = torch::autograd::get_current_node();
  if (!node || node->name().find("Recompute") != std::string::npos) return false;
  const std::string_view name = op;
  return !is_accumulating(node.get()) || name == "aten::add_.Tensor" || name == "aten::copy_";
}

// The first sum that lacks samples, or null.
const SampleSum* find_incomplete(const Pending& pending) {
  for (const Pending::Group& group : pending.groups) {
    for (const auto& [use, sum] : group.uses) {
      if (!sum.is_complete()) return &sum;
    }
  }
  return nullptr;
}

void check_complete(const RankState& state, const Pending& pending, const char* op) {
  const SampleSum* sum = find_incomplete(pending);
  TESSERA_CHECK(!sum, "[", op, "] numerics exact: a derivative reads the gradient of ", sum->samples_seen(), " of the step's ", sum->samples_of_step(),
                " samples before the others are added, so its bits would depend on the micro-batches (rank ", state.ctx.rank,
                "). Compute with the parameter itself in the model and apply the function once for a step, or use one micro-batch (accumulate = 1).");
}

// Micro-batches whose gradients of one use went through different functions have no common sum.
void check_one_function(const RankState& state, const Pending& pending, const char* op) {
  for (size_t i = 0; i < pending.groups.size(); ++i) {
    for (size_t k = i + 1; k < pending.groups.size(); ++k) {
      for (const auto& [use, sum] : pending.groups[i].uses) {
        const auto other = pending.groups[k].uses.find(use);
        const bool is_cut = other != pending.groups[k].uses.end() && sum.is_apart_from(other->second);
        TESSERA_CHECK(!is_cut, "[", op, "] numerics exact: between the loss and a parameter the gradient is multiplied by values that differ from "
                      "micro-batch to micro-batch, so the step's gradient is no function of one sum (rank ", state.ctx.rank,
                      "). Use one micro-batch (accumulate = 1), or values that are the same for the whole step.");
      }
    }
  }
}

// The uses of a group in their order, then the chain.
at::Tensor value_of(RankState& state, const Pending::Group& group, const char* op) {
  at::Tensor total;
  for (const auto& [use, sum] : group.uses) {
    TESSERA_CHECK(!sum.is_apart_from(group.uses.begin()->second), "[", op, "] numerics exact: a parameter is used at one place in some of the step's "
                  "micro-batches and at another in the others, so their gradients are no one sum (rank ", state.ctx.rank, "). A loop by hand does not say "
                  "where a micro-batch begins: run the step as a job (parallelize, accumulate = n).");
    const at::Tensor local = sum.merged(state, group.spec, op);
    total = total.defined() ? at::add(total, local) : local;
  }
  at::Tensor value = wrap(group.constant.defined() ? group.constant : total, group.spec);
  for (const Pending::Link& link : group.chain) {
    torch::jit::Stack stack = link.args;
    stack[link.hole] = value;
    link.op->op.callBoxed(stack);
    value = stack.back().toTensor();
  }
  return value;
}

}  // namespace

void SampleSum::add(const ExactSum& sum, uint64_t call, const Origin* origin, c10::ArrayRef<IValue> args, const at::Tensor& like) {
  const SamplePlan& plan = *sum.sample;
  const rules::ExactCall of_sample{&sum.local, 0};
  const char* op = sum.local.op->operator_name().name.c_str();
  like_ = like;
  seen_ += plan.micro_batch;
  seen_in_.insert(origin);
  calls_.insert(call);
  for (int64_t row = plan.rows.begin; row < plan.rows.end; ++row) {
    const int64_t sample = sample_of_row(origin, row);
    for (const SamplePlan::Piece& piece : plan.pieces) {
      const std::vector<IValue> cut = cut_to(plan, args, row - plan.rows.begin, piece);
      const int64_t batch = sample / leaves_.sample_leaf, leaf = batch * leaves_.sequence_leaves + piece.leaf;
      Open& open = open_[leaf];
      const bool begins = !open.sum.defined() && sample == leaves_.samples_of(batch).begin;
      if (begins) open.sum = zeros_as(like), open.next = sample;
      if (open.sum.defined() && open.next == sample) {
        if (open.sum.use_count() > 1) open.sum = open.sum.clone();
        sum.rule->sample(of_sample, cut, open.sum);
        ++open.next;
        take_turn(leaf, open);
        continue;
      }
      const at::Tensor term = zeros_as(like);
      sum.rule->sample(of_sample, cut, term);
      add_sample(leaf, sample, term, op);
    }
  }
}

void SampleSum::add_sample(int64_t leaf, int64_t sample, const at::Tensor& term, const char* op) {
  Open& open = open_[leaf];
  const bool is_twice = (open.sum.defined() && sample < open.next) || open.loose.count(sample) > 0;
  TESSERA_CHECK(!is_twice, "[", op, "] numerics exact: sample ", sample, " of the step was added twice to one gradient. ", kOnce);
  open.loose.emplace(sample, term);
  take_turn(leaf, open);
}

// Adds the loose samples whose turn it is; a complete leaf becomes a node.
void SampleSum::take_turn(int64_t leaf, Open& open) {
  const Range samples = leaves_.samples_of(batch_leaf(leaf));
  while (open.sum.defined() && !open.loose.empty() && open.loose.begin()->first == open.next) {
    open.sum = at::add(open.sum, open.loose.begin()->second);
    open.loose.erase(open.loose.begin());
    ++open.next;
  }
  if (!open.sum.defined() || open.next < samples.end) return;
  closed_.push_back({{leaf, leaf + 1}, open.sum});
  open_.erase(leaf);
  closed_ = comm::close_nodes(std::move(closed_), leaves_.root);
}

void SampleSum::join(const SampleSum& other, const char* op) {
  TESSERA_CHECK(leaves_ == other.leaves_, "[", op, "] numerics exact: gradients of steps with ", leaves_.samples, " and ", other.leaves_.samples,
                " samples cannot be one sum; set gradients to zero between steps");
  if (!like_.defined()) like_ = other.like_;
  seen_ += other.seen_;
  seen_in_.insert(other.seen_in_.begin(), other.seen_in_.end());
  calls_.insert(other.calls_.begin(), other.calls_.end());
  for (const NodeSum& node : other.closed_) {
    for (const NodeSum& own : closed_) {
      TESSERA_CHECK(node.node.end <= own.node.begin || own.node.end <= node.node.begin, "[", op, "] numerics exact: the samples of leaves ",
                    node.node.str(), " were added twice to one gradient. ", kOnce);
    }
    closed_.push_back(node);
  }
  closed_ = comm::close_nodes(std::move(closed_), leaves_.root);
  for (const auto& [leaf, open] : other.open_) {
    if (open.sum.defined()) {
      Open& own = open_[leaf];
      TESSERA_CHECK(!own.sum.defined(), "[", op, "] numerics exact: sample ", leaves_.samples_of(batch_leaf(leaf)).begin,
                    " of the step was added twice to one gradient. ", kOnce);
      own.sum = open.sum;
      own.next = open.next;
      take_turn(leaf, own);
    }
    for (const auto& [sample, term] : open.loose) add_sample(leaf, sample, term, op);
  }
}

bool SampleSum::is_apart_from(const SampleSum& other) const {
  const auto is_common = [&](const Origin* origin) { return other.seen_in_.contains(origin); };
  return !is_complete() && !other.is_complete() && std::none_of(seen_in_.begin(), seen_in_.end(), is_common);
}

bool SampleSum::shares_calls(const SampleSum& other) const {
  return std::any_of(calls_.begin(), calls_.end(), [&](uint64_t call) { return other.calls_.contains(call); });
}

std::vector<NodeSum> SampleSum::nodes() const {
  std::vector<NodeSum> all = closed_;
  for (const auto& [leaf, open] : open_) {
    at::Tensor sum = open.sum;
    for (const auto& [sample, term] : open.loose) sum = sum.defined() ? at::add(sum, term) : term;
    if (sum.defined()) all.push_back({{leaf, leaf + 1}, sum});
  }
  return comm::close_nodes(std::move(all), leaves_.root);
}

at::Tensor SampleSum::merged(RankState& state, const layout::Spec& to, const char* op) const {
  LocalScope scope;
  comm::Caller caller(state.ctx, op);
  ScatteringMove way(state.ctx, state.moves, terms_, to);
  std::vector<NodeSum> mine = nodes();
  std::vector<int64_t> sizes = like_.sizes().vec();
  auto memory = comm::Merge::Memory::kKeep;
  for (int64_t axis : merge_axes_) {
    comm::Communicator& group = state.ctx.axis(terms_->mesh, axis);
    std::vector<Node> held;
    for (const NodeSum& node : mine) held.push_back(node.node);
    const comm::MergePlan plan(comm::exchange_nodes(group, held, leaves_.root, like_.device()), leaves_.root);
    comm::Merge merge{.plan = plan, .sizes = sizes, .options = like_.options(), .scatter = way.next(axis), .memory = memory};
    for (const NodeSum& node : mine) merge.sums.push_back(node.sum);
    mine = run_merge(state.ctx, terms_->mesh, axis, op, merge);
    sizes = merge.sizes_at(group.rank());
    memory = comm::Merge::Memory::kReuse;
  }
  // Samples that nobody has are nothing: the others are added as if they were +0.
  at::Tensor sum;
  for (const NodeSum& node : mine) sum = sum.defined() ? at::add(sum, node.sum) : node.sum;
  if (!sum.defined()) sum = at::zeros(sizes, like_.options());
  if (merge_axes_.empty() && mine.size() == 1) sum = sum.clone();  // the program may write to its gradient
  const Move* rest = way.rest();
  return rest ? run_move(state.ctx, *rest, sum, op) : sum;
}

Continuation::Continuation(RankState& state, const std::vector<at::Tensor>& held) : state_(state) {
  TESSERA_ASSERT(!state.continuation);
  state.continuation = this;
  for (const at::Tensor& gradient : held) {
    if (!gradient.defined() || !is_dtensor(gradient) || !meta_of(gradient)->is_pending()) continue;
    for (Pending::Group& group : meta_of(gradient)->rare->pending->groups) {
      for (const auto& [use, sum] : group.uses) {
        const auto [entry, is_new] = groups_.emplace(use, &group);
        if (!is_new) entry->second = nullptr;  // two functions of one sum: neither may lose it
      }
    }
  }
}

Continuation::~Continuation() { state_.continuation = nullptr; }

std::optional<SampleSum> Continuation::take(uint64_t use, const SamplePlan& plan) {
  const auto found = groups_.find(use);
  if (found == groups_.end() || !found->second) return std::nullopt;
  auto& uses = found->second->uses;
  const auto sum = uses.find(use);
  if (sum == uses.end() || !sum->second.continues(plan)) return std::nullopt;
  auto taken = uses.extract(sum);
  return std::move(taken.mapped());
}

at::Tensor make_handle(Spec spec, at::TensorOptions options, const layout::Coord& coord, std::shared_ptr<Pending> pending) {
  LocalScope scope;
  auto meta = c10::make_intrusive<Meta>();
  meta->local = not_a_number(options, spec.local_sizes(coord));
  meta->spec = spec;
  meta->make_rare().pending = std::move(pending);
  return wrap(std::move(meta));
}

void settle(RankState& state, Meta& meta, const char* op) {
  if (!meta.rare || !meta.rare->pending || meta.rare->pending->is_settled) return;
  const std::shared_ptr<Pending> pending = meta.rare->pending;
  if (computes_gradient(op)) check_complete(state, *pending, op);
  check_one_function(state, *pending, op);
  at::NoGradGuard no_grad;
  at::AutoDispatchBelowADInplaceOrView below;
  at::Tensor value;
  for (const Pending::Group& group : pending->groups) {
    const at::Tensor part = value_of(state, group, op);
    value = value.defined() ? at::add(value, part) : part;
  }
  Meta* found = meta_of(value);
  const Spec to = meta.spec;
  at::Tensor local = found->spec == to ? found->local : run_move(state.ctx, *state.moves.find_or_plan(found->spec, to), found->local, op);
  {
    LocalScope scope;
    const bool is_shared = found->root || std::any_of(pending->groups.begin(), pending->groups.end(), [&](const Pending::Group& group) {
      return group.constant.defined() && local.is_alias_of(group.constant);
    });
    if (!local.is_contiguous() || is_shared) local = local.clone(at::MemoryFormat::Contiguous);
  }
  meta.replace(std::move(local), to);
  pending->is_settled = true;
  pending->settled_at = meta.moment();
}

void settle_for_good(RankState& state, Meta& meta, const char* op) {
  check_complete(state, *meta.rare->pending, op);
  settle(state, meta, op);
  meta.rare->pending.reset();
}

bool is_unfinished(const Meta& meta) {
  return meta.rare && (meta.rare->is_unfinished || (meta.rare->pending && find_incomplete(*meta.rare->pending)));
}

void check_unfinished(const RankState& state, const char* op) {
  TESSERA_CHECK(!computes_gradient(op), "[", op, "] numerics exact: a value that was computed from the gradient of some of the step's samples is to become "
                "(part of) a gradient, so its bits would depend on the micro-batches (rank ", state.ctx.rank, "): a hook that is not linear, such as a clamp. "
                "Do it once for a step, in or before optimizer.step(), or use one micro-batch (accumulate = 1).");
}

bool is_accumulating(const torch::autograd::Node* node) { return dynamic_cast<const torch::autograd::AccumulateGrad*>(node) != nullptr; }

}  // namespace tessera::dtensor
