#include "tessera/layout/labels.h"

#include <algorithm>
#include <sstream>

#include "tessera/base/error.h"
#include "tessera/base/text.h"

namespace tessera::layout {

namespace {

Factor unlabelled(int64_t extent) { return {Label::kNone, extent, 0, extent, 1}; }

bool is_none(const Factor& factor) { return factor.label == Label::kNone; }

// Whether `inner`, standing right of `outer`, continues it: together they are one run of positions.
bool continues(const Factor& outer, const Factor& inner) {
  return !is_none(outer) && outer.label == inner.label && outer.total == inner.total && outer.extent > 1 &&
         inner.extent > 1 && outer.unit == inner.unit * inner.extent;
}

// Appends to a dim and keeps it in normal form (but for a dim of unlabelled factors only).
void append(DimLabels& dim, const Factor& factor) {
  if (is_none(factor) && factor.extent == 1) {
    return;
  }
  if (!dim.empty() && is_none(dim.back()) && is_none(factor)) {
    dim.back() = unlabelled(dim.back().extent * factor.extent);
  } else if (!dim.empty() && continues(dim.back(), factor)) {
    Factor& outer = dim.back();
    outer = {outer.label, outer.extent * factor.extent, outer.offset + factor.offset, outer.total, factor.unit};
  } else {
    dim.push_back(is_none(factor) ? unlabelled(factor.extent) : factor);
  }
}

DimLabels normal_dim(const DimLabels& dim) {
  DimLabels result;
  for (const Factor& factor : dim) {
    append(result, factor);
  }
  return is_labelled(result) ? result : DimLabels{};
}

int64_t extent_of(const DimLabels& dim) {
  int64_t product = 1;
  for (const Factor& factor : dim) {
    product *= factor.extent;
  }
  return product;
}

// All factors of a tensor in C order, unlabelled dims as one factor each.
DimLabels flat_factors(const Labels& labels, c10::IntArrayRef sizes) {
  DimLabels flat;
  for (size_t d = 0; d < sizes.size(); ++d) {
    if (labels[d].empty()) {
      append(flat, unlabelled(sizes[d]));
    }
    for (const Factor& factor : labels[d]) {
      append(flat, factor);
    }
  }
  return flat;
}

// Deals the factors of a tensor out to the dims of its new sizes, splitting factors where they divide.
class Dealer {
 public:
  Dealer(DimLabels factors, c10::IntArrayRef to) : factors_(std::move(factors)), to_(to), dims_(to.size()) {}

  Labels deal() {
    for (size_t d = 0; d < to_.size(); ++d) {
      if (!is_split_) {
        group_ = d;
      }
      if (!deal_dim(d)) {
        d = skip_group(d);
      }
    }
    for (; !dims_.empty() && at_ < factors_.size(); ++at_) {
      append(dims_.back(), factors_[at_]);
    }
    return std::move(dims_);
  }

 private:
  // Fills dim `d`; false when a factor would be cut unevenly.
  bool deal_dim(size_t d) {
    int64_t size = to_[d];
    if (size == 1 && at_ < factors_.size() && factors_[at_].extent == 1) {
      append(dims_[d], factors_[at_++]);
    }
    while (size > 1) {
      Factor& front = factors_[at_];
      if (size % front.extent == 0) {
        size /= front.extent;
        append(dims_[d], front);
        ++at_;
        is_split_ = false;
      } else if (front.extent % size == 0) {
        append(dims_[d], split(front, size));
        size = 1;
        is_split_ = true;
      } else {
        return false;
      }
    }
    return true;
  }

  // Takes the outer `count` indices off `factor`.
  static Factor split(Factor& factor, int64_t count) {
    const int64_t inner = factor.extent / count;
    if (is_none(factor)) {
      factor = unlabelled(inner);
      return unlabelled(count);
    }
    const Factor outer{factor.label, count, factor.offset, factor.total, factor.unit * inner};
    factor = {factor.label, inner, 0, factor.total, factor.unit};
    return outer;
  }

  // Unlabels the dims from the last common boundary to the next; returns the last of them.
  size_t skip_group(size_t d) {
    int64_t left = 1;
    int64_t right = 1;
    for (size_t f = at_; f < factors_.size(); ++f) {
      left *= factors_[f].extent;
    }
    for (size_t e = d + 1; e < to_.size(); ++e) {
      right *= to_[e];
    }
    while (left != right) {
      if (left > right) {
        left /= factors_[at_++].extent;
      } else {
        right /= to_[++d];
      }
    }
    for (size_t e = group_; e <= d; ++e) {
      dims_[e] = {unlabelled(to_[e])};
    }
    is_split_ = false;
    return d;
  }

  DimLabels factors_;
  c10::IntArrayRef to_;
  Labels dims_;
  size_t at_ = 0;          // the next factor
  bool is_split_ = false;  // the next factor has lost its outer part
  size_t group_ = 0;       // the dim where the last common boundary lies
};

// The factors of `dim` after a slice; nothing when they cannot be told.
std::optional<DimLabels> slice_dim(const DimLabels& dim, int64_t start, int64_t length, int64_t step) {
  DimLabels result;
  int64_t inner = extent_of(dim);
  for (size_t f = 0; f < dim.size(); ++f) {
    inner /= dim[f].extent;
    const int64_t first = start / inner;
    const int64_t last = (start + (length - 1) * step) / inner;
    Factor factor = dim[f];
    factor.offset += first * factor.unit;
    if (first == last) {
      factor.extent = 1;
      result.push_back(factor);
      start %= inner;
      continue;
    }
    const bool whole_runs = step == 1 && start % inner == 0 && length % inner == 0;
    if (!whole_runs && step % inner != 0) {
      return std::nullopt;
    }
    factor.extent = whole_runs ? length / inner : length;
    factor.unit *= whole_runs ? 1 : step / inner;
    result.push_back(factor);
    if (whole_runs) {
      result.insert(result.end(), dim.begin() + static_cast<int64_t>(f) + 1, dim.end());
      return result;
    }
    length = 1;
    start %= inner;
  }
  return result;
}

char letter_of(Label label) {
  constexpr char kLetters[] = {'n', 'b', 's', 'f'};
  return kLetters[static_cast<int>(label)];
}

void print(std::ostream& out, const Factor& factor) {
  if (is_none(factor)) {
    out << factor.extent;
    return;
  }
  out << letter_of(factor.label) << factor.extent;
  if (factor.offset != 0) {
    out << '@' << factor.offset;
  }
  if (factor.total != factor.extent) {
    out << '/' << factor.total;
  }
  if (factor.unit != 1) {
    out << ';' << factor.unit;
  }
}

}  // namespace

bool is_labelled(const DimLabels& dim) {
  return std::any_of(dim.begin(), dim.end(), [](const Factor& factor) { return !is_none(factor); });
}

Labels normal_labels(Labels labels) {
  for (DimLabels& dim : labels) {
    dim = normal_dim(dim);
  }
  return std::all_of(labels.begin(), labels.end(), [](const DimLabels& dim) { return dim.empty(); }) ? Labels{}
                                                                                                     : labels;
}

bool is_normal_labels(const Labels& labels) {
  bool has_label = labels.empty();
  for (const DimLabels& dim : labels) {
    for (size_t f = 0; f < dim.size(); ++f) {
      const Factor& factor = dim[f];
      const bool joins_last = f > 0 && ((is_none(dim[f - 1]) && is_none(factor)) || continues(dim[f - 1], factor));
      if (joins_last || (is_none(factor) && (factor.extent == 1 || factor != unlabelled(factor.extent)))) {
        return false;
      }
    }
    if (!dim.empty() && !is_labelled(dim)) {
      return false;
    }
    has_label |= !dim.empty();
  }
  return has_label;
}

Labels view_labels(const Labels& labels, c10::IntArrayRef from, c10::IntArrayRef to) {
  const auto is_zero = [](int64_t size) { return size == 0; };
  if (labels.empty() || from == to) {
    return labels;
  }
  if (std::any_of(from.begin(), from.end(), is_zero)) {
    return {};
  }
  return normal_labels(Dealer(flat_factors(labels, from), to).deal());
}

Labels slice_labels(const Labels& labels, c10::IntArrayRef sizes, int64_t dim, int64_t start, int64_t length,
                    int64_t step) {
  if (labels.empty() || labels[dim].empty() || (start == 0 && step == 1 && length == sizes[dim])) {
    return labels;
  }
  Labels result = labels;
  result[dim] = length == 0 ? DimLabels{} : slice_dim(labels[dim], start, length, step).value_or(DimLabels{});
  return normal_labels(std::move(result));
}

Labels permute_labels(const Labels& labels, c10::IntArrayRef order) {
  if (labels.empty()) {
    return {};
  }
  Labels result;
  for (int64_t dim : order) {
    result.push_back(labels[dim]);
  }
  return result;
}

DimLabels join_labels(const DimLabels& a, const DimLabels& b) {
  if (a.empty() || b.empty()) {
    return a.empty() ? b : a;
  }
  DimLabels result;
  size_t i = 0;
  size_t j = 0;
  while (i < a.size() || j < b.size()) {
    const bool both = i < a.size() && j < b.size() && a[i].extent == b[j].extent;
    if (both && (is_none(a[i]) || is_none(b[j]) || a[i].label == b[j].label)) {
      append(result, is_none(a[i]) ? b[j] : a[i]);
      ++i, ++j;
    } else if (i < a.size() && a[i].extent == 1) {
      append(result, a[i++]);
    } else if (j < b.size() && b[j].extent == 1) {
      append(result, b[j++]);
    } else {
      return {};
    }
  }
  return is_labelled(result) ? result : DimLabels{};
}

std::string str(const Labels& labels) {
  std::ostringstream out;
  out << '[' << base::join(labels, ", ", [](std::ostream& dim_out, const DimLabels& dim) {
    dim_out << (dim.empty() ? "-" : base::join(dim, "*", print));
  }) << ']';
  return out.str();
}

std::optional<int64_t> batch_dim(const Labels& labels) {
  for (size_t d = 0; d < labels.size(); ++d) {
    if (!labels[d].empty() && labels[d][0].label == Label::kBatch) {
      return static_cast<int64_t>(d);
    }
  }
  return std::nullopt;
}

}  // namespace tessera::layout
