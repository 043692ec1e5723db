#include "tessera/comm/core/window.h"

#include <cstring>

namespace tessera::comm {

void copy_gets(const std::vector<Get>& gets) {
  for (const Get& each : gets) {
    if (each.bytes > 0) {
      std::memcpy(each.to, each.from, each.bytes);
    }
  }
}

}  // namespace tessera::comm
