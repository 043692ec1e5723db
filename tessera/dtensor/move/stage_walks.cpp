#include "tessera/dtensor/move/stage_walks.h"

#include <memory>

#include "tessera/base/hash.h"

namespace tessera::dtensor {

StageWalks& StageWalks::of(comm::RankContext& ctx) {
  static const char key = 0;
  std::shared_ptr<void>& slot = ctx.slot(&key);
  if (!slot) {
    slot = std::make_shared<StageWalks>();
  }
  return *static_cast<StageWalks*>(slot.get());
}

void StageWalks::begin_run() {
  ways_.clear();
  programs_.clear();
  ++runs_;
}

void StageWalks::end_run() {
  constexpr size_t kMost = 4096;  // programs of inputs that are always of other sizes
  for (const auto& [stage, program] : programs_) {
    if (runs_ > 1 && known_.size() < kMost) {
      known_.insert(program);
    }
  }
}

void StageWalks::note_first_forward(int64_t stage, const comm::Program::Stretch& calls) {
  programs_.insert_or_assign(stage, base::hash_combine(calls.sum, calls.count));
}

std::optional<uint64_t> StageWalks::program_of(int64_t stage) const {
  const auto found = programs_.find(stage);
  return found == programs_.end() ? std::nullopt : std::optional(found->second);
}

}  // namespace tessera::dtensor
