#include "tessera/train/compare/bit_compare.h"

#include <bit>

#include "tessera/base/error.h"
#include "tessera/comm/threads/run_ranks.h"
#include "tessera/dtensor/state/state.h"
#include "tessera/parallel/optimizer_fields.h"
#include "tessera/watch/step_value.h"
#include "tessera/train/run/loop.h"

namespace tessera::train {
namespace {

// The state after a step. Of one rank: its part of the hashes.
struct StepBits {
  double loss = 0, grad_norm = 0;
  std::vector<std::pair<std::string, uint64_t>> tensors;
  uint64_t seed = 0, step = 0;  // of the generator
};

// Keeps the bits of every step, from before the first on.
class BitRecorder : public Observer {
 public:
  explicit BitRecorder(std::vector<StepBits>& steps) : steps_(steps) {}

  void on_start(const Training& training) override { keep({}, training); }
  void on_step(const StepRecord& record, const Training& training) override { keep(record, training); }

 private:
  void keep(const StepRecord& record, const Training& training) {
    auto& bits = steps_.emplace_back();
    bits.loss = record.loss;
    bits.grad_norm = record.grad_norm;
    const auto parameters = training.model.named_parameters();
    for (const auto& parameter : parameters) {
      bits.tensors.emplace_back(parameter.key(), watch::hash_value(parameter.value().detach()));
    }
    const auto& states = training.optimizer.state();
    const auto* kind = parallel::find_kind(training.optimizer);
    for (const auto& parameter : parameters) {
      if (const auto found = states.find(parameter.value().unsafeGetTensorImpl()); found != states.end()) {
        parallel::TensorVisitor visit([&](const char* name, at::Tensor& value) {
          if (value.defined()) {
            bits.tensors.emplace_back(name + (" of " + parameter.key()), watch::hash_value(value));
          }
        });
        kind->visit_state(*found->second, visit);
      }
    }
    const auto& rank = dtensor::RankState::require();
    bits.seed = rank.random.seed();
    bits.step = rank.pass.sites.step();
  }

  std::vector<StepBits>& steps_;
};

// Watches the operators of one step.
class Watcher : public Observer {
 public:
  Watcher(watch::OpTrace& trace, int64_t step) : trace_(trace), step_(step) {}

  void on_start(const Training&) override { watch(step_ == 1); }
  void on_step(const StepRecord& record, const Training&) override {
    watch(false);
    if (record.step == step_) {
      trace_.finish();
    }
    watch(record.step + 1 == step_);
  }

 private:
  void watch(bool on) { dtensor::RankState::require().watch.set_observer(on ? &trace_ : nullptr); }

  watch::OpTrace& trace_;
  int64_t step_;
};

// Runs a side with an observer for each rank.
template <typename MakeObserver>
void record_side(const Side& side, int64_t steps, MakeObserver make) {
  const auto sampler = make_sampler(side.config);
  comm::run_ranks(side.config.ranks(), [&](int64_t rank) {
    auto observer = make(static_cast<size_t>(rank));
    run_loop(side.config, sampler, {.steps = steps, .evaluate = false}, observer);
  });
}

std::vector<StepBits> bits_of(const Side& side, int64_t steps) {
  std::vector<std::vector<StepBits>> of_rank(static_cast<size_t>(side.config.ranks()));
  record_side(side, steps, [&](size_t rank) { return BitRecorder(of_rank[rank]); });
  auto all = std::move(of_rank[0]);
  for (size_t rank = 1; rank < of_rank.size(); ++rank) {
    for (size_t step = 0; step < all.size(); ++step) {
      for (size_t i = 0; i < all[step].tensors.size(); ++i) {
        all[step].tensors[i].second += of_rank[rank][step].tensors[i].second;
      }
    }
  }
  return all;
}

}  // namespace

std::vector<watch::OpRecord> trace_step(const Side& side, int64_t step) {
  std::vector<watch::OpTrace> traces(static_cast<size_t>(side.config.ranks()));
  record_side(side, step, [&](size_t rank) { return Watcher(traces[rank], step); });
  auto all = traces[0].records();
  for (size_t rank = 1; rank < traces.size(); ++rank) {
    std::unordered_map<std::string, uint64_t> hashes;  // in a schedule ranks do things in different orders
    for (const watch::OpRecord& record : traces[rank].records()) {
      hashes[record.key] = record.hash;
    }
    for (watch::OpRecord& record : all) {
      record.hash += hashes.at(record.key);
    }
  }
  return all;
}

namespace {

void fetch(const Side& side, int64_t step, const std::string& key, watch::StepValue& value) {
  std::vector<std::unique_ptr<watch::OpTrace>> traces;
  for (int64_t rank = 0; rank < side.config.ranks(); ++rank) {
    traces.push_back(std::make_unique<watch::OpTrace>(key, &value));
  }
  record_side(side, step, [&](size_t rank) { return Watcher(*traces[rank], step); });
}

bool same_bits(double a, double b) { return std::bit_cast<uint64_t>(a) == std::bit_cast<uint64_t>(b); }

// The first thing that differs; empty if nothing does.
std::string what_bits_differ(const StepBits& a, const StepBits& b) {
  if (!same_bits(a.loss, b.loss)) {
    return "loss";
  }
  if (!same_bits(a.grad_norm, b.grad_norm)) {
    return "grad_norm";
  }
  if (a.tensors.size() != b.tensors.size()) {
    return "parameters";
  }
  for (size_t i = 0; i < a.tensors.size(); ++i) {
    if (a.tensors[i] != b.tensors[i]) {
      return a.tensors[i].first;
    }
  }
  return a.seed != b.seed || a.step != b.step ? "generator" : "";
}

// The first record of `a` that `b` has too, with another value.
const watch::OpRecord* first_difference(const std::vector<watch::OpRecord>& a, const std::vector<watch::OpRecord>& b,
                                        const watch::OpRecord*& of_b) {
  std::unordered_map<std::string, const watch::OpRecord*> by_key;
  for (const auto& record : b) {
    by_key.emplace(record.key, &record);
  }
  for (const auto& record : a) {
    const auto found = by_key.find(record.key);
    if (found != by_key.end() && found->second->sizes == record.sizes && found->second->hash != record.hash) {
      of_b = found->second;
      return &record;
    }
  }
  return nullptr;
}

std::optional<OperatorDifference> find_operator(const Side& first, const Side& second, int64_t step) {
  const auto a = trace_step(first, step), b = trace_step(second, step);
  const watch::OpRecord* of_b = nullptr;
  const auto* of_a = first_difference(a, b, of_b);
  if (of_a == nullptr) {
    return std::nullopt;
  }
  OperatorDifference result;
  result.op = of_a->op;
  result.phase = watch::name_of(of_a->phase);
  result.site = of_a->site;
  result.number = of_a->number;
  result.sizes = of_a->sizes;
  result.layouts = {of_a->spec.layout_str(), of_b->spec.layout_str()};
  watch::StepValue x, y;
  fetch(first, step, of_a->key, x);
  fetch(second, step, of_a->key, y);
  for (size_t i = 0; i < x.bits().size(); ++i) {
    if (x.bits()[i] == y.bits().at(i)) {
      continue;
    }
    if (result.different++ == 0) {
      result.index = x.index_of(i);
      result.values = {x.text_of(i), y.text_of(i)};
    }
  }
  return result;
}

std::optional<BitDifference> find_difference(const Side& first, const Side& second, const std::vector<StepBits>& a,
                                             const std::vector<StepBits>& b) {
  for (size_t step = 0; step < a.size(); ++step) {
    const auto what = what_bits_differ(a[step], b.at(step));
    if (what.empty()) {
      continue;
    }
    BitDifference difference{static_cast<int64_t>(step), what, std::nullopt};
    if (step > 0) {
      difference.op = find_operator(first, second, difference.step);
    }
    return difference;
  }
  return std::nullopt;
}

}  // namespace

bool are_exact(const std::vector<Side>& sides) {
  return std::all_of(sides.begin(), sides.end(), [](const Side& side) { return side.config.is_exact(); });
}

BitComparison compare_bits(const std::vector<Side>& sides, int64_t steps) {
  verify_sides(sides, steps);
  const auto& config = sides.front().config;
  BitComparison comparison{
      .reference = sides.front().text,
      .dtype = config.train.dtype,
      .lattice = config.train.lattice.str(),
      .steps = steps,
      .sides = {},
  };
  const auto reference = bits_of(sides.front(), steps);
  comparison.tensors = static_cast<int64_t>(reference.back().tensors.size());
  for (size_t i = 1; i < sides.size(); ++i) {
    comparison.sides.push_back(
        {sides[i].text, find_difference(sides.front(), sides[i], reference, bits_of(sides[i], steps))});
  }
  return comparison;
}

bool BitComparison::is_same() const {
  return std::none_of(sides.begin(), sides.end(), [](const BitSide& side) { return side.difference.has_value(); });
}

}  // namespace tessera::train
