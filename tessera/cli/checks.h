// What options of commands accept, said as errors say it everywhere.
#pragma once

#include <string>

#include <CLI/CLI.hpp>
#include <c10/util/StringUtil.h>

namespace tessera::cli {

// A number of at least `least`.
inline CLI::Validator at_least(int64_t least) {
  const auto check = [least](const std::string& text) {
    double number = 0;
    return CLI::detail::lexical_cast(text, number) && number >= static_cast<double>(least)
               ? std::string()
               : c10::str(text, "; accepted: a number of at least ", least);
  };
  return {check, c10::str("at least ", least)};
}

}  // namespace tessera::cli
