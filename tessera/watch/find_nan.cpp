#include "tessera/watch/find_nan.h"

#include <cmath>
#include <limits>

#include <ATen/ops/from_blob.h>
#include <ATen/ops/full.h>
#include <ATen/ops/isfinite.h>
#include <ATen/ops/isinf.h>
#include <ATen/ops/isnan.h>

#include "tessera/base/error.h"
#include "tessera/base/text.h"
#include "tessera/dtensor/record/arguments.h"
#include "tessera/dtensor/record/interception.h"
#include "tessera/dtensor/record/op_info.h"
#include "tessera/dtensor/state/state.h"

namespace tessera::watch {
namespace {

// This rank's part; undefined where there is nothing to look at.
at::Tensor part_of(const at::Tensor& tensor) {
  at::Tensor part = tensor;
  if (dtensor::is_dtensor(tensor)) {
    const dtensor::Meta& meta = *dtensor::meta_of(tensor);
    if (meta.is_pending()) {
      return {};
    }
    part = meta.local;
  }
  const bool can_be_bad =
      part.defined() && (part.is_floating_point() || part.is_complex()) && part.layout() == at::kStrided;
  return can_be_bad ? part.detach() : at::Tensor();
}

std::string layout_text(const at::Tensor& tensor) {
  if (!dtensor::is_dtensor(tensor)) {
    return c10::str(tensor.scalar_type(), tensor.sizes(), " plain");
  }
  return text_of(*dtensor::meta_of(tensor)->spec);
}

std::string layouts_text(const dtensor::OpInfo& info, c10::ArrayRef<c10::IValue> args, const at::Tensor& result) {
  std::vector<std::string> operands;
  dtensor::for_each_tensor(args, [&](const at::Tensor& tensor, int arg, int) {
    operands.push_back(info.op.schema().arguments().at(arg).name() + " " + layout_text(tensor));
  });
  return base::join(operands, ", ") + " -> " + layout_text(result);
}

// While it lives, plain libtorch.
struct PlainScope {
  at::NoGradGuard no_grad;
  at::AutoDispatchBelowADInplaceOrView below;
  dtensor::LocalScope local;
};

}  // namespace

std::string NanFinding::text() const {
  return c10::str(op, " gave ", is_nan ? "NaN" : "an infinity", " on rank ", rank, " (", count, " of ", elements,
                  " elements of its part, operator ", number, ", ", name_of(place.phase), ", ", str(place),
                  "); its operands had none: ", layouts);
}

NanFinder::NanFinder(FindNanOptions options)
    : state_(dtensor::RankState::require()),
      previous_(state_.watch.observer()),
      action_(options.action),
      places_(std::move(options.locate)) {
  state_.watch.set_observer(this);
}

NanFinder::~NanFinder() { stop(); }

void NanFinder::stop() {
  if (dtensor::RankState::current() == &state_ && state_.watch.observer() == this) {
    state_.watch.set_observer(previous_);
  }
}

void NanFinder::add(Badness& all, const at::Tensor& tensor) {
  const at::Tensor part = part_of(tensor);
  if (!part.defined() || at::isfinite(part).all().item<bool>()) {
    return;
  }
  const bool has_nan = at::isnan(part).any().item<bool>();
  all.has_nan |= has_nan;
  all.has_infinity |= !has_nan || at::isinf(part).any().item<bool>();
}

NanFinder::Badness NanFinder::of(c10::ArrayRef<c10::IValue> values) {
  Badness all;
  dtensor::for_each_tensor(values, [&](const at::Tensor& tensor, int, int) { add(all, tensor); });
  for (const c10::IValue& value : values) {
    if (!value.isDouble()) {
      continue;
    }
    all.has_nan |= std::isnan(value.toDouble());
    all.has_infinity |= std::isinf(value.toDouble());
  }
  return all;
}

void NanFinder::on_begin(dtensor::RankState& state, const dtensor::OpInfo& info, c10::ArrayRef<c10::IValue> args) {
  Open open{.place = places_.begin(state, args), .number = ++calls_};
  if (!found_) {
    open.args = args.vec();
    if (info.writes) {
      const PlainScope plain;
      open.given = of(args);
    }
  }
  open_.push_back(std::move(open));
}

void NanFinder::on_results(dtensor::RankState& state, const dtensor::OpInfo& info, c10::ArrayRef<c10::IValue> results) {
  places_.end(open_.back().place);
  if (found_ || info.row.makes == rules::Makes::kNothing) {
    return;
  }
  {
    const PlainScope plain;
    look_at(state, info, results);
  }
  TESSERA_CHECK(!found_ || action_ == OnNan::kReport, "[find_nan] ", found_->text());
}

void NanFinder::look_at(dtensor::RankState& state, const dtensor::OpInfo& info, c10::ArrayRef<c10::IValue> results) {
  dtensor::for_each_tensor(results, [&](const at::Tensor& result, int, int) {
    Badness made;
    add(made, result);
    if (found_ || (!made.has_nan && !made.has_infinity)) {
      return;
    }
    const Open& open = open_.back();
    const Badness given = open.given ? *open.given : of(open.args);
    if (made.has_nan ? given.has_nan : given.has_nan || given.has_infinity) {
      return;
    }
    const at::Tensor part = part_of(result);
    const at::Tensor bad = made.has_nan ? at::isnan(part) : at::isinf(part);
    found_ = {.op = info.name,
              .place = *open.place,
              .number = open.number,
              .rank = state.ctx.rank,
              .is_nan = made.has_nan,
              .count = bad.sum().item<int64_t>(),
              .elements = part.numel(),
              .layouts = layouts_text(info, open.args, result)};
  });
}

void NanFinder::on_end(dtensor::RankState&, const dtensor::OpInfo&) noexcept { open_.pop_back(); }

std::optional<std::string> NanFinder::first() {
  const dtensor::LocalScope plain;
  comm::Communicator& world = *state_.ctx.world;
  const auto integers = at::TensorOptions().dtype(at::kLong);
  constexpr int64_t kNone = std::numeric_limits<int64_t>::max();
  // The least number, and of those ranks the least.
  const at::Tensor best = at::full({1}, found_ ? found_->number * world.size() + world.rank() : kNone, integers);
  world.all_reduce(best, comm::ReduceOp::kMin)->wait();
  const int64_t winner = best.item<int64_t>();
  if (winner == kNone) {
    return std::nullopt;
  }
  const int64_t root = winner % world.size();
  std::string text = root == world.rank() ? found_->text() : std::string();
  const at::Tensor length = at::full({1}, static_cast<int64_t>(text.size()), integers);
  world.broadcast(length, root)->wait();
  text.resize(static_cast<size_t>(length.item<int64_t>()));
  const at::Tensor bytes = at::from_blob(text.data(), {length.item<int64_t>()}, at::TensorOptions().dtype(at::kByte));
  world.broadcast(bytes, root)->wait();
  return text;
}

}  // namespace tessera::watch
