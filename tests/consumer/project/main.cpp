// What a user of an installed tessera writes: the tile of a picture that one rank of a 2 x 2 mesh holds.
#include <cstdio>

#include <ATen/ops/arange.h>

#include <tessera/layout/spec.h>

int main() {
  namespace layout = tessera::layout;
  const auto picture = at::arange(12).reshape({3, 4});
  const auto mesh = layout::Mesh::parse("dp=2,tp=2");
  const auto spec = layout::Spec::contiguous(mesh, {layout::Shard(0), layout::Shard(1)}, picture.sizes(), at::kLong);

  const auto held = spec.local_ranges({1, 0});
  const auto tile = picture.slice(0, held[0].begin, held[0].end).slice(1, held[1].begin, held[1].end);
  std::printf("%s, rank 2: %lld of 12 elements\n", spec.layout_str().c_str(), static_cast<long long>(tile.numel()));
  return tile.sum().item<int64_t>() == 8 + 9 ? 0 : 1;
}
