#include "tessera/comm/core/machine.h"

#include <algorithm>
#include <memory>

#include <unistd.h>

#include "tessera/base/read_file.h"
#include "tessera/base/text.h"

namespace tessera::comm {
namespace {

constexpr const char* kLimits[] = {"/sys/fs/cgroup/memory.max", "/sys/fs/cgroup/memory/memory.limit_in_bytes"};

const char kRanksKey = 0;

}  // namespace

int64_t machine_bytes() {
  int64_t bytes = static_cast<int64_t>(::sysconf(_SC_PHYS_PAGES)) * ::sysconf(_SC_PAGE_SIZE);
  for (const char* path : kLimits) {
    const auto text = base::try_read_file(path);
    const auto limit = text ? base::try_parse_int(base::trim(*text)) : std::nullopt;  // "max": none
    bytes = std::min(bytes, limit.value_or(bytes));
  }
  return bytes;
}

int64_t ranks_on_machine() {
  const auto& ranks = RankContext::require().slot(&kRanksKey);
  return ranks ? *std::static_pointer_cast<int64_t>(ranks) : 1;
}

void set_ranks_on_machine(RankContext& context, int64_t ranks) {
  context.slot(&kRanksKey) = std::make_shared<int64_t>(ranks);
}

}  // namespace tessera::comm
