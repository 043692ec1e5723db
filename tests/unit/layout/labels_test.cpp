// Labels against a simulation in which every element knows its positions.
#include "tessera/layout/labels.h"

#include <gtest/gtest.h>

#include "tests/unit/layout/random_layout.h"

namespace tessera::layout::labels_test {
namespace {

using Sizes = std::vector<int64_t>;
constexpr int kLabels = 4;

Factor batch(int64_t extent) { return {Label::kBatch, extent, 0, extent, 1}; }
Factor sequence(int64_t extent) { return {Label::kSequence, extent, 0, extent, 1}; }
Factor none(int64_t extent) { return {Label::kNone, extent, 0, extent, 1}; }

int64_t product(const Sizes& sizes) {
  int64_t result = 1;
  for (int64_t size : sizes) {
    result *= size;
  }
  return result;
}

Sizes index_of(int64_t element, const Sizes& sizes) {
  Sizes index(sizes.size());
  for (size_t d = sizes.size(); d-- > 0;) {
    index[d] = element % sizes[d];
    element /= sizes[d];
  }
  return index;
}

// For each label: the position that the labels claim for an index, and how finely; unclaimed labels have unit 0.
struct Claim {
  int64_t position[kLabels] = {};
  int64_t unit[kLabels] = {};
};

Claim claim_of(const Labels& labels, const Sizes& index) {
  Claim claim;
  for (size_t d = 0; d < labels.size(); ++d) {
    int64_t rest = index[d];
    for (size_t f = labels[d].size(); f-- > 0;) {
      const Factor& factor = labels[d][f];
      const int label = static_cast<int>(factor.label);
      claim.position[label] += factor.offset + rest % factor.extent * factor.unit;
      claim.unit[label] = claim.unit[label] == 0 ? factor.unit : std::min(claim.unit[label], factor.unit);
      rest /= factor.extent;
    }
  }
  return claim;
}

// A tensor whose elements know their positions.
struct Tracked {
  Sizes sizes;
  Labels labels;
  std::vector<Claim> truth;

  Tracked(Sizes s, Labels l) : sizes(std::move(s)), labels(std::move(l)) {
    for (int64_t e = 0; e < product(sizes); ++e) {
      truth.push_back(claim_of(labels, index_of(e, sizes)));
    }
  }

  // No claim is wrong; what is claimed in part is right to within the finest unit. Where `all`, nothing is lost.
  void expect_true(const Labels& claimed, const Sizes& now, const std::vector<Claim>& elements, bool all) const {
    EXPECT_TRUE(is_normal_labels(claimed)) << str(claimed);
    EXPECT_EQ(claimed, normal_labels(claimed));
    for (int64_t e = 0; e < product(now); ++e) {
      const Claim claim = claim_of(claimed, index_of(e, now));
      for (int label = 1; label < kLabels; ++label) {
        const int64_t error = elements[e].position[label] - claim.position[label];
        if (claim.unit[label] != 0) {
          EXPECT_GE(error, 0) << str(labels) << " -> " << str(claimed);
          EXPECT_LT(error, claim.unit[label]) << str(labels) << " -> " << str(claimed);
        }
        if (all) {
          EXPECT_EQ(error, 0) << str(labels) << " -> " << str(claimed);
          EXPECT_EQ(claim.unit[label] != 0, elements[e].unit[label] != 0) << str(labels) << " -> " << str(claimed);
        }
      }
    }
  }
};

// Dims with at most one factor of each label, some merged with each other or with unlabelled ones.
Tracked random_tracked(RandomLayouts& random) {
  Sizes sizes;
  Labels labels;
  auto kinds = random.permutation(kLabels);
  for (int64_t d = 0, n = random.number(1, 3); d < n; ++d) {
    DimLabels dim;
    int64_t size = 1;
    for (int64_t f = 0, m = random.number(1, 2); f < m; ++f) {
      const auto label = kinds.empty() ? Label::kNone : static_cast<Label>(kinds.back());
      kinds.resize(kinds.empty() ? 0 : kinds.size() - 1);
      const int64_t extent = random.number(1, 6);
      const int64_t offset = random.number(0, 3);
      dim.push_back(label == Label::kNone ? none(extent) : Factor{label, extent, offset, 40, random.number(1, 2)});
      size *= extent;
    }
    sizes.push_back(size);
    labels.push_back(dim);
  }
  labels = normal_labels(labels);
  return Tracked(sizes, labels);
}

// Some sizes of the same product.
Sizes random_sizes(RandomLayouts& random, int64_t numel) {
  Sizes sizes;
  while (numel > 1) {
    const int64_t size = random.number(1, numel);
    if (numel % size == 0) {
      sizes.push_back(size);
      numel /= size;
    }
  }
  sizes.insert(sizes.begin() + random.number(0, static_cast<int64_t>(sizes.size())), 1);
  return sizes;
}

TEST(Labels, ViewsAreTrueForRandomShapes) {
  const uint32_t seed = std::random_device{}();
  SCOPED_TRACE("seed " + std::to_string(seed));
  RandomLayouts random(seed);
  for (int i = 0; i < 3000; ++i) {
    const Tracked tensor = random_tracked(random);
    const Sizes once = random_sizes(random, product(tensor.sizes));
    const Labels first = view_labels(tensor.labels, tensor.sizes, once);
    tensor.expect_true(first, once, tensor.truth, false);
    const Sizes twice = random_sizes(random, product(tensor.sizes));
    tensor.expect_true(view_labels(first, once, twice), twice, tensor.truth, false);
  }
}

TEST(Labels, MergingDimsAndTakingThemApartLosesNothing) {
  const uint32_t seed = std::random_device{}();
  SCOPED_TRACE("seed " + std::to_string(seed));
  RandomLayouts random(seed);
  for (int i = 0; i < 1000; ++i) {
    const Tracked tensor = random_tracked(random);
    Sizes merged{tensor.sizes[0]};
    for (size_t d = 1; d < tensor.sizes.size(); ++d) {
      if (random.number(0, 1) == 0) {
        merged.back() *= tensor.sizes[d];
      } else {
        merged.push_back(tensor.sizes[d]);
      }
    }
    const Labels labels = view_labels(tensor.labels, tensor.sizes, merged);
    tensor.expect_true(labels, merged, tensor.truth, true);
    tensor.expect_true(view_labels(labels, merged, tensor.sizes), tensor.sizes, tensor.truth, true);
  }
}

TEST(Labels, SlicesAreTrueAndSingleFactorsStay) {
  const uint32_t seed = std::random_device{}();
  SCOPED_TRACE("seed " + std::to_string(seed));
  RandomLayouts random(seed);
  for (int i = 0; i < 3000; ++i) {
    const Tracked tensor = random_tracked(random);
    const int64_t dim = random.number(0, static_cast<int64_t>(tensor.sizes.size()) - 1);
    const int64_t start = random.number(0, tensor.sizes[dim] - 1);
    const int64_t step = random.number(1, 7);
    const int64_t length = random.number(0, (tensor.sizes[dim] - start + step - 1) / step);
    const Labels labels = slice_labels(tensor.labels, tensor.sizes, dim, start, length, step);
    Sizes sizes = tensor.sizes;
    sizes[dim] = length;
    std::vector<Claim> kept;
    for (int64_t e = 0; e < product(tensor.sizes); ++e) {
      const int64_t at = index_of(e, tensor.sizes)[dim] - start;
      if (at >= 0 && at % step == 0 && at / step < length) {
        kept.push_back(tensor.truth[e]);
      }
    }
    ASSERT_EQ(static_cast<int64_t>(kept.size()), product(sizes));
    const bool is_single = tensor.labels.empty() || tensor.labels[dim].size() <= 1;
    tensor.expect_true(labels, sizes, kept, is_single && length > 0);
  }
}

TEST(Labels, PermutationsAreTrue) {
  const uint32_t seed = std::random_device{}();
  SCOPED_TRACE("seed " + std::to_string(seed));
  RandomLayouts random(seed);
  for (int i = 0; i < 500; ++i) {
    const Tracked tensor = random_tracked(random);
    const auto order = random.permutation(static_cast<int64_t>(tensor.sizes.size()));
    Sizes sizes;
    for (int64_t d : order) {
      sizes.push_back(tensor.sizes[d]);
    }
    std::vector<Claim> moved;
    for (int64_t e = 0; e < product(sizes); ++e) {
      const Sizes index = index_of(e, sizes);
      int64_t source = 0;
      for (size_t d = 0; d < sizes.size(); ++d) {
        const size_t at = std::find(order.begin(), order.end(), static_cast<int64_t>(d)) - order.begin();
        source = source * tensor.sizes[d] + index[at];
      }
      moved.push_back(tensor.truth[source]);
    }
    tensor.expect_true(permute_labels(tensor.labels, order), sizes, moved, true);
  }
}

TEST(Labels, FollowATransformer) {
  const Labels ids{{batch(2)}, {sequence(16)}};
  const Labels rows = view_labels({{batch(2)}, {sequence(16)}, {}}, {2, 16, 8}, {32, 8});
  EXPECT_EQ(str(rows), "[b2*s16, -]");
  EXPECT_EQ(str(view_labels(rows, {32, 8}, {2, 16, 2, 4})), "[b2, s16, -, -]");
  EXPECT_EQ(str(permute_labels(view_labels(rows, {32, 8}, {2, 16, 2, 4}), {0, 2, 1, 3})), "[b2, -, s16, -]");
  EXPECT_EQ(str(slice_labels(ids, {2, 16}, 1, 1, 15, 1)), "[b2, s15@1/16]");
  EXPECT_EQ(str(slice_labels(rows, {32, 8}, 0, 15, 2, 16)), "[b2*s1@15/16, -]");
  EXPECT_EQ(str(slice_labels(rows, {32, 8}, 0, 16, 16, 1)), "[b1@1/2*s16, -]");
  EXPECT_EQ(str(slice_labels(rows, {32, 8}, 0, 8, 16, 1)), "[]");
  EXPECT_EQ(batch_dim(rows), 0);
  EXPECT_EQ(batch_dim(permute_labels(ids, {1, 0})), 1);
  EXPECT_EQ(batch_dim({}), std::nullopt);
}

TEST(Labels, OneSampleIsStillABatch) {
  const Labels one{{batch(1)}, {sequence(16)}, {}};
  EXPECT_EQ(str(view_labels(one, {1, 16, 8}, {16, 8})), "[b1*s16, -]");
  EXPECT_EQ(str(view_labels(view_labels(one, {1, 16, 8}, {16, 8}), {16, 8}, {1, 16, 8})), "[b1, s16, -]");
  EXPECT_EQ(str(view_labels({{batch(1)}, {sequence(1)}}, {1, 1}, {1})), "[b1*s1]");
  EXPECT_EQ(str(view_labels({{sequence(4)}, {batch(1)}}, {4, 1}, {4})), "[s4*b1]");
}

TEST(Labels, SplitsAndUnevenSplits) {
  const Labels split = view_labels({{sequence(16)}}, {16}, {4, 4});
  EXPECT_EQ(str(split), "[s4/16;4, s4/16]");
  EXPECT_EQ(str(view_labels(split, {4, 4}, {2, 8})), "[s2/16;8, s8/16]");
  EXPECT_EQ(str(view_labels(split, {4, 4}, {16})), "[s16]");
  EXPECT_EQ(str(view_labels({{sequence(4)}, {}}, {4, 3}, {3, 4})), "[]");
  // Only the dims that the uneven cut concerns lose their labels.
  EXPECT_EQ(str(view_labels({{batch(5)}, {sequence(4)}, {}, {batch(2)}}, {5, 4, 3, 2}, {5, 3, 4, 2})),
            "[b5, -, -, b2]");
  EXPECT_EQ(str(view_labels({{batch(2)}, {}}, {2, 0}, {0, 2})), "[]");
}

TEST(Labels, Join) {
  EXPECT_EQ(join_labels({}, {batch(4)}), DimLabels{batch(4)});
  EXPECT_EQ(join_labels({batch(4)}, {}), DimLabels{batch(4)});
  const Factor shifted{Label::kSequence, 15, 1, 16, 1};
  EXPECT_EQ(join_labels({sequence(15)}, {shifted}), DimLabels{sequence(15)});
  EXPECT_EQ(join_labels({batch(4)}, {sequence(4)}), DimLabels{});
  EXPECT_EQ(join_labels({batch(4), sequence(2)}, {sequence(8)}), DimLabels{});
  EXPECT_EQ(join_labels({batch(4), none(2)}, {none(4), sequence(2)}), (DimLabels{batch(4), sequence(2)}));
  EXPECT_EQ(join_labels({batch(1), sequence(8)}, {sequence(8)}), (DimLabels{batch(1), sequence(8)}));
}

}  // namespace
}  // namespace tessera::layout::labels_test
