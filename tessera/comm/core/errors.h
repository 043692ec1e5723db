// The errors that only collectives know; CommError, CommTimeout and RankFailed stand in base.
#pragma once

#include "tessera/base/error.h"

namespace tessera::comm {

// Ranks ran different programs: another op, another shape, another collective, or one of them has finished. Every
// member of the group throws it, and the message names both ranks, what each called, and the first op where they
// parted.
class DivergenceError : public base::CommError {
 public:
  using base::CommError::CommError;
};

// The job was asked to stop (request_stop). Nothing is wrong with the program.
class Stopped : public base::CommError {
 public:
  using base::CommError::CommError;
};

}  // namespace tessera::comm

namespace tessera {
using comm::DivergenceError;
using comm::Stopped;
}  // namespace tessera
