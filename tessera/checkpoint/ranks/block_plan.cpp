#include "tessera/checkpoint/ranks/block_plan.h"

#include <algorithm>
#include <map>

#include <c10/util/SmallVector.h>

#include "tessera/base/error.h"
#include "tessera/checkpoint/format/box_runs.h"

namespace tessera::checkpoint {
namespace {

// A slice of a wanted tensor in a file.
struct Found {
  size_t entry = 0;
  StoredSlice slice;
  int64_t begin = 0, end = 0;  // bytes of the file
  int64_t element = 1;         // bytes of one
};

std::map<int64_t, std::vector<Found>> slices_by_file(const Manifest& manifest, const catalogue::Catalogue& saved,
                                                     const catalogue::Catalogue& wanted) {
  std::map<int64_t, std::vector<Found>> by_file;
  for (size_t i = 0; i < wanted.entries().size(); ++i) {
    const auto& entry = wanted.entries()[i];
    const catalogue::Entry* match = saved.find_match(entry);  // it may have been saved under an alias
    const TensorTable* table = match == nullptr ? nullptr : manifest.find(match->name);
    if (table == nullptr) {
      TESSERA_CHECK_AS(DataError, entry.spec->numel() == 0, "[checkpoint] no file has ", entry.name,
                       ", which the catalogue has; accepted: a checkpoint as it was written");
      continue;
    }
    for (int64_t cell = 0; cell < table->slice_count(); ++cell) {
      Found found{.entry = i, .slice = table->slice(cell)};
      found.element = static_cast<int64_t>(at::elementSize(table->dtype));
      found.begin = manifest.files.at(static_cast<size_t>(found.slice.file)).data_begin + found.slice.begin;
      found.end = found.begin + table->bytes_of(found.slice.box);
      if (found.end > found.begin) {
        by_file[found.slice.file].push_back(found);
      }
    }
  }
  for (auto& [file, slices] : by_file) {
    std::sort(slices.begin(), slices.end(), [](const Found& a, const Found& b) { return a.begin < b.begin; });
  }
  return by_file;
}

BlockPiece piece_of(const Found& found, int64_t block_begin, int64_t block_end) {
  const int64_t begin = std::max(found.begin, block_begin), end = std::min(found.end, block_end);
  const int64_t first = (begin - found.begin) / found.element;
  return {.entry = found.entry,
          .slice = found.slice.box,
          .first = first,
          .begin = begin,
          .boxes = reshard::boxes_of_range(found.slice.box, first, (end - found.begin) / found.element)};
}

// The box of one element, the one at `index` of the box.
Box element_of(const Box& box, int64_t index) {
  Box element = box;
  for (size_t d = box.size(); d-- > 0;) {
    const int64_t at = box[d].begin + index % box[d].size();
    index /= box[d].size();
    element[d] = {at, at + 1};
  }
  return element;
}

// Gives blocks to ranks that need some of them, such that all read about as much. Elements here and there in a block
// say who needs it: one look for each of them, whatever the number of ranks.
class Readers {
 public:
  explicit Readers(const catalogue::Catalogue& wanted) : wanted_(wanted) {}

  // First those that one rank needs. Of the others a rank gets some that lie one behind the other, which is quicker to
  // read, as long as it reads little more than the one who reads least.
  void give(std::vector<Block>& blocks) {
    std::vector<std::pair<size_t, Needs>> shared;
    int64_t all = 0;
    for (size_t i = 0; i < blocks.size(); ++i) {
      all += size_of(blocks[i]);
      auto needs = needs_of(blocks[i]);
      if (needs.size() == 1) {
        give(blocks[i], needs.front().rank);
      } else {
        shared.emplace_back(i, std::move(needs));
      }
    }
    const int64_t little = all / static_cast<int64_t>(std::max<size_t>(given_.size(), 1)) / kPartsOfLittle;
    int64_t last = -1;  // who reads the block before
    for (const auto& [i, needs] : shared) {
      const auto cost = [&, size = size_of(blocks[i])](const RankNeed& need) {
        return given_[need.rank] + size - size * need.looks / kLooks;
      };
      const auto least =
          std::min_element(needs.begin(), needs.end(), [&](auto a, auto b) { return cost(a) < cost(b); });
      const auto same = std::find_if(needs.begin(), needs.end(), [&](auto need) { return need.rank == last; });
      last = same != needs.end() && cost(*same) <= cost(*least) + little ? last : least->rank;
      give(blocks[i], last);
    }
  }

 private:
  static constexpr int64_t kLooks = 8;           // at a block
  static constexpr int64_t kPartsOfLittle = 16;  // of what a rank reads

  struct RankNeed {
    int64_t rank;
    int64_t looks;  // that met it: the part of a block that it needs
  };
  using Needs = c10::SmallVector<RankNeed, 4>;

  static int64_t size_of(const Block& block) { return block.end - block.begin; }

  void give(Block& block, int64_t rank) {
    block.reader = rank;
    given_[rank] += size_of(block);
  }

  // Of each rank that was met, by rank.
  Needs needs_of(const Block& block) {
    std::map<int64_t, int64_t> met;
    for (int64_t look = 0; look < kLooks; ++look) {
      ++met[rank_with(block, look)];
    }
    Needs needs;
    for (const auto& [rank, looks] : met) {
      needs.push_back({rank, looks});
      given_.try_emplace(rank, 0);
    }
    return needs;
  }

  // One that holds some element of the block.
  int64_t rank_with(const Block& block, int64_t look) {
    const auto& piece = block.pieces[block.pieces.size() * static_cast<size_t>(look) / kLooks];
    const auto& box = piece.boxes[static_cast<size_t>(looks_) % piece.boxes.size()];
    const uint64_t where = static_cast<uint32_t>(looks_ * 0x9E3779B1);  // of 2^32; spread evenly (golden ratio)
    const auto element =
        element_of(box, static_cast<int64_t>((where * static_cast<uint64_t>(reshard::numel(box))) >> 32));
    const auto holdings = reshard::Holdings::of_holders(wanted_.entries()[piece.entry].spec);
    int64_t rank = -1;
    holdings.for_each_piece(
        element, [&](const layout::Coord& coord, const Box&) { rank = holdings.copy_in_turn(coord, looks_); });
    TESSERA_ASSERT(rank >= 0, "no rank holds an element of ", wanted_.entries()[piece.entry].name);
    ++looks_;
    return rank;
  }

  const catalogue::Catalogue& wanted_;
  std::map<int64_t, int64_t> given_;  // bytes that each rank reads
  int64_t looks_ = 0;                 // so far
};

}  // namespace

std::vector<Block> plan_blocks(const Manifest& manifest, const catalogue::Catalogue& found,
                               const catalogue::Catalogue& wanted) {
  std::vector<Block> blocks;
  const int64_t size = manifest.save.block_size;
  for (const auto& [file, slices] : slices_by_file(manifest, found, wanted)) {
    size_t next = 0;  // the first slice that may reach into the block
    for (int64_t begin = slices.front().begin / size * size; next < slices.size(); begin += size) {
      Block block{.file = file,
                  .begin = begin,
                  .end = std::min(begin + size, manifest.files.at(static_cast<size_t>(file)).size)};
      for (size_t i = next; i < slices.size() && slices[i].begin < block.end; ++i) {
        if (slices[i].end > begin) {
          block.pieces.push_back(piece_of(slices[i], begin, block.end));
        }
      }
      while (next < slices.size() && slices[next].end <= block.end) {
        ++next;
      }
      if (!block.pieces.empty()) {
        blocks.push_back(std::move(block));
      }
    }
  }
  Readers(wanted).give(blocks);
  return blocks;
}

}  // namespace tessera::checkpoint
