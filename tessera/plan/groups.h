// Where parameters that lie end to end are cut, so that each rank has one run of them.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "tessera/layout/spec.h"

namespace tessera::plan {

// The group of a pattern such as `layers.*` that something of this dotted name is in: as many of the name's parts as
// the pattern has.
std::string group_name(std::string_view name, std::string_view pattern);

// `placements`, and the dim of `cut` cut over `axis` too: each of its axes cuts what those before it left.
layout::Placements cut_rows(const layout::Mesh& mesh, layout::Placements placements, int64_t axis,
                            const layout::Placement& cut);

// In how many blocks the rows are cut; 1 where they are not.
int64_t row_blocks(const layout::Placements& placements);

// A tensor of a group: whole rows go to one rank.
struct GroupMember {
  int64_t rows = 0;
  int64_t columns = 0;  // elements of a row
};

// How many rows of each member each of `parts` ranks has: result[m][i]. Rank after rank takes its rows in the order of
// the members, so that what a rank has is one run of all of them end to end. Each cut falls on the row end that is
// nearest to where equal parts would be cut, so that no part is longer than an equal one by more than the longest row.
std::vector<std::vector<int64_t>> cut_group(const std::vector<GroupMember>& members, int64_t parts);

}  // namespace tessera::plan
