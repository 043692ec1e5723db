#include "tessera/checkpoint/ranks/needs.h"

#include <algorithm>

namespace tessera::checkpoint {
namespace {

// What of a piece a rank needs that holds these boxes.
std::vector<Box> needed(const BlockPiece& piece, const std::vector<Box>& held) {
  std::vector<Box> all;
  for (const auto& box : piece.boxes) {
    for (const auto& own : held) {
      if (Box overlap = reshard::intersect(box, own); reshard::numel(overlap) > 0) {
        all.push_back(std::move(overlap));
      }
    }
  }
  return all;
}

}  // namespace

Needs::Needs(const catalogue::Catalogue& wanted) {
  for (const auto& entry : wanted.entries()) {
    holdings_.push_back(reshard::Holdings::of_holders(entry.spec));
    elements_.push_back(static_cast<int64_t>(at::elementSize(entry.spec->dtype)));
  }
}

std::vector<Need> Needs::of(const Block& block, int64_t rank) const {
  std::vector<Need> needs;
  for (const auto& piece : block.pieces) {
    const auto& holdings = holdings_[piece.entry];
    if (holdings.mesh().coord_of(rank)) {
      for (auto& box : needed(piece, holdings.boxes_of(rank))) {
        needs.push_back({&piece, std::move(box), elements_[piece.entry]});
      }
    }
  }
  return needs;
}

int64_t Needs::bytes_of(const Block& block, int64_t rank) const {
  int64_t bytes = 0;
  for (const auto& need : of(block, rank)) {
    bytes += need.bytes();
  }
  return bytes;
}

std::vector<int64_t> Needs::takers_of(const Block& block) const {
  std::vector<int64_t> ranks;
  for (const auto& piece : block.pieces) {
    const auto& more = holdings_[piece.entry].mesh().ranks();
    ranks.insert(ranks.end(), more.begin(), more.end());
  }
  std::sort(ranks.begin(), ranks.end());
  ranks.erase(std::unique(ranks.begin(), ranks.end()), ranks.end());
  std::erase(ranks, block.reader);
  return ranks;
}

}  // namespace tessera::checkpoint
