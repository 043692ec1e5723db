// The command line, called as main calls it.
#pragma once

#include <sstream>
#include <string>
#include <vector>

#include "tessera/cli/cli.h"

namespace tessera::cli {

struct Outcome {
  int code = 0;
  std::string out, err;
};

inline Outcome call(const std::vector<std::string>& arguments) {
  std::vector<const char*> argv = {"tessera"};
  for (const auto& argument : arguments) {
    argv.push_back(argument.c_str());
  }
  std::ostringstream out, err;
  const int code = run(static_cast<int>(argv.size()), argv.data(), out, err);
  return {code, out.str(), err.str()};
}

}  // namespace tessera::cli
