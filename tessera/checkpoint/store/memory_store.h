// Files in memory that know which of them would outlast a loss of power.
#pragma once

#include <map>
#include <mutex>

#include "tessera/checkpoint/store/store.h"

namespace tessera::checkpoint {

// What outlasts a loss of power of that which was not synchronised.
enum class Unsynced {
  kLost,   // nothing: files end where they were closed, folders have what they had when last synchronised
  kKept,   // everything: as when the processes are killed and the machine runs on
  kDrawn,  // for each file any part of its end, for each name whether its making or removing happened, drawn by a seed
};

// Files in this process's memory, below a folder with the empty name, which is there from the start.
class MemoryStore : public Store {
 public:
  std::unique_ptr<NewFile> create(const std::string& path) override;
  std::optional<int64_t> try_size(const std::string& path) override;
  void read(const std::string& path, int64_t begin, void* data, size_t size) override;
  Listing list(const std::string& folder) override;
  void remove(const std::string& path) override;
  void make_folder(const std::string& folder) override;
  void remove_folder(const std::string& folder) override;
  void sync_folder(const std::string& folder) override;

  // What is there after the power went now. Files that are open write on here, not there. Where the end of a file is
  // drawn, it is cut, or as long as it was with zeros at its end: file systems do both.
  std::unique_ptr<MemoryStore> after_power_loss(Unsynced what, uint64_t seed = 0) const;

  // Gives a file other content, made if need be, as no user of a Store could: damage.
  void damage(const std::string& path, std::string content);

  // The paths of all files, ascending.
  std::vector<std::string> paths() const;

 private:
  // A file, or a folder.
  struct Node {
    bool is_folder = false;
    std::string bytes;
    size_t synced = 0;  // of `bytes`, from the start
  };
  using Nodes = std::map<std::string, std::shared_ptr<Node>>;
  class File;

  void verify_folder(const char* what, const std::string& folder) const;
  void make_one_folder(const std::string& folder);
  std::shared_ptr<Node> take(const char* what, const std::string& path, bool is_folder) const;

  mutable std::mutex mutex_;
  Nodes seen_;     // by path
  Nodes lasting_;  // as of the last sync_folder() of each folder
};

}  // namespace tessera::checkpoint
