// Another store, of which somebody hears every call.
#pragma once

#include <functional>
#include <memory>
#include <string>
#include <utility>

#include "tessera/checkpoint/store/store.h"

namespace tessera::support {

// A call of a store or of a file that it made, told of before it happens and again when it has. What is appended goes
// on in two halves, each told of: in between, half of it is there.
struct StoreCall {
  std::string what;  // create, append, close, size, read, list, remove, make_folder, remove_folder, sync_folder
  std::string path;
  int64_t bytes = 0;  // appended or read
  bool is_done = false;
};

// Hands every call on to `inner`. The observer is called by whatever threads call the store.
class ObservedStore final : public checkpoint::Store {
 public:
  using Observer = std::function<void(const StoreCall&)>;

  ObservedStore(std::shared_ptr<checkpoint::Store> inner, Observer observe)
      : inner_(std::move(inner)), observe_(std::move(observe)) {}

  std::unique_ptr<checkpoint::NewFile> create(const std::string& path) override {
    return tell({.what = "create", .path = path},
                [&] { return std::make_unique<File>(*this, path, inner_->create(path)); });
  }
  std::optional<int64_t> try_size(const std::string& path) override {
    return tell({.what = "size", .path = path}, [&] { return inner_->try_size(path); });
  }
  void read(const std::string& path, int64_t begin, void* data, size_t size) override {
    tell({.what = "read", .path = path, .bytes = static_cast<int64_t>(size)},
         [&] { inner_->read(path, begin, data, size); });
  }
  checkpoint::Listing list(const std::string& folder) override {
    return tell({.what = "list", .path = folder}, [&] { return inner_->list(folder); });
  }
  void remove(const std::string& path) override {
    tell({.what = "remove", .path = path}, [&] { inner_->remove(path); });
  }
  void make_folder(const std::string& folder) override {
    tell({.what = "make_folder", .path = folder}, [&] { inner_->make_folder(folder); });
  }
  void remove_folder(const std::string& folder) override {
    tell({.what = "remove_folder", .path = folder}, [&] { inner_->remove_folder(folder); });
  }
  void sync_folder(const std::string& folder) override {
    tell({.what = "sync_folder", .path = folder}, [&] { inner_->sync_folder(folder); });
  }

 private:
  class File final : public checkpoint::NewFile {
   public:
    File(ObservedStore& store, std::string path, std::unique_ptr<checkpoint::NewFile> inner)
        : store_(store), path_(std::move(path)), inner_(std::move(inner)) {}
    void append(const void* data, size_t size) override {
      const auto* bytes = static_cast<const char*>(data);
      for (const auto& [from, count] : {std::pair(bytes, size / 2), std::pair(bytes + size / 2, size - size / 2)}) {
        const auto* begin = from;
        const size_t part = count;
        store_.tell({.what = "append", .path = path_, .bytes = static_cast<int64_t>(part)},
                    [&] { inner_->append(begin, part); });
      }
    }
    void close() override {
      store_.tell({.what = "close", .path = path_}, [&] { inner_->close(); });
    }

   private:
    ObservedStore& store_;
    const std::string path_;
    std::unique_ptr<checkpoint::NewFile> inner_;
  };

  template <typename Body>
  auto tell(StoreCall call, Body body) -> decltype(body()) {
    observe_(call);
    struct Done {
      const Observer& observe;
      StoreCall& call;
      int thrown = std::uncaught_exceptions();
      ~Done() {
        call.is_done = true;
        if (std::uncaught_exceptions() == thrown) {
          observe(call);
        }
      }
    } done{observe_, call};
    return body();
  }

  const std::shared_ptr<checkpoint::Store> inner_;
  const Observer observe_;
};

}  // namespace tessera::support
