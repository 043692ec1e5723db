#include "tessera/dtensor/record/arguments.h"
#include "tessera/dtensor/record/op_info.h"
#include "tessera/dtensor/state/state.h"
#include "tessera/watch/op_trace.h"

#include <ATen/SequenceNumber.h>
#include <torch/csrc/autograd/function.h>

#include "tessera/dtensor/exact/pending.h"
#include "tessera/dtensor/front/dtensor.h"

namespace tessera::watch {
namespace {

// Aliases, and memory that nobody has written yet.
bool has_no_value(const rules::Rule& row) {
  return row.special == rules::Special::kAlias || row.makes == rules::Makes::kNothing;
}

bool is_waiting(const dtensor::Meta& meta) { return meta.is_pending() && !meta.rare->pending->is_settled; }

}  // namespace

void OpTrace::on_results(dtensor::RankState& state, const dtensor::OpInfo& info, c10::ArrayRef<c10::IValue> results) {
  if (has_no_value(info.row)) {
    return;
  }
  const at::NoGradGuard no_grad;
  const at::AutoDispatchBelowADInplaceOrView below;
  const auto where = where_is(state);
  is_new_ = true;
  size_t output = 0;
  dtensor::for_each_tensor(results, [&](const at::Tensor& result, int, int) {
    if (is_traced(result)) {
      add(state, where, info.name, result, output);
    }
    ++output;
  });
}

void OpTrace::on_given(dtensor::RankState& state, const char* how, const at::Tensor& given) {
  const at::NoGradGuard no_grad;
  const at::AutoDispatchBelowADInplaceOrView below;
  if (is_traced(given)) {
    is_new_ = true;
    add(state, where_is(state), how, given, 0);
  }
}

bool OpTrace::is_traced(const at::Tensor& result) const {
  if (!dtensor::is_dtensor(result)) {
    return false;
  }
  return keep_ == Keep::kDigest ? has_digest(result) : !dtensor::meta_of(result)->spec->has_partial;
}

OpTrace::Where OpTrace::where_is(dtensor::RankState& state) {
  if (state.pass.sites.passes() != pass_) {
    pass_ = state.pass.sites.passes();
    occurrences_.clear();
    after_backward_ = false;
    is_merged_ = false;
  }
  const auto* parameter = state.pass.sites.parameter();
  const auto site = parameter != nullptr ? parameter->name : std::string();
  const auto node = torch::autograd::get_current_node();
  if (!node && (after_backward_ || (is_scheduled_ && !state.pass.region()))) {
    if (!state.ctx.walk.is_scheduled) {
      merge_waiting(state);  // before the program writes to its gradients, which share memory with the sums
    }
    return {OpPhase::kUpdate, site};
  }
  if (!node) {
    site_of_node_.try_emplace(at::sequence_number::peek() - 1, site);
    return {OpPhase::kForward, site};
  }
  after_backward_ = true;
  is_scheduled_ = state.ctx.walk.is_scheduled;
  const auto known = site_of_node_.find(node->sequence_nr());
  return {OpPhase::kBackward, known != site_of_node_.end() ? known->second : site};
}

void OpTrace::add(dtensor::RankState& state, const Where& where, const std::string& op, const at::Tensor& result,
                  size_t output) {
  const auto& meta = *dtensor::meta_of(result);
  const auto kind = c10::str(is_inside_ ? "inside " : "", name_of(where.phase), " ", where.site, " ", op, " ",
                             meta.spec->dtype, " ", meta.spec->ndim(), " ", output);
  const auto key = c10::str(kind, " #", occurrences_[kind]++);
  if (!state.is_noted(meta.spec)) {
    return;  // another walk over this micro-batch says it
  }
  const auto [entry, is_first] = by_key_.try_emplace(key, records_.size());
  if (is_first) {
    operators_ += std::exchange(is_new_, false);
    records_.push_back(
        {op, where.phase, where.site, operators_, output, is_inside_, key, meta.spec, step_sizes(*meta.spec)});
    waiting_.emplace_back();
  }
  if (is_waiting(meta)) {
    wait_for(state, entry->second, result);
    return;
  }
  const bool adds_up = keep_ == Keep::kDigest && !state.exact.lattice();
  if (is_first || adds_up || has_samples(*meta.spec)) {
    keep(records_[entry->second], result);
  }
}

void OpTrace::keep(OpRecord& record, const at::Tensor& value) {
  if (keep_ == Keep::kHash) {
    record.hash += hash_value(value);
  } else {
    record.digest += digest_value(value);
    record.hash = record.digest.hash;
  }
  if (value_ != nullptr && record.key == wanted_) {
    value_->add(value);
  }
}

// A handle of our own, so that what the program does with its handle stays between them; the program does not see it
// made. In backward a later micro-batch's sum goes on where the earlier one's stopped.
void OpTrace::wait_for(dtensor::RankState& state, size_t record, const at::Tensor& handle) {
  const auto point = state.point();
  const comm::Program program = state.ctx.program;
  const auto own = handle.view(handle.sizes());
  auto& sum = waiting_[record];
  sum = sum.defined() && state.exact.continuation() == nullptr ? sum.add(own) : own;
  state.go_to(point);
  state.ctx.program = program;
}

void OpTrace::merge_waiting(dtensor::RankState& state) {
  if (std::exchange(is_merged_, true)) {
    return;
  }
  const auto point = state.point();
  const comm::Program program = state.ctx.program;
  for (size_t i = 0; i < records_.size(); ++i) {
    if (waiting_[i].defined()) {
      dtensor::to_local(waiting_[i]);  // merges it
      records_[i].hash = 0, records_[i].digest = {};
      keep(records_[i], waiting_[i]);
    }
  }
  state.go_to(point);
  state.ctx.program = program;
}

void OpTrace::finish() {
  const at::NoGradGuard no_grad;
  merge_waiting(dtensor::RankState::require());
  waiting_.assign(waiting_.size(), {});
}

}  // namespace tessera::watch
