// Plans of every rank, run on real numbers: each element is its index in the whole tensor.
#include "tessera/catalogue/transfers.h"

#include <deque>
#include <map>
#include <random>

#include <gtest/gtest.h>

#include <ATen/ATen.h>

#include "tessera/catalogue/owners.h"
#include "tests/unit/catalogue/random_catalogue.h"

namespace tessera::catalogue::transfers_test {
namespace {

using layout::Mesh;
using layout::Spec;
using reshard::Box;

constexpr int64_t kRanks = 70;

// What a rank holds of the tensor whose elements are their indices; undefined where it holds no part.
at::Tensor part_of(const Spec& spec, int64_t rank) {
  const auto coord = spec->mesh.coord_of(rank);
  if (!coord || !spec->holds(*coord)) {
    return {};
  }
  at::Tensor part = at::arange(spec->numel()).view(spec->sizes);
  const auto runs = spec.local_runs(*coord);
  for (int64_t d = 0; d < spec->ndim(); ++d) {
    std::vector<at::Tensor> pieces;
    for (const layout::Range& run : runs[d]) {
      pieces.push_back(part.narrow(d, run.begin, run.size()));
    }
    part = at::cat(pieces, d);
  }
  return part;
}

at::Tensor slice(at::Tensor tensor, const Box& box) {
  for (size_t d = 0; d < box.size(); ++d) {
    tensor = tensor.narrow(static_cast<int64_t>(d), box[d].begin, box[d].size());
  }
  return tensor;
}

struct Message {
  Box box;
  at::Tensor values;
};

// By wanted entry, sender and receiver.
using Wire = std::map<std::tuple<size_t, int64_t, int64_t>, std::deque<Message>>;
using Plans = std::vector<std::vector<EntryTransfers>>;

Plans plans_of(const Catalogue& found, const Catalogue& wanted) {
  Plans plans;
  for (int64_t rank = 0; rank < kRanks; ++rank) {
    plans.push_back(transfers_of(found, wanted, rank));
  }
  return plans;
}

Wire send_all(const Plans& plans, const Catalogue& found, const Catalogue& wanted) {
  Wire wire;
  for (int64_t rank = 0; rank < kRanks; ++rank) {
    for (const EntryTransfers& own : plans[rank]) {
      const Spec& from = found.find_match(wanted.entries()[own.index])->spec;
      for (const reshard::Transfer& send : own.transfers.sends) {
        EXPECT_EQ(send.from, rank);
        const Box local = local_box(from, rank, send.box);
        wire[{own.index, rank, send.to}].push_back({send.box, slice(part_of(from, rank), local).clone()});
      }
    }
  }
  return wire;
}

// Fills what `rank` is to hold of an entry from what was sent, and compares; takes from the wire in order.
void receive(const std::vector<EntryTransfers>& plan, const Catalogue& wanted, int64_t rank, Wire& wire) {
  std::map<size_t, const EntryTransfers*> by_index;
  for (const EntryTransfers& own : plan) {
    EXPECT_TRUE(by_index.emplace(own.index, &own).second);
  }
  for (size_t i = 0; i < wanted.entries().size(); ++i) {
    const Spec& to = wanted.entries()[i].spec;
    const at::Tensor expected = part_of(to, rank);
    at::Tensor values = expected.defined() ? at::full_like(expected, -1) : at::Tensor();
    at::Tensor times = expected.defined() ? at::zeros_like(expected) : at::Tensor();
    if (by_index.contains(i)) {
      for (const reshard::Transfer& receive : by_index[i]->transfers.receives) {
        auto& sent = wire[{i, receive.from, rank}];
        ASSERT_FALSE(sent.empty()) << "nobody sends what a rank receives";
        EXPECT_EQ(sent.front().box, receive.box);
        const Box local = local_box(to, rank, receive.box);
        slice(values, local).copy_(sent.front().values);
        slice(times, local).add_(1);
        sent.pop_front();
      }
    }
    if (expected.defined()) {
      EXPECT_TRUE(at::equal(times, at::ones_like(times))) << "not every element exactly once";
      EXPECT_TRUE(at::equal(values, expected)) << "other elements";
    }
  }
}

// Elements that a rank is to hold and does not, told apart one by one.
int64_t lacking_by_force(const Spec& from, const Spec& to, int64_t rank) {
  const at::Tensor held = part_of(from, rank);
  const at::Tensor wanted = part_of(to, rank);
  if (!wanted.defined()) {
    return 0;
  }
  at::Tensor is_held = at::zeros({to->numel()}, at::kBool);
  if (held.defined()) {
    is_held.index_fill_(0, held.reshape(-1), true);
  }
  return wanted.numel() - is_held.index_select(0, wanted.reshape(-1)).sum().item<int64_t>();
}

void expect_bytes(const Plans& plans, const Catalogue& found, const Catalogue& wanted) {
  int64_t sent = 0, received = 0, moved = 0;
  for (int64_t rank = 0; rank < kRanks; ++rank) {
    const Traffic traffic = traffic_of(plans[rank], wanted);
    int64_t lacking = 0, held = 0;
    for (const Entry& entry : wanted.entries()) {
      const Spec& from = found.find_match(entry)->spec;
      const auto size = static_cast<int64_t>(c10::elementSize(entry.spec->dtype));
      const at::Tensor part = part_of(entry.spec, rank);
      held += part.defined() ? part.numel() * size : 0;
      const int64_t bytes = lacking_by_force(from, entry.spec, rank) * size;
      EXPECT_EQ(received_bytes(from, entry.spec, rank), bytes);
      lacking += bytes;
    }
    EXPECT_EQ(traffic.received, lacking);
    EXPECT_EQ(traffic.kept, held - lacking);
    sent += traffic.sent, received += traffic.received;
  }
  for (const Entry& entry : wanted.entries()) {
    moved += moved_bytes(found.find_match(entry)->spec, entry.spec);
  }
  EXPECT_EQ(sent, received);
  EXPECT_EQ(moved, received);
}

void expect_arrives(const Catalogue& found, const Catalogue& wanted) {
  const Plans plans = plans_of(found, wanted);
  Wire wire = send_all(plans, found, wanted);
  for (int64_t rank = 0; rank < kRanks; ++rank) {
    ASSERT_NO_FATAL_FAILURE(receive(plans[rank], wanted, rank, wire)) << "rank " << rank;
  }
  for (const auto& [key, messages] : wire) {
    EXPECT_TRUE(messages.empty()) << "rank " << std::get<1>(key) << " sends what nobody receives";
  }
  expect_bytes(plans, found, wanted);
}

TEST(Transfers, BetweenRandomCataloguesBringEveryElementOnce) {
  const uint32_t seed = std::random_device{}();
  SCOPED_TRACE("seed " + std::to_string(seed));
  RandomCatalogues random(seed);
  for (int i = 0; i < 60 && !testing::Test::HasFailure(); ++i) {
    const Catalogue found = random.catalogue(5);
    ASSERT_NO_FATAL_FAILURE(expect_arrives(found, random.placed_anew(found)));
  }
}

TEST(Transfers, ToOwnersAndBackBringEveryElementOnce) {
  const uint32_t seed = std::random_device{}();
  SCOPED_TRACE("seed " + std::to_string(seed));
  RandomCatalogues random(seed);
  for (int i = 0; i < 40 && !testing::Test::HasFailure(); ++i) {
    const Catalogue found = random.catalogue(5);
    const std::vector<int64_t> owners = owners_of(found);
    const Catalogue files = whole_at(found, owners);
    ASSERT_NO_FATAL_FAILURE(expect_arrives(found, files));
    ASSERT_NO_FATAL_FAILURE(expect_arrives(files, random.placed_anew(found)));
    // An owner lacks what it does not hold, and nobody else gets anything.
    for (size_t e = 0; e < owners.size(); ++e) {
      const Spec& from = found.entries()[e].spec;
      const auto held = part_of(from, owners[e]).numel() * static_cast<int64_t>(c10::elementSize(from->dtype));
      EXPECT_EQ(moved_bytes(from, files.entries()[e].spec), from->bytes() - held);
    }
  }
}

TEST(Transfers, OfSubsetsAliasesAndOtherPrefixesAreThoseOfTheirEntries) {
  const uint32_t seed = std::random_device{}();
  SCOPED_TRACE("seed " + std::to_string(seed));
  RandomCatalogues random(seed);
  for (int i = 0; i < 20 && !testing::Test::HasFailure(); ++i) {
    const Catalogue found = random.catalogue(8);
    const auto is_kept = [](const Entry& entry) { return entry.name != "t3" && entry.name != "t5"; };
    ASSERT_NO_FATAL_FAILURE(expect_arrives(found, random.placed_anew(found).subset(is_kept)));
    const Catalogue renamed = found.with_prefix("t", "model.t");
    ASSERT_NO_FATAL_FAILURE(expect_arrives(renamed.with_prefix("model.t", "t"), random.placed_anew(found)));
    EXPECT_THROW(transfers_of(renamed, found, 0), c10::Error);
  }
  const Spec spec = Spec::contiguous(Mesh::parse("x=2"), {layout::Shard(0)}, {5}, c10::ScalarType::Float);
  const Spec whole = spec.with({layout::Replicate()});
  ASSERT_NO_FATAL_FAILURE(expect_arrives(Catalogue({{"wte", {"head"}, Role::kParameter, spec}}),
                                         Catalogue({{"head", {}, Role::kParameter, whole}})));
  const Spec other = Spec::contiguous(spec->mesh, {layout::Shard(0)}, {5}, c10::ScalarType::Half);
  EXPECT_THROW(
      transfers_of(Catalogue({{"w", {}, Role::kParameter, spec}}), Catalogue({{"w", {}, Role::kParameter, other}}), 5),
      c10::Error);
}

TEST(Transfers, OfInterleavedCutsAreOneBoxForEachRun) {
  const Mesh mesh = Mesh::parse("tp=2");
  const auto make = [&](const char* layout) {
    return Catalogue({{"qkv",
                       {},
                       Role::kParameter,
                       Spec::contiguous(mesh, layout::parse_placements(mesh, layout), {12}, c10::ScalarType::Float)}});
  };
  const auto own = transfers_of(make("{tp: S(0/3)}"), make("{tp: S(0)}"), 1);
  ASSERT_EQ(own.size(), 1u);
  using reshard::Transfer;
  EXPECT_EQ(own[0].transfers.sends, (std::vector<Transfer>{{1, 0, {{2, 4}}}, {1, 1, {{6, 8}}}, {1, 1, {{10, 12}}}}));
  EXPECT_EQ(own[0].transfers.receives,
            (std::vector<Transfer>{{0, 1, {{8, 10}}}, {1, 1, {{6, 8}}}, {1, 1, {{10, 12}}}}));
  EXPECT_EQ(traffic_of(own, make("{}")), (Traffic{.sent = 8, .received = 8, .kept = 16}));
  const Spec interleaved = make("{tp: S(0/3)}").entries()[0].spec;
  EXPECT_EQ(local_box(interleaved, 1, {{10, 12}}), (Box{{4, 6}}));
  EXPECT_THROW(local_box(interleaved, 1, {{6, 10}}), c10::Error);
  EXPECT_THROW(local_box(interleaved, 2, {{6, 8}}), c10::Error);
}

TEST(Transfers, AreOfTheReplicasInTurn) {
  // Four copies on ranks 0 to 3; four new ranks each want one: every copy sends once.
  const auto make = [](const Mesh& mesh) {
    return Catalogue(
        {{"w", {}, Role::kParameter, Spec::contiguous(mesh, {layout::Replicate()}, {3}, c10::ScalarType::Float)}});
  };
  const Catalogue found = make(Mesh::parse("x=4"));
  const Catalogue wanted = make(Mesh({{"y", 4}}, {10, 11, 12, 13}));
  for (int64_t rank = 0; rank < 4; ++rank) {
    EXPECT_EQ(traffic_of(transfers_of(found, wanted, rank), wanted), (Traffic{.sent = 12})) << rank;
    EXPECT_EQ(traffic_of(transfers_of(found, wanted, 10 + rank), wanted), (Traffic{.received = 12})) << rank;
  }
  EXPECT_TRUE(transfers_of(found, wanted, 5).empty());
}

TEST(WholeAt, IsOneLayoutOfTheSameMesh) {
  const Mesh mesh({{"dp", 2}, {"one", 1}, {"tp", 3}}, {4, 5, 6, 7, 8, 9});
  const Spec spec = Spec::contiguous(mesh, layout::parse_placements(mesh, "{tp: S(0)}"), {7}, c10::ScalarType::Float);
  EXPECT_EQ(whole_at(spec, 8).layout_str(), "{dp: On(1), one: R, tp: On(1)}");
  EXPECT_EQ(holders_of(whole_at(spec, 8)), std::vector<int64_t>{8});
  EXPECT_THROW(whole_at(spec, 3), c10::Error);
  const Catalogue catalogue({{"w", {}, Role::kParameter, spec}}, {{"step", "3"}});
  EXPECT_EQ(whole_at(catalogue, {5}).values(), catalogue.values());
  EXPECT_THROW(whole_at(catalogue, {}), c10::Error);
}

}  // namespace
}  // namespace tessera::catalogue::transfers_test
