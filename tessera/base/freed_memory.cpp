#include "tessera/base/freed_memory.h"

#include <cstdlib>

#ifdef __GLIBC__
#include <malloc.h>
#endif

#include "tessera/base/kept_blocks.h"

namespace tessera::base {

void keep_freed_memory() {
  for (const char* variable : {"MALLOC_TRIM_THRESHOLD_", "MALLOC_MMAP_THRESHOLD_", "GLIBC_TUNABLES"}) {
    if (std::getenv(variable)) {
      return;
    }
  }
#ifdef __GLIBC__
  ::mallopt(M_TRIM_THRESHOLD, 1 << 30);
  ::mallopt(M_MMAP_THRESHOLD,
            32 << 20);  // the most that glibc takes: what is larger is mapped, and unmapped when freed
#endif
  keep_freed_blocks();
}

void give_back_freed_memory() {
  free_kept_blocks();
#ifdef __GLIBC__
  ::malloc_trim(0);
#endif
}

}  // namespace tessera::base
