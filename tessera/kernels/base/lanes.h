// Loops over a row in packs, sums over a row in their fixed order.
//
// For the sources of one instruction set alone, after pack_<isa>.h.
// A sum has 16 lanes whatever a register holds: lane j is the chain over elements j, 16 + j, ... from +0; a binary tree
// adds the lanes, and another one adds the leaves of a row that has several.
#pragma once

#include <cstdint>

#include "tessera/kernels/base/tree_sum.h"

namespace tessera::kernels {
namespace {

constexpr int kLanes = 16;

template <typename T>
constexpr int kParts = kLanes / kWidth<T>;  // registers that hold the lanes

// How loops read and write a pack: wholly, or its first lanes in the last pack of a row. The lanes after them read as
// zero.
template <typename T>
struct Whole {
  static Pack<T> load(const T* from) { return kernels::load<T>(from); }
  static void store(T* to, Pack<T> value) { kernels::store<T>(to, value); }
};
template <typename T>
struct First {
  int64_t count;

  Pack<T> load(const T* from) const { return load_first(from, count, Pack<T>{}); }
  void store(T* to, Pack<T> value) const { store_first(to, value, count); }
};

// step(at, access) for the packs of n elements in order.
template <typename T, typename Step>
inline void for_each_pack(int64_t n, const Step& step) {
  int64_t at = 0;
#pragma GCC unroll 2
  for (; at + kWidth<T> <= n; at += kWidth<T>) {
    step(at, Whole<T>{});
  }
  if (at < n) {
    step(at, First<T>{n - at});
  }
}

// A running value for each of the 16 lanes.
template <typename T>
struct Lanes {
  Pack<T> part[kParts<T>] = {};
};

// lane = step(lane, at, access) along n elements, for each lane of each of `kRows` rows side by side: step(row, lane,
// at, access).
template <typename T, int kRows, typename Step>
inline void run_lanes(int64_t n, Lanes<T> (&rows)[kRows], const Step& step) {
  int64_t at = 0;
  for (; at + kLanes <= n; at += kLanes) {
#pragma GCC unroll 16
    for (int p = 0; p < kParts<T>; ++p) {
#pragma GCC unroll 8
      for (int r = 0; r < kRows; ++r) {
        rows[r].part[p] = step(r, rows[r].part[p], at + p * kWidth<T>, Whole<T>{});
      }
    }
  }
#pragma GCC unroll 16
  for (int p = 0; p < kParts<T>; ++p, at += kWidth<T>) {
    if (at >= n) {
      continue;
    }
    const First<T> first{n - at < kWidth<T> ? n - at : kWidth<T>};
#pragma GCC unroll 8
    for (int r = 0; r < kRows; ++r) {
      const Pack<T> lane = rows[r].part[p];
      rows[r].part[p] = keep_first(first.count, step(r, lane, at, first), lane);
    }
  }
}

template <int kDistance>
inline Pack<float> exchanged(Pack<float> value) {
  Bits<float> lanes;
  for (int j = 0; j < kWidth<float>; ++j) {
    lanes[j] = j ^ kDistance;
  }
  return __builtin_shuffle(value, lanes);
}
template <int kDistance>
inline Pack<double> exchanged(Pack<double> value) {
  Bits<double> lanes;
  for (int j = 0; j < kWidth<double>; ++j) {
    lanes[j] = j ^ kDistance;
  }
  return __builtin_shuffle(value, lanes);
}

// The root of combine(left, right) over the 16 lanes: neighbours first. `combine` must be commutative.
template <typename T, typename Combine>
inline T combine_lanes(const Lanes<T>& lanes, const Combine& combine) {
  Pack<T> parts[kParts<T>];
#pragma GCC unroll 16
  for (int p = 0; p < kParts<T>; ++p) {
    Pack<T> value = lanes.part[p];
    if constexpr (kWidth<T> > 1) {
      value = combine(value, exchanged<1>(value));
    }
    if constexpr (kWidth<T> > 2) {
      value = combine(value, exchanged<2>(value));
    }
    if constexpr (kWidth<T> > 4) {
      value = combine(value, exchanged<4>(value));
    }
    if constexpr (kWidth<T> > 8) {
      value = combine(value, exchanged<8>(value));
    }
    parts[p] = value;
  }
#pragma GCC unroll 4
  for (int step = 1; step < kParts<T>; step *= 2) {
#pragma GCC unroll 16
    for (int p = 0; p + step < kParts<T>; p += 2 * step) {
      parts[p] = combine(parts[p], parts[p + step]);
    }
  }
  return parts[0][0];
}

template <typename T>
inline T add_lanes(const Lanes<T>& lanes) {
  return combine_lanes(lanes, [](Pack<T> a, Pack<T> b) { return a + b; });
}
template <typename T>
inline T max_of_lanes(const Lanes<T>& lanes) {
  return combine_lanes(lanes, [](Pack<T> a, Pack<T> b) { return max(a, b); });
}

// The sums of neighbours: a0 + a1, a2 + a3, ... and on with those of b.
inline Pack<float> add_neighbours(Pack<float> a, Pack<float> b) {
  Bits<float> even;
  for (int j = 0; j < kWidth<float>; ++j) {
    even[j] = 2 * j;
  }
  return __builtin_shuffle(a, b, even) + __builtin_shuffle(a, b, even + 1);
}
inline Pack<double> add_neighbours(Pack<double> a, Pack<double> b) {
  Bits<double> even;
  for (int j = 0; j < kWidth<double>; ++j) {
    even[j] = 2 * j;
  }
  return __builtin_shuffle(a, b, even) + __builtin_shuffle(a, b, even + 1);
}

// kLevels levels of the trees that lie one after the other in the packs; fills the first pack at least.
template <typename T, int kLevels, int kPacks>
inline Pack<T> add_levels(const Pack<T> (&packs)[kPacks]) {
  if constexpr (kLevels == 0) {
    static_assert(kPacks == 1);
    return packs[0];
  } else {
    Pack<T> next[kPacks > 1 ? kPacks / 2 : 1];
#pragma GCC unroll 32
    for (int i = 0; i < (kPacks > 1 ? kPacks / 2 : 1); ++i) {
      next[i] = add_neighbours(packs[2 * i], packs[kPacks > 1 ? 2 * i + 1 : 0]);
    }
    return add_levels<T, kLevels - 1>(next);
  }
}

// Four sums side by side.
template <typename T>
struct Four {
  T at[4];

  friend Four operator+(Four a, const Four& b) {
    for (int i = 0; i < 4; ++i) {
      a.at[i] += b.at[i];
    }
    return a;
  }
};

// add_lanes of each, the trees side by side.
template <typename T>
inline Four<T> add_four(const Lanes<T> (&lanes)[4]) {
  Pack<T> packs[4 * kParts<T>];
#pragma GCC unroll 32
  for (int i = 0; i < 4 * kParts<T>; ++i) {
    packs[i] = lanes[i / kParts<T>].part[i % kParts<T>];
  }
  Four<T> sums;
  if constexpr (kWidth<T> >= 4) {
    const Pack<T> roots = add_levels<T, 4>(packs);
    for (int i = 0; i < 4; ++i) {
      sums.at[i] = roots[i];
    }
  } else {  // two values in a pack
    for (int half = 0; half < 2; ++half) {
      Pack<T> two[2 * kParts<T>];
      for (int i = 0; i < 2 * kParts<T>; ++i) {
        two[i] = packs[half * 2 * kParts<T> + i];
      }
      const Pack<T> roots = add_levels<T, 4>(two);
      for (int i = 0; i < 2; ++i) {
        sums.at[2 * half + i] = roots[i];
      }
    }
  }
  return sums;
}

// One sum over n elements: lane = step(lane, at, access).
template <typename T, typename Step>
inline T sum_lanes(int64_t n, const Step& step) {
  Lanes<T> rows[1];
  run_lanes<T>(n, rows, [&](int, Pack<T> lane, int64_t at, auto access) { return step(lane, at, access); });
  return add_lanes(rows[0]);
}

// The tree over the leaves of a row of n elements: sum(begin, end) gives one leaf, of one row or of four.
template <typename Sum>
inline auto sum_leaves(int64_t n, int64_t leaf, const Sum& sum) {
  if (n <= leaf) {
    return sum(int64_t{0}, n);
  }
  TreeSum<decltype(sum(int64_t{0}, n))> tree;
  for (int64_t begin = 0; begin < n; begin += leaf) {
    tree.add(sum(begin, begin + leaf < n ? begin + leaf : n));
  }
  return tree.root();
}

}  // namespace
}  // namespace tessera::kernels
