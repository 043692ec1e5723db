#include "tessera/dtensor/exact/sample_sum.h"

#include <utility>

#include <ATen/ops/add.h>
#include <ATen/ops/zeros.h>

#include "tessera/base/error.h"
#include "tessera/base/hints.h"
#include "tessera/dtensor/record/interception.h"
#include "tessera/dtensor/state/state.h"
#include "tessera/rules/exact/narrow.h"

namespace tessera::dtensor {

namespace {

using c10::IValue;
using comm::NodeSum;
using sums::Node;
using layout::Range;

// What a program that adds a sample twice may have meant.
std::string advice() {
  return c10::str("Where a step has several micro-batches, say how many: ",
                  base::in_language("tessera::parallelize(model, plan, optimizer, {.accumulate = k})",
                                    "tessera.parallelize(model, plan, accumulate=k)"),
                  ". Otherwise take the gradients once and set them to zero before the next step.");
}

// The arguments with their operands cut to some tokens of one local row.
std::vector<IValue> cut_to(const SamplePlan& plan, c10::ArrayRef<IValue> args, int64_t row,
                           const SamplePlan::Piece& piece) {
  std::vector<IValue> cut(args.begin(), args.end());
  for (const SamplePlan::Operand& operand : plan.operands) {
    at::Tensor tensor = cut[operand.arg].toTensor();
    if (plan.outer > 1) {
      tensor = tensor.unflatten(operand.samples, {plan.outer, plan.micro_batch, -1}).select(operand.samples + 1, row);
      tensor = tensor.flatten(operand.samples, operand.samples + 1).narrow(operand.samples, piece.begin, piece.length);
    } else if (operand.positions >= 0) {
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

bool is_imagined() {
  const auto* context = comm::RankContext::current();
  return context && context->world->is_imagined();
}

at::Tensor zeros_as(const at::Tensor& like) { return at::zeros(like.sizes(), like.options()); }

}  // namespace

void SampleSum::note(const SamplePlan& plan, uint64_t call, const Origin* origin, const at::Tensor& like) {
  note_call(call, origin, like);
  seen_ += plan.micro_batch;
  if (C10_UNLIKELY(is_imagined())) {
    held_.add(plan, origin);
  }
}

void SampleSum::note_elsewhere(const SamplePlan& plan, uint64_t call, const Origin* origin, const at::Tensor& like) {
  note_call(call, origin, like);
  seen_elsewhere_ += plan.micro_batch;
}

void SampleSum::note_call(uint64_t call, const Origin* origin, const at::Tensor& like) {
  like_ = like;
  seen_in_.insert(origin);
  calls_.insert(call);
}

void SampleSum::add(const ExactSum& sum, uint64_t call, const Origin* origin, c10::ArrayRef<IValue> args,
                    const at::Tensor& like) {
  const SamplePlan& plan = *sum.sample;
  const rules::ExactCall of_sample{&sum.local, 0};
  const char* op = sum.local.op->operator_name().name.c_str();
  note(plan, call, origin, like);
  for (int64_t row = plan.rows.begin; row < plan.rows.end; ++row) {
    const int64_t sample = layout::sample_of_row(origin, row);
    for (const SamplePlan::Piece& piece : plan.pieces) {
      const std::vector<IValue> cut = cut_to(plan, args, row - plan.rows.begin, piece);
      const int64_t batch = sample / leaves_.sample_leaf, leaf = batch * leaves_.sequence_leaves + piece.leaf;
      Open& open = open_[leaf];
      const bool begins = !open.sum.defined() && sample == leaves_.samples_of(batch).begin;
      if (begins) {
        open.sum = zeros_as(like), open.next = sample;
      }
      if (open.sum.defined() && open.next == sample) {
        if (open.sum.use_count() > 1) {
          open.sum = open.sum.clone();
        }
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
  TESSERA_CHECK(!is_twice, "[", op, "] numerics exact: sample ", sample,
                " of the step was added twice to one gradient. ", advice());
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
  if (!open.sum.defined() || open.next < samples.end) {
    return;
  }
  closed_.push_back({{leaf, leaf + 1}, open.sum});
  open_.erase(leaf);
  closed_ = comm::close_nodes(std::move(closed_), leaves_.root);
}

void SampleSum::join(const SampleSum& other, const char* op) {
  TESSERA_CHECK(leaves_ == other.leaves_, "[", op, "] numerics exact: gradients of steps with ", leaves_.samples,
                " and ", other.leaves_.samples, " samples cannot be one sum; set gradients to zero between steps");
  if (!like_.defined() || (!has_samples() && other.has_samples())) {
    like_ = other.like_, terms_ = other.terms_, merge_axes_ = other.merge_axes_;
  }
  seen_ += other.seen_, seen_elsewhere_ += other.seen_elsewhere_;
  seen_in_.insert(other.seen_in_.begin(), other.seen_in_.end());
  calls_.insert(other.calls_.begin(), other.calls_.end());
  held_.join(other.held_);
  verify_apart_from(other, op);
  closed_.insert(closed_.end(), other.closed_.begin(), other.closed_.end());
  closed_ = comm::close_nodes(std::move(closed_), leaves_.root);
  take_merged(other.merged_, other.merged_at_);
  for (const auto& [leaf, open] : other.open_) {
    if (open.sum.defined()) {
      Open& own = open_[leaf];
      TESSERA_CHECK(!own.sum.defined(), "[", op, "] numerics exact: sample ",
                    leaves_.samples_of(batch_leaf(leaf)).begin, " of the step was added twice to one gradient. ",
                    advice());
      own.sum = open.sum;
      own.next = open.next;
      take_turn(leaf, own);
    }
    for (const auto& [sample, term] : open.loose) {
      add_sample(leaf, sample, term, op);
    }
  }
}

void SampleSum::verify_apart_from(const SampleSum& other, const char* op) const {
  for (const auto* own : {&closed_, &merged_}) {
    for (const auto* more : {&other.closed_, &other.merged_}) {
      for (const NodeSum& a : *own) {
        for (const NodeSum& b : *more) {
          TESSERA_CHECK(a.node.end <= b.node.begin || b.node.end <= a.node.begin, "[", op,
                        "] numerics exact: the samples of leaves ", b.node.str(), " were added twice to one gradient. ",
                        advice());
        }
      }
    }
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
    for (const auto& [sample, term] : open.loose) {
      sum = sum.defined() ? at::add(sum, term) : term;
    }
    if (sum.defined()) {
      all.push_back({{leaf, leaf + 1}, sum});
    }
  }
  return comm::close_nodes(std::move(all), leaves_.root);
}

RankMerge SampleSum::merge_of(RankState& state, const layout::Spec& to, std::vector<NodeSum> mine,
                              bool complete_ones_only) const {
  HeldLeaves::Wanted wanted{.complete_ones_only = complete_ones_only};
  for (const NodeSum& node : merged_) {
    wanted.without.push_back(node.node);
  }
  const ScatteringMove way(state.ctx, state.engine.moves, rules::with_dtype(terms_, to->dtype), to, merge_axes_);
  return {.way = way,
          .stages = merge_stages(way, merge_axes_, leaves_.root, static_cast<double>(bytes())),
          .root = leaves_.root,
          .mine = std::move(mine),
          .sizes = like_.sizes().vec(),
          .options = like_.options(),
          .held = &held_,
          .wanted = std::move(wanted)};
}

std::optional<RankMerge> SampleSum::begin_merge(RankState& state, const layout::Spec& to) {
  if (merge_axes_.empty() || !is_here(state) || is_merged()) {
    return std::nullopt;
  }
  return merge_of(state, to, std::exchange(closed_, {}), /*complete_ones_only=*/true);
}

void SampleSum::end_merge(RankMerge merge) { take_merged(merge.mine, merge.way.now()); }

void SampleSum::take_merged(const std::vector<NodeSum>& more, const layout::Spec& at) {
  if (more.empty()) {
    return;
  }
  TESSERA_ASSERT(merged_.empty() || merged_at_->placements == at->placements, merged_at_.str(), " and ", at.str());
  merged_at_ = at;
  merged_.insert(merged_.end(), more.begin(), more.end());
  merged_ = comm::close_nodes(std::move(merged_), leaves_.root);
}

bool SampleSum::is_merged() const {
  int64_t samples = 0;
  for (const NodeSum& node : merged_) {
    for (int64_t leaf = node.node.begin; leaf < node.node.end; ++leaf) {
      samples += leaves_.samples_of(batch_leaf(leaf)).size();
    }
  }
  return samples == seen_ * leaves_.sequence_leaves;
}

bool SampleSum::is_here(const RankState& state) const { return terms_->holds(state.ctx.coord(terms_->mesh)); }

void SampleSum::forget() {
  for (auto* nodes : {&closed_, &merged_}) {
    for (NodeSum& node : *nodes) {
      node.sum.reset();
    }
  }
  open_.clear();
  like_.reset();
}

at::Tensor SampleSum::merged(RankState& state, const layout::Spec& to, const char* op) const {
  LocalScope scope;
  comm::Caller caller(state.ctx, op);
  const bool has_all = !is_here(state) || (!merged_.empty() && is_merged());
  RankMerge merge = merge_of(state, to, has_all ? std::vector<NodeSum>() : nodes(), /*complete_ones_only=*/false);
  if (has_all) {
    for (const std::vector<int64_t>& axes : merge.stages) {
      merge.way.next(axes);
    }
  } else {
    merge_over_ranks(state, {&merge}, {}, op);
  }
  ScatteringMove& way = merge.way;
  std::vector<NodeSum> all = std::move(merge.mine);
  if (!merged_.empty()) {
    TESSERA_ASSERT(merged_at_->placements == way.now()->placements, merged_at_.str(), " on the way to ", to.str());
    all.insert(all.end(), merged_.begin(), merged_.end());
    all = comm::close_nodes(std::move(all), leaves_.root);
  }
  // Samples that nobody has are nothing: the others are added as if they were +0.
  at::Tensor sum;
  for (const NodeSum& node : all) {
    sum = sum.defined() ? at::add(sum, node.sum) : node.sum;
  }
  if (!sum.defined()) {
    sum = at::zeros(way.now().local_sizes(state.ctx.coord(to->mesh)), like_.options());
  }
  const bool is_own = all.size() == 1 && (merge_axes_.empty() || !merged_.empty());
  all.clear();
  if (is_own && !(is_complete() && sum.use_count() <= 2)) {
    sum = sum.clone();  // the program may write to its gradient
  }
  sum = sum.to(to->dtype);
  const MovePtr rest = way.rest();
  return rest ? run_move(state.ctx, *rest, sum, op) : sum;
}

}  // namespace tessera::dtensor
