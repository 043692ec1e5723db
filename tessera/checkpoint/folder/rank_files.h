// What one rank writes of a checkpoint. No rank waits for another here, and nothing is sent: a thread of its own may do
// it.
#pragma once

#include <string>
#include <string_view>
#include <vector>

#include "tessera/checkpoint/format/receipt.h"

namespace tessera::checkpoint {

// The files of one rank in a folder that was claimed. One thread. Every function throws DataError as Store does; then
// the save fails, and no receipt is left.
class RankFiles {
 public:
  RankFiles(Store& store, std::string folder, const SaveId& save, int64_t rank);

  // A safetensors file (write_part). Names of files are of one rank: state_part_name, model_part_name.
  void write_part(const std::string& name, std::vector<Piece> pieces);

  // Another small file, such as config.json or a tokenizer: it is covered by checksums as parts are.
  void write_file(const std::string& name, std::string_view content);

  // After all files: waits until they last with their names, then says so.
  void leave_receipt();

 private:
  Store& store_;
  const std::string folder_;
  Receipt receipt_;
};

}  // namespace tessera::checkpoint
