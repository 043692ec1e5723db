// A small network for images on every layout of batch and weights, against one device.
#include <torch/torch.h>

#include "tests/ranks/support.h"

namespace tessera::ranks::images_test {
namespace {

struct Network {
  at::Tensor image, weight, gamma, beta, mean, variance;

  at::Tensor loss() const {
    const at::Tensor x = at::conv2d(image, weight, {}, /*stride=*/1, /*padding=*/1);
    const at::Tensor y =
        at::batch_norm(x, gamma, beta, mean, variance, /*training=*/true, 0.1, 1e-5, /*cudnn_enabled=*/false);
    return (at::max_pool2d(at::relu(y), 2) * 0.5).square().mean() + at::adaptive_avg_pool2d(y, {2, 2}).sin().sum();
  }
  // Leaves, and what training writes.
  std::vector<at::Tensor> leaves() const { return {image, weight, gamma, beta}; }
  std::vector<at::Tensor> statistics() const { return {mean, variance}; }
};

Network make(const std::function<at::Tensor(at::Tensor)>& place_image,
             const std::function<at::Tensor(at::Tensor)>& place_weight,
             const std::function<at::Tensor(at::Tensor)>& place) {
  Network network{place_image(waves({5, 3, 6, 6})),   place_weight(waves({4, 3, 3, 3}, 0.53)),
                  place(waves({4}, 0.71) + 2),        place(waves({4}, 0.91)),
                  place(at::zeros({4}, at::kDouble)), place(at::ones({4}, at::kDouble))};
  for (at::Tensor leaf : network.leaves()) {
    leaf.requires_grad_();
  }
  return network;
}

TEST(Images, BatchStatisticsAreThoseOfTheWholeBatch) {
  const Mesh mesh = Mesh::parse("a=2,b=2");
  const auto same = [](at::Tensor value) { return value; };
  const Network plain = make(same, same, same);
  const at::Tensor expected = plain.loss();
  expected.backward();
  run_on(mesh, [&](int64_t) {
    for (const char* image : {"{}", "{a: S(0)}", "{a: S(0), b: S(0)}", "{a: S(0), b: S(1)}", "{b: S(2)}"}) {
      for (const char* weight : {"{}", "{b: S(0)}", "{a: S(1)}", "{a: S(0), b: S(1)}"}) {
        const auto on = [&](const char* layout) {
          return [&mesh, layout](at::Tensor value) { return distribute(value, mesh, layout); };
        };
        const Network found = make(on(image), on(weight), on("{}"));
        const at::Tensor loss = found.loss();
        loss.backward();
        const std::string what = c10::str(image, " x ", weight);
        EXPECT_LE(error_of(full_tensor(loss.detach()), expected.detach()), 1e-12) << what;
        for (size_t i = 0; i < plain.leaves().size(); ++i) {
          EXPECT_LE(error_of(full_tensor(found.leaves()[i].grad()), plain.leaves()[i].grad()), 1e-11)
              << what << " leaf " << i;
        }
        for (size_t i = 0; i < plain.statistics().size(); ++i) {
          EXPECT_LE(error_of(full_tensor(found.statistics()[i]), plain.statistics()[i]), 1e-12)
              << what << " statistic " << i;
        }
      }
    }
  });
}

}  // namespace
}  // namespace tessera::ranks::images_test
