#include "tessera/launch/run.h"

#include "tessera/base/error.h"
#include "tessera/comm/core/compared_run.h"
#include "tessera/comm/threads/run_ranks.h"
#include "tessera/launch/environment.h"

namespace tessera::launch {
namespace {

// As long as `tessera launch` waits for processes when one has failed.
constexpr std::chrono::milliseconds kGrace{5000};

}  // namespace

bool is_launched() { return find_place().has_value(); }

void run_job(int64_t asked, const std::function<void(int64_t rank)>& body, const comm::ProcessOptions& options) {
  const auto place = find_place();
  const int64_t ranks = comm::ranks_for(asked);
  if (!place) {
    return comm::run_ranks(ranks, body,
                           {.deadline = options.deadline,
                            .intra_op_threads = options.intra_op_threads,
                            .compare_programs = options.compare_programs,
                            .grace = kGrace});
  }
  TESSERA_CHECK_AS(ConfigError, place->size == ranks, "[launch] ", place->launcher, " started ", place->size,
                   " process", place->size == 1 ? "" : "es", ", but this job has ", ranks, " rank",
                   ranks == 1 ? "" : "s", "; accepted: as many processes, or a mesh of ", place->size);
  comm::run_process(*place, body, options);
}

}  // namespace tessera::launch
