#include "tessera/dtensor/pending.h"

#include <limits>
#include <unordered_set>

#include <ATen/ops/add.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/empty_like.h>
#include <ATen/ops/full.h>
#include <ATen/ops/zeros_like.h>

#include "tessera/base/error.h"
#include "tessera/dtensor/dispatch.h"
#include "tessera/dtensor/state.h"

namespace tessera::dtensor {

namespace {

using c10::IValue;
using comm::NodeSum;
using layout::Node;
using layout::Range;

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

bool same_chain(const std::vector<Pending::Link>& a, const std::vector<Pending::Link>& b) {
  return std::equal(a.begin(), a.end(), b.begin(), b.end(), [](const Pending::Link& x, const Pending::Link& y) { return x.op == y.op && x.args == y.args; });
}

Pending* pending_of(const IValue& value) {
  if (!value.isTensor() || !is_dtensor(value.toTensor())) return nullptr;
  const Meta& meta = *meta_of(value.toTensor());
  return meta.rare ? meta.rare->pending.get() : nullptr;
}

std::shared_ptr<Pending> joined(const Pending& a, const Pending& b, const char* op) {
  auto result = std::make_shared<Pending>();
  result->groups = a.groups;
  for (const Pending::Group& group : b.groups) {
    const auto same = std::find_if(result->groups.begin(), result->groups.end(), [&](const Pending::Group& other) {
      return other.spec == group.spec && same_chain(other.chain, group.chain);
    });
    if (same == result->groups.end()) {
      result->groups.push_back(group);
      continue;
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
    at::Tensor local = sum.merged(state, op);
    if (sum.terms() != group.spec) local = run_move(state.ctx, *state.moves.find_or_plan(sum.terms(), group.spec), local, op);
    total = total.defined() ? at::add(total, local) : local;
  }
  at::Tensor value = wrap(total, group.spec);
  for (const Pending::Link& link : group.chain) {
    torch::jit::Stack stack = {value};
    stack.insert(stack.end(), link.args.begin(), link.args.end());
    link.op->op.callBoxed(stack);
    value = stack.back().toTensor();
  }
  return value;
}

}  // namespace

void SampleSum::add(const ExactSum& sum, const Origin* origin, c10::ArrayRef<IValue> args, const at::Tensor& zeros) {
  const SamplePlan& plan = *sum.sample;
  const rules::ExactCall call{&sum.local, 0};
  const char* op = sum.local.op->operator_name().name.c_str();
  like_ = zeros;
  for (int64_t row = plan.rows.begin; row < plan.rows.end; ++row) {
    const int64_t sample = sample_of_row(origin, row);
    for (const SamplePlan::Piece& piece : plan.pieces) {
      const std::vector<IValue> cut = cut_to(plan, args, row - plan.rows.begin, piece);
      const int64_t batch = sample / leaves_.sample_leaf, leaf = batch * leaves_.sequence_leaves + piece.leaf;
      Open& open = open_[leaf];
      const bool begins = !open.sum.defined() && sample == leaves_.samples_of(batch).begin;
      if (begins) open.sum = at::zeros_like(zeros), open.next = sample;
      if (open.sum.defined() && open.next == sample) {  // nobody else has seen this sum
        sum.rule->sample(call, cut, open.sum);
        ++open.next;
        take_turn(leaf, open);
        continue;
      }
      const at::Tensor term = at::zeros_like(zeros);
      sum.rule->sample(call, cut, term);
      add_sample(leaf, sample, term, op);
    }
  }
}

void SampleSum::add_sample(int64_t leaf, int64_t sample, const at::Tensor& term, const char* op) {
  Open& open = open_[leaf];
  const bool is_twice = (open.sum.defined() && sample < open.next) || open.loose.count(sample) > 0;
  TESSERA_CHECK(!is_twice, "[", op, "] numerics exact: sample ", sample, " of the step was added twice to one gradient. Take the gradients of each "
                "micro-batch once, and set them to zero before the next step.");
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
  for (const NodeSum& node : other.closed_) {
    for (const NodeSum& own : closed_) {
      TESSERA_CHECK(node.node.end <= own.node.begin || own.node.end <= node.node.begin, "[", op, "] numerics exact: the samples of leaves ",
                    node.node.str(), " were added twice to one gradient; set gradients to zero before the next step");
    }
    closed_.push_back(node);
  }
  closed_ = comm::close_nodes(std::move(closed_), leaves_.root);
  for (const auto& [leaf, open] : other.open_) {
    if (open.sum.defined()) {
      Open& own = open_[leaf];
      TESSERA_CHECK(!own.sum.defined(), "[", op, "] numerics exact: sample ", leaves_.samples_of(batch_leaf(leaf)).begin,
                    " of the step was added twice to one gradient; set gradients to zero before the next step");
      own.sum = open.sum;
      own.next = open.next;
      take_turn(leaf, own);
    }
    for (const auto& [sample, term] : open.loose) add_sample(leaf, sample, term, op);
  }
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
  return sum.defined() ? sum : at::zeros_like(like_);
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
    if (!local.is_contiguous() || found->root) local = local.clone(at::MemoryFormat::Contiguous);
  }
  meta.replace(std::move(local), to);
  pending->is_settled = true;
}

bool is_carried(const OpInfo& info) {
  static const std::unordered_set<std::string> names = {
      "aten::_reshape_alias", "aten::_unsafe_view", "aten::add.Tensor", "aten::add_.Tensor", "aten::copy_", "aten::div.Scalar",
      "aten::mul.Scalar", "aten::neg", "aten::squeeze.dim", "aten::squeeze.dims", "aten::t", "aten::transpose.int", "aten::unsqueeze",
      "aten::view"};
  return names.count(info.name) > 0;
}

bool needs_no_value(const OpInfo& info) {
  static const std::unordered_set<std::string> names = {"aten::alias", "aten::detach", "aten::empty_like", "aten::is_same_size",
                                                        "aten::new_empty_strided", "aten::new_zeros", "aten::zeros_like"};
  return names.count(info.name) > 0;
}

at::Tensor carry(RankState& state, const OpInfo& info, c10::ArrayRef<IValue> args, Spec output) {
  Pending* first = pending_of(args[0]);
  Pending* second = args.size() > 1 ? pending_of(args[1]) : nullptr;
  const at::Tensor self = args[0].toTensor();
  const layout::Coord& coord = state.ctx.coord(output->mesh);
  const auto options = [&] { return meta_of(self)->local.options(); };
  if (info.name == "aten::add.Tensor" || info.name == "aten::add_.Tensor") {
    if (!first || !second || !args[2].toScalar().equal(1) || meta_of(self)->spec != meta_of(args[1].toTensor())->spec) return {};
    auto sum = joined(*first, *second, info.name.c_str());
    at::Tensor handle = make_handle(meta_of(self)->spec, options(), coord, sum);
    if (info.name == "aten::add.Tensor") return handle;
    meta_of(self)->replace(meta_of(handle)->local, meta_of(self)->spec);
    meta_of(self)->rare->pending = sum;
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
  return make_handle(output, options(), coord, further);
}

}  // namespace tessera::dtensor
