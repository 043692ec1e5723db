#include "tessera/checkpoint/format/box_runs.h"

namespace tessera::checkpoint {

Box everything(c10::IntArrayRef sizes) {
  Box box;
  for (const auto size : sizes) {
    box.push_back({0, size});
  }
  return box;
}

}  // namespace tessera::checkpoint
