#include "tessera/checkpoint/ranks/load.h"

#include <cstring>
#include <map>
#include <numeric>

#include <ATen/EmptyTensor.h>
#include <ATen/core/grad_mode.h>

#include "tessera/base/error.h"
#include "tessera/catalogue/catalogue_json.h"
#include "tessera/catalogue/differences.h"
#include "tessera/catalogue/transfers.h"
#include "tessera/checkpoint/folder/names.h"
#include "tessera/checkpoint/folder/steps.h"
#include "tessera/checkpoint/format/box_runs.h"
#include "tessera/checkpoint/format/range_reader.h"
#include "tessera/checkpoint/ranks/agree.h"
#include "tessera/checkpoint/ranks/block_plan.h"
#include "tessera/checkpoint/ranks/host_memory.h"
#include "tessera/checkpoint/ranks/read_ahead.h"
#include "tessera/comm/core/context.h"

namespace tessera::checkpoint {
namespace {

constexpr int64_t kRound = int64_t{16} << 20;  // bytes that a rank reads before the others have what it sends

at::Tensor empty(c10::IntArrayRef sizes, at::ScalarType dtype) {
  return at::Tensor(at::detail::empty_cpu(sizes, dtype));
}

char* bytes_of(const at::Tensor& tensor) { return static_cast<char*>(tensor.mutable_data_ptr()); }

// What of a piece a rank needs.
std::vector<Box> needed(const BlockPiece& piece, const std::vector<Box>& held) {
  std::vector<Box> all;
  for (const auto& box : piece.boxes) {
    for (const auto& own : held) {
      if (Box overlap = reshard::intersect(box, own); reshard::numel(overlap) > 0) {
        all.push_back(std::move(overlap));
      }
    }
  }
  return all;
}

// Those that a rank reads, in their order.
std::vector<FileRange> ranges_of(int64_t rank, const std::vector<Block>& blocks) {
  std::vector<FileRange> ranges;
  for (const auto& block : blocks) {
    if (block.reader == rank) {
      ranges.push_back({block.file, block.begin, block.end});
    }
  }
  return ranges;
}

// Loads on one rank.
class Loader {
 public:
  Loader(const OpenCheckpoint& checkpoint, const catalogue::Catalogue& wanted, const std::vector<Block>& blocks)
      : wanted_(wanted),
        reader_(*checkpoint.store, checkpoint.folder, checkpoint.manifest),
        ahead_(reader_, ranges_of(context_.rank, blocks)) {
    for (const auto& entry : wanted.entries()) {
      const auto coord = entry.spec->mesh.coord_of(context_.rank);
      const auto sizes = coord ? entry.spec.local_sizes(*coord) : std::vector<int64_t>{0};
      parts_.push_back(memory_->empty(sizes, entry.spec->dtype));
      holdings_.push_back(reshard::Holdings::of_holders(entry.spec));
    }
  }

  // Blocks, in the order in which every reader reads its own; each sends the others what they need of them. Collective
  // over the job.
  void take(const std::vector<const Block*>& blocks) {
    std::vector<at::Tensor> given(context_.world_size), taken(context_.world_size);
    make_room(blocks, given, taken);
    std::vector<int64_t> filled(given.size());
    for (const auto* block : blocks) {
      const char* content = block->reader == context_.rank ? next() : nullptr;
      if (content != nullptr) {
        deal(*block, content, given, filled);
      }
    }
    const auto sent = std::accumulate(filled.begin(), filled.end(), int64_t{0});
    context_.ledger.record("all_to_all", context_.world->name(), "load", sent);
    context_.world->all_to_all(taken, given)->wait();
    std::vector<int64_t> read(taken.size());
    for (const auto* block : blocks) {
      if (block->reader != context_.rank) {
        receive(*block, bytes_of(taken[block->reader]), read[block->reader]);
      }
    }
  }

  // After the last block: throws Damaged on every rank if one could not be read somewhere. Collective over the job.
  void finish() const { throw_damage(damage_); }

  // After finish().
  const std::vector<at::Tensor>& parts() const { return parts_; }
  int64_t bytes_read() const { return reader_.bytes_read(); }

 private:
  struct Need {
    const BlockPiece* piece;
    Box box;
  };

  // The next block that this rank reads; none from the first on that it cannot. What others then get in its place is
  // not used.
  const char* next() {
    try {
      return damage_.empty() ? ahead_.next() : nullptr;
    } catch (const DataError& error) {
      damage_ = base::message_of(error);
      return nullptr;
    }
  }

  // Ranks that may need some of the block.
  std::vector<int64_t> ranks_of(const Block& block) const {
    std::vector<int64_t> ranks;
    for (const auto& piece : block.pieces) {
      const auto& more = holdings_[piece.entry].mesh().ranks();
      ranks.insert(ranks.end(), more.begin(), more.end());
    }
    std::sort(ranks.begin(), ranks.end());
    ranks.erase(std::unique(ranks.begin(), ranks.end()), ranks.end());
    return ranks;
  }

  std::vector<Need> needs_of(const Block& block, int64_t rank) const {
    std::vector<Need> needs;
    for (const auto& piece : block.pieces) {
      const auto& holdings = holdings_[piece.entry];
      if (holdings.mesh().coord_of(rank)) {
        for (auto& box : needed(piece, holdings.boxes_of(rank))) {
          needs.push_back({&piece, std::move(box)});
        }
      }
    }
    return needs;
  }

  int64_t element_of(const BlockPiece& piece) const {
    return static_cast<int64_t>(at::elementSize(wanted_.entries()[piece.entry].spec->dtype));
  }

  int64_t bytes_of_needs(const std::vector<Need>& needs) const {
    int64_t bytes = 0;
    for (const auto& need : needs) {
      bytes += reshard::numel(need.box) * element_of(*need.piece);
    }
    return bytes;
  }

  // For what this rank sends of the blocks to each, and what it receives.
  void make_room(const std::vector<const Block*>& blocks, std::vector<at::Tensor>& given,
                 std::vector<at::Tensor>& taken) {
    std::vector<int64_t> to_give(given.size()), to_take(taken.size());
    for (const auto* block : blocks) {
      if (block->reader != context_.rank) {
        to_take[block->reader] += bytes_of_needs(needs_of(*block, context_.rank));
        continue;
      }
      for (const int64_t rank : ranks_of(*block)) {
        to_give[rank] += rank == context_.rank ? 0 : bytes_of_needs(needs_of(*block, rank));
      }
    }
    given_room_.resize(given.size());
    taken_room_.resize(taken.size());
    for (size_t i = 0; i < given.size(); ++i) {
      given[i] = narrowed(given_room_[i], to_give[i]);
      taken[i] = narrowed(taken_room_[i], to_take[i]);
    }
  }

  // So many bytes of a room, which grows if need be.
  static at::Tensor narrowed(at::Tensor& room, int64_t bytes) {
    if (!room.defined() || room.numel() < bytes) {
      room = empty({bytes}, at::kByte);
    }
    return room.narrow(0, 0, bytes);
  }

  // From a block to this rank's own parts, and to what others are given, behind what was `filled` of it.
  void deal(const Block& block, const char* content, const std::vector<at::Tensor>& given,
            std::vector<int64_t>& filled) {
    for (const int64_t rank : ranks_of(block)) {
      for (const auto& need : needs_of(block, rank)) {
        const int64_t element = element_of(*need.piece);
        const char* from = content + (need.piece->begin - block.begin) - need.piece->first * element;
        if (rank == context_.rank) {
          write_own(need, from, need.piece->slice);
          continue;
        }
        char* to = bytes_of(given[rank]) + filled[rank];
        for_each_run(need.box, need.piece->slice, need.box, [&](int64_t at, int64_t into, int64_t elements) {
          std::memcpy(to + into * element, from + at * element, static_cast<size_t>(elements * element));
        });
        filled[rank] += reshard::numel(need.box) * element;
      }
    }
  }

  // What its reader gave of a block, from byte `read` on.
  void receive(const Block& block, const char* taken, int64_t& read) {
    for (const auto& need : needs_of(block, context_.rank)) {
      write_own(need, taken + read, need.box);
      read += reshard::numel(need.box) * element_of(*need.piece);
    }
  }

  // From the elements of `source` at `from` to this rank's part.
  void write_own(const Need& need, const char* from, const Box& source) {
    const auto& spec = wanted_.entries()[need.piece->entry].spec;
    const at::Tensor& part = parts_[need.piece->entry];
    const Box local = catalogue::local_box(spec, context_.rank, need.box);
    Box into;  // the part, in indices in which `need.box` is where it lies in it
    for (size_t d = 0; d < local.size(); ++d) {
      const int64_t begin = need.box[d].begin - local[d].begin;
      into.push_back({begin, begin + part.size(static_cast<int64_t>(d))});
    }
    const int64_t element = element_of(*need.piece);
    for_each_run(need.box, source, into, [&](int64_t at, int64_t to, int64_t elements) {
      std::memcpy(bytes_of(part) + to * element, from + at * element, static_cast<size_t>(elements * element));
    });
  }

  comm::RankContext& context_ = comm::RankContext::require();
  const catalogue::Catalogue& wanted_;
  RangeReader reader_;
  ReadAhead ahead_;     // the reader's only user
  std::string damage_;  // what it threw
  const std::shared_ptr<HostMemory> memory_ = HostMemory::of_thread();
  std::vector<at::Tensor> parts_;                    // of the wanted entries, in this memory; as are
  std::vector<reshard::Holdings> holdings_;          // those that hold a part
  std::vector<at::Tensor> given_room_, taken_room_;  // for each rank, of all rounds
};

// In each round every reader has some blocks, the same on all ranks.
std::vector<std::vector<const Block*>> in_rounds(const std::vector<Block>& blocks) {
  std::vector<std::vector<const Block*>> rounds;
  std::map<int64_t, int64_t> read;  // bytes of each reader
  for (const auto& block : blocks) {
    auto& bytes = read[block.reader];
    const auto round = static_cast<size_t>(bytes / kRound);
    rounds.resize(std::max(rounds.size(), round + 1));
    rounds[round].push_back(&block);
    bytes += block.end - block.begin;
  }
  return rounds;
}

}  // namespace

OpenCheckpoint open_for_ranks(std::shared_ptr<Store> store, const std::string& folder) {
  OpenCheckpoint checkpoint{.store = std::move(store), .folder = folder, .manifest = {}, .catalogue = {}};
  const auto path = path_in(folder, kManifest);
  const auto text = read_on_one([&] { return write_manifest(open_checkpoint(*checkpoint.store, folder)); });
  checkpoint.manifest = read_manifest(text, path);
  checkpoint.catalogue = catalogue::from_json(checkpoint.manifest.catalogue.dump(), path);
  return checkpoint;
}

void verify_fits(const OpenCheckpoint& checkpoint, const Contents& contents, LoadOptions options) {
  catalogue::verify_fits(catalogue_of(contents), checkpoint.catalogue, checkpoint.folder,
                         {.allows_extra = options.allows_extra});
}

int64_t load_tensors(const OpenCheckpoint& checkpoint, const Contents& contents, LoadOptions options) {
  const at::NoGradGuard no_grad;
  verify_fits(checkpoint, contents, options);
  const auto wanted = catalogue_of(contents);
  const auto blocks = plan_blocks(checkpoint.manifest, checkpoint.catalogue, wanted);
  Loader loader(checkpoint, wanted, blocks);
  for (const auto& round : in_rounds(blocks)) {
    loader.take(round);
  }
  loader.finish();  // all blocks are what was written
  const auto tensors = in_order_of(wanted, contents);
  for (size_t i = 0; i < tensors.size(); ++i) {
    set_part(tensors[i], loader.parts()[i]);
  }
  return loader.bytes_read();
}

}  // namespace tessera::checkpoint
