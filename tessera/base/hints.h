// Lines to write, as messages show them: in the language of the program that reads them.
#pragma once

#include <cstdint>
#include <string>

namespace tessera::base {

enum class Language : uint8_t { kCpp, kPython };

// The language of this process's program: kCpp, until the Python extension says otherwise when it is loaded.
// Thread-safe.
Language language();
void set_language(Language language);

// The spelling of that language, for what the two call differently: in_language("job.set_step_tokens(n)",
// "tessera.set_step_tokens(n)").
const char* in_language(const char* cpp, const char* python);

// `tessera::to_local(x)` or `tessera.to_local(x)` of `to_local(x)`.
std::string in_library(const std::string& call);

// `x = tessera::redistribute(x, "{tp: R}");` or `x = tessera.redistribute(x, "{tp: R}")`.
std::string redistribute_line(const std::string& name, const std::string& layout);

}  // namespace tessera::base
