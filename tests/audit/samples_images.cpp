// Samples of convolutions, of what acts on planes, and of training with batch statistics.
#include <ATen/TensorOperators.h>
#include <ATen/ops/adaptive_max_pool2d.h>
#include <ATen/ops/adaptive_max_pool3d.h>
#include <ATen/ops/convolution.h>
#include <ATen/ops/linalg_vector_norm.h>
#include <ATen/ops/max_pool2d_with_indices.h>
#include <ATen/ops/max_pool3d_with_indices.h>
#include <ATen/ops/native_batch_norm.h>

#include "tests/audit/samples.h"

namespace tessera::audit {

using Ints = std::vector<int64_t>;
using Named = rules::testing::Named;

namespace {

c10::IValue mask(bool a, bool b, bool c) { return c10::List<bool>({a, b, c}); }

struct Convolution {
  Ints input, weight;
  Ints stride, padding, dilation;
  int64_t groups = 1;
  bool transposed = false;
};

// The bias has as many elements as the result has channels.
int64_t channels_of(const Convolution& c) { return c.transposed ? c.weight[1] * c.groups : c.weight[0]; }

void add_convolution(Samples& samples, const Convolution& c) {
  const Ints extra(c.stride.size(), 0);
  const at::Tensor x = reals(c.input), weight = reals(c.weight), bias = reals({channels_of(c)});
  const Named rest = {{"stride", c.stride},         {"padding", c.padding},    {"dilation", c.dilation},
                      {"transposed", c.transposed}, {"output_padding", extra}, {"groups", c.groups}};
  samples.push_back(sample("aten::convolution", {x, weight, bias}, rest));
  samples.push_back(sample("aten::convolution", {x, weight}, rest));
  const at::Tensor y = at::convolution(x, weight, bias, c.stride, c.padding, c.dilation, c.transposed, extra, c.groups);
  Named backward = rest;
  backward.emplace_back("bias_sizes", Ints{bias.size(0)});
  backward.emplace_back("output_mask", mask(true, true, true));
  samples.push_back(sample("aten::convolution_backward", {reals(y.sizes()), x, weight}, backward));
  backward.back().second = mask(false, true, true);
  samples.push_back(sample("aten::convolution_backward", {reals(y.sizes()), x, weight}, backward));
  backward[backward.size() - 2].second = c10::IValue();
  backward.back().second = mask(true, true, false);
  samples.push_back(sample("aten::convolution_backward", {reals(y.sizes()), x, weight}, backward));
}

void add_convolutions(Samples& samples) {
  const Ints one = {1}, none = {0};
  add_convolution(samples, {.input = {5, 4, 9}, .weight = {6, 4, 3}, .stride = {2}, .padding = one, .dilation = one});
  add_convolution(
      samples, {.input = {5, 4, 9}, .weight = {4, 1, 4}, .stride = one, .padding = {3}, .dilation = one, .groups = 4});
  add_convolution(
      samples, {.input = {1, 6, 9}, .weight = {6, 2, 3}, .stride = one, .padding = none, .dilation = {2}, .groups = 3});
  add_convolution(
      samples,
      {.input = {3, 4, 6, 5}, .weight = {5, 4, 3, 2}, .stride = {2, 1}, .padding = {1, 0}, .dilation = {1, 2}});
  add_convolution(
      samples,
      {.input = {3, 4, 5}, .weight = {4, 6, 3}, .stride = {2}, .padding = one, .dilation = one, .transposed = true});
  add_convolution(samples, {.input = {3, 4, 5},
                            .weight = {4, 3, 3},
                            .stride = {2},
                            .padding = none,
                            .dilation = one,
                            .groups = 2,
                            .transposed = true});
}

// An operator, and its gradient from one of the result's sizes.
void add_pair(Samples& samples, const std::string& op, const at::Tensor& x, const Named& rest,
              bool gradient_reads_input = true) {
  samples.push_back(sample(op, {x}, rest));
  const at::Tensor grad = reals(run_whole(op, samples.back().args)[0].sizes());
  Named backward = rest;
  if (!gradient_reads_input) {
    backward.emplace_back("input_size", x.sizes().vec());
  }
  samples.push_back(sample(op + "_backward",
                           gradient_reads_input ? std::vector<at::Tensor>{grad, x} : std::vector<at::Tensor>{grad},
                           backward));
}

void add_pools(Samples& samples) {
  const at::Tensor image = reals({3, 4, 6, 5}), volume = reals({3, 4, 4, 4, 4});
  const Named pool = {{"kernel_size", Ints{3, 2}}, {"stride", Ints{2, 2}}, {"padding", Ints{1, 0}}};
  const Named pool3 = {{"kernel_size", Ints{2, 2, 2}}, {"stride", Ints{2, 2, 2}}, {"padding", Ints{0, 0, 0}}};
  add_pair(samples, "aten::avg_pool2d", image,
           {pool[0],
            pool[1],
            pool[2],
            {"ceil_mode", false},
            {"count_include_pad", true},
            {"divisor_override", c10::IValue()}});
  add_pair(samples, "aten::avg_pool3d", volume,
           {pool3[0],
            pool3[1],
            pool3[2],
            {"ceil_mode", false},
            {"count_include_pad", true},
            {"divisor_override", c10::IValue()}});
  add_pair(samples, "aten::_adaptive_avg_pool2d", image, {{"output_size", Ints{2, 3}}});
  add_pair(samples, "aten::_adaptive_avg_pool3d", volume, {{"output_size", Ints{2, 3, 1}}});
  samples.push_back(sample("aten::max_pool2d_with_indices", {image}, pool));
  samples.push_back(sample("aten::max_pool2d_with_indices", {reals({4, 6, 5})}, pool));
  const auto [pooled, at] = at::max_pool2d_with_indices(image, {3, 2}, {2, 2}, {1, 0});
  samples.push_back(sample("aten::max_pool2d_with_indices_backward", {reals(pooled.sizes()), image, at},
                           {pool[0], pool[1], pool[2], {"dilation", Ints{1, 1}}, {"ceil_mode", false}}));
  for (const at::Tensor& x : {volume, reals({4, 5, 6, 3})}) {
    samples.push_back(
        sample("aten::max_pool3d_with_indices", {x},
               {{"kernel_size", Ints{2}}, {"stride", Ints{}}, {"padding", Ints{1}}, {"ceil_mode", true}}));
    const auto [most, where] = at::max_pool3d_with_indices(x, {3, 2, 2}, {2, 1, 2}, {1, 1, 0}, {1, 2, 1});
    samples.push_back(sample("aten::max_pool3d_with_indices_backward", {reals(most.sizes()), x, where},
                             {{"kernel_size", Ints{3, 2, 2}},
                              {"stride", Ints{2, 1, 2}},
                              {"padding", Ints{1, 1, 0}},
                              {"dilation", Ints{1, 2, 1}},
                              {"ceil_mode", false}}));
  }
  samples.push_back(sample("aten::max_unpool2d", {pooled, at}, {{"output_size", Ints{6, 5}}}));
  const auto [most, where] = at::max_pool3d_with_indices(volume, {2, 2, 2});
  samples.push_back(sample("aten::max_unpool3d", {most, where},
                           {{"output_size", Ints{4, 4, 4}}, {"stride", Ints{2, 2, 2}}, {"padding", Ints{0, 0, 0}}}));
  samples.push_back(sample("aten::adaptive_max_pool2d", {image}, {{"output_size", Ints{2, 3}}}));
  samples.push_back(sample("aten::adaptive_max_pool2d_backward",
                           {reals({3, 4, 2, 3}), image, std::get<1>(at::adaptive_max_pool2d(image, {2, 3}))}));
  samples.push_back(sample("aten::adaptive_max_pool3d", {volume}, {{"output_size", Ints{2, 3, 1}}}));
  samples.push_back(sample("aten::adaptive_max_pool3d_backward",
                           {reals({3, 4, 2, 3, 1}), volume, std::get<1>(at::adaptive_max_pool3d(volume, {2, 3, 1}))}));
}

void add_resamplings(Samples& samples) {
  const at::Tensor line = reals({3, 4, 5}), image = reals({3, 4, 5, 4}), volume = reals({3, 2, 3, 2, 2});
  for (const char* op : {"aten::upsample_nearest1d", "aten::_upsample_nearest_exact1d"}) {
    add_pair(samples, op, line, {{"output_size", Ints{8}}}, false);
  }
  for (const char* op : {"aten::upsample_nearest2d", "aten::_upsample_nearest_exact2d"}) {
    add_pair(samples, op, image, {{"output_size", Ints{7, 8}}}, false);
  }
  for (const char* op : {"aten::upsample_nearest3d", "aten::_upsample_nearest_exact3d"}) {
    add_pair(samples, op, volume, {{"output_size", Ints{4, 4, 3}}}, false);
  }
  add_pair(samples, "aten::upsample_linear1d", line, {{"output_size", Ints{8}}, {"align_corners", false}}, false);
  for (const char* op : {"aten::upsample_bilinear2d", "aten::upsample_bicubic2d", "aten::_upsample_bilinear2d_aa",
                         "aten::_upsample_bicubic2d_aa"}) {
    add_pair(samples, op, image, {{"output_size", Ints{7, 3}}, {"align_corners", false}}, false);
  }
  add_pair(samples, "aten::upsample_trilinear3d", volume, {{"output_size", Ints{4, 4, 3}}, {"align_corners", true}},
           false);
}

void add_paddings(Samples& samples) {
  const at::Tensor line = reals({3, 4, 5}), image = reals({3, 4, 5, 4}), volume = reals({3, 2, 3, 3, 3});
  for (const std::string op : {"aten::reflection_pad", "aten::replication_pad"}) {
    add_pair(samples, op + "1d", line, {{"padding", Ints{2, 1}}});
    add_pair(samples, op + "2d", image, {{"padding", Ints{2, 1, 0, 3}}});
    add_pair(samples, op + "3d", volume, {{"padding", Ints{2, 1, 0, 1, 1, 1}}});
  }
}

void add_grid_samplers(Samples& samples) {
  struct Case {
    std::string op;
    Ints image, grid, result;
  };
  const Named how = {{"interpolation_mode", 0}, {"padding_mode", 0}, {"align_corners", false}};
  for (const Case& c : {Case{"aten::grid_sampler_2d", {3, 4, 5, 6}, {3, 2, 5, 2}, {3, 4, 2, 5}},
                        Case{"aten::grid_sampler_3d", {3, 4, 2, 5, 3}, {3, 2, 3, 2, 3}, {3, 4, 2, 3, 2}}}) {
    const at::Tensor image = reals(c.image), grid = reals(c.grid) * 2 - 1;
    samples.push_back(sample(c.op, {image, grid}, how));
    for (const auto& asked : {c10::List<bool>({true, true}), c10::List<bool>({false, true})}) {
      Named backward = how;
      backward.emplace_back("output_mask", asked);
      samples.push_back(sample(c.op + "_backward", {reals(c.result), image, grid}, backward));
    }
  }
  samples.push_back(sample("aten::affine_grid_generator", {reals({3, 2, 3})},
                           {{"size", Ints{3, 4, 5, 2}}, {"align_corners", false}}));
  samples.push_back(sample("aten::affine_grid_generator", {reals({5, 3, 4})},
                           {{"size", Ints{5, 1, 2, 3, 2}}, {"align_corners", true}}));
}

void add_weight_norms(Samples& samples) {
  for (const int64_t dim : {0, 2}) {
    const at::Tensor v = reals({5, 4, 3}), g = dim == 0 ? reals({5, 1, 1}) : reals({1, 1, 3});
    const auto norm = at::linalg_vector_norm(v, 2, dim == 0 ? Ints{1, 2} : Ints{0, 1}, /*keepdim=*/true);
    samples.push_back(sample("aten::_weight_norm_interface", {v, g}, {{"dim", dim}}));
    samples.push_back(sample("aten::_weight_norm_interface_backward", {reals({5, 4, 3}), v, g, norm}, {{"dim", dim}}));
  }
}

void add_batch_norms(Samples& samples) {
  const at::Tensor x = reals({5, 4, 3}), weight = reals({4}), bias = reals({4});
  const Named training = {{"training", true}, {"momentum", 0.1}, {"eps", 1e-5}};
  samples.push_back(sample("aten::native_batch_norm", {x, weight, bias}, training));
  samples.push_back(sample("aten::native_batch_norm", {reals({5, 4})}, training));
  const Named statistics = {{"momentum", 0.1}, {"eps", 1e-5}};
  samples.push_back(sample("aten::_native_batch_norm_legit.no_stats", {x, weight, bias}, training));
  samples.push_back(sample("aten::_native_batch_norm_legit", {x, weight, bias, reals({4}), reals({4})}, training));
  for (const char* op :
       {"aten::_native_batch_norm_legit_no_training", "aten::_batch_norm_with_update", "aten::_batch_norm_no_update"}) {
    samples.push_back(sample(op, {x, weight, bias, reals({4}), reals({4})}, statistics));
  }
  const auto [y, mean, inverse] = at::native_batch_norm(x, weight, bias, {}, {}, true, 0.1, 1e-5);
  for (const auto& asked : {mask(true, true, true), mask(false, true, true), mask(true, false, true)}) {
    samples.push_back(sample("aten::native_batch_norm_backward", {reals({5, 4, 3}), x, weight, mean, inverse},
                             {{"running_mean", c10::IValue()},
                              {"running_var", c10::IValue()},
                              {"train", true},
                              {"eps", 1e-5},
                              {"output_mask", asked}}));
    samples.push_back(
        sample("aten::batch_norm_backward",
               {reals({5, 4, 3}), x, weight, reals({4}), reals({4}), mean, inverse, at::empty({0}, at::kByte)},
               {{"update", true}, {"eps", 1e-5}, {"output_mask", asked}}));
  }
}

}  // namespace

void add_image_samples(Samples& samples) {
  add_convolutions(samples);
  add_pools(samples);
  add_resamplings(samples);
  add_paddings(samples);
  add_batch_norms(samples);
  add_grid_samplers(samples);
  add_weight_norms(samples);
  for (const Ints& sizes : {Ints{3, 4, 5, 6}, Ints{4, 5, 6}}) {
    const Named window = {
        {"kernel_size", Ints{2, 3}}, {"dilation", Ints{1, 1}}, {"padding", Ints{1, 0}}, {"stride", Ints{2, 1}}};
    samples.push_back(sample("aten::im2col", {reals(sizes)}, window));
    Named back = window;
    back.emplace_back("output_size", Ints{5, 6});
    samples.push_back(sample("aten::col2im", {reals(run_whole("aten::im2col", samples.back().args)[0].sizes())}, back));
  }
  samples.push_back(sample("aten::pixel_shuffle", {reals({3, 8, 5, 4})}, {{"upscale_factor", 2}}));
  samples.push_back(sample("aten::pixel_unshuffle", {reals({3, 2, 6, 4})}, {{"downscale_factor", 2}}));
}

}  // namespace tessera::audit
