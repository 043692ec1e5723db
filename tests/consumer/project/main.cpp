// What a user of an installed tessera writes.
#include <cstdio>

#include <ATen/ops/arange.h>

#include <tessera/base/text.h>

int main() {
  const auto picture = at::arange(12).reshape({3, 4});
  std::printf("%s\n", tessera::base::human_bytes(static_cast<int64_t>(picture.nbytes())).c_str());
  return picture.sum().item<int64_t>() == 66 ? 0 : 1;
}
