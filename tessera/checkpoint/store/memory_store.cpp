#include "tessera/checkpoint/store/memory_store.h"

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <random>
#include <set>

namespace tessera::checkpoint {
namespace {

[[noreturn]] void fail_in_memory(const char* what, const std::string& path, int error) {
  TESSERA_THROW(DataError, "[store] cannot ", what, " \"", path, "\": ", std::strerror(error),
                "; accepted: a path that is there and may be used so");
}

}  // namespace

class MemoryStore::File : public NewFile {
 public:
  File(std::mutex& mutex, std::shared_ptr<Node> node) : mutex_(mutex), node_(std::move(node)) {}

  void append(const void* data, size_t size) override {
    const std::scoped_lock lock(mutex_);
    node_->bytes.append(static_cast<const char*>(data), size);
  }

  void close() override {
    const std::scoped_lock lock(mutex_);
    node_->synced = node_->bytes.size();
  }

 private:
  std::mutex& mutex_;
  std::shared_ptr<Node> node_;
};

void MemoryStore::verify_folder(const char* what, const std::string& folder) const {
  if (!folder.empty()) {
    take(what, folder, true);
  }
}

std::shared_ptr<MemoryStore::Node> MemoryStore::take(const char* what, const std::string& path, bool is_folder) const {
  const auto found = seen_.find(path);
  if (found == seen_.end()) {
    fail_in_memory(what, path, ENOENT);
  }
  if (found->second->is_folder != is_folder) {
    fail_in_memory(what, path, is_folder ? ENOTDIR : EISDIR);
  }
  return found->second;
}

std::unique_ptr<NewFile> MemoryStore::create(const std::string& path) {
  const std::scoped_lock lock(mutex_);
  verify_folder("create a file in", folder_of(path));
  const auto [at, is_new] = seen_.try_emplace(path);
  TESSERA_CHECK_AS(FileExists, is_new, "[store] cannot create \"", path, "\": ", std::strerror(EEXIST),
                   "; accepted: a path at which nothing is yet");
  at->second = std::make_shared<Node>();
  return std::make_unique<File>(mutex_, at->second);
}

std::optional<int64_t> MemoryStore::try_size(const std::string& path) {
  const std::scoped_lock lock(mutex_);
  const auto found = seen_.find(path);
  return found == seen_.end() || found->second->is_folder
             ? std::nullopt
             : std::optional(static_cast<int64_t>(found->second->bytes.size()));
}

void MemoryStore::read(const std::string& path, int64_t begin, void* data, size_t size) {
  const std::scoped_lock lock(mutex_);
  const auto& bytes = take("read", path, false)->bytes;
  TESSERA_CHECK_AS(DataError, static_cast<size_t>(begin) + size <= bytes.size(), "[store] cannot read bytes ", begin,
                   " to ", begin + static_cast<int64_t>(size), " of \"", path, "\": it ends at byte ", bytes.size(),
                   "; accepted: a complete file");
  std::copy_n(bytes.data() + begin, size, static_cast<char*>(data));
}

Listing MemoryStore::list(const std::string& folder) {
  const std::scoped_lock lock(mutex_);
  verify_folder("list", folder);
  Listing found;
  for (const auto& [path, node] : seen_) {
    if (folder_of(path) == folder) {
      (node->is_folder ? found.folders : found.files).push_back(name_of(path));
    }
  }
  return found;
}

void MemoryStore::remove(const std::string& path) {
  const std::scoped_lock lock(mutex_);
  take("remove", path, false);
  seen_.erase(path);
}

void MemoryStore::make_folder(const std::string& folder) {
  const std::scoped_lock lock(mutex_);
  for (size_t end = folder.find('/', 1); end != std::string::npos; end = folder.find('/', end + 1)) {
    make_one_folder(folder.substr(0, end));
  }
  make_one_folder(folder);
}

void MemoryStore::make_one_folder(const std::string& folder) {
  const auto [at, is_new] = seen_.try_emplace(folder);
  if (!is_new && !at->second->is_folder) {
    fail_in_memory("make the folder", folder, EEXIST);
  }
  if (is_new) {
    at->second = std::make_shared<Node>(Node{.is_folder = true, .bytes = {}, .synced = 0});
  }
}

void MemoryStore::remove_folder(const std::string& folder) {
  const std::scoped_lock lock(mutex_);
  take("remove the folder", folder, true);
  for (const auto& [path, node] : seen_) {
    if (folder_of(path) == folder) {
      fail_in_memory("remove the folder", folder, ENOTEMPTY);
    }
  }
  seen_.erase(folder);
}

void MemoryStore::sync_folder(const std::string& folder) {
  const std::scoped_lock lock(mutex_);
  verify_folder("synchronise the folder", folder);
  std::set<std::string> gone;  // folders that are not there any more, with all that was in them
  std::erase_if(lasting_, [&](const auto& each) {
    const auto& [path, node] = each;
    const auto now = seen_.find(path);
    const bool is_other = now == seen_.end() || now->second != node;
    const bool goes = folder_of(path) == folder ? is_other : gone.contains(folder_of(path));
    if (goes) {
      gone.insert(path);
    }
    return goes;
  });
  for (const auto& [path, node] : seen_) {
    if (folder_of(path) == folder) {
      lasting_[path] = node;
    }
  }
}

std::unique_ptr<MemoryStore> MemoryStore::after_power_loss(Unsynced what, uint64_t seed) const {
  const std::scoped_lock lock(mutex_);
  std::mt19937_64 random(seed);
  const auto drawn = [&](size_t count) { return static_cast<size_t>(random() % count); };
  auto result = std::make_unique<MemoryStore>();
  std::set<std::string> paths;
  for (const auto* nodes : {&seen_, &lasting_}) {
    for (const auto& [path, node] : *nodes) {
      paths.insert(path);
    }
  }
  for (const auto& path : paths) {  // a folder comes before what is in it
    const bool takes_seen = what == Unsynced::kKept || (what == Unsynced::kDrawn && drawn(2) == 0);
    const auto& nodes = takes_seen ? seen_ : lasting_;
    const auto found = nodes.find(path);
    const auto folder = folder_of(path);
    if (found == nodes.end() || (!folder.empty() && !result->seen_.contains(folder))) {
      continue;
    }
    auto node = std::make_shared<Node>(*found->second);
    if (const size_t open = node->bytes.size() - node->synced; open > 0 && what != Unsynced::kKept) {
      const size_t kept = node->synced + (what == Unsynced::kDrawn ? drawn(open + 1) : 0);
      const bool has_zeros = what == Unsynced::kDrawn && drawn(4) == 0;
      const size_t size = has_zeros ? node->bytes.size() : kept;
      node->bytes.resize(kept);
      node->bytes.resize(size, '\0');
    }
    node->synced = node->bytes.size();
    result->seen_[path] = result->lasting_[path] = std::move(node);
  }
  return result;
}

void MemoryStore::damage(const std::string& path, std::string content) {
  const std::scoped_lock lock(mutex_);
  const size_t size = content.size();
  seen_[path] = lasting_[path] =
      std::make_shared<Node>(Node{.is_folder = false, .bytes = std::move(content), .synced = size});
}

std::vector<std::string> MemoryStore::paths() const {
  const std::scoped_lock lock(mutex_);
  std::vector<std::string> found;
  for (const auto& [path, node] : seen_) {
    if (!node->is_folder) {
      found.push_back(path);
    }
  }
  return found;
}

}  // namespace tessera::checkpoint
