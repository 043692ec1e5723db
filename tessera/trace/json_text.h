// Texts inside of JSON.
#pragma once

#include <string>
#include <string_view>

namespace tessera::trace {

// The text in quotes, with what JSON wants escaped. Bytes above 0x7f pass as they are.
std::string json_text(std::string_view text);

}  // namespace tessera::trace
