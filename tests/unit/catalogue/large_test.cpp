// Llama 3.1 405B on 8,192 ranks, planned for one rank; what owners write of models of several sizes.
#include <algorithm>
#include <map>

#include <gtest/gtest.h>

#include "tessera/catalogue/catalogue_json.h"
#include "tessera/catalogue/owners.h"
#include "tessera/catalogue/transfers.h"
#include "tests/support/llama_catalogue.h"

namespace tessera::catalogue::large_test {
namespace {

using layout::Mesh;
using support::LlamaSizes;

Catalogue llama_405b(const Mesh& mesh, bool cuts_parameters) {
  const LlamaSizes sizes;
  return support::llama_catalogue(sizes, mesh, support::llama_lay(sizes, cuts_parameters),
                                  support::llama_lay(sizes, true));
}

bool is_parameter(const Entry& entry) { return entry.role == Role::kParameter; }

TEST(Large, TheTextOf8192RanksIsSmall) {
  const Mesh plain = Mesh::parse("pp=16,dp=64,tp=8");
  std::vector<int64_t> ranks = plain.ranks();
  for (size_t i = 0; i + 1 < ranks.size(); i += 2) {
    std::swap(ranks[i], ranks[(i * 2311) % ranks.size()]);
  }
  const Catalogue catalogue = llama_405b(Mesh(plain.axes(), ranks), false);
  EXPECT_EQ(catalogue.entries().size(), 3u * (126 * 9 + 3));
  const std::string text = to_json(catalogue);
  EXPECT_LE(text.size(), 2'000'000u);
  EXPECT_EQ(from_json(text, "here"), catalogue);
}

TEST(Large, OwnersGetWhatTheyLackFromTheirReplica) {
  const Catalogue model = llama_405b(Mesh::parse("pp=16,dp=64,tp=8"), false).subset(is_parameter);
  const auto owners = owners_of(model);
  const Catalogue files = whole_at(model, owners);
  const int64_t rank = owners[10];
  const Traffic traffic = traffic_of(transfers_of(model, files, rank), files);
  int64_t written = 0, kept = 0, sent = 0;
  const layout::Coord own = *model.entries()[0].spec->mesh.coord_of(rank);
  for (size_t i = 0; i < owners.size(); ++i) {
    const layout::SpecData& spec = *model.entries()[i].spec;
    const layout::Coord at = *spec.mesh.coord_of(owners[i]);
    const int64_t held = spec.bytes() / (spec.is_cut() ? 8 : 1);  // over tp
    written += owners[i] == rank ? spec.bytes() : 0;
    kept += owners[i] == rank ? held : 0;
    // Of replicas the one that stands where the owner stands sends; what is not cut is with the owner.
    sent += spec.is_cut() && owners[i] != rank && at[0] == own[0] && at[1] == own[1] ? held : 0;
  }
  EXPECT_GT(written, 0);
  EXPECT_EQ(traffic, (Traffic{.sent = sent, .received = written - kept, .kept = kept}));
}

TEST(Large, ARankOfAnotherMeshGetsItsPartAndNoMore) {
  const Catalogue found = llama_405b(Mesh::parse("pp=16,dp=64,tp=8"), true);
  const Catalogue wanted = llama_405b(Mesh::parse("dp=256,tp=16"), true);
  for (int64_t rank : {0, 777, 4095, 8191}) {
    const Traffic traffic = traffic_of(transfers_of(found, wanted, rank), wanted);
    int64_t lacking = 0, held = 0;
    for (size_t i = 0; i < wanted.entries().size(); ++i) {
      const layout::Spec& to = wanted.entries()[i].spec;
      const auto coord = to->mesh.coord_of(rank);
      int64_t local = static_cast<int64_t>(c10::elementSize(to->dtype));
      for (int64_t size : coord ? to.local_sizes(*coord) : std::vector<int64_t>{0}) {
        local *= size;
      }
      held += local;
      lacking += received_bytes(found.entries()[i].spec, to, rank);
    }
    EXPECT_EQ(traffic.received, lacking);
    EXPECT_EQ(traffic.kept, held - lacking);
  }
}

// The share, or its largest tensor if that is more: what the most loaded rank writes, over that.
double most_over_bound(const LlamaSizes& llama, int64_t ranks) {
  const auto lay = support::llama_lay(llama, false);
  const Mesh mesh({{"dp", ranks}});
  const Catalogue model = support::llama_catalogue(llama, mesh, lay, lay).subset(is_parameter);
  const auto owners = owners_of(model);
  std::map<int64_t, int64_t> bytes, largest;
  for (size_t i = 0; i < owners.size(); ++i) {
    const int64_t size = model.entries()[i].spec->bytes();
    bytes[owners[i]] += size;
    largest[owners[i]] = std::max(largest[owners[i]], size);
  }
  const double share = static_cast<double>(model.bytes()) / static_cast<double>(ranks);
  double most = 0;
  for (const auto& [rank, written] : bytes) {
    most = std::max(most, static_cast<double>(written) / std::max(share, static_cast<double>(largest[rank])));
  }
  return most;
}

TEST(Large, OwnersOfLlamasWriteTheirShareOrOneTensor) {
  const LlamaSizes llama_1b{.layers = 16, .dim = 2048, .hidden = 8192, .kv_dim = 512, .vocab = 128256};
  const LlamaSizes llama_8b{.layers = 32, .dim = 4096, .hidden = 14336, .kv_dim = 1024, .vocab = 128256};
  const LlamaSizes llama_70b{.layers = 80, .dim = 8192, .hidden = 28672, .kv_dim = 1024, .vocab = 128256};
  const LlamaSizes models[] = {llama_1b, llama_8b, llama_70b, {}};
  for (size_t m = 0; m < std::size(models); ++m) {
    for (int64_t ranks : {1, 2, 3, 4, 5, 6, 7, 8, 12, 16, 24, 32, 64, 128, 512}) {
      const double most = most_over_bound(models[m], ranks);
      RecordProperty("model_" + std::to_string(m) + "_on_" + std::to_string(ranks), std::to_string(most));
      EXPECT_LE(most, 1.05);
    }
  }
}

}  // namespace
}  // namespace tessera::catalogue::large_test
