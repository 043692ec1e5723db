// A rank that kills its own process at a known place of a save.
#pragma once

#include <atomic>
#include <chrono>
#include <cstdint>
#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <thread>

#include "tests/launch/process_ranks.h"
#include "tests/support/observed_store.h"

namespace tessera::launch::checkpoint_test {

// What of a save a rank is at.
enum class Phase {
  kClaim,     // the step's folder is claimed; or no save is under way
  kStage,     // the ranks agree on the save and copy what they are to write
  kWrite,     // the rank's parts, up to their names lasting
  kReceipts,  // its receipt; rank 0 waits for those of all
  kManifest,  // the index and the manifest
  kRemoval,   // of older checkpoints
};

constexpr Phase kPhases[] = {Phase::kStage, Phase::kWrite, Phase::kReceipts, Phase::kManifest, Phase::kRemoval};

const char* name_of(Phase phase);

// When to die: at the `call`-th call of the store, counted from 0 over that phase of saves from `step` on, each counted
// before and after it happens (ObservedStore). While ranks copy they call no store: there `delay` after the claim.
struct Order {
  Phase phase = Phase::kWrite;
  int64_t step = 3;
  int64_t call = 0;
  std::chrono::microseconds delay{0};
};

// The variables that give a rank of ProcessRanks its order, and what of them concerns this rank.
Variables variables_of(const Order& order, int64_t victim);
std::optional<Order> order_of_environment(int64_t rank);

// Follows the saves of one rank by its store's calls. Before it kills the process it says on stderr
// `killed in PHASE of step N: CALL PATH`.
class Killer {
 public:
  Killer(std::shared_ptr<checkpoint::Store> inner, std::string run, int64_t rank, std::optional<Order> order);
  ~Killer();
  Killer(const Killer&) = delete;
  Killer& operator=(const Killer&) = delete;

  // The store of the rank's saves.
  std::shared_ptr<checkpoint::Store> store() const { return store_; }

  // Before each save.
  void begin_save(int64_t step);

 private:
  void observe(const support::StoreCall& call);
  void follow(const support::StoreCall& call);
  void kill_while_staging();
  bool is_past_staging(int64_t step, std::chrono::microseconds delay);  // kills where it is staging
  [[noreturn]] void die(const std::string& where) const;

  const std::shared_ptr<checkpoint::Store> inner_;
  const std::string run_;
  const int64_t rank_;
  const std::optional<Order> order_;
  std::shared_ptr<checkpoint::Store> store_;
  std::mutex mutex_;  // held by who changes the phase and by who kills, so that nobody dies in another phase
  Phase phase_ = Phase::kClaim;
  int64_t step_ = 0;
  int64_t calls_ = 0;
  std::atomic<bool> has_ended_ = false;
  std::thread thread_;  // waits for the moment to die while copies are made
};

}  // namespace tessera::launch::checkpoint_test
