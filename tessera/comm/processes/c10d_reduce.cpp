#include "tessera/comm/processes/c10d_reduce.h"

#include <algorithm>
#include <array>
#include <numeric>

#include <ATen/ops/empty.h>

#include "tessera/base/hash.h"
#include "tessera/comm/sums/tensor_views.h"

namespace tessera::comm {
namespace {

using layout::Range;
using Tensors = std::vector<at::Tensor>;

constexpr int64_t kPieceBytes = 512 << 10;
// Pieces under way at a time: the one that is combined, and those that arrive meanwhile.
constexpr int64_t kAhead = 4;
constexpr int64_t kAlignment = 64;

enum class Phase : uint64_t { kGive, kHandOn };

void abort(const Works& works) {
  for (const auto& work : works) {
    work->abort();
  }
}

// A member that gives nothing says so, so that all members meet.
Tensors bodies_of(const Tensors& tensors) { return tensors.empty() ? Tensors{at::empty({0})} : tensors; }

class PieceRun {
 public:
  PieceRun(const C10dMessages& messages, const Round& round, const Reduction& reduction, Staging& staging)
      : messages_(messages),
        round_(round),
        reduction_(reduction),
        hash_(fingerprint_of(round)),
        me_(messages.member()),
        longest_(*std::max_element(reduction.lengths.begin(), reduction.lengths.end())),
        piece_(std::max<int64_t>(
            1, std::min<int64_t>(longest_, kPieceBytes / static_cast<int64_t>(c10::elementSize(reduction.dtype))))),
        pieces_(reduction.pieces(piece_)) {
    make_slots(staging);
  }

  void run() {
    try {
      for (int64_t k = 0; k <= pieces_; ++k) {
        messages_.job().run(round_, [&](Works& works) { advance(k, works); });
        if (k < pieces_) {
          combine(k);
        }
      }
    } catch (...) {
      // The wait that failed knows only its own works.
      for (const Works& works : arriving_) {
        abort(works);
      }
      abort(rest_);
      throw;
    }
  }

 private:
  // Posts what can go now, up to the wait for piece `k` of all members, or, after the last, for all that is left.
  void advance(int64_t k, Works& works) {
    if (k > 0) {
      hand_on(k - 1);
    }
    for (int64_t next = k == 0 ? 0 : k + kAhead - 1; next < std::min(k + kAhead, pieces_); ++next) {
      post(next);
    }
    if (k < pieces_) {
      works = arriving_[k % kAhead];
    }
    // The whole is combined where it is sent from.
    if (k == pieces_ || reduction_.is_whole) {
      works.insert(works.end(), rest_.begin(), rest_.end());
      rest_.clear();  // a work is waited for once
    }
  }

  void post(int64_t k) {
    Works& arriving = arriving_[k % kAhead];
    arriving.clear();
    for (int64_t i = 1; i < messages_.size(); ++i) {
      const int64_t from = (me_ + messages_.size() - i) % messages_.size();
      if (has(me_, k)) {
        receive(from, values(from, k), me_, Phase::kGive, arriving);
      }
      if (reduction_.is_handed_out() && has(from, k)) {
        receive(from, narrow(reduction_.taken[from], range(from, k)), from, Phase::kHandOn, rest_);
      }
    }
    for (int64_t i = 1; i < messages_.size(); ++i) {
      const int64_t to = (me_ + i) % messages_.size();
      if (has(to, k)) {
        send(to, narrow(reduction_.given[to], range(to, k)), to, Phase::kGive);
      }
    }
  }

  void combine(int64_t k) {
    Tensors all;
    for (int64_t member = 0; member < messages_.size(); ++member) {
      for (at::Tensor& value : values(member, k)) {
        all.push_back(std::move(value));
      }
    }
    reduction_.combine(all, narrow(reduction_.taken[me_], range(me_, k)));
  }

  void hand_on(int64_t k) {
    if (!reduction_.is_handed_out() || !has(me_, k)) {
      return;
    }
    const Tensors results = narrow(reduction_.taken[me_], range(me_, k));
    for (int64_t i = 1; i < messages_.size(); ++i) {
      send((me_ + i) % messages_.size(), results, me_, Phase::kHandOn);
    }
  }

  // What `member` gives to piece `k` of this member's part, or where it will be.
  Tensors values(int64_t member, int64_t k) const {
    const Range here = range(me_, k);
    return member == me_ ? narrow(reduction_.given[me_], here) : narrow(slots_[k % kAhead][member], {0, here.size()});
  }

  Range range(int64_t part, int64_t k) const { return reduction_.piece_of(part, k, piece_); }

  // Whether the part has piece `k`; an empty one has its first.
  bool has(int64_t part, int64_t k) const { return k == 0 || k * piece_ < reduction_.lengths[part]; }

  uint64_t hash(int64_t part, Phase phase) const {
    return base::hash_combine(base::hash_combine(hash_, reduction_.shapes[part]), static_cast<uint64_t>(phase));
  }

  void send(int64_t to, const Tensors& tensors, int64_t part, Phase phase) {
    for (const at::Tensor& tensor : bodies_of(tensors)) {
      rest_.push_back(messages_.send(to, tensor, hash(part, phase)));
    }
  }

  void receive(int64_t from, const Tensors& tensors, int64_t part, Phase phase, Works& works) {
    for (const at::Tensor& tensor : bodies_of(tensors)) {
      works.push_back(messages_.receive(from, tensor, hash(part, phase)));
    }
  }

  // Where pieces of the others arrive.
  void make_slots(Staging& staging) {
    const int64_t bytes = piece_ * static_cast<int64_t>(c10::elementSize(reduction_.dtype));
    const int64_t stride = (bytes + kAlignment - 1) / kAlignment * kAlignment;
    const int64_t others = std::accumulate(reduction_.counts.begin(), reduction_.counts.end(), -reduction_.counts[me_]);
    const int64_t depth = std::min(kAhead, pieces_);
    const at::Tensor memory = staging.take(depth * others * stride);
    int64_t next = 0;
    for (int64_t k = 0; k < depth; ++k) {
      slots_[k].resize(messages_.size());
      for (int64_t member = 0; member < messages_.size(); ++member) {
        for (int64_t i = 0; i < reduction_.counts[member] && member != me_; ++i) {
          slots_[k][member].push_back(memory.narrow(0, next++ * stride, bytes).view(reduction_.dtype));
        }
      }
    }
  }

  const C10dMessages& messages_;
  const Round& round_;
  const Reduction& reduction_;
  const uint64_t hash_;
  const int64_t me_, longest_, piece_,
      pieces_;  // elements of the longest part and of a piece; pieces of the longest part
  std::array<std::vector<Tensors>, kAhead> slots_;  // by member
  std::array<Works, kAhead> arriving_;
  Works rest_;
};

}  // namespace

at::Tensor Staging::take(int64_t bytes) {
  if (!memory_.defined() || memory_.numel() < bytes) {
    memory_ = at::empty({bytes}, at::TensorOptions().dtype(at::kByte));
  }
  return memory_;
}

void run_reduction(const C10dMessages& messages, const Round& round, const Reduction& reduction, Staging& staging) {
  PieceRun(messages, round, reduction, staging).run();
}

}  // namespace tessera::comm
