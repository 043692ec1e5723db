#include "tessera/kernels/product/product_order.h"

#include <algorithm>

#include "tessera/kernels/base/chain.h"
#include "tessera/sums/lattice.h"

namespace tessera::kernels::detail {

namespace {

std::vector<Piece> make_pieces(int64_t k, int64_t leaf, const Spread* spread) {
  std::vector<Piece> result;
  const int64_t leaves = ceil_div(k, leaf);
  result.reserve(leaves * ceil_div(std::min(leaf, k), kChainSteps));
  for (int64_t i = 0; i < leaves; ++i) {
    const int64_t held = std::min(leaf, k - i * leaf), pieces = ceil_div(held, kChainSteps);
    for (int64_t j = 0; j < pieces; ++j) {
      const int64_t length = std::min(kChainSteps, held - j * kChainSteps);
      result.push_back({static_cast<int32_t>(spread ? spread->steps_of(length) : length),
                        static_cast<int32_t>(sums::closes_after(j, pieces)), static_cast<int32_t>(length)});
    }
    result.back().closes += static_cast<int32_t>(sums::closes_after(i, leaves));
  }
  if (result.empty()) {
    result.push_back({});
  }
  return result;
}

}  // namespace

ProductOrder make_order(int64_t k, int64_t leaf, int64_t leaves, int64_t most_steps, const Spread* spread) {
  ProductOrder order;
  order.pieces = make_pieces(k, leaf, spread);
  order.has_empty_leaf = leaves > ceil_div(k, leaf);
  int64_t waiting = 0;
  for (const Piece& piece : order.pieces) {
    if (order.blocks.empty() || order.blocks.back().steps + piece.steps > most_steps) {
      const Block before = order.blocks.empty() ? Block{} : order.blocks.back();
      order.blocks.push_back({.first_piece = before.first_piece + before.pieces,
                              .first = before.first + before.length,
                              .first_step = before.first_step + before.steps,
                              .depth = waiting});
    }
    Block& block = order.blocks.back();
    ++block.pieces;
    block.length += piece.length;
    block.steps += piece.steps;
    order.steps += piece.steps;
    order.most_steps = std::max(order.most_steps, block.steps);
    waiting += 1 - piece.closes;
    order.depth = std::max(order.depth, waiting);
  }
  return order;
}

}  // namespace tessera::kernels::detail
