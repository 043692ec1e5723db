#include "tessera/checkpoint/ranks/hand_out.h"

#include <algorithm>
#include <cstring>
#include <map>

#include <ATen/ops/from_blob.h>

#include "tessera/checkpoint/ranks/needs.h"
#include "tessera/comm/core/context.h"
#include "tessera/comm/core/gather_numbers.h"

namespace tessera::checkpoint {
namespace {

constexpr int64_t kRound = int64_t{16} << 20;  // bytes of blocks of which a rank sends something at a time

// Where the slice would begin of which a piece lies in a block whose bytes are at `content`.
const std::byte* slice_begin(const Block& block, const Need& need, const std::byte* content) {
  return content + (need.piece->begin - block.begin) - need.piece->first * need.element;
}

std::vector<at::Tensor> as_tensors(std::vector<std::vector<std::byte>>& all) {
  std::vector<at::Tensor> tensors;
  for (auto& bytes : all) {
    tensors.push_back(
        at::from_blob(bytes.data(), {static_cast<int64_t>(bytes.size())}, at::TensorOptions().dtype(at::kByte)));
  }
  return tensors;
}

class HandOut {
 public:
  HandOut(const catalogue::Catalogue& wanted, const std::vector<Block>& blocks, const OwnBlocks& own, Parts& parts)
      : needs_(wanted), blocks_(blocks), own_(own), parts_(parts) {
    std::vector<size_t> counts(static_cast<size_t>(context_.world_size));
    for (const auto& block : blocks) {
      places_.push_back(counts[static_cast<size_t>(block.reader)]++);
    }
  }

  // Collective over the job, as by_messages().
  void by_gets(comm::Window& window) {
    const auto addresses = addresses_of_all();
    int64_t given = 0;
    std::vector<comm::Get> gets;
    // Each begins elsewhere, so that not all read the same page at once.
    const size_t begin = blocks_.size() * static_cast<size_t>(context_.rank) / static_cast<size_t>(context_.world_size);
    for (size_t turn = 0; turn < blocks_.size(); ++turn) {
      const size_t i = (turn + begin) % blocks_.size();
      const auto& block = blocks_[i];
      const auto needs = needs_.of(block, context_.rank);
      gets.clear();
      for (const auto& need : needs) {
        const auto address = addresses[static_cast<size_t>(block.reader)][places_[i]];
        const std::byte* from = slice_begin(block, need, reinterpret_cast<const std::byte*>(address));
        parts_.for_each_run(
            need.piece->entry, need.box, need.piece->slice, [&](int64_t at, std::byte* to, int64_t elements) {
              gets.push_back({from + at * need.element, to, static_cast<size_t>(elements * need.element)});
            });
      }
      window.get(block.reader, gets);
      for (const auto& need : needs) {
        parts_.note_written(need.piece->entry, need.elements());
      }
      if (is_own(i)) {
        for (const int64_t rank : needs_.takers_of(block)) {
          given += needs_.bytes_of(block, rank);
        }
      }
    }
    context_.ledger.record("get", context_.world->name(), "load", given);
    context_.world->barrier();  // what was read may go
  }

  void by_messages() {
    for (const auto& round : in_rounds()) {
      send_round(round);
    }
  }

 private:
  // Of the blocks of each rank, in their order.
  std::vector<std::vector<int64_t>> addresses_of_all() const {
    std::vector<int64_t> own, counts(static_cast<size_t>(context_.world_size));
    for (size_t i = 0; i < blocks_.size(); ++i) {
      ++counts[static_cast<size_t>(blocks_[i].reader)];
      if (is_own(i)) {
        own.push_back(reinterpret_cast<intptr_t>(content(i)));
      }
    }
    return comm::gather_numbers(*context_.world, own, counts);
  }

  // Blocks by their index. In each round every reader has some, the same on all ranks.
  std::vector<std::vector<size_t>> in_rounds() const {
    std::vector<std::vector<size_t>> rounds;
    std::map<int64_t, int64_t> sent;  // bytes of each reader's blocks
    for (size_t i = 0; i < blocks_.size(); ++i) {
      auto& bytes = sent[blocks_[i].reader];
      const auto round = static_cast<size_t>(bytes / kRound);
      rounds.resize(std::max(rounds.size(), round + 1));
      rounds[round].push_back(i);
      bytes += blocks_[i].end - blocks_[i].begin;
    }
    return rounds;
  }

  void send_round(const std::vector<size_t>& round) {
    using Bytes = std::vector<std::byte>;
    std::vector<Bytes> given(static_cast<size_t>(context_.world_size)), taken(given.size());
    for (const size_t i : round) {
      const auto& block = blocks_[i];
      if (!is_own(i)) {
        auto& from = taken[static_cast<size_t>(block.reader)];
        from.resize(from.size() + static_cast<size_t>(needs_.bytes_of(block, context_.rank)));
        continue;
      }
      for (const int64_t rank : needs_.takers_of(block)) {
        pack(block, content(i), rank, given[static_cast<size_t>(rank)]);
      }
    }
    int64_t sent = 0;
    for (const auto& bytes : given) {
      sent += static_cast<int64_t>(bytes.size());
    }
    context_.ledger.record("all_to_all", context_.world->name(), "load", sent);
    context_.world->all_to_all(as_tensors(taken), as_tensors(given))->wait();
    std::vector<const std::byte*> next;  // of what each rank gave
    for (const auto& bytes : taken) {
      next.push_back(bytes.data());
    }
    for (const size_t i : round) {
      const auto& block = blocks_[i];
      for (const auto& need : needs_.of(block, context_.rank)) {
        if (is_own(i)) {
          write(need, slice_begin(block, need, content(i)), need.piece->slice);
        } else {
          auto& from = next[static_cast<size_t>(block.reader)];
          write(need, from, need.box);
          from += need.bytes();
        }
      }
    }
  }

  // What a rank needs of a block, one box behind the other.
  void pack(const Block& block, const std::byte* content, int64_t rank, std::vector<std::byte>& bytes) const {
    for (const auto& need : needs_.of(block, rank)) {
      const std::byte* from = slice_begin(block, need, content);
      for_each_run(need.box, need.piece->slice, need.box, [&](int64_t at, int64_t, int64_t elements) {
        bytes.insert(bytes.end(), from + at * need.element, from + (at + elements) * need.element);
      });
    }
  }

  // From the elements of `source` at `from` to this rank's part.
  void write(const Need& need, const std::byte* from, const Box& source) {
    parts_.for_each_run(need.piece->entry, need.box, source, [&](int64_t at, std::byte* to, int64_t elements) {
      std::memcpy(to, from + at * need.element, static_cast<size_t>(elements * need.element));
    });
    parts_.note_written(need.piece->entry, need.elements());
  }

  bool is_own(size_t block) const { return blocks_[block].reader == context_.rank; }
  const std::byte* content(size_t block) const { return own_.content(places_[block]); }

  comm::RankContext& context_ = comm::RankContext::require();
  const Needs needs_;
  const std::vector<Block>& blocks_;
  std::vector<size_t> places_;  // of each block among its reader's own
  const OwnBlocks& own_;
  Parts& parts_;
};

}  // namespace

void hand_out(const catalogue::Catalogue& wanted, const std::vector<Block>& blocks, const OwnBlocks& own,
              Parts& parts) {
  auto& world = *comm::RankContext::require().world;
  HandOut work(wanted, blocks, own, parts);
  if (const auto window = world.open_window()) {
    work.by_gets(*window);
  } else {
    work.by_messages();
  }
}

}  // namespace tessera::checkpoint
