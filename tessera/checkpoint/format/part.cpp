#include "tessera/checkpoint/format/part.h"

#include <algorithm>
#include <future>
#include <tuple>

#include "tessera/base/text.h"
#include "tessera/checkpoint/format/numbers.h"
#include "tessera/checkpoint/format/safetensors.h"
#include "tessera/checkpoint/format/safetensors_header.h"
#include "tessera/checkpoint/format/value_hash.h"

namespace tessera::checkpoint {
namespace {

constexpr size_t kChunk = size_t{1} << 20;  // bytes that are written by one call

std::vector<int64_t> sizes_of(const Box& box) {
  std::vector<int64_t> sizes;
  for (const auto& run : box) {
    sizes.push_back(run.size());
  }
  return sizes;
}

void verify_piece(const Piece& piece) {
  bool fits = piece.box.size() == piece.sizes.size() && piece.value.sizes() == at::IntArrayRef(sizes_of(piece.box));
  for (size_t d = 0; fits && d < piece.box.size(); ++d) {
    fits = 0 <= piece.box[d].begin && piece.box[d].end <= piece.sizes[d];
  }
  TESSERA_CHECK(fits, "[checkpoint] a slice of ", piece.name, " of sizes ", piece.value.sizes(), " at ",
                entry_name("", {}, piece.box), " of ", at::IntArrayRef(piece.sizes),
                "; accepted: the elements of a box within the tensor");
  verify_plain(piece.name, piece.value);
}

void sort_as_in_file(std::vector<Piece>& pieces) {
  const auto key = [](const Piece& piece) {
    std::vector<int64_t> corner;
    for (const auto& run : piece.box) {
      corner.push_back(run.begin);
    }
    return std::make_tuple(-static_cast<int64_t>(piece.value.element_size()), piece.name, std::move(corner));
  };
  std::sort(pieces.begin(), pieces.end(), [&](const Piece& a, const Piece& b) { return key(a) < key(b); });
}

void append(NewFile& file, std::string_view bytes) {
  for (size_t at = 0; at < bytes.size(); at += kChunk) {
    file.append(bytes.substr(at, kChunk));
  }
}

// What is known of a part once all of it was looked at.
struct Hashes {
  BlockHasher blocks;
  std::vector<uint64_t> values;  // of the pieces
};

Hashes hash_all(std::string_view start, const std::vector<Piece>& pieces, int64_t block_size) {
  Hashes hashes{.blocks = BlockHasher(block_size), .values = {}};
  hashes.blocks.add(start.data(), start.size());
  for (const auto& piece : pieces) {
    hashes.blocks.add(piece.value.const_data_ptr(), piece.value.nbytes());
    hashes.values.push_back(piece.value_hash ? *piece.value_hash : hash_slice(piece.value, piece.box, piece.sizes));
  }
  return hashes;
}

}  // namespace

std::string entry_name(const std::string& name, c10::IntArrayRef sizes, const Box& box) {
  if (box.size() == sizes.size() && box == everything(sizes)) {
    return name;
  }
  const auto runs =
      base::join(box, ", ", [](std::ostream& out, const auto& run) { out << run.begin << ":" << run.end; });
  return name + "[" + runs + "]";
}

Part write_part(Store& store, const std::string& folder, const std::string& name, const SaveId& save,
                std::vector<Piece> pieces) {
  sort_as_in_file(pieces);
  std::vector<Entry> entries;
  for (auto& piece : pieces) {
    verify_piece(piece);
    piece.value = piece.value.contiguous();
    entries.push_back(
        {entry_name(piece.name, piece.sizes, piece.box), piece.value.scalar_type(), piece.value.sizes().vec()});
  }
  const auto header = lay_out(std::move(entries), {{"format", "pt"}, {"save_number", hex(save.number)}});
  const auto text = write_header(header);  // before the file, which is not made if it cannot be written
  const uint64_t length = text.size();
  const std::string start = std::string(reinterpret_cast<const char*>(&length), sizeof(length)) + text;
  const auto file = store.create(path_in(folder, name));
  auto hashing = std::async(std::launch::async | std::launch::deferred, hash_all, std::string_view(start),
                            std::cref(pieces), save.block_size);
  append(*file, start);
  for (const auto& piece : pieces) {
    append(*file, {static_cast<const char*>(piece.value.const_data_ptr()), piece.value.nbytes()});
  }
  file->close();
  auto hashes = hashing.get();
  Part part{.file = {.name = name,
                     .size = hashes.blocks.size(),
                     .data_begin = static_cast<int64_t>(start.size()),
                     .blocks = hashes.blocks.finish()},
            .pieces = {}};
  for (size_t i = 0; i < pieces.size(); ++i) {
    auto& piece = pieces[i];
    part.pieces.push_back({std::move(piece.name), piece.value.scalar_type(), std::move(piece.sizes),
                           std::move(piece.box), hashes.values[i], 0, header.entries[i].begin});
  }
  return part;
}

FileRecord write_hashed(Store& store, const std::string& folder, const std::string& name, const SaveId& save,
                        std::string_view content) {
  write_new(store, path_in(folder, name), content);
  BlockHasher blocks(save.block_size);
  blocks.add(content.data(), content.size());
  return {.name = name, .size = blocks.size(), .data_begin = 0, .blocks = blocks.finish()};
}

}  // namespace tessera::checkpoint
