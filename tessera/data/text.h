// A text file as bytes: one token per byte, the last part held out.
#pragma once

#include <cstdint>
#include <memory>
#include <span>
#include <string>

namespace tessera::data {

struct TextOptions {
  double held_out = 0.05;  // the fraction of the bytes, at the end, that training never sees
};

// A read-only, memory-mapped text file. Copies share the mapping; thread-safe.
//
// The file must not shrink while it is in use.
class Text {
 public:
  // Throws DataError if the file cannot be read or is empty, ConfigError if `held_out` is not in [0, 1).
  explicit Text(const std::string& path, const TextOptions& options = {});

  const std::string& path() const { return path_; }
  std::span<const uint8_t> bytes() const { return bytes_; }
  std::span<const uint8_t> train() const { return bytes_.first(train_size_); }
  std::span<const uint8_t> held_out() const { return bytes_.subspan(train_size_); }

 private:
  std::string path_;
  std::shared_ptr<const void> mapping_;
  std::span<const uint8_t> bytes_;
  size_t train_size_ = 0;
};

// The entropy, in nats per byte, of how often each byte value occurs: what a model without context can reach. 0 if empty.
double unigram_entropy(std::span<const uint8_t> bytes);

}  // namespace tessera::data
