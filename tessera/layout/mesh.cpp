#include "tessera/layout/mesh.h"

#include <algorithm>
#include <numeric>
#include <unordered_map>
#include <unordered_set>

#include "tessera/base/error.h"
#include "tessera/base/hash.h"
#include "tessera/base/text.h"
#include "tessera/layout/intern.h"

namespace tessera::layout {

struct Mesh::Data {
  std::vector<Axis> axes;
  std::vector<int64_t> ranks;
  std::vector<int64_t> strides;                    // of each axis, in positions of `ranks`
  std::unordered_map<int64_t, int64_t> positions;  // of each rank; empty when rank i stands at position i
  uint64_t hash = 0;
};

namespace {

constexpr int64_t kMostRanks = int64_t{1} << 24;

bool is_name(const std::string& name) {
  const auto is_letter = [](char c) { return (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || c == '_'; };
  return !name.empty() && is_letter(name[0]) &&
         std::all_of(name.begin(), name.end(), [&](char c) { return is_letter(c) || (c >= '0' && c <= '9'); });
}

int64_t product(const std::vector<Axis>& axes) {
  int64_t result = 1;
  for (const Axis& axis : axes) {
    TESSERA_CHECK_AS(ConfigError, axis.size >= 1, "[mesh] axis ", axis.name, "=", axis.size,
                     "; accepted: sizes of at least 1");
    TESSERA_CHECK_AS(ConfigError, axis.size <= kMostRanks / result, "[mesh] more than ", kMostRanks,
                     " ranks, with axis ", axis.name, "=", axis.size, "; accepted: sizes whose product is smaller");
    result *= axis.size;
  }
  return result;
}

std::vector<int64_t> iota(int64_t count) {
  std::vector<int64_t> result(count);
  std::iota(result.begin(), result.end(), 0);
  return result;
}

std::vector<std::string> names_of(const std::vector<Axis>& axes) {
  std::vector<std::string> names;
  for (const Axis& axis : axes) {
    names.push_back(axis.name);
  }
  return names;
}

void verify_axes(const std::vector<Axis>& axes, const std::vector<int64_t>& ranks) {
  std::unordered_set<std::string> names;
  for (const Axis& axis : axes) {
    TESSERA_CHECK_AS(ConfigError, is_name(axis.name), "[mesh] \"", axis.name,
                     "\" cannot name an axis; accepted: letters, digits and _, not beginning with a digit");
    TESSERA_CHECK_AS(ConfigError, names.insert(axis.name).second, "[mesh] the axis ", axis.name,
                     " is named twice; accepted: distinct names, as in dp=2,tp=4");
  }
  const int64_t size = product(axes);
  TESSERA_CHECK(size == static_cast<int64_t>(ranks.size()), "[mesh] the axes hold ", size, " ranks, but ", ranks.size(),
                " are given");
  std::unordered_set<int64_t> seen;
  for (int64_t rank : ranks) {
    TESSERA_CHECK(rank >= 0, "[mesh] rank ", rank, " is negative");
    TESSERA_CHECK(seen.insert(rank).second, "[mesh] rank ", rank, " is given twice");
  }
}

uint64_t hash_of(const std::vector<Axis>& axes, const std::vector<int64_t>& ranks) {
  uint64_t hash = 0;
  for (const Axis& axis : axes) {
    hash = base::hash_combine(base::hash_string(axis.name, hash), static_cast<uint64_t>(axis.size));
  }
  return base::hash_range(ranks, hash);
}

}  // namespace

Mesh::Mesh() : Mesh(std::vector<Axis>{}) {}

Mesh::Mesh(const std::vector<Axis>& axes) : Mesh(axes, iota(product(axes))) {}

Mesh::Mesh(std::vector<Axis> axes, std::vector<int64_t> ranks) {
  static auto& table = *new detail::InternTable<Data>;
  const uint64_t hash = hash_of(axes, ranks);
  const auto equals = [&](const Data& data) { return data.axes == axes && data.ranks == ranks; };
  data_ = table.find_or_make(hash, equals, [&] {
    verify_axes(axes, ranks);
    Data data;
    data.hash = hash;
    data.strides.resize(axes.size());
    int64_t stride = 1;
    for (size_t i = axes.size(); i-- > 0;) {
      data.strides[i] = stride;
      stride *= axes[i].size;
    }
    if (ranks != iota(stride)) {
      for (int64_t i = 0; i < stride; ++i) {
        data.positions.emplace(ranks[i], i);
      }
    }
    data.axes = std::move(axes);
    data.ranks = std::move(ranks);
    return data;
  });
}

int64_t Mesh::ndim() const { return static_cast<int64_t>(data_->axes.size()); }

int64_t Mesh::size() const { return static_cast<int64_t>(data_->ranks.size()); }

const std::vector<Axis>& Mesh::axes() const { return data_->axes; }

const Axis& Mesh::axis(int64_t index) const {
  TESSERA_CHECK(index >= 0 && index < ndim(), "[mesh] no axis ", index, " in mesh {", str(), "}");
  return data_->axes[index];
}

std::optional<int64_t> Mesh::find_axis(std::string_view name) const {
  for (int64_t i = 0; i < ndim(); ++i) {
    if (data_->axes[i].name == name) {
      return i;
    }
  }
  return std::nullopt;
}

int64_t Mesh::axis_index(std::string_view name) const {
  const auto index = find_axis(name);
  TESSERA_CHECK(index, "[mesh] no axis \"", name, "\" in mesh {", str(), "}",
                base::did_you_mean(name, names_of(axes())));
  return *index;
}

const std::vector<int64_t>& Mesh::ranks() const { return data_->ranks; }

uint64_t Mesh::hash() const { return data_->hash; }

int64_t Mesh::rank_at(const Coord& coord) const {
  TESSERA_CHECK(static_cast<int64_t>(coord.size()) == ndim(), "[mesh] a coordinate of ", coord.size(),
                " numbers on mesh {", str(), "}");
  int64_t position = 0;
  for (int64_t i = 0; i < ndim(); ++i) {
    TESSERA_CHECK(coord[i] >= 0 && coord[i] < data_->axes[i].size, "[mesh] coordinate ", coord[i], " on axis ",
                  data_->axes[i].name, " of mesh {", str(), "}");
    position += coord[i] * data_->strides[i];
  }
  return data_->ranks[position];
}

std::optional<Coord> Mesh::coord_of(int64_t rank) const {
  int64_t position = rank;
  if (!data_->positions.empty()) {
    const auto found = data_->positions.find(rank);
    position = found == data_->positions.end() ? -1 : found->second;
  }
  if (position < 0 || position >= size()) {
    return std::nullopt;
  }
  Coord coord(ndim());
  for (int64_t i = 0; i < ndim(); ++i) {
    coord[i] = position / data_->strides[i] % data_->axes[i].size;
  }
  return coord;
}

std::vector<int64_t> Mesh::line(int64_t axis, const Coord& coord) const {
  std::vector<int64_t> result(this->axis(axis).size);
  Coord at = coord;
  for (size_t i = 0; i < result.size(); ++i) {
    at[axis] = static_cast<int64_t>(i);
    result[i] = rank_at(at);
  }
  return result;
}

Mesh Mesh::submesh(const std::vector<std::string>& axes, int64_t rank) const {
  const auto coord = coord_of(rank);
  TESSERA_CHECK(coord, "[mesh] submesh through rank ", rank, ", which mesh {", str(), "} does not contain");
  std::vector<Axis> kept;
  std::vector<int64_t> indices;
  for (const std::string& name : axes) {
    const int64_t index = axis_index(name);
    TESSERA_CHECK(std::find(indices.begin(), indices.end(), index) == indices.end(), "[mesh] axis ", name, " of mesh {",
                  str(), "} is named twice: ", base::join(axes, ", "));
    indices.push_back(index);
    kept.push_back(axis(indices.back()));
  }
  int64_t corner = 0;
  for (int64_t i = 0; i < ndim(); ++i) {
    const bool moves = std::find(indices.begin(), indices.end(), i) != indices.end();
    corner += moves ? 0 : (*coord)[i] * data_->strides[i];
  }
  std::vector<int64_t> positions{corner};
  for (int64_t index : indices) {
    std::vector<int64_t> next;
    for (int64_t position : positions) {
      for (int64_t i = 0; i < axis(index).size; ++i) {
        next.push_back(position + i * data_->strides[index]);
      }
    }
    positions = std::move(next);
  }
  for (int64_t& position : positions) {
    position = data_->ranks[position];
  }
  return Mesh(std::move(kept), std::move(positions));
}

Mesh Mesh::flatten(const std::vector<std::string>& axes, const std::string& name) const {
  TESSERA_CHECK(!axes.empty(), "[mesh] flatten of no axes of mesh {", str(), "} into \"", name, "\"");
  const int64_t first = axis_index(axes[0]);
  int64_t merged = 1;
  for (const std::string& axis : axes) {
    merged *= this->axis(axis_index(axis)).size;
  }
  std::vector<std::string> order;
  std::vector<Axis> flat;
  for (int64_t i = 0; i < ndim(); ++i) {
    if (i == first) {
      order.insert(order.end(), axes.begin(), axes.end());
      flat.push_back({name, merged});
    } else if (std::find(axes.begin(), axes.end(), axis(i).name) == axes.end()) {
      order.push_back(axis(i).name);
      flat.push_back(axis(i));
    }
  }
  const Mesh reordered = submesh(order, ranks()[0]);
  return Mesh(std::move(flat), reordered.ranks());
}

}  // namespace tessera::layout
