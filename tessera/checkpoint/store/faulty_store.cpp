#include "tessera/checkpoint/store/faulty_store.h"

#include <algorithm>
#include <cerrno>
#include <cstring>

namespace tessera::checkpoint {

// One call: begins before what it does, ends after.
class FaultyStore::Call {
 public:
  explicit Call(FaultyStore& store) : crash_at_(store.faults_.crash_at), number_(store.calls_++) {
    if (crash_at_ >= 0 && number_ > crash_at_) {
      throw SimulatedCrash();
    }
  }

  // Throws if the process ends in this call.
  void end() const {
    if (number_ == crash_at_) {
      throw SimulatedCrash();
    }
  }

 private:
  int64_t crash_at_;
  int64_t number_;
};

class FaultyStore::File : public NewFile {
 public:
  File(FaultyStore& store, std::string path, std::unique_ptr<NewFile> inner)
      : store_(store), path_(std::move(path)), inner_(std::move(inner)) {}

  void append(const void* data, size_t size) override {
    const Call call(store_);
    const int64_t before = store_.written_.fetch_add(static_cast<int64_t>(size));  // of all threads
    const int64_t room = std::max<int64_t>(store_.faults_.room - before, 0);
    const auto fits = static_cast<size_t>(std::min(room, static_cast<int64_t>(size)));
    inner_->append(data, fits);
    call.end();
    TESSERA_CHECK_AS(DataError, fits == size, "[store] cannot write to \"", path_, "\": ", std::strerror(ENOSPC),
                     "; accepted: a disk with room");
  }

  void close() override {
    Call(store_).end();
    inner_->close();
  }

 private:
  FaultyStore& store_;
  const std::string path_;
  std::unique_ptr<NewFile> inner_;
};

void FaultyStore::verify_writable(const char* what, const std::string& path) const {
  TESSERA_CHECK_AS(DataError, !faults_.read_only, "[store] cannot ", what, " \"", path, "\": ", std::strerror(EROFS),
                   "; accepted: a place that may be written to");
}

std::unique_ptr<NewFile> FaultyStore::create(const std::string& path) {
  const Call call(*this);
  verify_writable("create", path);
  auto file = std::make_unique<File>(*this, path, inner_.create(path));
  call.end();
  return file;
}

std::optional<int64_t> FaultyStore::try_size(const std::string& path) {
  const Call call(*this);
  auto size = inner_.try_size(path);
  if (const auto cut = faults_.cut.find(path); size && cut != faults_.cut.end()) {
    size = std::min(*size, cut->second);
  }
  call.end();
  return size;
}

void FaultyStore::read(const std::string& path, int64_t begin, void* data, size_t size) {
  const Call call(*this);
  const int64_t end = begin + static_cast<int64_t>(size);
  if (const auto cut = faults_.cut.find(path); cut != faults_.cut.end()) {
    TESSERA_CHECK_AS(DataError, end <= cut->second, "[store] cannot read bytes ", begin, " to ", end, " of \"", path,
                     "\": it ends at byte ", cut->second, "; accepted: a complete file");
  }
  inner_.read(path, begin, data, size);
  if (const auto flipped = faults_.flipped.find(path); flipped != faults_.flipped.end()) {
    if (const int64_t byte = flipped->second / 8; byte >= begin && byte < end) {
      static_cast<unsigned char*>(data)[byte - begin] ^= static_cast<unsigned char>(1U << (flipped->second % 8));
    }
  }
  call.end();
}

Listing FaultyStore::list(const std::string& folder) {
  const Call call(*this);
  auto found = inner_.list(folder);
  call.end();
  return found;
}

void FaultyStore::remove(const std::string& path) {
  const Call call(*this);
  verify_writable("remove", path);
  inner_.remove(path);
  call.end();
}

void FaultyStore::make_folder(const std::string& folder) {
  const Call call(*this);
  verify_writable("make the folder", folder);
  inner_.make_folder(folder);
  call.end();
}

void FaultyStore::remove_folder(const std::string& folder) {
  const Call call(*this);
  verify_writable("remove the folder", folder);
  inner_.remove_folder(folder);
  call.end();
}

void FaultyStore::sync_folder(const std::string& folder) {
  Call(*this).end();
  inner_.sync_folder(folder);
}

}  // namespace tessera::checkpoint
