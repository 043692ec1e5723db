#include "tessera/layout/origin.h"

#include <algorithm>
#include <iterator>
#include <map>
#include <memory>
#include <mutex>

namespace tessera::layout {

const Origin* Origin::make(std::vector<Piece> pieces) {
  static std::mutex mutex;
  static auto* table = new std::map<std::vector<Piece>, std::unique_ptr<Origin>>();
  std::lock_guard<std::mutex> lock(mutex);
  auto& entry = (*table)[pieces];
  if (!entry) {
    entry = std::make_unique<Origin>(Origin{std::move(pieces)});
  }
  return entry.get();
}

int64_t sample_of_row(const Origin* origin, int64_t row) {
  if (!origin) {
    return row;
  }
  const auto after = std::upper_bound(origin->pieces.begin(), origin->pieces.end(), row,
                                      [](int64_t at, const Origin::Piece& piece) { return at < piece.row; });
  const Origin::Piece& piece = *std::prev(after);
  return piece.sample + (row - piece.row);
}

}  // namespace tessera::layout
