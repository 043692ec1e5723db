// The flight recorder of a rank: always on, and left in a file when the rank fails.
#pragma once

#include <memory>
#include <string>

#include "tessera/comm/core/context.h"
#include "tessera/layout/spec.h"

namespace tessera::comm {

// Records every collective of `context` from now on (trace::FlightRecorder). RankScope does it for every rank.
void record_flights(RankContext& context);

// What the innermost FlightLayouts of a rank says; `scope` tells one from another. Nulls and zero outside of all.
struct CurrentLayouts {
  layout::Spec from, to;
  uint64_t scope = 0;
};
CurrentLayouts current_layouts(RankContext& context);

// The layouts that the collectives of this scope change a tensor from and to, for the recorder.
class FlightLayouts {
 public:
  FlightLayouts(RankContext& context, const layout::Spec& from, const layout::Spec& to);
  ~FlightLayouts();
  FlightLayouts(const FlightLayouts&) = delete;
  FlightLayouts& operator=(const FlightLayouts&) = delete;

 private:
  std::shared_ptr<void> recorder_;
  CurrentLayouts previous_;
};

// While it lives, the ranks of this process that fail leave their recorders in `folder`, made if need be
// (flight_rank_3.json, ...). An empty folder counts as none. Without one they are left in the folder that
// TESSERA_LOG_DIR names, which `tessera launch
// --log-dir` sets; else nowhere. The latest counts. Make it before the ranks start.
class FlightFolder {
 public:
  explicit FlightFolder(std::string folder);
  ~FlightFolder();
  FlightFolder(const FlightFolder&) = delete;
  FlightFolder& operator=(const FlightFolder&) = delete;

 private:
  std::string previous_;
};

// Leaves the recorder of `context` in the folder, and says so on stderr, once a process. Called where a rank fails,
// with its error. A disk that fails costs the file; never throws.
void leave_flights(RankContext& context, const std::string& reason) noexcept;

// The same for every rank of this process that is still running, for what ends the process without unwinding. Gives a
// disk that hangs a second.
void leave_all_flights(const std::string& reason) noexcept;

}  // namespace tessera::comm
