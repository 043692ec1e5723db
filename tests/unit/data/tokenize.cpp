// Encodes or decodes documents from stdin to stdout, for tests in other languages.
//
//   tokenize TOKENIZER.json encode|decode with|without     (special tokens)
//
// A text ends with the byte 0xff, which no UTF-8 has; the ids of a document are int32, and end with -1.
#include <algorithm>
#include <cstring>
#include <iostream>
#include <iterator>
#include <span>
#include <string>
#include <vector>

#include "tessera/data/tokenizer.h"

namespace {

using tessera::data::SpecialTokens;
using tessera::data::Tokenizer;

void encode(const Tokenizer& tokenizer, SpecialTokens special, std::string_view input) {
  for (size_t end = 0; (end = input.find('\xff')) != std::string_view::npos; input.remove_prefix(end + 1)) {
    auto ids = tokenizer.encode(input.substr(0, end), special);
    ids.push_back(-1);
    std::cout.write(reinterpret_cast<const char*>(ids.data()),
                    static_cast<std::streamsize>(ids.size() * sizeof ids[0]));
  }
}

void decode(const Tokenizer& tokenizer, SpecialTokens special, std::string_view input) {
  std::vector<int32_t> ids(input.size() / sizeof(int32_t));
  std::memcpy(ids.data(), input.data(), ids.size() * sizeof ids[0]);
  for (auto begin = ids.begin(); begin != ids.end();) {
    const auto end = std::find(begin, ids.end(), -1);
    std::cout << tokenizer.decode(std::span<const int32_t>(begin, end), special) << '\xff';
    begin = end + 1;
  }
}

}  // namespace

int main(int argc, char** argv) try {
  const std::string direction = argc == 4 ? argv[2] : "", special = argc == 4 ? argv[3] : "";
  if ((direction != "encode" && direction != "decode") || (special != "with" && special != "without")) {
    std::cerr << "usage: tokenize TOKENIZER.json encode|decode with|without\n";
    return 2;
  }
  const auto tokenizer = Tokenizer::read(argv[1]);
  const std::string input(std::istreambuf_iterator<char>(std::cin), {});
  (direction == "encode" ? encode : decode)(tokenizer,
                                            special == "with" ? SpecialTokens::kWith : SpecialTokens::kWithout, input);
  return std::cout.flush() ? 0 : 1;
} catch (const std::exception& error) {
  std::cerr << error.what() << "\n";
  return 1;
}
