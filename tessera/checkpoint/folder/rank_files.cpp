#include "tessera/checkpoint/folder/rank_files.h"

#include "tessera/checkpoint/folder/names.h"

namespace tessera::checkpoint {

RankFiles::RankFiles(Store& store, std::string folder, const SaveId& save, int64_t rank)
    : store_(store), folder_(std::move(folder)), receipt_{.save = save, .rank = rank, .files = {}, .pieces = {}} {}

void RankFiles::write_part(const std::string& name, std::vector<Piece> pieces) {
  auto part = checkpoint::write_part(store_, folder_, name, receipt_.save, std::move(pieces));
  for (auto& piece : part.pieces) {
    piece.file = static_cast<int64_t>(receipt_.files.size());
    receipt_.pieces.push_back(std::move(piece));
  }
  receipt_.files.push_back(std::move(part.file));
}

void RankFiles::write_file(const std::string& name, std::string_view content) {
  receipt_.files.push_back(write_hashed(store_, folder_, name, receipt_.save, content));
}

void RankFiles::leave_receipt() {
  store_.sync_folder(folder_);  // the names of the files, which last themselves
  write_new(store_, path_in(folder_, receipt_name(receipt_.rank)), write_receipt(receipt_));
}

}  // namespace tessera::checkpoint
