#include "tessera/checkpoint/store/store.h"

namespace tessera::checkpoint {

std::string path_in(const std::string& folder, const std::string& name) {
  return folder.empty() ? name : folder.ends_with('/') ? folder + name : folder + "/" + name;
}

std::string folder_of(const std::string& path) {
  const auto slash = path.rfind('/');
  return slash == std::string::npos ? "" : slash == 0 ? "/" : path.substr(0, slash);
}

std::string name_of(const std::string& path) { return path.substr(path.rfind('/') + 1); }

std::string read_all(Store& store, const std::string& path) {
  const auto size = store.try_size(path);
  TESSERA_CHECK_AS(DataError, size, "[store] cannot read \"", path, "\": there is no such file; accepted: one that is");
  std::string content(static_cast<size_t>(*size), '\0');
  store.read(path, 0, content.data(), content.size());
  return content;
}

void write_new(Store& store, const std::string& path, std::string_view content) {
  const auto file = store.create(path);
  file->append(content);
  file->close();
}

}  // namespace tessera::checkpoint
