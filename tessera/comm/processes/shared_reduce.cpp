#include "tessera/comm/processes/shared_reduce.h"

#include <algorithm>

#include <ATen/ops/from_blob.h>

#include "tessera/base/hash.h"
#include "tessera/comm/sums/transfer.h"

namespace tessera::comm {
namespace {

using layout::Range;
using Tensors = std::vector<at::Tensor>;

// A piece of each tensor fits into the caches.
constexpr int64_t kBoardPieceBytes = 256 << 10;

// Parts that a member gives to, as the board has them.
int64_t parts_on_board(const Reduction& reduction) { return reduction.is_whole ? 1 : reduction.size(); }

int64_t results_on_board(const Reduction& reduction) {
  return reduction.is_handed_out() ? static_cast<int64_t>(reduction.taken[0].size()) : 0;
}

// Of each tensor on the board.
int64_t bytes_of_piece(const Reduction& reduction) {
  const int64_t most = *std::max_element(reduction.counts.begin(), reduction.counts.end());
  const int64_t tensors = std::max<int64_t>(1, parts_on_board(reduction) * most + results_on_board(reduction));
  return std::min(kBoardPieceBytes, SharedBoard::kHalf / tensors / SharedBoard::kAlignment * SharedBoard::kAlignment);
}

class BoardRun {
 public:
  BoardRun(SharedBoard& board, const Round& round, const Reduction& reduction, int64_t member)
      : board_(board),
        round_(round),
        reduction_(reduction),
        me_(member),
        bytes_(bytes_of_piece(reduction)),
        piece_(bytes_ / static_cast<int64_t>(c10::elementSize(reduction.dtype))),
        hash_(base::hash_range(reduction.shapes, fingerprint_of(round))) {}

  void run() {
    const int64_t pieces = reduction_.pieces(piece_);
    const bool is_handed_out = reduction_.is_handed_out();
    for (int64_t k = 0; k < pieces + is_handed_out; ++k) {
      const int64_t half = static_cast<int64_t>(board_.steps() % 2);
      if (k < pieces) {
        give(k, half);
      }
      board_.meet(round_, hash_);
      if (k < pieces) {
        combine(k, half, is_handed_out);
      }
      if (k > 0 && is_handed_out) {
        take(k - 1, half);
      }
    }
  }

 private:
  void give(int64_t k, int64_t half) {
    for (int64_t part = 0; part < reduction_.size(); ++part) {
      if (reduction_.is_whole ? part > 0 : part == me_) {
        continue;
      }
      const Range here = range(part, k);
      const Tensors& given = reduction_.given[part];
      for (size_t i = 0; i < given.size(); ++i) {
        copy_bytes(on_board(me_, half, part * reduction_.counts[me_] + i, here), narrow(given[i], here));
      }
    }
  }

  void combine(int64_t k, int64_t half, bool is_handed_out) {
    const Range here = range(me_, k);
    if (here.size() == 0) {
      return;
    }
    Tensors values, results;
    for (int64_t member = 0; member < reduction_.size(); ++member) {
      for (int64_t i = 0; i < reduction_.counts[member]; ++i) {
        const int64_t index = (reduction_.is_whole ? 0 : me_ * reduction_.counts[member]) + i;
        values.push_back(member == me_ ? narrow(reduction_.given[me_][i], here) : on_board(member, half, index, here));
      }
    }
    for (const at::Tensor& taken : reduction_.taken[me_]) {
      results.push_back(narrow(taken, here));
    }
    reduction_.combine(values, results);
    // They are read in the next step.
    for (size_t i = 0; i < results.size() && is_handed_out; ++i) {
      copy_bytes(on_board(me_, 1 - half, first_result(me_) + i, here), results[i]);
    }
  }

  // The others' results of piece `k`.
  void take(int64_t k, int64_t half) {
    for (int64_t part = 0; part < reduction_.size(); ++part) {
      if (part == me_) {
        continue;
      }
      const Range here = range(part, k);
      const Tensors& taken = reduction_.taken[part];
      for (size_t i = 0; i < taken.size(); ++i) {
        copy_bytes(narrow(taken[i], here), on_board(part, half, first_result(part) + i, here));
      }
    }
  }

  int64_t first_result(int64_t member) const { return parts_on_board(reduction_) * reduction_.counts[member]; }

  Range range(int64_t part, int64_t k) const { return reduction_.piece_of(part, k, piece_); }

  static at::Tensor narrow(const at::Tensor& tensor, const Range& range) {
    return tensor.narrow(0, range.begin, range.size());
  }

  at::Tensor on_board(int64_t member, int64_t half, int64_t index, const Range& range) const {
    return at::from_blob(board_.memory(member) + half * SharedBoard::kHalf + index * bytes_, {range.size()},
                         at::TensorOptions().dtype(reduction_.dtype));
  }

  SharedBoard& board_;
  const Round& round_;
  const Reduction& reduction_;
  const int64_t me_, bytes_, piece_;
  const uint64_t hash_;
};

}  // namespace

bool fits_board(const Reduction& reduction) { return bytes_of_piece(reduction) >= SharedBoard::kLeastPiece; }

void run_reduction(SharedBoard& board, const Round& round, const Reduction& reduction, int64_t member) {
  BoardRun(board, round, reduction, member).run();
}

}  // namespace tessera::comm
