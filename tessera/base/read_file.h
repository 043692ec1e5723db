// A file's content.
#pragma once

#include <optional>
#include <string>

namespace tessera::base {

// All of the file's bytes, of an empty file none; nothing if it cannot be opened or read (a folder cannot).
std::optional<std::string> try_read_file(const std::string& path);

}  // namespace tessera::base
