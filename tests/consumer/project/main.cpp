// What a user of an installed tessera writes: a picture cut into tiles over four ranks, a product of it, and its
// gradient.
#include <cstdio>

#include <ATen/ops/arange.h>
#include <ATen/ops/equal.h>

#include <tessera/tessera.h>

// Sums of all pairs of rows, multiplied: the same line for a plain tensor and for a DTensor.
at::Tensor gradient_of(at::Tensor picture) {
  picture.set_requires_grad(true);
  picture.mm(picture.t()).sum().backward();
  return picture.grad();
}

int main() {
  const auto mesh = tessera::Mesh::parse("dp=2,tp=2");
  const auto whole = [] { return at::arange(12, at::kFloat).reshape({3, 4}); };
  const at::Tensor expected = gradient_of(whole());

  return tessera::run_ranks(4, [&] {
    const auto picture = tessera::distribute(whole(), mesh, "{dp: S(0), tp: S(1)}");
    const auto tile = tessera::to_local(picture);
    const auto gradient = tessera::full_tensor(gradient_of(picture));
    if (!at::equal(gradient, expected)) {
      return 1;
    }
    if (tile.numel() == 12) {
      return 2;
    }
    std::printf("a tile of %lld elements of %s\n", static_cast<long long>(tile.numel()),
                tessera::spec_of(picture).layout_str().c_str());
    return 0;
  });
}
