// What the ranks of these tests run, by name, so that threads of the test and processes of the same program run the
// same.
#pragma once

#include <cstdint>
#include <functional>
#include <map>
#include <ostream>
#include <string>

namespace tessera::launch {

// Writes what it computed to `out`.
using Body = std::function<void(int64_t rank, std::ostream& out)>;

const std::map<std::string, Body>& bodies();

// An integer of the environment.
int64_t variable(const char* name, int64_t otherwise);

}  // namespace tessera::launch
