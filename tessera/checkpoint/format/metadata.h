// Texts that a file of tensors carries.
#pragma once

#include <map>
#include <string>

namespace tessera::checkpoint {

using Metadata = std::map<std::string, std::string>;

}  // namespace tessera::checkpoint
