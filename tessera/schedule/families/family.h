// Schedules by name.
//
// A family stands in a file families/<file>.cpp, which defines
//
//   std::vector<Family> <file>_families();
//
// CMakeLists.txt lists the files.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "tessera/schedule/schedule.h"

namespace tessera::schedule {

// What a schedule is made for.
struct Sizes {
  int64_t ranks = 1;
  int64_t micro_batches = 1;
  int64_t per_rank = 0;  // stages on each rank; 0: as many as the family has if nobody says
  int64_t barriers = 0;  // of the vocabulary (Schedule::barriers); 0: it is not cut
};

// A rule for making schedules, and what it promises.
struct Family {
  const char* name;                          // `zb-h1`
  const char* what;                          // a line for people
  int64_t per_rank = 1;                      // stages on each rank if nobody says
  bool takes_per_rank = false;               // whether somebody may
  bool takes_barriers = false;               // whether it places passes of the vocabulary
  const char* wants = "";                    // of sizes beyond one rank and one micro-batch, in words; all if empty
  bool (*fits)(const Sizes&) = nullptr;      // the same to ask; none: all fit
  Schedule (*make)(const Sizes&) = nullptr;  // of sizes that fit, with per_rank filled in; passes alone
  double (*peak)(const Sizes&) = nullptr;    // the most that any rank holds (memory.h), at most
};

// Every family, in the order in which people are shown them.
const std::vector<Family>& families();

// The family of this name. Throws ConfigError with the names there are.
const Family& family_of(const std::string& name);

// The schedule of a family, without sends and receives. Throws ConfigError with sizes near these that would fit.
Schedule make_schedule(const std::string& name, const Sizes& sizes);

}  // namespace tessera::schedule
