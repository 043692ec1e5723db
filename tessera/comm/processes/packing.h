// Numbers and texts in the messages that processes of one job send each other.
#pragma once

#include <cstdint>
#include <cstring>
#include <string>
#include <string_view>
#include <vector>

#include "tessera/base/error.h"

namespace tessera::comm {

// Appends to a message. All processes of a job have one byte order.
class Packer {
 public:
  Packer& number(uint64_t value) {
    bytes_.append(reinterpret_cast<const char*>(&value), sizeof value);
    return *this;
  }
  Packer& text(std::string_view value) {
    number(value.size());
    bytes_.append(value);
    return *this;
  }
  template <typename Range>
  Packer& numbers(const Range& values) {
    number(values.size());
    for (const auto value : values) {
      number(static_cast<uint64_t>(value));
    }
    return *this;
  }
  std::string take() {
    std::string taken;
    taken.swap(bytes_);
    return taken;
  }

 private:
  std::string bytes_;
};

// Reads what a Packer wrote, in the same order. Throws CommError if the message ends too soon. The message must outlive
// it.
class Unpacker {
 public:
  explicit Unpacker(std::string_view message) : rest_(message) {}

  uint64_t number() {
    uint64_t value = 0;
    std::memcpy(&value, cut(sizeof value).data(), sizeof value);
    return value;
  }
  std::string text() { return std::string(cut(number())); }
  std::vector<int64_t> numbers() {
    std::vector<int64_t> values;
    for (auto left = number(); left > 0; --left) {
      values.push_back(static_cast<int64_t>(number()));
    }
    return values;
  }

 private:
  std::string_view cut(uint64_t size) {
    TESSERA_CHECK_AS(CommError, size <= rest_.size(),
                     "[comm] a message between processes of one job is torn; all must run one version");
    const auto part = rest_.substr(0, size);
    rest_.remove_prefix(size);
    return part;
  }

  std::string_view rest_;
};

}  // namespace tessera::comm
