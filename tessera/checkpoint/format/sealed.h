// Documents in JSON that end with a checksum of themselves.
//
// The last member of a sealed document is `"checksum"`: XXH3-64 of all bytes that stand before it. So a document is
// whole or it is found not to be, wherever it was cut or changed.
#pragma once

#include <string>
#include <string_view>

#include <nlohmann/json.hpp>

#include "tessera/base/error.h"

namespace tessera::checkpoint {

// Closes a document: `open` is an object without its '}' at the end.
std::string seal(std::string open);

// Whether the text ends as a sealed document does: one that does not was cut, or is still being written.
bool has_seal(std::string_view text);

// A document that was read, taken apart member by member.
class Document {
 public:
  // `path` names the file in messages, `kind` is its member "format", and `version` the newest that is understood.
  // Throws DataError: no seal, a wrong checksum, no JSON, another kind, a newer version.
  Document(std::string_view text, std::string path, const std::string& kind, int64_t version);

  int64_t version() const { return version_; }

  // The member of that name, once; throws DataError if there is none or it is of another type.
  template <typename Type>
  Type take(const std::string& name) {
    const auto member = take_member(name);
    try {
      return member.get<Type>();
    } catch (const nlohmann::json::exception& error) {
      fail("has a \"" + name + "\" that cannot be read: " + error.what());
    }
  }
  // As take(), of a text of 16 digits.
  uint64_t take_hex(const std::string& name);

  // After the last: throws DataError if there are members that nobody took.
  void finish() const;

  // Throws DataError: the path, and what is wrong with it.
  [[noreturn]] void fail(const std::string& what) const;

 private:
  nlohmann::json take_member(const std::string& name);

  std::string path_;
  int64_t version_ = 0;
  nlohmann::json members_;
};

// An open document of this kind and version, to be continued with `,"name":value`.
std::string begin_document(const std::string& kind, int64_t version);

}  // namespace tessera::checkpoint
