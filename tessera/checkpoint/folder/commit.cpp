#include "tessera/checkpoint/folder/commit.h"

#include <algorithm>
#include <chrono>
#include <set>
#include <thread>

#include "tessera/base/text.h"
#include "tessera/checkpoint/folder/names.h"
#include "tessera/checkpoint/format/weight_index.h"

namespace tessera::checkpoint {
namespace {

constexpr size_t kRanksInMessage = 16;

std::string names_of(const std::set<int64_t>& ranks) {
  std::vector<int64_t> first(ranks.begin(),
                             std::next(ranks.begin(), static_cast<int64_t>(std::min(ranks.size(), kRanksInMessage))));
  return base::join(first, ", ") +
         (ranks.size() > first.size() ? " and " + std::to_string(ranks.size() - first.size()) + " more" : "");
}

// Adds the receipts of those ranks whose are there, and forgets these ranks.
void take_receipts(Store& store, const std::string& folder, std::set<int64_t>& missing, ManifestMaker& maker) {
  for (const auto& name : store.list(folder).files) {
    const auto rank = try_receipt_rank(name);
    if (!rank || !missing.contains(*rank)) {
      continue;
    }
    const auto path = path_in(folder, name);
    const auto text = read_all(store, path);
    if (!has_seal(text)) {  // it is being written
      continue;
    }
    const auto receipt = read_receipt(text, path);
    TESSERA_CHECK_AS(DataError, receipt.rank == *rank, "[checkpoint] \"", path, "\" is of rank ", receipt.rank,
                     "; accepted: each rank's own receipt");
    maker.add(receipt, path);
    missing.erase(*rank);
  }
}

void wait_for_receipts(Store& store, const std::string& folder, int64_t ranks, const CommitOptions& options,
                       ManifestMaker& maker) {
  using Clock = std::chrono::steady_clock;
  std::set<int64_t> missing;
  for (int64_t rank = 0; rank < ranks; ++rank) {
    missing.insert(rank);
  }
  const auto begin = Clock::now();
  for (double pause = options.poll / 50;; pause = std::min(options.poll, 1.5 * pause)) {
    take_receipts(store, folder, missing, maker);
    if (missing.empty()) {
      return;
    }
    const std::chrono::duration<double> waited = Clock::now() - begin;
    TESSERA_CHECK_AS(DataError, waited.count() < options.deadline, "[checkpoint] \"", folder, "\": after ",
                     base::human_duration(options.deadline), " the receipts of ", missing.size(), " of ", ranks,
                     " ranks are missing: ", names_of(missing), "; accepted: a receipt of each rank");
    if (options.sleep) {
      options.sleep(pause);
    } else {
      std::this_thread::sleep_for(std::chrono::duration<double>(pause));
    }
  }
}

}  // namespace

Manifest commit(Store& store, const std::string& folder, const SaveId& save, int64_t ranks, nlohmann::json catalogue,
                const CommitOptions& options) {
  ManifestMaker maker(save);
  wait_for_receipts(store, folder, ranks, options, maker);
  auto manifest = maker.make(std::move(catalogue));
  if (const auto index = write_weight_index(manifest.tensors, manifest.files); !index.empty()) {
    manifest.files.push_back(write_hashed(store, folder, kWeightIndex, save, index));
    store.sync_folder(folder);
  }
  write_new(store, path_in(folder, kManifest), write_manifest(manifest));
  store.sync_folder(folder);
  store.sync_folder(folder_of(folder));
  return manifest;
}

}  // namespace tessera::checkpoint
