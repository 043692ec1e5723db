#include "tessera/checkpoint/ranks/block_plan.h"

#include <algorithm>
#include <map>

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
          .boxes = boxes_of_range(found.slice.box, first, (end - found.begin) / found.element)};
}

// One of the ranks that hold the first element of the piece.
int64_t reader_of(const BlockPiece& piece, const layout::Spec& spec, int64_t turn) {
  const auto holdings = reshard::Holdings::of_holders(spec);
  Box first;
  for (const auto& run : piece.boxes.front()) {
    first.push_back({run.begin, run.begin + 1});
  }
  int64_t reader = -1;
  holdings.for_each_piece(first,
                          [&](const layout::Coord& coord, const Box&) { reader = holdings.copy_in_turn(coord, turn); });
  TESSERA_ASSERT(reader >= 0, "no rank holds an element of ", spec.str());
  return reader;
}

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
        const auto& piece = block.pieces.front();
        block.reader = reader_of(piece, wanted.entries()[piece.entry].spec, static_cast<int64_t>(blocks.size()));
        blocks.push_back(std::move(block));
      }
    }
  }
  return blocks;
}

}  // namespace tessera::checkpoint
