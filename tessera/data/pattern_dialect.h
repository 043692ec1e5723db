// From Oniguruma's dialect of regular expressions to PCRE2's.
#pragma once

#include <string>
#include <string_view>

namespace tessera::data {

// The expression for PCRE2 with UTF and UCP. Throws DataError that names a construct which the two read differently.
std::string to_pcre2(std::string_view expression);

}  // namespace tessera::data
