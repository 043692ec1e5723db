// The one way by which the files of checkpoints are written, read, listed and removed.
#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "tessera/base/error.h"

namespace tessera::checkpoint {

// A file was to be created where one is already. Nothing was changed.
class FileExists : public DataError {
 public:
  using DataError::DataError;
};

// A file while it is written, by one thread. Destroyed without close(), it holds whatever came so far, or nothing.
class NewFile {
 public:
  NewFile() = default;
  virtual ~NewFile() = default;
  NewFile(const NewFile&) = delete;
  NewFile& operator=(const NewFile&) = delete;

  // Writes behind what was written. Throws DataError on a full disk and the like: then the file is of no use.
  virtual void append(const void* data, size_t size) = 0;
  void append(std::string_view text) { append(text.data(), text.size()); }

  // Waits until the content lasts; that the *name* lasts takes sync_folder(). Nothing is appended after it. Throws
  // DataError where the content may not have become lasting, FileExists where a store finds only now that the name is
  // taken.
  virtual void close() = 0;
};

// What a folder holds, by name in ascending order, without the names of what lies deeper.
struct Listing {
  std::vector<std::string> files;
  std::vector<std::string> folders;
};

// A place for files: a file system, an object store, memory. Files are made new, grow at their end until they are
// closed, and are removed; nothing is renamed, overwritten or changed, because object stores can do none of it. Paths
// are texts with '/' between names.
//
// Every function may be called by any thread at any time. All throw DataError that names the path, what was attempted
// and why it failed.
class Store {
 public:
  Store() = default;
  virtual ~Store() = default;
  Store(const Store&) = delete;
  Store& operator=(const Store&) = delete;

  // A new file in a folder that is there. Of any number that create the same path, in whatever processes, one gets a
  // file, the others FileExists, from here or from NewFile::close().
  virtual std::unique_ptr<NewFile> create(const std::string& path) = 0;

  // Bytes of a file; nothing if there is none.
  virtual std::optional<int64_t> try_size(const std::string& path) = 0;

  // Bytes [begin, begin + size) of a file; throws if it has fewer.
  virtual void read(const std::string& path, int64_t begin, void* data, size_t size) = 0;

  // Throws if there is no such folder.
  virtual Listing list(const std::string& folder) = 0;

  // Removes a file; throws if there is none.
  virtual void remove(const std::string& path) = 0;

  // Makes a folder, and those that it lies in; none is made, and it is no error, if it is there already.
  virtual void make_folder(const std::string& folder) = 0;

  // Removes a folder in which nothing is; throws if something is.
  virtual void remove_folder(const std::string& folder) = 0;

  // Waits until it lasts which files and folders the folder has. Without it, one made may be absent after a loss of
  // power, and one removed may be there again.
  virtual void sync_folder(const std::string& folder) = 0;
};

// `folder/name`, or the name where there is no folder.
std::string path_in(const std::string& folder, const std::string& name);

// What stands before the last '/', and what behind it: of "run/step_000100" the folder "run". Empty without a '/'.
std::string folder_of(const std::string& path);
std::string name_of(const std::string& path);

// All bytes of a file.
std::string read_all(Store& store, const std::string& path);

// Makes a file with this content, as lasting as NewFile::close() makes it.
void write_new(Store& store, const std::string& path, std::string_view content);

}  // namespace tessera::checkpoint
