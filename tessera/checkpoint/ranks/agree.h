// What goes wrong with files at one rank goes wrong at all of them, and their communicators stay of use.
#pragma once

#include <functional>
#include <string>

#include "tessera/base/error.h"

namespace tessera::checkpoint {

// Something of a checkpoint cannot be read or is not what was written. Every rank of the job throws it, and none of
// their tensors was changed: they may load another checkpoint.
class Damaged : public DataError {
 public:
  using DataError::DataError;
};

// What `read` returns on one rank, on every rank; or the DataError that it throws there, thrown by all. Collective over
// the job.
std::string read_on_one(const std::function<std::string()>& read);

// Returns once `wait` has been true on every rank; it waits a little and says whether this rank is done. Ranks meet
// again and again meanwhile, because no wait of one for another may be as long as a save or a load. Collective over the
// job.
void wait_for_all(const std::function<bool()>& wait);

// Throws Damaged with the message of the first rank that has one, on every rank; does nothing where none has.
// Collective over the job.
void throw_damage(const std::string& message);

}  // namespace tessera::checkpoint
