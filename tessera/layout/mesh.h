// Named axes over ranks.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

namespace tessera::layout {

// One axis of a mesh.
struct Axis {
  std::string name;
  int64_t size = 1;
  bool operator==(const Axis&) const = default;
};

// A position on a mesh: one coordinate for each axis.
using Coord = std::vector<int64_t>;

// A grid of ranks with named axes, the last axis varying fastest.
//
// A value: immutable, compared by value (equal meshes share one interned record, so that comparing is comparing a
// pointer), printable and parsable as `dp=2,tp=4`. Thread-safe. Two meshes may view the same ranks in different ways.
class Mesh {
 public:
  // The mesh of one rank, with no axes.
  Mesh();

  // Ranks 0..n-1 in order, n the product of the sizes. Throws ConfigError if a name is repeated or is not made of
  // letters, digits and _ (a digit not first), a size is below one, or n above 2^24.
  explicit Mesh(const std::vector<Axis>& axes);

  // The given ranks, row-major over the axes. Throws if their number is not the product of the sizes or one is
  // repeated.
  Mesh(std::vector<Axis> axes, std::vector<int64_t> ranks);

  // From `dp=2,tp=4` (or `1` for the mesh of one). Throws ConfigError with the accepted form.
  static Mesh parse(std::string_view text);

  int64_t ndim() const;
  int64_t size() const;
  const std::vector<Axis>& axes() const;
  const Axis& axis(int64_t index) const;

  // Index of the axis called `name`; `axis_index` throws with the names that exist.
  std::optional<int64_t> find_axis(std::string_view name) const;
  int64_t axis_index(std::string_view name) const;

  // Ranks, row-major over the axes.
  const std::vector<int64_t>& ranks() const;
  int64_t rank_at(const Coord& coord) const;

  // Position of `rank`, or nothing if the mesh does not contain it.
  std::optional<Coord> coord_of(int64_t rank) const;

  // The ranks that differ from `coord` along `axis` only, in order of that axis.
  std::vector<int64_t> line(int64_t axis, const Coord& coord) const;

  // The mesh of the named axes, in the order named, that passes through `rank`.
  Mesh submesh(const std::vector<std::string>& axes, int64_t rank) const;

  // The named axes merged into one called `name`, first named slowest, standing where the first named stood.
  Mesh flatten(const std::vector<std::string>& axes, const std::string& name) const;

  // `dp=2,tp=4`; `1` for the mesh of one. The axes only: which ranks they hold is not printed.
  std::string str() const;

  bool operator==(const Mesh& other) const { return data_ == other.data_; }

  // Identity of the interned record: equal exactly for equal meshes, stable for the life of the process.
  const void* id() const { return data_; }

  // A hash of the content: the same in every process.
  uint64_t hash() const;

 private:
  struct Data;
  const Data* data_;
};

}  // namespace tessera::layout
