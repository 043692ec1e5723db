#include "tessera/checkpoint/ranks/load.h"

#include <algorithm>

#include <ATen/Parallel.h>
#include <ATen/core/grad_mode.h>

#include "tessera/catalogue/catalogue_json.h"
#include "tessera/catalogue/differences.h"
#include "tessera/checkpoint/folder/names.h"
#include "tessera/checkpoint/folder/steps.h"
#include "tessera/checkpoint/ranks/agree.h"
#include "tessera/checkpoint/ranks/block_plan.h"
#include "tessera/checkpoint/ranks/hand_out.h"
#include "tessera/checkpoint/ranks/host_memory.h"
#include "tessera/checkpoint/ranks/own_blocks.h"
#include "tessera/checkpoint/ranks/parts.h"
#include "tessera/comm/core/context.h"

namespace tessera::checkpoint {
namespace {

constexpr int kMostThreads = 4;  // that read

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
  Parts parts(wanted, in_order_of(wanted, contents));
  const auto memory = HostMemory::of_thread();
  OwnBlocks own(checkpoint, ranges_of(comm::RankContext::require().rank, blocks), *memory,
                std::clamp(at::get_num_threads(), 1, kMostThreads));
  wait_for_all([&] { return own.wait(); });
  throw_damage(own.damage());
  hand_out(wanted, blocks, own, parts);
  return own.bytes_read();
}

}  // namespace tessera::checkpoint
