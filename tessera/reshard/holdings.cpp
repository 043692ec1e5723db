#include "tessera/reshard/holdings.h"

#include <algorithm>

#include "tessera/base/error.h"

namespace tessera::reshard {

int64_t numel(const Box& box) {
  int64_t result = 1;
  for (const Range& range : box) {
    result *= range.size();
  }
  return result;
}

Box intersect(const Box& a, const Box& b) {
  Box result(a.size());
  for (size_t d = 0; d < a.size(); ++d) {
    const int64_t begin = std::max(a[d].begin, b[d].begin);
    result[d] = {begin, std::max(begin, std::min(a[d].end, b[d].end))};
  }
  return result;
}

Holdings::Holdings(const Mesh& mesh, const Placements& placements, c10::IntArrayRef sizes)
    : mesh_(mesh), placements_(layout::normal_form(mesh, placements)), sizes_(sizes.vec()), axes_of_(sizes.size()) {
  TESSERA_CHECK(layout::is_valid(mesh, placements, static_cast<int64_t>(sizes.size())), "[reshard] ",
                layout::str(mesh, placements), " on mesh {", mesh.str(), "} is no layout of a tensor of sizes ", sizes);
  for (size_t d = 0; d < sizes.size(); ++d) {
    axes_of_[d] = layout::axes_of_dim(mesh_, placements_, static_cast<int64_t>(d));
  }
  for (int64_t a = 0; a < mesh_.ndim(); ++a) {
    if (!placements_[a].is_shard()) {
      free_axes_.push_back(a);
    }
  }
}

Holdings::Holdings(const Spec& spec) : Holdings(spec->mesh, spec->placements, spec->sizes) {}

Box Holdings::box_of(int64_t rank) const {
  const auto coord = mesh_.coord_of(rank);
  TESSERA_CHECK(coord, "[reshard] rank ", rank, " is not in mesh {", mesh_.str(), "}");
  Box box(sizes_.size());
  for (size_t d = 0; d < box.size(); ++d) {
    box[d] = {0, sizes_[d]};
    for (int64_t axis : axes_of_[d]) {
      const Range part = placements_[axis].cut(box[d].size(), mesh_.axes()[axis].size)[(*coord)[axis]];
      box[d] = {box[d].begin + part.begin, box[d].begin + part.end};
    }
  }
  return box;
}

void Holdings::for_each_piece(const Box& wanted, const std::function<void(const Coord&, const Box&)>& visit) const {
  if (numel(wanted) == 0) {
    return;
  }
  Coord coord(mesh_.ndim());
  Box overlap(sizes_.size());
  cut_dim(0, 0, sizes_.empty() ? Range{} : Range{0, sizes_[0]}, wanted, coord, overlap, visit);
}

// `held`: what the cuts of `dim` down to `level` leave at `coord`.
void Holdings::cut_dim(size_t dim, size_t level, Range held, const Box& wanted, Coord& coord, Box& overlap,
                       const std::function<void(const Coord&, const Box&)>& visit) const {
  if (dim == sizes_.size()) {
    visit(coord, overlap);
    return;
  }
  const Range common{std::max(held.begin, wanted[dim].begin), std::min(held.end, wanted[dim].end)};
  if (level == axes_of_[dim].size()) {
    overlap[dim] = common;
    const Range next = dim + 1 < sizes_.size() ? Range{0, sizes_[dim + 1]} : Range{};
    cut_dim(dim + 1, 0, next, wanted, coord, overlap, visit);
    return;
  }
  if (common.size() <= 0) {
    return;
  }
  const int64_t axis = axes_of_[dim][level];
  const layout::Cut cut = placements_[axis].cut(held.size(), mesh_.axes()[axis].size);
  const int64_t last = cut.part_of(common.end - held.begin - 1);
  for (int64_t i = cut.part_of(common.begin - held.begin); i <= last; ++i) {
    const Range part = cut[i];
    coord[axis] = i;
    cut_dim(dim, level + 1, {held.begin + part.begin, held.begin + part.end}, wanted, coord, overlap, visit);
  }
  coord[axis] = 0;
}

Exchange::Exchange(Holdings from, Holdings to) : from_(std::move(from)), to_(std::move(to)) {
  TESSERA_CHECK(from_.sizes() == to_.sizes(), "[reshard] an exchange from sizes ", c10::IntArrayRef(from_.sizes()),
                " to sizes ", c10::IntArrayRef(to_.sizes()));
}

// The holder of the piece at `piece` that sends it to `receiver`, which stands at `receiver_at` on the new mesh.
int64_t Exchange::sender(Coord piece, int64_t receiver, const Coord& receiver_at) const {
  if (const auto own = from_.mesh().coord_of(receiver)) {
    for (int64_t axis : from_.free_axes()) {
      piece[axis] = (*own)[axis];
    }
    return from_.mesh().rank_at(piece);
  }
  int64_t turn = 0;
  for (int64_t a = 0; a < to_.mesh().ndim(); ++a) {
    turn = turn * to_.mesh().axes()[a].size + receiver_at[a];
  }
  for (size_t i = from_.free_axes().size(); i-- > 0;) {
    const int64_t axis = from_.free_axes()[i];
    piece[axis] = turn % from_.mesh().axes()[axis].size;
    turn /= from_.mesh().axes()[axis].size;
  }
  return from_.mesh().rank_at(piece);
}

std::vector<Transfer> Exchange::receives_of(int64_t rank) const {
  std::vector<Transfer> result;
  if (const auto at = to_.mesh().coord_of(rank)) {
    from_.for_each_piece(to_.box_of(rank), [&](const Coord& piece, const Box& overlap) {
      result.push_back({sender(piece, rank, *at), rank, overlap});
    });
  }
  return result;
}

std::vector<Transfer> Exchange::sends_of(int64_t rank) const {
  std::vector<Transfer> result;
  const auto own = from_.mesh().coord_of(rank);
  if (!own) {
    return result;
  }
  const std::vector<int64_t>& free = to_.free_axes();
  to_.for_each_piece(from_.box_of(rank), [&](const Coord& piece, const Box& overlap) {
    Coord at = piece;
    size_t moved = 0;
    do {
      const int64_t receiver = to_.mesh().rank_at(at);
      if (sender(*own, receiver, at) == rank) {
        result.push_back({rank, receiver, overlap});
      }
      // The next replica, counting over the free axes.
      for (moved = free.size(); moved > 0; --moved) {
        const int64_t axis = free[moved - 1];
        if (++at[axis] < to_.mesh().axes()[axis].size) {
          break;
        }
        at[axis] = 0;
      }
    } while (moved > 0);
  });
  return result;
}

RankTransfers Exchange::transfers_of(int64_t rank) const {
  RankTransfers result{sends_of(rank), receives_of(rank)};
  std::sort(result.sends.begin(), result.sends.end(), [](const Transfer& a, const Transfer& b) { return a.to < b.to; });
  std::sort(result.receives.begin(), result.receives.end(),
            [](const Transfer& a, const Transfer& b) { return a.from < b.from; });
  return result;
}

std::vector<Transfer> Exchange::all() const {
  std::vector<Transfer> result;
  for (int64_t rank : to_.mesh().ranks()) {
    const auto received = receives_of(rank);
    result.insert(result.end(), received.begin(), received.end());
  }
  return result;
}

int64_t Exchange::moved() const {
  int64_t result = 0;
  for (int64_t rank : to_.mesh().ranks()) {
    const Box box = to_.box_of(rank);
    const bool is_holder = from_.mesh().coord_of(rank).has_value();
    result += numel(box) - (is_holder ? numel(intersect(box, from_.box_of(rank))) : 0);
  }
  return result;
}

bool Exchange::is_identity() const {
  const auto holds_same = [&](int64_t rank) {
    return from_.mesh().coord_of(rank) && from_.box_of(rank) == to_.box_of(rank);
  };
  const auto& ranks = to_.mesh().ranks();
  return from_.mesh().size() == to_.mesh().size() && std::all_of(ranks.begin(), ranks.end(), holds_same);
}

}  // namespace tessera::reshard
