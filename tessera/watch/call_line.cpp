#include "tessera/watch/call_line.h"

#include <array>
#include <cstdio>
#include <filesystem>
#include <memory>
#include <unordered_map>

#include <dlfcn.h>
#include <execinfo.h>
#include <fmt/format.h>

#include "tessera/base/text.h"

namespace tessera::watch {
namespace {

constexpr size_t kMostFrames = 128, kMostCalls = 24;

Places::Locate& locate() {
  static auto& locate = *new Places::Locate;  // may hold what is freed before a static is
  return locate;
}

bool is_of_library(const std::string& file) {
  const auto name = std::filesystem::path(file).filename().string();
  for (const char* known :
       {"libtessera", "libtorch", "libc10", "libc.so", "libstdc++", "libgomp", "libpthread", "ld-"}) {
    if (name.starts_with(known)) {
      return true;
    }
  }
  return false;
}

// Sources whose lines are never the program's.
bool is_of_header(const std::string& source) {
  for (const char* known : {"/torch/", "/ATen/", "/c10/", "/include/", "/tessera/"}) {
    if (source.find(known) != std::string::npos) {
      return true;
    }
  }
  return source.empty() || source.starts_with("?");
}

// The path below the current folder; else as it is.
std::string short_name(const std::string& source) {
  const auto here = std::filesystem::current_path().string() + "/";
  return source.starts_with(here) ? source.substr(here.size()) : source;
}

// What addr2line says of addresses of one file, one source line each, inlined calls before those they are in.
std::vector<std::string> lines_of(const std::string& file, const std::string& address) {
  if (file.find('\'') != std::string::npos) {
    return {};
  }
  const auto command = fmt::format("addr2line -i -e '{}' {} 2>/dev/null", file, address);
  const std::unique_ptr<FILE, int (*)(FILE*)> pipe(popen(command.c_str(), "r"), pclose);
  std::string text;
  std::array<char, 4096> part;
  while (pipe && std::fgets(part.data(), part.size(), pipe.get())) {
    text += part.data();
  }
  return base::split(text, '\n');
}

// `PROGRAM+0x1234` of the call that returns there; empty if it is a library's.
std::string program_call(const void* frame) {
  Dl_info info;
  if (dladdr(frame, &info) == 0 || !info.dli_fname || is_of_library(info.dli_fname)) {
    return "";
  }
  // Of the call, which ends one byte before.
  return fmt::format("{}+{:#x}", info.dli_fname,
                     static_cast<const char*>(frame) - static_cast<const char*>(info.dli_fbase) - 1);
}

}  // namespace

void set_call_locate(Places::Locate new_locate) { locate() = std::move(new_locate); }

std::string call_place() {
  if (locate()) {
    return locate()();
  }
  std::array<void*, kMostFrames> frames;
  const int count = backtrace(frames.data(), static_cast<int>(frames.size()));
  thread_local std::unordered_map<const void*, std::string> known;  // dladdr searches every symbol of a library
  std::string place;
  size_t calls = 0;
  for (int i = 0; i < count && calls < kMostCalls; ++i) {
    const void* frame = frames[static_cast<size_t>(i)];
    auto found = known.find(frame);
    if (found == known.end()) {
      found = known.emplace(frame, program_call(frame)).first;
    }
    if (!found->second.empty()) {
      place += (calls++ == 0 ? "" : ";") + found->second;
    }
  }
  return place;
}

std::string call_line(const std::string& place) {
  if (place.find("+0x") == std::string::npos) {
    return place;
  }
  for (const auto& call : base::split(place, ';')) {
    const auto plus = call.rfind('+');
    for (const auto& line : lines_of(call.substr(0, plus), call.substr(plus + 1))) {
      const auto source = line.substr(0, line.find(" (discriminator"));
      if (!is_of_header(source)) {
        return short_name(source);
      }
    }
  }
  return "";
}

}  // namespace tessera::watch
