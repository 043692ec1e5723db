// Processes that join a job for the rest of their life, over a group that is there already or one made for them.
#include <csignal>
#include <fstream>
#include <iostream>
#include <thread>

#include <ATen/TensorOperators.h>
#include <ATen/ops/full.h>
#include <ATen/ops/ones.h>
#include <gtest/gtest.h>
#include <torch/csrc/distributed/c10d/PrefixStore.hpp>
#include <torch/csrc/distributed/c10d/ProcessGroup.hpp>
#include <torch/csrc/distributed/c10d/TCPStore.hpp>

#include "tessera/base/error.h"
#include "tessera/comm/join/process.h"
#include "tessera/comm/processes/c10d.h"
#include "tessera/launch/environment.h"
#include "tessera/layout/mesh.h"
#include "tests/launch/process_ranks.h"

namespace tessera::launch::join_test {
namespace {

using comm::RankContext;
using std::chrono::milliseconds;

bool has(const std::string& text, const std::string& part) { return text.find(part) != std::string::npos; }

const comm::ProcessOptions kOptions{.deadline = milliseconds(20000), .intra_op_threads = 1};

comm::StorePtr store_of(const comm::Place& place) {
  c10d::TCPStoreOptions options{
      .port = static_cast<std::uint16_t>(place.port), .isServer = place.rank == 0, .waitWorkers = false};
  return c10::make_intrusive<c10d::TCPStore>(place.host, options);
}

// What torch.distributed.init_process_group("gloo") leaves: a store and a group with one backend.
struct Initialised {
  comm::StorePtr store;
  c10::intrusive_ptr<c10d::ProcessGroup> group;
};

Initialised init_process_group(const comm::Place& place) {
  const auto store = store_of(place);
  const auto rank = static_cast<int>(place.rank), size = static_cast<int>(place.size);
  const comm::ProcessJob introduction(c10::make_intrusive<c10d::PrefixStore>("introduction", store), rank, size,
                                      kOptions, 0);
  auto group = c10::make_intrusive<c10d::ProcessGroup>(store, rank, size);
  group->setBackend(at::kCPU, c10d::ProcessGroup::BackendType::GLOO, comm::make_gloo(store, introduction));
  return {store, group};
}

// Sums over both axes of a mesh and the world.
void sum_over_mesh(std::ostream& out) {
  auto& context = RankContext::require();
  const auto mesh = layout::Mesh::parse("dp=" + std::to_string(context.world_size) + ",tp=1");
  for (const int64_t axis : {0, 1}) {
    auto sum = at::full({3}, static_cast<double>(context.rank + 1));
    context.axis(mesh, axis).all_reduce(sum, comm::ReduceOp::kSum)->wait();
    out << "axis " << axis << ": " << sum.const_data_ptr<float>()[2] << "\n";
  }
  context.world->barrier();
}

using Body = std::function<void(const comm::Place& place, std::ostream& out)>;

// Over the group that the program made, twice, and a plain collective of its own in between.
void handed(const comm::Place& place, std::ostream& out) {
  const auto [store, group] = init_process_group(place);
  for (const char* name : {"first", "second"}) {
    auto given = comm::hand_in(group, store);
    given.name = name;
    auto joined = comm::join_process(given, kOptions);
    sum_over_mesh(out);
    joined.leave();
    out << "left " << (RankContext::current() == nullptr) << "\n";
    std::vector<at::Tensor> own = {at::ones({2})};
    group->getBackend(at::kCPU)->allreduce(own)->wait();
    out << "its own: " << own[0].const_data_ptr<float>()[0] << "\n" << std::flush;
  }
}

// By a launcher's place; the destructor leaves.
void placed(const comm::Place& place, std::ostream& out) {
  const auto joined = comm::join_process(place, kOptions);
  sum_over_mesh(out);
  out << "rank " << joined.context().rank << "\n" << std::flush;
}

// Waits for the others in a collective; rank 0 does not come.
void waits(const comm::Place& place, std::ostream& out) {
  const auto joined = comm::join_process(place, kOptions);
  sum_over_mesh(out);
  out << "started\n" << std::flush;
  if (place.rank == 0) {
    std::this_thread::sleep_for(std::chrono::seconds(60));
  }
  sum_over_mesh(out);
}

// Rank 0 ends by an exception that passes the guard.
void throws(const comm::Place& place, std::ostream& out) {
  const auto joined = comm::join_process(place, kOptions);
  sum_over_mesh(out);
  if (place.rank == 0) {
    throw std::runtime_error("no such column");
  }
  sum_over_mesh(out);
}

void reports(const comm::Place& place, std::ostream& out) {
  auto joined = comm::join_process(place, kOptions);
  sum_over_mesh(out);
  if (place.rank == 0) {
    return joined.fail("the script raised ValueError: no such column");
  }
  sum_over_mesh(out);
}

const std::map<std::string, Body> kBodies = {
    {"handed", handed}, {"placed", placed}, {"waits", waits}, {"throws", throws}, {"reports", reports}};

int run_body(const std::string& name) {
  const auto place = find_place();
  const char* folder = std::getenv("TESSERA_TEST_OUT");
  std::ofstream out(std::string(folder ? folder : ".") + "/out_" + std::to_string(place->rank));
  try {
    kBodies.at(name)(*place, out);
    return 0;
  } catch (const std::exception& error) {
    std::cerr << "body: " << base::message_of(error) << std::endl;
    return 1;
  }
}

const std::string kSums = "axis 0: 3\naxis 1: ";

TEST(Joined, OverAGroupThatWasHandedInWhichStaysTheProgramsOwn) {
  ProcessRanks ranks(2, "handed");
  ASSERT_TRUE(ranks.wait(std::chrono::seconds(60)));
  for (int64_t rank = 0; rank < 2; ++rank) {
    const auto once = kSums + std::to_string(rank + 1) + "\nleft 1\nits own: 2\n";
    EXPECT_EQ(ranks.code(rank), 0) << ranks.errors(rank);
    EXPECT_EQ(ranks.output(rank), once + once);
  }
}

TEST(Joined, ByItsPlaceUntilTheGuardGoes) {
  ProcessRanks ranks(2, "placed");
  ASSERT_TRUE(ranks.wait(std::chrono::seconds(60)));
  for (int64_t rank = 0; rank < 2; ++rank) {
    EXPECT_EQ(ranks.code(rank), 0) << ranks.errors(rank);
    EXPECT_EQ(ranks.output(rank), kSums + std::to_string(rank + 1) + "\nrank " + std::to_string(rank) + "\n");
  }
}

TEST(Joined, AreToldWhenOneDies) {
  ProcessRanks ranks(2, "waits");
  ASSERT_TRUE(ranks.wait_for("started")) << ranks.errors(0);
  const auto begin = std::chrono::steady_clock::now();
  ranks.signal(0, SIGKILL);
  ASSERT_TRUE(ranks.wait(std::chrono::seconds(20))) << "a rank hangs";
  EXPECT_EQ(ranks.code(1), 1);
  EXPECT_TRUE(
      has(ranks.errors(1),
          "body: [comm] rank 1 was in all_reduce(sum) of Float[3] over dp when rank 0 failed: its process (pid "))
      << ranks.errors(1);
  EXPECT_LT(ranks.ended_after(1, begin), milliseconds(2000));
}

TEST(Joined, WakeTheOthersWithTheirError) {
  for (const std::string body : {"throws", "reports"}) {
    ProcessRanks ranks(2, body);
    ASSERT_TRUE(ranks.wait(std::chrono::seconds(20))) << "a rank hangs";
    EXPECT_EQ(ranks.code(0), body == "throws" ? 1 : 0) << ranks.errors(0);
    EXPECT_EQ(ranks.code(1), 1);
    const bool in_reduction =
        has(ranks.errors(1), "rank 1 was in all_reduce(sum) of Float[3] over dp when rank 0 failed: ");
    const bool in_barrier = has(
        ranks.errors(1), "rank 1 was in barrier over world when rank 0 failed: ");  // still in that of the first sums
    EXPECT_TRUE(in_reduction || in_barrier) << ranks.errors(1);
    EXPECT_TRUE(has(ranks.errors(1),
                    body == "throws" ? "it ended by an exception" : "the script raised ValueError: no such column"))
        << ranks.errors(1);
  }
}

}  // namespace
}  // namespace tessera::launch::join_test

int main(int argc, char** argv) {
  if (argc == 3 && std::string(argv[1]) == "--body") {
    return tessera::launch::join_test::run_body(argv[2]);
  }
  testing::InitGoogleTest(&argc, argv);
  return RUN_ALL_TESTS();
}
