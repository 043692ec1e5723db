#include "tessera/comm/processes/shared_exchange.h"

#include <algorithm>
#include <cstring>

#include "tessera/base/hash.h"

namespace tessera::comm {
namespace {

// What one member has for another, or expects of it.
struct Parcel {
  int64_t bytes;
  uint64_t form;  // of its sizes and dtype
  bool operator==(const Parcel&) const = default;
};

Parcel parcel_of(const at::Tensor& tensor) {
  return {static_cast<int64_t>(tensor.nbytes()),
          base::hash_range(tensor.sizes(), static_cast<uint64_t>(tensor.scalar_type()))};
}

// A half of a member's memory: for each member what it gives to it, what it expects of it, whether it gives all others
// the same; then a slot for each, or one for all.
struct Page {
  std::byte* begin;
  int64_t members;

  Parcel* given() const { return reinterpret_cast<Parcel*>(begin); }
  Parcel* taken() const { return given() + members; }
  int64_t& is_one() const { return *reinterpret_cast<int64_t*>(taken() + members); }

  static int64_t head(int64_t members) {
    const auto bytes = static_cast<int64_t>(2 * sizeof(Parcel)) * members + static_cast<int64_t>(sizeof(int64_t));
    return (bytes + SharedBoard::kAlignment - 1) / SharedBoard::kAlignment * SharedBoard::kAlignment;
  }

  static int64_t slot_size(int64_t members, bool is_one) {
    return (SharedBoard::kHalf - head(members)) / (is_one ? 1 : members) / SharedBoard::kAlignment *
           SharedBoard::kAlignment;
  }

  std::byte* slot(int64_t member, bool is_one) const {
    return begin + head(members) + (is_one ? 0 : member * slot_size(members, false));
  }
};

bool is_same(const at::Tensor& a, const at::Tensor& b) {
  return a.const_data_ptr() == b.const_data_ptr() && parcel_of(a) == parcel_of(b);
}

class Exchange {
 public:
  Exchange(SharedBoard& board, const Round& round, const std::vector<at::Tensor>& taken,
           const std::vector<at::Tensor>& given, int64_t member)
      : board_(board),
        round_(round),
        taken_(taken),
        given_(given),
        me_(member),
        members_(static_cast<int64_t>(given.size())),
        hash_(base::hash_string("exchange", fingerprint_of(round))) {
    // Of what goes to others: its own is not looked at.
    const auto& first = given[me_ == 0 && members_ > 1 ? 1 : 0];
    gives_one_ = true;
    for (int64_t i = 0; i < members_; ++i) {
      gives_one_ = gives_one_ && (i == me_ || is_same(given[i], first));
    }
  }

  bool run() {
    int64_t pieces = 1;
    for (int64_t k = 0; k < pieces; ++k) {
      const auto half = static_cast<int64_t>(board_.steps() % 2);
      if (k == 0) {
        announce(half);
      }
      give(k, half);
      board_.meet(round_, hash_);
      if (k == 0) {
        if (!agree(half)) {
          return false;
        }
        pieces = read_announced(half);
      }
      take(k, half);
    }
    return true;
  }

 private:
  Page page(int64_t member, int64_t half) const {
    return {board_.memory(member) + half * SharedBoard::kHalf, members_};
  }

  void announce(int64_t half) const {
    const Page own = page(me_, half);
    for (int64_t i = 0; i < members_; ++i) {
      own.given()[i] = i == me_ ? Parcel{} : parcel_of(given_[i]);
      own.taken()[i] = i == me_ ? Parcel{} : parcel_of(taken_[i]);
    }
    own.is_one() = gives_one_;
  }

  // Whether every pair does; all members look at all.
  bool agree(int64_t half) const {
    for (int64_t from = 0; from < members_; ++from) {
      for (int64_t to = 0; to < members_; ++to) {
        if (!(page(from, half).given()[to] == page(to, half).taken()[from])) {
          return false;
        }
      }
    }
    return true;
  }

  // How many pieces the longest takes; remembers who gives all the same.
  int64_t read_announced(int64_t half) {
    int64_t pieces = 1;
    for (int64_t from = 0; from < members_; ++from) {
      const Page theirs = page(from, half);
      is_one_.push_back(theirs.is_one() != 0);
      const int64_t size = Page::slot_size(members_, is_one_.back());
      for (int64_t to = 0; to < members_; ++to) {
        pieces = std::max(pieces, (theirs.given()[to].bytes + size - 1) / size);
      }
    }
    return pieces;
  }

  // Copies piece `k` between a tensor and a slot of `size` bytes.
  template <typename Copy>
  static void piece(const at::Tensor& tensor, int64_t k, int64_t size, Copy copy) {
    const int64_t begin = k * size, end = std::min(begin + size, static_cast<int64_t>(tensor.nbytes()));
    if (begin < end) {
      copy(begin, static_cast<size_t>(end - begin));
    }
  }

  void give(int64_t k, int64_t half) const {
    const Page own = page(me_, half);
    for (int64_t i = 0; i < members_; ++i) {
      if (i == me_) {
        continue;
      }
      piece(given_[i], k, Page::slot_size(members_, gives_one_), [&](int64_t begin, size_t size) {
        std::memcpy(own.slot(i, gives_one_), static_cast<const char*>(given_[i].const_data_ptr()) + begin, size);
      });
      if (gives_one_) {
        return;
      }
    }
  }

  void take(int64_t k, int64_t half) const {
    for (int64_t j = 1; j < members_; ++j) {
      const int64_t from = (me_ + j) % members_;  // not all from the same one at once
      piece(taken_[from], k, Page::slot_size(members_, is_one_[from]), [&](int64_t begin, size_t size) {
        std::memcpy(static_cast<char*>(taken_[from].mutable_data_ptr()) + begin,
                    page(from, half).slot(me_, is_one_[from]), size);
      });
    }
  }

  SharedBoard& board_;
  const Round& round_;
  const std::vector<at::Tensor>& taken_;
  const std::vector<at::Tensor>& given_;
  const int64_t me_, members_;
  const uint64_t hash_;
  bool gives_one_;
  std::vector<bool> is_one_;  // by member
};

}  // namespace

bool fits_board(int64_t members) { return Page::slot_size(members, false) >= SharedBoard::kLeastPiece; }

bool run_exchange(SharedBoard& board, const Round& round, const std::vector<at::Tensor>& taken,
                  const std::vector<at::Tensor>& given, int64_t member) {
  return Exchange(board, round, taken, given, member).run();
}

}  // namespace tessera::comm
