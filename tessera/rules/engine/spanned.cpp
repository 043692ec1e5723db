#include "tessera/rules/engine/spanned.h"

#include <algorithm>

#include "tessera/base/error.h"

namespace tessera::rules::detail {

using layout::Placement;
using layout::Placements;
using layout::Spec;

namespace {

bool are_spanned(const std::optional<Placements>& wish) { return wish && layout::last_spanned_dim(*wish) > 0; }

Placements without_spans(const Placements& placements) {
  return layout::without_cuts(placements, [](const Placement& cut) { return cut.spans; });
}

// The tensor with its leading dims as one; cuts that are none of these dims together are not there.
Spec seen_in_runs(const Spec& spec, int64_t last_spanned) {
  const auto is_other = [&](const Placement& cut) { return !layout::is_of_runs(cut, last_spanned); };
  return layout::in_runs(spec.with(layout::without_cuts(spec->placements, is_other)), last_spanned);
}

bool keeps_cuts(const Spec& spec, const Spec& seen) {
  return std::equal(spec->placements.begin(), spec->placements.end(), seen->placements.begin(),
                    [](const Placement& cut, const Placement& other) { return cut.is_shard() == other.is_shard(); });
}

// Finds the one factor that the spanned dims of a call are.
class Joiner {
 public:
  Joiner(const Call& call, const FactorMap& map, const Wishes& wishes) : seen_{call, map, wishes} {}

  std::optional<SeenCall> run() {
    if (!find_leading() || (seen_.map.keeps_runs && !seen_.map.is_by_element) || !seen_.map.labels.empty()) {
      return std::nullopt;
    }
    FactorMap& map = seen_.map;
    joined_ = map.add(c10::multiply_integers(extents_));
    map.factors[joined_].reduce = reduce_;
    for (size_t i = 0; i < map.operands.size(); ++i) {
      seen_.operands.push_back(leads(map.operands[i]));
      if (!take(map.operands[i]) || (seen_.operands[i] && !see(seen_.call.operands.at(i)))) {
        return std::nullopt;
      }
    }
    for (size_t o = 0; o < map.outputs.size(); ++o) {
      seen_.outputs.push_back(leads(map.outputs[o]));
      if (!take(map.outputs[o]) || (map.keeps_runs && !seen_.outputs[o])) {
        return std::nullopt;
      }
      see(o);
    }
    return std::move(seen_);
  }

 private:
  // The factors of these dims, each of one dim, which may be cut anywhere; false if there are none such.
  bool find_leading() {
    for (size_t i = 0; i < seen_.call.operands.size(); ++i) {
      const int64_t last = layout::last_spanned_dim(seen_.call.spec(i)->placements);
      if (last == 0 || last == seen_.last_spanned) {
        continue;
      }
      if (seen_.last_spanned > 0) {
        return false;  // other dims together
      }
      seen_.last_spanned = last;
      const TensorFactors& dims = seen_.map.operands.at(i);
      leading_.assign(dims.begin(), dims.begin() + last + 1);
    }
    return seen_.last_spanned > 0 && std::all_of(leading_.begin(), leading_.end(), [&](const DimFactors& dim) {
             return dim.empty() || (dim.size() == 1 && add(seen_.map.factors[dim[0]]));
           });
  }

  bool add(const Factor& factor) {
    const bool is_alike = extents_.empty() || factor.reduce == reduce_;
    reduce_ = factor.reduce;
    extents_.push_back(factor.extent);
    return is_alike && factor.can_shard && factor.unit == 1;
  }

  bool leads(const TensorFactors& tensor) const {
    return tensor.size() >= leading_.size() && std::equal(leading_.begin(), leading_.end(), tensor.begin());
  }

  // False if the tensor has some of these factors elsewhere.
  bool take(TensorFactors& tensor) const {
    if (leads(tensor)) {
      std::fill(tensor.begin(), tensor.begin() + seen_.last_spanned, DimFactors());
      tensor[seen_.last_spanned] = {joined_};
    }
    return std::none_of(tensor.begin(), tensor.end(), [&](const DimFactors& dim) {
      return std::any_of(dim.begin(), dim.end(), [&](int factor) {
        return std::any_of(leading_.begin(), leading_.end(), [&](const DimFactors& other) {
          return std::find(other.begin(), other.end(), factor) != other.end();
        });
      });
    });
  }

  // False if it would have to move, or holds samples, which are counted by dims of their own.
  bool see(Operand& operand) const {
    const Spec before = operand.spec;
    operand.spec = seen_in_runs(before, seen_.last_spanned);
    return !layout::batch_dim(before->labels) && (!operand.is_written || keeps_cuts(before, operand.spec));
  }

  void see(size_t index) {
    Output& output = seen_.call.outputs.at(index);
    std::optional<Placements>* wish = index < seen_.wishes.outputs.size() ? &seen_.wishes.outputs[index] : nullptr;
    if (!seen_.outputs[index]) {
      if (wish && are_spanned(*wish)) {
        wish->reset();
      }
      return;
    }
    if (wish && *wish) {
      const layout::Mesh& mesh = seen_.call.spec(0)->mesh;
      const bool fits = layout::is_layout_of(mesh, **wish, output.sizes);
      *wish =
          fits
              ? std::optional(
                    in_runs(Spec::contiguous(mesh, **wish, output.sizes, output.dtype), seen_.last_spanned)->placements)
              : std::nullopt;
    }
    output.sizes = layout::sizes_in_runs(output.sizes, seen_.last_spanned);
  }

  SeenCall seen_;
  std::vector<DimFactors> leading_;
  std::vector<int64_t> extents_;
  std::optional<layout::ReduceOp> reduce_;
  int joined_ = -1;
};

// Operands that are cut so are whole, and nobody wishes for such a cut.
SeenCall with_whole(const Call& call, const FactorMap& map, const Wishes& wishes) {
  SeenCall seen{call, map, wishes};
  for (Operand& operand : seen.call.operands) {
    const Spec before = operand.spec;
    operand.spec = before->is_spanned() ? before.with(without_spans(before->placements)) : before;
    TESSERA_CHECK(!operand.is_written || operand.spec == before, "[", short_name(call), "] no layout for ",
                  describe(call), "; ", before.str(),
                  " is written in place and stays where it is, and its cut takes dims together that this operator does "
                  "not see side by side; accepted: operators by element, or a tensor that is cut in one dim, "
                  "x.redistribute(...)");
  }
  for (auto* wished : {&seen.wishes.operands, &seen.wishes.outputs}) {
    for (std::optional<Placements>& wish : *wished) {
      wish = are_spanned(wish) ? std::nullopt : wish;
    }
  }
  return seen;
}

// Cuts of the dim that stands for several are cuts of these.
Placements spanning_again(Placements placements, int64_t last_spanned) {
  for (Placement& placement : placements) {
    placement = placement.is_shard(last_spanned) ? layout::spanning(placement) : placement;
  }
  return placements;
}

}  // namespace

bool is_spanned(const Call& call, const Wishes& wishes) {
  return std::any_of(call.operands.begin(), call.operands.end(),
                     [](const Operand& operand) { return operand.spec->is_spanned(); }) ||
         std::any_of(wishes.outputs.begin(), wishes.outputs.end(), are_spanned) ||
         std::any_of(wishes.operands.begin(), wishes.operands.end(), are_spanned);
}

SeenCall seen_call(const Call& call, const FactorMap& map, const Wishes& wishes) {
  auto joined = Joiner(call, map, wishes).run();
  return joined ? std::move(*joined) : with_whole(call, map, wishes);
}

Propagation seen_as(const SeenCall& seen, const Call& call, Propagation decided) {
  if (seen.last_spanned == 0) {
    return decided;
  }
  for (size_t i = 0; i < decided.operands.size(); ++i) {
    if (seen.operands[i]) {
      const Placements placements = spanning_again(decided.operands[i]->placements, seen.last_spanned);
      decided.operands[i] = call.spec(i).with(placements);
    }
  }
  for (size_t o = 0; o < decided.outputs.size(); ++o) {
    if (seen.outputs[o]) {
      const Output& output = call.outputs[o];
      const Placements placements = spanning_again(decided.outputs[o]->placements, seen.last_spanned);
      decided.outputs[o] = output.written_operand >= 0 ? call.spec(output.written_operand).with(placements)
                                                       : Spec::make(decided.outputs[o]->mesh, placements, output.sizes,
                                                                    output.strides, decided.outputs[o]->dtype);
    }
  }
  return decided;
}

}  // namespace tessera::rules::detail
