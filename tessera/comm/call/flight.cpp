#include "tessera/comm/call/flight.h"

#include <atomic>
#include <cstdlib>
#include <filesystem>
#include <iostream>
#include <mutex>
#include <set>

#include "tessera/base/aside.h"
#include "tessera/base/atomic_file.h"
#include "tessera/comm/call/call.h"
#include "tessera/comm/merge/exact_merge.h"
#include "tessera/trace/flight_recorder.h"

namespace tessera::comm {
namespace {

const char kKey = 0;  // of the context's slot

std::string layout_text(const void* layout) {
  const auto& known = *static_cast<const layout::Layout*>(layout);
  return layout::str(known.mesh, known.placements);
}

class Flights;

// The ranks of this process, and where they leave their recorders.
struct Shared {
  std::mutex mutex;
  std::string folder;
  std::set<Flights*> running;
  bool is_told = false;
};

Shared& shared() {
  static auto* all = new Shared;  // threads may outlive main
  return *all;
}

class Flights : public Watcher {
 public:
  Flights(int64_t rank, int64_t world) : rank_(rank), world_(world), recorder_(layout_text) {
    std::lock_guard lock(shared().mutex);
    shared().running.insert(this);
  }
  ~Flights() override {
    std::lock_guard lock(shared().mutex);
    shared().running.erase(this);
  }

  void on_begin(const Call& call) override {
    const auto& facts = facts_of(call.kind);
    const bool has_peer = facts.is_message || facts.has_root;
    const auto tensors = call.inputs.empty() ? call.outputs : call.inputs;
    trace::Flight flight{
        .kind = name_of(call.kind), .group = call.group->name(), .ranks = call.group->ranks(), .op = call.op};
    flight.detail = facts.reduces ? layout::name_of(call.reduce) : "";
    flight.tensors = static_cast<int64_t>(tensors.size());
    flight.bytes = call.bytes();
    if (call.merge) {
      flight.dtype = c10::typeMetaToScalarType(call.merge->options.dtype());
      flight.sizes = call.merge->sizes;
    } else if (!tensors.empty()) {
      flight.dtype = tensors.front().scalar_type();
      flight.sizes = tensors.front().sizes();
    }
    flight.is_uniform = is_uniform(call.kind);
    flight.peer = has_peer ? flight.ranks[static_cast<size_t>(call.peer)] : -1;
    flight.tag = is_message(call.kind) ? call.tag : -1;
    flight.from = layouts.from ? layouts.from->layout : nullptr;
    flight.to = layouts.to ? layouts.to->layout : nullptr;
    open_.push_back(recorder_.begin(flight));
  }

  void on_end(const Call&, bool failed) override {
    if (!open_.empty()) {
      recorder_.end(open_.back(), failed);
      open_.pop_back();
    }
  }

  // Throws on a disk that fails.
  void leave(const std::filesystem::path& folder, const std::string& reason) const {
    std::filesystem::create_directories(folder);
    base::AtomicFile file(folder / trace::flight_file(rank_));
    file.write(recorder_.json(rank_, world_, reason));
    file.commit();
  }

  CurrentLayouts layouts;
  uint64_t scopes = 0;  // so far

 private:
  const int64_t rank_, world_;
  trace::FlightRecorder recorder_;
  std::vector<uint64_t> open_;  // of the rank's thread
};

std::string folder_now() {
  if (!shared().folder.empty()) {
    return shared().folder;
  }
  const char* logs = std::getenv("TESSERA_LOG_DIR");
  return logs ? logs : "";
}

// Wants the mutex. A file system without room must not hide the error that is on its way.
void leave(const Flights& flights, const std::string& reason) noexcept {
  try {
    const auto folder = folder_now();
    if (folder.empty()) {
      return;
    }
    flights.leave(folder, reason);
    if (!std::exchange(shared().is_told, true)) {
      std::cerr << "tessera: the last collectives are in " + folder + "; where the ranks parted: tessera trace " +
                       folder + "\n"
                << std::flush;
    }
  } catch (...) {
  }
}

}  // namespace

void record_flights(RankContext& context) {
  const auto flights = std::make_shared<Flights>(context.rank, context.world_size);
  context.slot(&kKey) = flights;
  context.watchers.push_back(flights);
}

FlightLayouts::FlightLayouts(RankContext& context, const layout::Spec& from, const layout::Spec& to)
    : recorder_(context.slot(&kKey)) {
  if (auto* flights = static_cast<Flights*>(recorder_.get())) {
    previous_ = std::exchange(flights->layouts, {from, to, ++flights->scopes});
  }
}

FlightLayouts::~FlightLayouts() {
  if (auto* flights = static_cast<Flights*>(recorder_.get())) {
    flights->layouts = std::move(previous_);
  }
}

CurrentLayouts current_layouts(RankContext& context) {
  const auto* flights = static_cast<Flights*>(context.slot(&kKey).get());
  return flights ? flights->layouts : CurrentLayouts{};
}

FlightFolder::FlightFolder(std::string folder) {
  std::lock_guard lock(shared().mutex);
  previous_ = std::exchange(shared().folder, std::move(folder));
  shared().is_told = false;
}

FlightFolder::~FlightFolder() {
  std::lock_guard lock(shared().mutex);
  shared().folder = previous_;
}

void leave_flights(RankContext& context, const std::string& reason) noexcept {
  std::lock_guard lock(shared().mutex);
  if (const auto* flights = static_cast<Flights*>(context.slot(&kKey).get())) {
    leave(*flights, reason);
  }
}

void leave_all_flights(const std::string& reason) noexcept {
  try {
    base::run_aside(
        [reason] {
          std::lock_guard lock(shared().mutex);
          for (const auto* flights : shared().running) {
            leave(*flights, reason);
          }
        },
        std::chrono::seconds(1));
  } catch (...) {
  }
}

}  // namespace tessera::comm
