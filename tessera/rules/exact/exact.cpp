#include "tessera/rules/exact/exact.h"

#include <algorithm>
#include <utility>

namespace tessera::rules {

namespace {

using layout::DimLabels;
using layout::Label;

bool has_label(const DimLabels& labels, Label label) {
  return std::any_of(labels.begin(), labels.end(), [&](const layout::Factor& factor) { return factor.label == label; });
}

// The factors that output `index` lacks and some operand has.
std::vector<int> factors_without_output(const FactorMap& map, size_t index) {
  std::vector<char> kept(map.factors.size(), 0);
  for (const DimFactors& dim : map.outputs.at(index)) {
    for (int factor : dim) {
      kept[factor] = 1;
    }
  }
  std::vector<int> summed;
  for (const TensorFactors& tensor : map.operands) {
    for (const DimFactors& dim : tensor) {
      for (int factor : dim) {
        if (!std::exchange(kept[factor], 1)) {
          summed.push_back(factor);
        }
      }
    }
  }
  return summed;
}

}  // namespace

bool counts_samples(const DimLabels& labels) { return has_label(labels, Label::kBatch); }
bool counts_positions(const DimLabels& labels) {
  return has_label(labels, Label::kSequence) && !has_label(labels, Label::kBatch);
}

bool holds_samples(const layout::Labels& labels) { return std::any_of(labels.begin(), labels.end(), counts_samples); }

DimLabels labels_of_factor(const Call& call, const FactorMap& map, int factor) {
  for (size_t i = 0; i < call.operands.size(); ++i) {
    const layout::Labels& labels = call.spec(i)->labels;
    for (size_t d = 0; d < labels.size(); ++d) {
      const DimFactors& dim = map.operands[i][d];
      if (dim.size() == 1 && dim[0] == factor && layout::is_labelled(labels[d])) {
        return labels[d];
      }
    }
  }
  return {};
}

bool sums_whole_rows(const Call& call) {
  return call.has_arg("equation") && std::none_of(call.operands.begin(), call.operands.end(),
                                                  [](const Operand& operand) { return operand.is_parameter; });
}

namespace {

// Whether the operand is nothing but this dim, without labels, and some rank holds a part of a leaf of it: what is left
// of a sum over the columns of a parameter whose rows are cut anywhere.
bool is_vector_cut_inside_leaves(const layout::Spec& spec, int64_t dim, int64_t leaves) {
  const int64_t size = spec->sizes[static_cast<size_t>(dim)];
  if (!spec->is_cut(dim) || !spec->labels.empty() || spec->numel() != size) {
    return false;
  }
  layout::Coord coord(static_cast<size_t>(spec->mesh.ndim()));
  const std::vector<int64_t> axes = spec->axes_of(dim);
  for (bool is_done = false; !is_done;) {
    if (!sums::is_of_whole_leaves(spec.local_ranges(coord)[static_cast<size_t>(dim)], size, leaves)) {
      return true;
    }
    is_done =
        std::all_of(axes.begin(), axes.end(), [&](int64_t axis) {  // the next coordinates, as a number with digits
          return (coord[axis] = (coord[axis] + 1) % spec->mesh.axis(axis).size) == 0;
        });
  }
  return false;
}

bool sums_vector_cut_inside_leaves(const Call& call, const FactorMap& map, int factor, int64_t leaves) {
  for (size_t i = 0; i < call.operands.size(); ++i) {
    for (size_t d = 0; d < map.operands[i].size(); ++d) {
      const DimFactors& dim = map.operands[i][d];
      if (dim.size() == 1 && dim[0] == factor &&
          is_vector_cut_inside_leaves(call.spec(i), static_cast<int64_t>(d), leaves)) {
        return true;
      }
    }
  }
  return false;
}

// Dims of one element that a sum does not count: a rank without that element holds no term, and nobody merges over
// them.
void keep_uncounted(const ExactRule& rule, const Call& call, FactorMap& map) {
  if (!rule.node && !rule.sample) {
    return;
  }
  const std::vector<int> counted = summed_factors(call, map, 0);
  for (const int factor : factors_without_output(map, 0)) {
    if (std::find(counted.begin(), counted.end(), factor) == counted.end()) {
      map.factors[factor].can_shard = false;
    }
  }
}

// The leaves of a sum over several dims are cut along the first.
void keep_inner(const std::vector<int>& summed, FactorMap& map) {
  for (size_t i = 1; i < summed.size(); ++i) {
    map.factors[summed[i]].can_shard = false;
  }
}

}  // namespace

void keep_whole(const ExactRule& rule, const Call& call, const sums::Lattice& lattice, FactorMap& map) {
  keep_uncounted(rule, call, map);
  const std::vector<int> summed = rule.keeps_whole ? factors_without_output(map, 0) : summed_factors(call, map, 0);
  const auto labels_of = [&](int factor) { return labels_of_factor(call, map, factor); };
  const bool of_samples = rule.sample && std::any_of(summed.begin(), summed.end(),
                                                     [&](int factor) { return counts_samples(labels_of(factor)); });
  if (rule.node && !of_samples) {
    keep_inner(summed, map);
  }
  if (!rule.keeps_whole && !of_samples && !sums_whole_rows(call)) {
    for (const int factor : summed) {
      if (sums_vector_cut_inside_leaves(call, map, factor, lattice.feature)) {
        map.factors[factor].can_shard = false;
      }
    }
    return;
  }
  for (int factor : summed) {
    const DimLabels labels = labels_of(factor);
    const bool may_cut =
        counts_samples(labels) ? labels.front().label == Label::kBatch : !rule.keeps_whole && counts_positions(labels);
    map.factors[factor].can_shard = map.factors[factor].can_shard && may_cut;
  }
}

std::vector<int> summed_factors(const Call& call, const FactorMap& map, size_t index) {
  const std::vector<int> summed = factors_without_output(map, index);
  std::vector<int> counting;
  std::copy_if(summed.begin(), summed.end(), std::back_inserter(counting), [&](int factor) {
    return map.factors[factor].extent != 1 || counts_samples(labels_of_factor(call, map, factor));
  });
  if (counting.empty() && !summed.empty()) {
    counting.push_back(summed.front());
  }
  return counting;
}

}  // namespace tessera::rules
