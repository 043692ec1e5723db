#include "tessera/plan/groups.h"

#include <algorithm>
#include <numeric>

#include "tessera/base/text.h"

namespace tessera::plan {

std::string group_name(std::string_view name, std::string_view pattern) {
  auto parts = base::split(std::string(name), '.');
  parts.resize(std::min(parts.size(), base::split(std::string(pattern), '.').size()));
  return base::join(parts, ".");
}

layout::Placements cut_rows(const layout::Mesh& mesh, layout::Placements placements, int64_t axis,
                            const layout::Placement& cut) {
  std::vector<int64_t> in_order = layout::axes_of_dim(mesh, placements, cut.dim);
  placements[static_cast<size_t>(axis)] = cut;
  in_order.push_back(axis);
  for (size_t i = 0; i < in_order.size(); ++i) {
    placements[static_cast<size_t>(in_order[i])].order = static_cast<int8_t>(i);
  }
  return layout::normal_form(mesh, placements);
}

int64_t row_blocks(const layout::Placements& placements) {
  return layout::blocks_of_dims(placements, std::max<int64_t>(layout::last_cut_dim(placements) + 1, 1))[0];
}

std::vector<std::vector<int64_t>> cut_group(const std::vector<GroupMember>& members, int64_t parts) {
  const int64_t all =
      std::accumulate(members.begin(), members.end(), int64_t{0},
                      [](int64_t sum, const GroupMember& member) { return sum + member.rows * member.columns; });
  std::vector<std::vector<int64_t>> rows;
  int64_t begin = 0;  // of the member, in elements
  for (const GroupMember& member : members) {
    auto& own = rows.emplace_back();
    int64_t taken = 0;
    for (int64_t part = 1; part <= parts; ++part) {
      // The cut after this part: a row more than half of which lies before it counts as before it.
      const int64_t wanted =
          static_cast<int64_t>(static_cast<double>(all) * static_cast<double>(part) / static_cast<double>(parts)) -
          begin;
      const int64_t nearest = member.columns > 0 ? (wanted + member.columns / 2) / member.columns : member.rows;
      const int64_t until =
          part == parts ? member.rows : std::clamp<int64_t>(wanted < 0 ? 0 : nearest, taken, member.rows);
      own.push_back(until - taken);
      taken = until;
    }
    begin += member.rows * member.columns;
  }
  return rows;
}

}  // namespace tessera::plan
