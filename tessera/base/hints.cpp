#include "tessera/base/hints.h"

#include <atomic>

namespace tessera::base {
namespace {

std::atomic<Language> the_language = Language::kCpp;

}  // namespace

Language language() { return the_language.load(std::memory_order_relaxed); }

void set_language(Language language) { the_language.store(language, std::memory_order_relaxed); }

const char* in_language(const char* cpp, const char* python) { return language() == Language::kPython ? python : cpp; }

std::string in_library(const std::string& call) { return in_language("tessera::", "tessera.") + call; }

std::string redistribute_line(const std::string& name, const std::string& layout) {
  return name + " = " + in_library("redistribute(" + name + ", \"" + layout + "\")") + in_language(";", "");
}

}  // namespace tessera::base
