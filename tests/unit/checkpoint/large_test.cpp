// The manifest of Llama 3.1 405B, its parameters and two moments, by 8,192 ranks: of layouts as training has them, few
// megabytes beside the checksums of the blocks.
#include <cstdlib>
#include <iostream>
#include <random>

#include <gtest/gtest.h>

#include "tessera/base/hash.h"
#include "tessera/catalogue/owners.h"
#include "tessera/checkpoint/format/manifest.h"
#include "tests/support/llama_catalogue.h"

namespace tessera::checkpoint::large_test {
namespace {

using catalogue::Catalogue;
using layout::Mesh;
using support::Lay;

constexpr int64_t kHeader = 300'000;  // bytes of a part's
constexpr int64_t kWatched = 1032;    // a rank that has some of everything

// Every slice of every tensor at the rank that writes it, one behind the other in the order of a part.
class Placer {
 public:
  explicit Placer(const Catalogue& catalogue) : catalogue_(catalogue), owners_(catalogue) {}

  Manifest place() {
    manifest_.ranks = static_cast<int64_t>(end_of_.size());
    for (const int64_t element : {8, 4, 2, 1}) {
      for (size_t i = 0; i < catalogue_.entries().size(); ++i) {
        if (static_cast<int64_t>(c10::elementSize(catalogue_.entries()[i].spec->dtype)) == element) {
          place_tensor(i, element);
        }
      }
    }
    std::sort(manifest_.tensors.begin(), manifest_.tensors.end(),
              [](const auto& a, const auto& b) { return a.name < b.name; });
    place_files();
    return std::move(manifest_);
  }

  // What one rank leaves.
  Receipt receipt(const Manifest& manifest) const {
    return {.save = manifest.save, .rank = kWatched, .files = {manifest.files[kWatched]}, .pieces = watched_};
  }

 private:
  void place_tensor(size_t index, int64_t element) {
    const auto& entry = catalogue_.entries()[index];
    const auto holdings = reshard::Holdings::of_holders(entry.spec);
    TableMaker maker;
    for (const auto rank : holdings.mesh().ranks()) {
      if (owners_.owner(index, rank) != rank) {
        continue;
      }
      for (const auto& box : holdings.boxes_of(rank)) {
        if (const int64_t bytes = reshard::numel(box) * element; bytes > 0) {
          auto& end = end_of_[rank];
          const PlacedPiece piece{.name = entry.name,
                                  .dtype = entry.spec->dtype,
                                  .sizes = entry.spec->sizes,
                                  .box = box,
                                  .value_hash = base::hash_mix(index),
                                  .begin = end};
          maker.add(piece, rank);
          if (rank == kWatched) {
            watched_.push_back(piece);
          }
          end += bytes;
        }
      }
    }
    manifest_.tensors.push_back(maker.make(entry.name));
  }

  void place_files() {
    std::mt19937_64 random(1);
    for (int64_t rank = 0; rank < 8192; ++rank) {
      FileRecord file{.name = "state-" + std::to_string(rank), .size = end_of_[rank] + kHeader, .data_begin = kHeader};
      file.blocks.resize(static_cast<size_t>(block_count(file.size, kBlockSize)));
      std::generate(file.blocks.begin(), file.blocks.end(), [&] { return random(); });
      manifest_.files.push_back(std::move(file));
    }
  }

  const Catalogue& catalogue_;
  const catalogue::SliceOwners owners_;
  std::vector<PlacedPiece> watched_;
  std::map<int64_t, int64_t> end_of_;  // of each rank's data
  Manifest manifest_;
};

// Parameters and moments cut over both axes; moments alone over dp; over half of dp, which leaves copies; each also
// where small tensors are on some ranks alone.
struct Shape {
  const char* mesh;
  bool cuts_parameters;
};

constexpr Shape kShapes[] = {
    {"dp=8192", true},          {"dp=1024,tp=8", true},          {"dp=1024,tp=8", false},
    {"pp=16,dp=64,tp=8", true}, {"pp=16,dp=64,tp=8", false},     {"copies=64,dp=16,tp=8", true},
    {"tp=8,dp=1024", true},     {"copies=2,dp=512,tp=8", false}, {"dp=1000,tp=8", true}};

// TESSERA_FULL: all 126 layers, half a minute each.
TEST(Large, ManifestsOf8192RanksTakeAFewMegabytes) {
  const bool is_full = std::getenv("TESSERA_FULL") != nullptr;
  support::LlamaSizes sizes;
  sizes.layers = is_full ? sizes.layers : 4;
  for (const auto& shape : kShapes) {
    const Mesh mesh = Mesh::parse(shape.mesh);
    const auto catalogue = support::llama_catalogue(sizes, mesh, support::llama_lay(sizes, shape.cuts_parameters),
                                                    support::llama_lay(sizes, true));
    Placer placer(catalogue);
    auto manifest = placer.place();
    const auto receipt = placer.receipt(manifest);
    const auto left = write_receipt(receipt);
    EXPECT_EQ(read_receipt(left, "r"), receipt);
    EXPECT_LE(left.size(), 2000 + 60 * receipt.pieces.size() + 11 * receipt.files[0].blocks.size()) << shape.mesh;
    const auto text = write_manifest(manifest);
    EXPECT_EQ(read_manifest(text, "m"), manifest);
    int64_t slices = 0, blocks = 0;
    for (const auto& table : manifest.tensors) {
      slices += table.slice_count();
    }
    for (const auto& file : manifest.files) {
      blocks += static_cast<int64_t>(file.blocks.size());
    }
    manifest.files.clear();
    const auto tables = write_manifest(manifest).size();
    std::cout << shape.mesh << (shape.cuts_parameters ? ", all cut: " : ", moments cut: ") << manifest.tensors.size()
              << " tensors in " << slices << " slices, " << blocks << " blocks: " << text.size()
              << " bytes, of which tables " << tables << " (" << tables / manifest.tensors.size()
              << " a tensor); a receipt of " << receipt.pieces.size() << " slices: " << left.size() << "\n";
    EXPECT_LE(tables, 1000 * manifest.tensors.size()) << shape.mesh;
  }
}

}  // namespace
}  // namespace tessera::checkpoint::large_test
