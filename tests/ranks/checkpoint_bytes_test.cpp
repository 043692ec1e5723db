// What a save writes and sends, and a load reads and sends, byte for byte: against closed forms, on every kind of mesh.
#include <array>
#include <map>
#include <mutex>

#include "tessera/catalogue/owners.h"
#include "tessera/catalogue/transfers.h"
#include "tessera/checkpoint/folder/names.h"
#include "tessera/checkpoint/folder/steps.h"
#include "tessera/checkpoint/ranks/block_plan.h"
#include "tessera/checkpoint/ranks/load.h"
#include "tessera/checkpoint/ranks/save.h"
#include "tessera/checkpoint/ranks/stage.h"
#include "tessera/checkpoint/store/memory_store.h"
#include "tessera/comm/core/context.h"
#include "tests/ranks/support.h"
#include "tests/support/llama_catalogue.h"
#include "tests/support/no_windows.h"
#include "tests/support/observed_store.h"

namespace tessera::ranks::checkpoint_bytes_test {
namespace {

using catalogue::Catalogue;
using checkpoint::Contents;
using checkpoint::Manifest;
using checkpoint::MemoryStore;

constexpr const char* kFolder = "run/step_000007";
constexpr int64_t kBlock = 4096;

const char* const kMeshes[] = {"1", "dp=2", "tp=2", "dp=2,tp=2", "tp=4", "dp=3", "dp=3,tp=2"};

// A small Llama whose moments are cut over dp as well: by name, at the layouts of its catalogue.
Contents contents_on(const Mesh& mesh) {
  const support::LlamaSizes sizes{.layers = 2, .dim = 128, .hidden = 352, .kv_dim = 64, .vocab = 1024};
  const auto lay = support::llama_lay(sizes, false), lay_moments = support::llama_lay(sizes, true);
  Contents contents;
  const Catalogue catalogue = support::llama_catalogue(sizes, mesh, lay, lay_moments);
  for (const auto& entry : catalogue.entries()) {
    const auto value = waves(entry.spec->sizes).to(entry.spec->dtype);
    contents.tensors.push_back({entry.name, entry.role, distribute(value, mesh, entry.spec->placements)});
  }
  return contents;
}

// Bytes by path: those that were appended to files, and those that were read.
struct Counted {
  std::mutex mutex;
  std::map<std::string, int64_t> written, read;

  std::shared_ptr<checkpoint::Store> over(std::shared_ptr<checkpoint::Store> store) {
    return std::make_shared<support::ObservedStore>(std::move(store), [this](const support::StoreCall& call) {
      const std::scoped_lock lock(mutex);
      if (call.is_done && call.bytes > 0) {
        (call.what == "read" ? read : written)[checkpoint::name_of(call.path)] += call.bytes;
      }
    });
  }
};

struct Saved {
  std::shared_ptr<MemoryStore> store = std::make_shared<MemoryStore>();
  Counted counted;
  Manifest manifest;
  Catalogue catalogue;
};

void save_on(const Mesh& mesh, bool in_slices, Saved& saved) {
  const auto store = saved.counted.over(saved.store);
  run_on(mesh, [&](int64_t rank) {
    const Contents contents = contents_on(mesh);
    checkpoint::save(store, "run", 7, contents, {.in_slices = in_slices, .block_size = kBlock});
    if (rank == 0) {
      saved.catalogue = checkpoint::catalogue_of(contents);
    }
  });
  saved.manifest = checkpoint::open_checkpoint(*saved.store, kFolder);
}

// The disk has each tensor once and a header for each part; every file is written once.
TEST(CheckpointBytes, OfAFolderAreTensorsAndHeadersEachOnce) {
  for (const char* text : kMeshes) {
    for (const bool in_slices : {false, true}) {
      Saved saved;
      save_on(Mesh::parse(text), in_slices, saved);
      int64_t parts = 0, headers = 0;
      for (const auto& file : saved.manifest.files) {
        parts += file.data_begin > 0 ? file.size : 0;
        headers += file.data_begin;
      }
      EXPECT_EQ(parts, saved.catalogue.bytes() + headers) << text;
      EXPECT_LE(headers, 200 * (in_slices ? 4 : 1) * static_cast<int64_t>(saved.manifest.tensors.size()) *
                             Mesh::parse(text).size());
      for (const auto& path : saved.store->paths()) {
        EXPECT_EQ(saved.counted.written[checkpoint::name_of(path)], *saved.store->try_size(path)) << path;
      }
    }
  }
}

TEST(CheckpointBytes, ARankWritesItsShareOrItsLargestTensor) {
  for (const char* text : kMeshes) {
    for (const bool in_slices : {false, true}) {
      Saved saved;
      const Mesh mesh = Mesh::parse(text);
      save_on(mesh, in_slices, saved);
      std::map<bool, int64_t> all;  // bytes of what is written whole, and of the rest
      for (const auto& entry : saved.catalogue.entries()) {
        all[!in_slices && entry.role == catalogue::Role::kParameter] += entry.spec->bytes();
      }
      for (int64_t rank = 0; rank < mesh.size(); ++rank) {
        const auto path = checkpoint::path_in(kFolder, checkpoint::receipt_name(rank));
        const auto receipt = checkpoint::read_receipt(checkpoint::read_all(*saved.store, path), path);
        std::map<bool, int64_t> written, largest;
        for (const auto& piece : receipt.pieces) {
          const auto& file = receipt.files[static_cast<size_t>(piece.file)].name;
          const int64_t bytes = reshard::numel(piece.box) * static_cast<int64_t>(c10::elementSize(piece.dtype));
          written[file.starts_with("model-")] += bytes;
          largest[file.starts_with("model-")] = std::max(largest[file.starts_with("model-")], bytes);
        }
        for (const auto& [is_whole, bytes] : written) {
          const double share = static_cast<double>(all[is_whole]) / static_cast<double>(mesh.size());
          const double largest_whole = is_whole ? static_cast<double>(largest[true]) : 0;
          EXPECT_LE(static_cast<double>(bytes), std::max(1.05 * share, largest_whole))
              << text << " rank " << rank << (is_whole ? " whole" : " slices") << ", share " << share;
        }
      }
    }
  }
}

// Out of each other's memory or by messages: the same bytes.
class CheckpointTraffic : public testing::TestWithParam<bool> {
 protected:
  static void run_with(const Mesh& mesh, const std::function<void(int64_t)>& body) {
    run_on(mesh, [&](int64_t rank) {
      if (!GetParam()) {
        support::close_windows();
      }
      body(rank);
    });
  }
};

INSTANTIATE_TEST_SUITE_P(All, CheckpointTraffic, testing::Bool(),
                         [](const auto& info) { return info.param ? "ByWindows" : "ByMessages"; });

// Owners get what they lack, and nothing else is sent while copies are made.
TEST_P(CheckpointTraffic, SentOnASaveAreWhatOwnersLack) {
  for (const char* text : kMeshes) {
    const Mesh mesh = Mesh::parse(text);
    for (const bool in_slices : {false, true}) {
      std::atomic<int64_t> sent = 0, lacking = 0;
      run_with(mesh, [&](int64_t rank) {
        const Contents contents = contents_on(mesh);
        const auto catalogue = checkpoint::catalogue_of(contents);
        auto& ledger = comm::RankContext::require().ledger;
        ledger.clear();
        const auto memory = checkpoint::HostMemory::of_thread();
        checkpoint::stage_whole(contents, catalogue, {.in_slices = in_slices}, *memory);
        checkpoint::stage_slices(contents, catalogue, {.in_slices = in_slices}, *memory);
        sent += ledger.total_bytes();
        const auto model = catalogue.subset([](const auto& e) { return e.role == catalogue::Role::kParameter; });
        const auto owners = catalogue::owners_of(model);
        for (size_t i = 0; i < owners.size() && rank == 0 && !in_slices; ++i) {
          const auto& spec = model.entries()[i].spec;
          lacking += catalogue::moved_bytes(spec, catalogue::whole_at(spec, owners[i]));
        }
      });
      EXPECT_EQ(sent.load(), lacking.load()) << text;
      EXPECT_EQ(lacking > 0, !in_slices && Mesh::parse(text).str().find("tp") != std::string::npos) << text;
    }
  }
}

// Bytes that readers of blocks have for themselves.
int64_t kept_by_readers(const std::vector<checkpoint::Block>& blocks, const Catalogue& wanted) {
  int64_t kept = 0;
  for (const auto& block : blocks) {
    for (const auto& piece : block.pieces) {
      const auto& spec = wanted.entries()[piece.entry].spec;
      for (const auto& own : reshard::Holdings::of_holders(spec).boxes_of(block.reader)) {
        for (const auto& box : piece.boxes) {
          kept += reshard::numel(reshard::intersect(box, own)) * static_cast<int64_t>(c10::elementSize(spec->dtype));
        }
      }
    }
  }
  return kept;
}

// All ranks together read the manifest and every block that has tensors once: all blocks but those of long headers.
// What they hold beyond what they read came from others.
TEST_P(CheckpointTraffic, ReadOnALoadAreTheFolderOnceWhateverTheMesh) {
  for (const char* from : {"1", "dp=2,tp=2", "dp=3"}) {
    Saved saved;
    save_on(Mesh::parse(from), std::string(from) == "dp=3", saved);
    for (const char* text : kMeshes) {
      Counted counted;
      const auto store = counted.over(saved.store);
      const Mesh mesh = Mesh::parse(text);
      std::atomic<int64_t> read = 0, sent = 0, held = 0, kept = 0;
      run_with(mesh, [&](int64_t rank) {
        const Contents contents = contents_on(mesh);
        const auto found = checkpoint::open_for_ranks(store, kFolder);
        auto& ledger = comm::RankContext::require().ledger;
        ledger.clear();
        read += checkpoint::load_tensors(found, contents);
        sent += ledger.total_bytes();
        for (const auto& tensor : contents.tensors) {
          held += static_cast<int64_t>(dtensor::part_outside_program(tensor.tensor).nbytes());
        }
        if (rank == 0) {
          const auto wanted = checkpoint::catalogue_of(contents);
          kept = kept_by_readers(checkpoint::plan_blocks(found.manifest, found.catalogue, wanted), wanted);
        }
      });
      int64_t parts = 0;
      for (const auto& file : saved.manifest.files) {
        const int64_t wanted = file.data_begin > 0 ? file.size - file.data_begin / kBlock * kBlock : 0;
        EXPECT_EQ(counted.read[file.name], wanted) << from << " -> " << text << " " << file.name;
        parts += wanted;
      }
      EXPECT_EQ(read.load(), parts) << from << " -> " << text;
      EXPECT_EQ(counted.read[checkpoint::kManifest],
                *saved.store->try_size(checkpoint::path_in(kFolder, checkpoint::kManifest)));
      EXPECT_EQ(sent.load(), held - kept) << from << " -> " << text;
    }
  }
}

// A disk is quicker so, and the system reads ahead.
TEST(CheckpointBytes, ARankReadsBlocksOneBehindTheOther) {
  const auto value = waves({256, 256});
  const auto contents_at = [&](const Mesh& mesh) {
    return Contents{.tensors = {{"table", catalogue::Role::kParameter, distribute(value, mesh, {layout::Replicate()})}},
                    .values = {}};
  };
  const auto store = std::make_shared<MemoryStore>();
  run_on(Mesh::parse("dp=1"), [&](int64_t) {
    checkpoint::save(store, "run", 7, contents_at(Mesh::parse("dp=1")), {.in_slices = true, .block_size = kBlock / 16});
  });
  run_on(Mesh::parse("dp=4"), [&](int64_t) {
    const auto found = checkpoint::open_for_ranks(store, kFolder);
    const auto blocks = checkpoint::plan_blocks(found.manifest, found.catalogue,
                                                checkpoint::catalogue_of(contents_at(Mesh::parse("dp=4"))));
    size_t changes = 0;
    for (size_t i = 1; i < blocks.size(); ++i) {
      changes += blocks[i].reader != blocks[i - 1].reader;
    }
    EXPECT_LE(changes, blocks.size() / 8) << blocks.size() << " blocks";
  });
}

// Whoever holds the first elements of blocks does not read them all.
TEST(CheckpointBytes, ARankReadsItsShare) {
  using layout::Replicate;
  using layout::Shard;
  const auto value = waves({256, 256});
  const auto contents_at = [&](const Mesh& mesh, const layout::Placements& placements) {
    return Contents{.tensors = {{"table", catalogue::Role::kParameter, distribute(value, mesh, placements)}},
                    .values = {}};
  };
  const auto store = std::make_shared<MemoryStore>();
  const Mesh two = Mesh::parse("tp=2");
  run_on(two, [&](int64_t) {
    checkpoint::save(store, "run", 7, contents_at(two, {Shard(0)}), {.in_slices = true, .block_size = kBlock});
  });
  struct Case {
    const char* mesh;
    layout::Placements placements;
  };
  for (const Case& each : {Case{"tp=4", {Shard(1)}}, Case{"tp=4", {Shard(0)}}, Case{"dp=4", {Replicate()}},
                           Case{"dp=2,tp=2", {Replicate(), Shard(1)}}, Case{"dp=2,tp=2", {Shard(0), Shard(1)}}}) {
    const Mesh mesh = Mesh::parse(each.mesh);
    std::array<int64_t, 4> read{};
    run_on(mesh, [&](int64_t rank) {
      read.at(static_cast<size_t>(rank)) =
          checkpoint::load_tensors(checkpoint::open_for_ranks(store, kFolder), contents_at(mesh, each.placements));
    });
    for (const int64_t bytes : read) {
      EXPECT_LE(bytes, static_cast<int64_t>(value.nbytes()) / mesh.size() + 2 * kBlock)
          << each.mesh << " " << at::IntArrayRef(read);
    }
  }
}

}  // namespace
}  // namespace tessera::ranks::checkpoint_bytes_test
