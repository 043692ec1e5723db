// Ranks that look for each other: all link, strangers stay out, and who ends meanwhile is named at once by all that are
// left.
#include "tessera/comm/processes/gather.h"

#include <atomic>
#include <future>
#include <thread>

#include <gtest/gtest.h>
#include <torch/csrc/distributed/c10d/HashStore.hpp>
#include <torch/csrc/distributed/c10d/TCPStore.hpp>

#include "tessera/comm/core/errors.h"
#include "tessera/comm/processes/packing.h"

namespace tessera::comm::gather_test {
namespace {

using Clock = std::chrono::steady_clock;
using std::chrono::milliseconds;

constexpr milliseconds kLong{30000};

// What ends a rank here as a signal ends a process: its sockets close, and it says nothing.
struct Killed {};

// Ranks of one job, each a thread. They share a store, or have each its own connection to one.
class Ranks {
 public:
  explicit Ranks(int64_t size, std::vector<StorePtr> stores = {})
      : size_(size),
        stores_(stores.empty()
                    ? std::vector<StorePtr>(static_cast<size_t>(size), c10::make_intrusive<c10d::HashStore>())
                    : std::move(stores)),
        links_(static_cast<size_t>(size)),
        errors_(static_cast<size_t>(size)),
        ends_(static_cast<size_t>(size)) {}
  ~Ranks() { join(); }

  void start(int64_t rank, milliseconds deadline, std::function<void()> check = [] {}) {
    threads_.emplace_back([this, rank, deadline, check = std::move(check)] {
      const auto i = static_cast<size_t>(rank);
      try {
        links_[i] = gather_links(stores_[i], rank, size_, deadline, check);
      } catch (...) {
        errors_[i] = std::current_exception();
      }
      ends_[i] = Clock::now();
      stores_[i].reset();
      ++ended_;
    });
  }

  void wait_for_ends(int64_t count) const {
    while (ended_ < count) {
      std::this_thread::sleep_for(milliseconds(1));
    }
  }

  void join() {
    for (auto& thread : threads_) {
      thread.join();
    }
    threads_.clear();
  }

  // Before any has ended.
  void wait_for_card(int64_t rank) {
    while (!stores_.back()->check({card_of(rank)})) {
      std::this_thread::sleep_for(milliseconds(1));
    }
  }

  // Where `rank` listens.
  int port_of(int64_t rank) {
    const auto bytes = stores_.back()->get(card_of(rank));
    const std::string card(bytes.begin(), bytes.end());
    Unpacker reader(card);
    reader.text();
    reader.text();
    return static_cast<int>(reader.number());
  }

  std::vector<Link>& links(int64_t rank) { return links_[static_cast<size_t>(rank)]; }
  Clock::time_point end(int64_t rank) const { return ends_[static_cast<size_t>(rank)]; }

  // The rank that `rank` says has failed, or -1 - and what it says.
  std::pair<int64_t, std::string> complaint(int64_t rank) const {
    const auto& error = errors_[static_cast<size_t>(rank)];
    try {
      if (error) {
        std::rethrow_exception(error);
      }
    } catch (const RankFailed& failed) {
      return {failed.rank(), base::message_of(failed)};
    } catch (const std::exception& other) {
      return {-1, base::message_of(other)};
    } catch (const Killed&) {
      return {-1, "killed"};
    }
    return {-1, ""};
  }

 private:
  static std::string card_of(int64_t rank) { return "links/" + std::to_string(rank); }

  const int64_t size_;
  std::vector<StorePtr> stores_;
  std::vector<std::vector<Link>> links_;
  std::vector<std::exception_ptr> errors_;
  std::vector<Clock::time_point> ends_;
  std::atomic<int64_t> ended_{0};
  std::vector<std::thread> threads_;
};

bool has(const std::string& text, const std::string& part) { return text.find(part) != std::string::npos; }

TEST(Gather, LinksEveryTwoRanks) {
  constexpr int64_t kSize = 5;
  Ranks ranks(kSize);
  for (int64_t rank = kSize - 1; rank >= 0; --rank) {
    ranks.start(rank, kLong);
  }
  ranks.join();
  for (int64_t from = 0; from < kSize; ++from) {
    EXPECT_EQ(ranks.complaint(from).second, "");
    for (int64_t to = 0; to < kSize; ++to) {
      const auto& link = ranks.links(from)[static_cast<size_t>(to)];
      EXPECT_EQ(link.process, process_name());
      EXPECT_EQ(static_cast<bool>(link.socket), from != to);
      if (from != to) {
        EXPECT_TRUE(link.socket.send("from " + std::to_string(from)));
        EXPECT_EQ(ranks.links(to)[static_cast<size_t>(from)].socket.receive(), "from " + std::to_string(from));
      }
    }
  }
}

TEST(Gather, StrangersStayOut) {
  Ranks ranks(2);
  ranks.start(0, kLong);
  ranks.wait_for_card(0);
  const auto silent = connect_within("127.0.0.1", ranks.port_of(0), milliseconds(1000));
  const auto liar = connect_within("127.0.0.1", ranks.port_of(0), milliseconds(1000));
  ASSERT_TRUE(silent && liar);
  const std::string token = "not the token";
  liar.send(Packer().text(token).number(1).number(0).text("").take());
  ranks.start(1, kLong);
  ranks.join();
  for (const int64_t rank : {0, 1}) {
    EXPECT_EQ(ranks.complaint(rank).second, "");
  }
}

TEST(Gather, ARankThatDiesWhileOthersAreMissingIsNamedByAllAtOnce) {
  for (int64_t victim = 0; victim < 3; ++victim) {
    Ranks ranks(4);  // the last one never comes
    std::atomic<bool> kill{false};
    for (int64_t rank = 0; rank < 3; ++rank) {
      ranks.start(rank, kLong, [&kill, is_victim = rank == victim] {
        if (is_victim && kill) {
          throw Killed();
        }
      });
    }
    for (int64_t rank = 0; rank < 3; ++rank) {
      ranks.wait_for_card(rank);
    }
    const auto begin = Clock::now();
    kill = true;
    ranks.join();
    for (int64_t rank = 0; rank < 3; ++rank) {
      const auto [failed, text] = ranks.complaint(rank);
      EXPECT_LT(ranks.end(rank) - begin, milliseconds(1900)) << text;
      if (rank == victim) {
        EXPECT_EQ(text, "killed");
        continue;
      }
      EXPECT_EQ(failed, victim) << text;
      EXPECT_TRUE(has(text, "rank " + std::to_string(rank) + " of 4 was gathering")) << text;
      EXPECT_TRUE(has(text, "its process (pid ")) << text;
    }
  }
}

TEST(Gather, ARankThatComesSoonAfterADeathHearsOfIt) {
  Ranks ranks(3);
  std::atomic<bool> kill{false};
  ranks.start(0, kLong);
  ranks.start(1, kLong, [&kill] {
    if (kill) {
      throw Killed();
    }
  });
  ranks.wait_for_card(1);
  kill = true;
  std::this_thread::sleep_for(milliseconds(300));
  ranks.start(2, kLong);
  ranks.join();
  EXPECT_EQ(ranks.complaint(2).first, 1) << ranks.complaint(2).second;
}

// The store is rank 0's, and goes with it.
TEST(Gather, ARankThatLooksUpAfterRankZeroHasGoneFindsItsWordInTheLink) {
  const auto serving = c10d::TCPStoreOptions{.port = 0, .isServer = true, .waitWorkers = false};
  std::vector<StorePtr> stores = {c10::make_intrusive<c10d::TCPStore>("127.0.0.1", serving)};
  const uint16_t port = static_cast<c10d::TCPStore&>(*stores[0]).getPort();
  for (int64_t rank = 1; rank < 4; ++rank) {
    stores.push_back(
        c10::make_intrusive<c10d::TCPStore>("127.0.0.1", c10d::TCPStoreOptions{.port = port, .waitWorkers = false}));
  }
  Ranks ranks(4, std::move(stores));  // the last one never comes
  std::atomic<bool> kill{false}, sleeps{false};
  ranks.start(0, kLong);
  ranks.start(1, kLong, [&kill] {
    if (kill) {
      throw Killed();
    }
  });
  ranks.start(2, kLong, [&sleeps] {
    while (sleeps) {
      std::this_thread::sleep_for(milliseconds(1));
    }
  });
  for (int64_t rank = 0; rank < 3; ++rank) {
    ranks.wait_for_card(rank);
  }
  sleeps = true;
  std::this_thread::sleep_for(milliseconds(50));
  kill = true;
  ranks.wait_for_ends(2);
  sleeps = false;
  ranks.join();
  EXPECT_EQ(ranks.complaint(0).first, 1) << ranks.complaint(0).second;
  EXPECT_EQ(ranks.complaint(2).first, 1) << ranks.complaint(2).second;
}

TEST(Gather, AnErrorOfOneReachesAll) {
  Ranks ranks(3);
  ranks.start(0, kLong);
  ranks.start(1, kLong, [calls = 0]() mutable {
    if (++calls == 20) {
      TESSERA_THROW(CommError, "[test] no more file descriptors");
    }
  });
  ranks.join();
  EXPECT_EQ(ranks.complaint(0).first, 1);
  EXPECT_TRUE(has(ranks.complaint(0).second, "when rank 1 failed: [test] no more file descriptors"))
      << ranks.complaint(0).second;
}

TEST(Gather, MissingRanksAreNamedAtTheDeadline) {
  Ranks ranks(4);
  const auto begin = Clock::now();
  ranks.start(0, milliseconds(400));
  ranks.start(2, milliseconds(400));
  ranks.join();
  for (const int64_t rank : {0, 2}) {
    EXPECT_TRUE(has(ranks.complaint(rank).second, "ranks 1, 3 of 4 did not come within 400 ms"))
        << ranks.complaint(rank).second;
    EXPECT_GE(ranks.end(rank) - begin, milliseconds(400));
    EXPECT_LT(ranks.end(rank) - begin, milliseconds(2400));
  }
}

}  // namespace
}  // namespace tessera::comm::gather_test
