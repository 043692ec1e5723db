#include "tessera/checkpoint/format/part.h"

#include <algorithm>
#include <tuple>

#include "tessera/base/text.h"
#include "tessera/checkpoint/format/numbers.h"
#include "tessera/checkpoint/format/safetensors.h"
#include "tessera/checkpoint/format/safetensors_header.h"
#include "tessera/checkpoint/format/value_hash.h"

namespace tessera::checkpoint {
namespace {

constexpr size_t kChunk = size_t{1} << 20;  // bytes that are hashed, then written while they are in the cache

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

}  // namespace

std::string entry_name(const std::string& name, c10::IntArrayRef sizes, const Box& box) {
  if (box.size() == sizes.size() && box == everything(sizes)) {
    return name;
  }
  const auto runs =
      base::join(box, ", ", [](std::ostream& out, const auto& run) { out << run.begin << ":" << run.end; });
  return name + "[" + runs + "]";
}

HashedFile::HashedFile(Store& store, const std::string& folder, const std::string& name, int64_t block_size)
    : record_{.name = name}, file_(store.create(path_in(folder, name))), hasher_(block_size) {}

void HashedFile::append(const void* data, size_t size) {
  const auto* next = static_cast<const char*>(data);
  while (size > 0) {
    const size_t count = std::min(size, kChunk);
    hasher_.add(next, count);
    file_->append(next, count);
    next += count;
    size -= count;
  }
}

FileRecord HashedFile::close() {
  file_->close();
  record_.size = hasher_.size();
  record_.blocks = hasher_.finish();
  return record_;
}

Part write_part(Store& store, const std::string& folder, const std::string& name, const SaveId& save,
                std::vector<Piece> pieces) {
  sort_as_in_file(pieces);
  std::vector<Entry> entries;
  for (const auto& piece : pieces) {
    verify_piece(piece);
    entries.push_back(
        {entry_name(piece.name, piece.sizes, piece.box), piece.value.scalar_type(), piece.value.sizes().vec()});
  }
  const auto header = lay_out(std::move(entries), {{"format", "pt"}, {"save_number", hex(save.number)}});
  const auto text = write_header(header);  // before the file, which is not made if it cannot be written
  const uint64_t length = text.size();
  HashedFile file(store, folder, name, save.block_size);
  file.append(&length, sizeof(length));
  file.append(text);
  Part part;
  for (size_t i = 0; i < pieces.size(); ++i) {
    auto& piece = pieces[i];
    const auto value = piece.value.contiguous();
    file.append(value.data_ptr(), value.nbytes());
    const uint64_t hash = piece.value_hash ? *piece.value_hash : hash_slice(value, piece.box, piece.sizes);
    part.pieces.push_back({std::move(piece.name), value.scalar_type(), std::move(piece.sizes), std::move(piece.box),
                           hash, 0, header.entries[i].begin});
  }
  part.file = file.close();
  part.file.data_begin = static_cast<int64_t>(sizeof(length) + length);
  return part;
}

FileRecord write_hashed(Store& store, const std::string& folder, const std::string& name, const SaveId& save,
                        std::string_view content) {
  HashedFile file(store, folder, name, save.block_size);
  file.append(content);
  return file.close();
}

}  // namespace tessera::checkpoint
