// Random regions for the tests of `random`, and their elements one by one.
#pragma once

#include <cstdint>
#include <random>
#include <vector>

#include "tessera/random/region.h"

namespace tessera::random::test {

// One held element: its place in the global tensor, its sample and its number in the sample.
struct Element {
  int64_t global = 0;
  int64_t sample = 0;
  int64_t element = 0;
};

inline int64_t pick(std::mt19937& generator, int64_t from, int64_t to) {
  return std::uniform_int_distribution<int64_t>(from, to)(generator);
}

// A random tensor shape with, half of the time, a batch factor somewhere in one dim; everything held.
inline Region random_whole(std::mt19937& generator) {
  std::vector<int64_t> sizes(static_cast<size_t>(pick(generator, 0, 4)));
  for (int64_t& size : sizes) {
    size = pick(generator, 1, 7);
  }
  const auto dims = static_cast<int64_t>(sizes.size());
  int64_t dim = -1, extent = 0, inner = 1;
  if (dims > 0 && pick(generator, 0, 1) == 1) {
    dim = pick(generator, 0, dims - 1);
    extent = pick(generator, 1, 4);
    inner = pick(generator, 1, 4);
    sizes[dim] = pick(generator, 1, 3) * extent * inner;
  }
  Region region = whole_region(sizes);
  region.batch_dim = dim;
  region.batch_extent = extent;
  region.batch_inner = inner;
  region.batch_offset = dim < 0 ? 0 : pick(generator, 0, 9);
  return region;
}

// The same tensor, of which each dim is held in up to three random ranges; some hold nothing.
inline Region random_cut(std::mt19937& generator, Region region) {
  for (size_t dim = 0; dim < region.sizes.size(); ++dim) {
    const int64_t kind = pick(generator, 0, 9);
    if (kind < 3) {
      continue;
    }
    region.held[dim].clear();
    for (int64_t ranges = kind == 3 ? 0 : pick(generator, 1, 3); ranges > 0; --ranges) {
      const int64_t begin = pick(generator, 0, region.sizes[dim]);
      region.held[dim].push_back({begin, pick(generator, begin, region.sizes[dim])});
    }
  }
  return region;
}

// The held elements in local row-major order, by divisions alone.
inline std::vector<Element> elements_of(const Region& region) {
  std::vector<Element> elements = {{}};
  for (size_t dim = 0; dim < region.sizes.size(); ++dim) {
    const int64_t size = region.sizes[dim];
    const bool has_samples = static_cast<int64_t>(dim) == region.batch_dim;
    const int64_t inner = region.batch_inner;
    const int64_t samples = region.batch_extent > 0 ? region.batch_extent : size / inner;
    std::vector<Element> longer;
    for (const Element& e : elements) {
      for (const Range& range : region.held[dim]) {
        for (int64_t i = range.begin; i < range.end; ++i) {
          Element next{e.global * size + i, e.sample, e.element * size + i};
          if (has_samples) {
            next.sample = region.batch_offset + (i / inner) % samples;
            next.element = e.element * (size / samples) + i / (inner * samples) * inner + i % inner;
          }
          longer.push_back(next);
        }
      }
    }
    elements = std::move(longer);
  }
  return elements;
}

}  // namespace tessera::random::test
