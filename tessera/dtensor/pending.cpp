#include "tessera/dtensor/pending.h"

#include <limits>
#include <unordered_set>

#include <ATen/ops/add.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/empty_like.h>
#include <ATen/ops/full.h>
#include <ATen/ops/slice_backward.h>
#include <ATen/ops/zeros.h>
#include <c10/core/WrapDimMinimal.h>
#include <torch/csrc/autograd/function.h>
#include <torch/csrc/autograd/functions/accumulate_grad.h>
#include <torch/csrc/autograd/graph_task.h>

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

// What every member of the group holds: the nodes travel as numbers first.
std::vector<std::vector<Node>> exchange_nodes(comm::Communicator& group, const std::vector<NodeSum>& mine, const Node& root) {
  const int64_t most = root.size();
  const at::Tensor sent = at::empty({1 + 2 * most}, at::kLong);
  auto* numbers = sent.data_ptr<int64_t>();
  std::fill_n(numbers, sent.numel(), 0);
  numbers[0] = static_cast<int64_t>(mine.size());
  for (size_t i = 0; i < mine.size(); ++i) numbers[1 + 2 * i] = mine[i].node.begin, numbers[2 + 2 * i] = mine[i].node.end;
  std::vector<at::Tensor> received;
  for (int64_t i = 0; i < group.size(); ++i) received.push_back(at::empty_like(sent));
  group.all_gather(received, sent)->wait();
  std::vector<std::vector<Node>> nodes(group.size());
  for (int64_t i = 0; i < group.size(); ++i) {
    const auto* of = received[i].const_data_ptr<int64_t>();
    for (int64_t k = 0; k < of[0]; ++k) nodes[i].push_back({of[1 + 2 * k], of[2 + 2 * k]});
  }
  return nodes;
}

at::Tensor not_a_number(at::TensorOptions options, c10::IntArrayRef sizes) {
  return at::full({}, std::numeric_limits<double>::quiet_NaN(), options).expand(sizes);
}

at::Tensor zeros_as(const at::Tensor& like) { return at::zeros(like.sizes(), like.options()); }

bool same_chain(const std::vector<Pending::Link>& a, const std::vector<Pending::Link>& b) {
  return std::equal(a.begin(), a.end(), b.begin(), b.end(), [](const Pending::Link& x, const Pending::Link& y) { return x.op == y.op && x.args == y.args; });
}

// Null also if the program has written to the value since.
Pending* pending_of(const IValue& value) {
  if (!value.isTensor() || !is_dtensor(value.toTensor())) return nullptr;
  Meta& meta = *meta_of(value.toTensor());
  if (!meta.is_pending()) return nullptr;
  const Pending& pending = *meta.rare->pending;
  if (pending.is_settled && !meta.unchanged_since(pending.settled_at)) meta.rare->pending.reset();
  return meta.rare->pending.get();
}

// The tensor as one of the terms of a handle.
Pending as_pending(const at::Tensor& tensor) {
  if (const Pending* pending = pending_of(tensor)) return *pending;
  Pending result;
  Pending::Group& group = result.groups.emplace_back();
  group.spec = meta_of(tensor)->spec;
  LocalScope scope;
  group.constant = meta_of(tensor)->local.clone();
  return result;
}

// Whether the tensor can become a handle: nobody else sees its memory.
bool owns_memory(const at::Tensor& tensor) {
  const Meta& meta = *meta_of(tensor);
  return !meta.root && !meta.derived() && (meta.is_pending() || meta.local.storage().use_count() == 1);
}

bool is_accumulating(const torch::autograd::Node* node) { return dynamic_cast<const torch::autograd::AccumulateGrad*>(node) != nullptr; }

// Whether the operator is part of a derivative, not a look at a gradient from a hook.
bool computes_gradient(const char* op) {
  const auto node = torch::autograd::get_current_node();
  if (!node || node->name().find("Recompute") != std::string::npos) return false;
  const std::string_view name = op;
  return !is_accumulating(node.get()) || name == "aten::add_.Tensor" || name == "aten::copy_";
}

void check_complete(const RankState& state, const Pending& pending, const char* op) {
  if (!computes_gradient(op)) return;
  for (const Pending::Group& group : pending.groups) {
    for (const auto& [use, sum] : group.uses) {
      TESSERA_CHECK(sum.is_complete(), "[", op, "] numerics exact: a derivative reads the gradient of ", sum.samples_seen(), " of the step's ",
                    sum.samples_of_step(), " samples before the others are added, so its bits would depend on the micro-batches (rank ", state.ctx.rank,
                    "). Compute with the parameter itself in the model and apply the function once for a step, or use one micro-batch (accumulate = 1).");
    }
  }
}

std::shared_ptr<Pending> joined(const Pending& a, const Pending& b, const char* op) {
  auto result = std::make_shared<Pending>();
  result->groups = a.groups;
  for (const Pending::Group& group : b.groups) {
    const auto same = std::find_if(result->groups.begin(), result->groups.end(), [&](const Pending::Group& other) {
      return other.spec == group.spec && other.constant.defined() == group.constant.defined() && same_chain(other.chain, group.chain);
    });
    if (same == result->groups.end()) {
      result->groups.push_back(group);
      continue;
    }
    if (group.constant.defined()) {
      LocalScope scope;
      same->constant = at::add(same->constant, group.constant);
    }
    for (const auto& [use, sum] : group.uses) {
      const auto [entry, is_new] = same->uses.try_emplace(use, sum);
      if (!is_new) entry->second.join(sum, op);
    }
  }
  return result;
}

// The uses of a group in their order, then the chain.
at::Tensor value_of(RankState& state, const Pending::Group& group, const char* op) {
  at::Tensor total;
  for (const auto& [use, sum] : group.uses) {
    TESSERA_CHECK(!sum.is_apart_from(group.uses.begin()->second), "[", op, "] numerics exact: a parameter is used at one place in some of the step's "
                  "micro-batches and at another in the others, so their gradients are no one sum (rank ", state.ctx.rank, "). A loop by hand does not say "
                  "where a micro-batch begins: run the step as a job (parallelize, accumulate = n).");
    at::Tensor local = sum.merged(state, op);
    if (sum.terms() != group.spec) local = run_move(state.ctx, *state.moves.find_or_plan(sum.terms(), group.spec), local, op);
    total = total.defined() ? at::add(total, local) : local;
  }
  at::Tensor value = wrap(group.constant.defined() ? group.constant : total, group.spec);
  for (const Pending::Link& link : group.chain) {
    torch::jit::Stack stack = {value};
    stack.insert(stack.end(), link.args.begin(), link.args.end());
    link.op->op.callBoxed(stack);
    value = stack.back().toTensor();
  }
  return value;
}

}  // namespace

void SampleSum::add(const ExactSum& sum, const Origin* origin, c10::ArrayRef<IValue> args, const at::Tensor& like) {
  const SamplePlan& plan = *sum.sample;
  const rules::ExactCall call{&sum.local, 0};
  const char* op = sum.local.op->operator_name().name.c_str();
  like_ = like;
  seen_ += plan.micro_batch;
  seen_in_.insert(origin);
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
        sum.rule->sample(call, cut, open.sum);
        ++open.next;
        take_turn(leaf, open);
        continue;
      }
      const at::Tensor term = zeros_as(like);
      sum.rule->sample(call, cut, term);
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

std::vector<NodeSum> SampleSum::nodes() const {
  std::vector<NodeSum> all = closed_;
  for (const auto& [leaf, open] : open_) {
    at::Tensor sum = open.sum;
    for (const auto& [sample, term] : open.loose) sum = sum.defined() ? at::add(sum, term) : term;
    if (sum.defined()) all.push_back({{leaf, leaf + 1}, sum});
  }
  return comm::close_nodes(std::move(all), leaves_.root);
}

at::Tensor SampleSum::merged(RankState& state, const char* op) const {
  LocalScope scope;
  comm::Caller caller(state.ctx, op);
  std::vector<NodeSum> mine = nodes();
  for (int64_t axis : merge_axes_) {
    comm::Communicator& group = state.ctx.axis(terms_->mesh, axis);
    state.ctx.ledger.record("exact_merge", terms_->mesh.axis(axis).name, op, static_cast<int64_t>(like_.nbytes()) * 2 * (group.size() - 1) / group.size());
    const auto nodes = exchange_nodes(group, mine, leaves_.root);
    mine = comm::merge_nodes(group, mine, nodes, leaves_.root, like_);
  }
  // Samples that nobody has are nothing: the others are added as if they were +0.
  at::Tensor sum;
  for (const NodeSum& node : mine) sum = sum.defined() ? at::add(sum, node.sum) : node.sum;
  if (!sum.defined()) return zeros_as(like_);
  const bool is_shared = merge_axes_.empty() && mine.size() == 1;  // the program may write to its gradient
  return is_shared ? sum.clone() : sum;
}

Continuation::Continuation(RankState& state, const std::vector<at::Tensor>& held) : state_(state) {
  TESSERA_ASSERT(!state.continuation);
  state.continuation = this;
  for (const at::Tensor& gradient : held) {
    if (!gradient.defined() || !is_dtensor(gradient) || !meta_of(gradient)->is_pending()) continue;
    for (Pending::Group& group : meta_of(gradient)->rare->pending->groups) {
      for (const auto& [use, sum] : group.uses) groups_.emplace(use, &group);
    }
  }
}

Continuation::~Continuation() { state_.continuation = nullptr; }

std::optional<SampleSum> Continuation::take(uint64_t use, const SamplePlan& plan) {
  const auto found = groups_.find(use);
  if (found == groups_.end()) return std::nullopt;
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
  check_complete(state, *pending, op);
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

bool is_carried(const OpInfo& info) {
  static const std::unordered_set<std::string> names = {
      "aten::_reshape_alias", "aten::_to_copy", "aten::_unsafe_view", "aten::add.Tensor", "aten::add_.Tensor", "aten::cat", "aten::copy_",
      "aten::div.Scalar", "aten::mul.Scalar", "aten::neg", "aten::select_backward", "aten::slice_backward", "aten::squeeze.dim",
      "aten::squeeze.dims", "aten::t", "aten::transpose.int", "aten::unsqueeze", "aten::view"};
  return names.count(info.name) > 0;
}

namespace {

// But for strides.
bool lie_alike(const Spec& a, const Spec& b) {
  return a->mesh == b->mesh && a->placements == b->placements && a->sizes == b->sizes && a->dtype == b->dtype;
}

// What a program makes of a gradient outside of a derivative may be written to, and must then share its memory.
bool is_in_derivative() {
  const auto node = torch::autograd::get_current_node();
  return torch::autograd::get_current_graph_task_id() != -1 && !is_accumulating(node.get());
}

// As the sum of its parts, each among zeros.
at::Tensor carry_cat(c10::ArrayRef<IValue> args) {
  const std::vector<at::Tensor> parts = args[0].toTensorVector();
  const int64_t dim = c10::maybe_wrap_dim(args[1].toInt(), parts.at(0).dim());
  std::vector<int64_t> sizes = parts[0].sizes().vec();
  sizes[dim] = 0;
  for (const at::Tensor& part : parts) {
    if (!is_dtensor(part) || part.dim() != static_cast<int64_t>(sizes.size())) return {};
    sizes[dim] += part.size(dim);
  }
  at::Tensor sum;
  int64_t begin = 0;
  for (const at::Tensor& part : parts) {
    const at::Tensor among_zeros = at::slice_backward(part, sizes, dim, begin, begin + part.size(dim), 1);
    sum = sum.defined() ? at::add(sum, among_zeros) : among_zeros;
    begin += part.size(dim);
  }
  return sum;
}

}  // namespace

bool needs_no_value(const OpInfo& info) {
  static const std::unordered_set<std::string> names = {"aten::alias", "aten::detach", "aten::empty_like", "aten::is_same_size",
                                                        "aten::new_empty_strided", "aten::new_zeros", "aten::zeros_like"};
  return names.count(info.name) > 0;
}

at::Tensor carry(RankState& state, const OpInfo& info, c10::ArrayRef<IValue> args, Spec output) {
  if (info.name == "aten::cat") return carry_cat(args);
  if (info.is_view && !is_in_derivative()) return {};
  Pending* first = pending_of(args[0]);
  Pending* second = args.size() > 1 ? pending_of(args[1]) : nullptr;
  const at::Tensor self = args[0].toTensor();
  const layout::Coord& coord = state.ctx.coord(output->mesh);
  const auto options = [&] { return meta_of(self)->local.options(); };
  if (info.name == "aten::add.Tensor" || info.name == "aten::add_.Tensor") {
    const at::Tensor other = args[1].toTensor();
    const bool is_alike = is_dtensor(self) && is_dtensor(other) && lie_alike(meta_of(self)->spec, meta_of(other)->spec);
    if (!is_alike || !args[2].toScalar().equal(1) || (info.writes && !owns_memory(self))) return {};
    auto sum = joined(as_pending(self), as_pending(other), info.name.c_str());
    at::Tensor handle = make_handle(meta_of(self)->spec, options(), coord, sum);
    if (info.name == "aten::add.Tensor") return handle;
    meta_of(self)->replace(meta_of(handle)->local, meta_of(self)->spec);
    meta_of(self)->make_rare().pending = sum;
    return self;
  }
  if (info.name == "aten::copy_") {
    const at::Tensor source = args[1].toTensor();
    if (!second || !is_dtensor(self) || meta_of(self)->spec->sizes != meta_of(source)->spec->sizes || self.scalar_type() != source.scalar_type()) return {};
    auto copy = std::make_shared<Pending>(*second);
    copy->is_settled = false;
    const at::Tensor handle = make_handle(meta_of(source)->spec.with(meta_of(self)->spec->placements), options(), coord, copy);
    meta_of(self)->replace(meta_of(handle)->local, meta_of(self)->spec);
    meta_of(self)->make_rare().pending = copy;
    return self;
  }
  if (!first) return {};
  auto further = std::make_shared<Pending>(*first);
  further->is_settled = false;
  for (Pending::Group& group : further->groups) group.chain.push_back({&info, std::vector<IValue>(args.begin() + 1, args.end())});
  return make_handle(output, options().dtype(output->dtype), coord, further);
}

}  // namespace tessera::dtensor
