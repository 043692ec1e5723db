// Files of this machine's file systems.
#pragma once

#include "tessera/checkpoint/store/store.h"

namespace tessera::checkpoint {

// Creates with O_EXCL, synchronises with fdatasync, and a folder with fsync. Has no state.
class PosixStore : public Store {
 public:
  std::unique_ptr<NewFile> create(const std::string& path) override;
  std::optional<int64_t> try_size(const std::string& path) override;
  void read(const std::string& path, int64_t begin, void* data, size_t size) override;
  Listing list(const std::string& folder) override;
  void remove(const std::string& path) override;
  void make_folder(const std::string& folder) override;
  void remove_folder(const std::string& folder) override;
  void sync_folder(const std::string& folder) override;
};

}  // namespace tessera::checkpoint
