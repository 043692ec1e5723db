// Finds where ranks that should run one program do not.
#pragma once

#include <string>
#include <vector>

#include "tessera/comm/call/call.h"

namespace tessera::comm {

// What the rank of a call that is not met may look for, by what it has run: a sentence, or nothing.
std::string advice_for(const Call& call);

// What the members' calls of one collective disagree about, naming two ranks, what each called, and the first op where
// their programs parted; empty if they agree. Members without a program are compared by their calls alone.
std::string divergence_of(const std::vector<const Call*>& calls);

// That a member has finished for which another waits in `call`. Both by their global ranks.
std::string divergence_by_end(int64_t finished, int64_t waiting, const Call& call);

// That two ranks wait for each other in calls that never meet, as those of different groups.
std::string divergence_by_deadlock(const Call& a, const Call& b);

// What a receive expects and what was sent; empty if they agree.
std::string divergence_of(const Call& receive, const at::Tensor& sent);

}  // namespace tessera::comm
