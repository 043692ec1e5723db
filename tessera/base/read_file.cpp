#include "tessera/base/read_file.h"

#include <fstream>
#include <utility>

namespace tessera::base {

std::optional<std::string> try_read_file(const std::string& path) {
  std::ifstream file(path, std::ios::binary);
  std::string content;
  for (char part[1 << 16]; file;) {
    file.read(part, sizeof(part));
    content.append(part, static_cast<size_t>(file.gcount()));
  }
  return file.eof() ? std::optional(std::move(content)) : std::nullopt;
}

}  // namespace tessera::base
