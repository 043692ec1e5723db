// One training step of a configuration, operator by operator.
#pragma once

#include <cstdint>

#include "tessera/watch/explain_report.h"
#include "tessera/train/run/config.h"

namespace tessera::train {

// What rank `rank` did in step `step`, counted from 1: forward and backward of every micro-batch, clipping and update.
// Steps before it are only run; the first one also makes what later ones find made (plans, groups of ranks). Throws
// ConfigError if there is no such rank or step. All ranks are threads of this process.
watch::ExplainReport explain_step(const Config& config, int64_t step = 2, int64_t rank = 0);

}  // namespace tessera::train
