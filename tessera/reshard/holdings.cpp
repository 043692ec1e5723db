#include "tessera/reshard/holdings.h"

#include <algorithm>
#include <set>

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

namespace {

// Whether `a` begins before `b`, in index order.
bool is_before(const Box& a, const Box& b) {
  return std::lexicographical_compare(a.begin(), a.end(), b.begin(), b.end(),
                                      [](const Range& x, const Range& y) { return x.begin < y.begin; });
}

// Appends the boxes of the dims from `dim` on, behind what is fixed of the dims before.
void append_runs(const Box& box, size_t dim, int64_t begin, int64_t end, Box& fixed, std::vector<Box>& all) {
  if (begin >= end) {
    return;
  }
  if (dim == box.size()) {
    all.push_back(fixed);
    return;
  }
  int64_t inner = 1;
  for (size_t d = dim + 1; d < box.size(); ++d) {
    inner *= box[d].size();
  }
  const int64_t first = begin / inner, last = (end - 1) / inner;  // rows of this dim
  const auto row = [&](int64_t index, int64_t from, int64_t to) {
    fixed.push_back({box[dim].begin + index, box[dim].begin + index + 1});
    append_runs(box, dim + 1, from, to, fixed, all);
    fixed.pop_back();
  };
  if (first == last && !(begin % inner == 0 && end - begin == inner)) {
    return row(first, begin - first * inner, end - first * inner);
  }
  const int64_t whole_from = begin % inner == 0 ? first : first + 1, whole_to = end % inner == 0 ? last + 1 : last;
  if (whole_from > first) {
    row(first, begin - first * inner, inner);
  }
  if (whole_from < whole_to) {
    Box rows = fixed;
    rows.push_back({box[dim].begin + whole_from, box[dim].begin + whole_to});
    rows.insert(rows.end(), box.begin() + static_cast<int64_t>(dim) + 1, box.end());
    all.push_back(std::move(rows));
  }
  if (whole_to <= last) {
    row(last, 0, end - last * inner);
  }
}

// How many coordinates there are along `axes`.
int64_t points(const Mesh& mesh, const std::vector<int64_t>& axes) {
  int64_t result = 1;
  for (int64_t axis : axes) {
    result *= mesh.axes()[axis].size;
  }
  return result;
}

// The next coordinate along `axes`, the last fastest; after the last one the first again, and false.
bool advance(Coord& at, const Mesh& mesh, const std::vector<int64_t>& axes) {
  for (size_t i = axes.size(); i-- > 0;) {
    if (++at[axes[i]] < mesh.axes()[axes[i]].size) {
      return true;
    }
    at[axes[i]] = 0;
  }
  return false;
}

}  // namespace

std::vector<Box> boxes_of_range(const Box& box, int64_t begin, int64_t end) {
  std::vector<Box> all;
  Box fixed;
  append_runs(box, 0, begin, end, fixed, all);
  return all;
}

Holdings::Holdings(const Mesh& mesh, const Placements& placements, c10::IntArrayRef sizes)
    : mesh_(mesh), placements_(layout::normal_form(mesh, placements)), sizes_(sizes.vec()), axes_of_(sizes.size()) {
  TESSERA_CHECK(layout::is_layout_of(mesh, placements, sizes), "[reshard] ", layout::str(mesh, placements),
                " on mesh {", mesh.str(), "} is no layout of a tensor of sizes ", sizes);
  form_ = layout::BoxForm::of(placements_, static_cast<int64_t>(sizes.size()));
  runs_ = layout::sizes_in_runs(sizes, form_.last_spanned);
  for (size_t d = 0; d < sizes.size(); ++d) {
    runs_[d] /= form_.blocks[d];
    axes_of_[d] = layout::axes_of_dim(mesh_, placements_, static_cast<int64_t>(d));
  }
  for (int64_t a = 0; a < mesh_.ndim(); ++a) {
    if (!placements_[a].is_shard()) {
      free_axes_.push_back(a);
    }
  }
}

Holdings::Holdings(const Spec& spec) : Holdings(spec->mesh, spec->placements, spec->sizes) {}

Holdings Holdings::of_holders(const Spec& spec) {
  if (spec->is_everywhere) {
    return Holdings(spec);
  }
  std::vector<std::string> axes;
  Placements placements;
  Coord corner(spec->mesh.ndim());
  for (int64_t a = 0; a < spec->mesh.ndim(); ++a) {
    if (spec->placements[a].is_on()) {
      corner[a] = spec->placements[a].coordinate();
    } else {
      axes.push_back(spec->mesh.axis(a).name);
      placements.push_back(spec->placements[a]);
    }
  }
  return Holdings(spec->mesh.submesh(axes, spec->mesh.rank_at(corner)), placements, spec->sizes);
}

Coord Holdings::coord_of(int64_t rank) const {
  const auto coord = mesh_.coord_of(rank);
  TESSERA_CHECK(coord, "[reshard] rank ", rank, " is not in mesh {", mesh_.str(), "}");
  return *coord;
}

Box Holdings::runs_at(const Coord& coord) const {
  Box box(sizes_.size());
  for (size_t d = 0; d < box.size(); ++d) {
    box[d] = {0, runs_[d]};
    for (int64_t axis : axes_of_[d]) {
      const Range part = placements_[axis].cut(box[d].size(), mesh_.axes()[axis].size)[coord[axis]];
      box[d] = {box[d].begin + part.begin, box[d].begin + part.end};
    }
  }
  return box;
}

Box Holdings::box_of(int64_t rank) const {
  TESSERA_CHECK(form_.is_plain(), "[reshard] the one box that a rank holds of ", layout::str(mesh_, placements_),
                "; accepted: cuts that are not interleaved, of one dim each");
  return runs_at(coord_of(rank));
}

std::vector<Box> Holdings::boxes_of(int64_t rank) const { return boxes_at(coord_of(rank)); }

std::vector<Box> Holdings::boxes_at(const Coord& coord) const {
  const Box runs = runs_at(coord);
  std::vector<Box> boxes = {{}};
  size_t dim = 0;
  if (form_.last_spanned > 0) {
    const auto spanned = static_cast<size_t>(form_.last_spanned);
    Box together;
    for (; dim <= spanned; ++dim) {
      together.push_back({0, sizes_[dim]});
    }
    boxes = boxes_of_range(together, runs[spanned].begin, runs[spanned].end);
    if (boxes.empty()) {
      boxes = {Box(dim)};
    }
  }
  for (; dim < sizes_.size(); ++dim) {
    std::vector<Box> all;
    for (const Box& box : boxes) {
      for (const Range& run : layout::in_blocks(runs[dim], sizes_[dim], form_.blocks[dim])) {
        all.push_back(box);
        all.back().push_back(run);
      }
    }
    boxes = std::move(all);
  }
  return boxes;
}

void Holdings::for_each_piece(const Box& wanted, const std::function<void(const Coord&, const Box&)>& visit) const {
  if (numel(wanted) == 0) {
    return;
  }
  if (form_.last_spanned > 0) {
    return for_each_part([&](const Coord& coord, const Box& box) {
      if (const Box overlap = intersect(box, wanted); numel(overlap) > 0) {
        visit(coord, overlap);
      }
    });
  }
  Coord coord(mesh_.ndim());
  Box overlap(sizes_.size());
  visit_dim(0, wanted, coord, overlap, visit);
}

// The boxes at every coordinate along the axes that cut.
void Holdings::for_each_part(const std::function<void(const Coord&, const Box&)>& visit) const {
  std::vector<int64_t> cut_axes;
  for (const std::vector<int64_t>& axes : axes_of_) {
    cut_axes.insert(cut_axes.end(), axes.begin(), axes.end());
  }
  Coord coord(mesh_.ndim());
  do {
    for (const Box& box : boxes_at(coord)) {
      visit(coord, box);
    }
  } while (advance(coord, mesh_, cut_axes));
}

std::vector<Box> Holdings::cells_of(int64_t rank) const { return cells_in(boxes_of(rank)); }

std::vector<Box> Holdings::cells_in(const std::vector<Box>& boxes) const {
  if (form_.last_spanned == 0) {
    return boxes;
  }
  std::vector<std::set<int64_t>> cuts(sizes_.size());
  for_each_part([&](const Coord&, const Box& box) {
    for (size_t d = 0; d < cuts.size() && numel(box) > 0; ++d) {
      cuts[d].insert({box[d].begin, box[d].end});
    }
  });
  std::vector<Box> cells;
  for (const Box& box : boxes) {
    std::vector<Box> begun = {{}};
    for (size_t d = 0; d < cuts.size(); ++d) {
      std::vector<Box> all;
      for (const Box& cell : begun) {
        int64_t begin = box[d].begin;
        for (auto cut = cuts[d].upper_bound(begin); begin < box[d].end; ++cut) {
          all.push_back(cell);
          all.back().push_back({begin, *cut});
          begin = *cut;
        }
      }
      begun = std::move(all);
    }
    cells.insert(cells.end(), begun.begin(), begun.end());
  }
  return cells;
}

void Holdings::visit_dim(size_t dim, const Box& wanted, Coord& coord, Box& overlap,
                         const std::function<void(const Coord&, const Box&)>& visit) const {
  if (dim == sizes_.size()) {
    visit(coord, overlap);
    return;
  }
  const int64_t size = runs_[dim];
  for (int64_t block = wanted[dim].begin / size; block * size < wanted[dim].end; ++block) {
    cut_dim(dim, 0, {block * size, (block + 1) * size}, wanted, coord, overlap, visit);
  }
}

// `held`: what the cuts of `dim` down to `level` leave at `coord`.
void Holdings::cut_dim(size_t dim, size_t level, Range held, const Box& wanted, Coord& coord, Box& overlap,
                       const std::function<void(const Coord&, const Box&)>& visit) const {
  const Range common{std::max(held.begin, wanted[dim].begin), std::min(held.end, wanted[dim].end)};
  if (common.size() <= 0) {
    return;
  }
  if (level == axes_of_[dim].size()) {
    overlap[dim] = common;
    visit_dim(dim + 1, wanted, coord, overlap, visit);
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

int64_t Holdings::copy_in_turn(Coord coord, int64_t turn) const {
  for (size_t i = free_axes_.size(); i-- > 0;) {
    const int64_t size = mesh_.axes()[free_axes_[i]].size;
    coord[free_axes_[i]] = turn % size;
    turn /= size;
  }
  return mesh_.rank_at(coord);
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
  return from_.copy_in_turn(std::move(piece), turn);
}

std::vector<Transfer> Exchange::receives_of(int64_t rank) const {
  std::vector<Transfer> result;
  if (const auto at = to_.mesh().coord_of(rank)) {
    for (const Box& box : to_.boxes_of(rank)) {
      from_.for_each_piece(box, [&](const Coord& piece, const Box& overlap) {
        result.push_back({sender(piece, rank, *at), rank, overlap});
      });
    }
  }
  return result;
}

// Asks every replica of the pieces that a rank holds whether it is their sender.
void Exchange::send_by_piece(int64_t rank, const Coord& own, std::vector<Transfer>& sends) const {
  const auto visit = [&](const Coord& piece, const Box& overlap) {
    Coord at = piece;
    do {
      const int64_t receiver = to_.mesh().rank_at(at);
      if (sender(own, receiver, at) == rank) {
        sends.push_back({rank, receiver, overlap});
      }
    } while (advance(at, to_.mesh(), to_.free_axes()));
  };
  for (const Box& box : from_.boxes_of(rank)) {
    to_.for_each_piece(box, visit);
  }
}

// Looks at the ranks alone that a rank sends to if they lack anything: those that stand where it stands on the axes
// that replicate, and of those outside the old mesh the ones whose turn it is.
void Exchange::send_by_receiver(int64_t rank, const Coord& own, std::vector<Transfer>& sends) const {
  const std::vector<Box> boxes = from_.boxes_of(rank);
  const auto send_to = [&](int64_t receiver) {
    for (const Box& lacking : to_.boxes_of(receiver)) {
      for (const Box& box : boxes) {
        Box overlap = intersect(box, lacking);
        if (numel(overlap) > 0) {
          sends.push_back({rank, receiver, std::move(overlap)});
        }
      }
    }
  };
  Coord at = own;
  std::vector<int64_t> cut_axes;
  for (int64_t a = 0; a < from_.mesh().ndim(); ++a) {
    if (!std::binary_search(from_.free_axes().begin(), from_.free_axes().end(), a)) {
      cut_axes.push_back(a);
      at[a] = 0;
    }
  }
  do {
    const int64_t receiver = from_.mesh().rank_at(at);
    if (to_.mesh().coord_of(receiver)) {
      send_to(receiver);
    }
  } while (advance(at, from_.mesh(), cut_axes));
  int64_t turn = 0;
  for (int64_t axis : from_.free_axes()) {
    turn = turn * from_.mesh().axes()[axis].size + own[axis];
  }
  for (; turn < to_.mesh().size(); turn += points(from_.mesh(), from_.free_axes())) {
    const int64_t receiver = to_.mesh().ranks()[turn];
    if (!from_.mesh().coord_of(receiver)) {
      send_to(receiver);
    }
  }
}

std::vector<Transfer> Exchange::sends_of(int64_t rank) const {
  std::vector<Transfer> result;
  if (const auto own = from_.mesh().coord_of(rank)) {
    const int64_t copies = points(from_.mesh(), from_.free_axes());
    const int64_t candidates = from_.mesh().size() / copies + to_.mesh().size() / copies;
    if (candidates < points(to_.mesh(), to_.free_axes())) {
      send_by_receiver(rank, *own, result);
    } else {
      send_by_piece(rank, *own, result);
    }
  }
  return result;
}

RankTransfers Exchange::transfers_of(int64_t rank) const {
  RankTransfers result{sends_of(rank), receives_of(rank)};
  std::sort(result.sends.begin(), result.sends.end(),
            [](const Transfer& a, const Transfer& b) { return a.to != b.to ? a.to < b.to : is_before(a.box, b.box); });
  std::sort(result.receives.begin(), result.receives.end(), [](const Transfer& a, const Transfer& b) {
    return a.from != b.from ? a.from < b.from : is_before(a.box, b.box);
  });
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
    result += lacking(rank);
  }
  return result;
}

int64_t Exchange::lacking(int64_t rank) const {
  int64_t result = 0;
  if (!to_.mesh().coord_of(rank)) {
    return 0;
  }
  const std::vector<Box> held = from_.mesh().coord_of(rank) ? from_.boxes_of(rank) : std::vector<Box>();
  for (const Box& box : to_.boxes_of(rank)) {
    result += numel(box);
    for (const Box& other : held) {
      result -= numel(intersect(box, other));
    }
  }
  return result;
}

bool Exchange::is_identity() const {
  const auto holds_same = [&](int64_t rank) {
    return from_.mesh().coord_of(rank) && from_.boxes_of(rank) == to_.boxes_of(rank);
  };
  const auto& ranks = to_.mesh().ranks();
  return from_.mesh().size() == to_.mesh().size() && std::all_of(ranks.begin(), ranks.end(), holds_same);
}

}  // namespace tessera::reshard
