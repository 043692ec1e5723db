// Operators on the last dims of images and sequences: pooling, resampling, padding by what is there, unfolding. Samples
// and channels may be cut, places stay whole.
#include "tessera/rules/families/families.h"

#include <ATen/native/Pool.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/zeros.h>

#include "tessera/rules/engine/local_args.h"
#include "tessera/rules/engine/lookups.h"
#include "tessera/rules/exact/exact_kernels.h"

namespace tessera::rules {

namespace {

using Names = std::vector<std::string>;

// The leading dims of a plane operator's tensors, which all have them, and the places of each.
class Planes {
 public:
  Planes(FactorMap& map, c10::IntArrayRef sizes, size_t places)
      : map_(map), leading_(map.add_all(sizes.slice(0, sizes.size() - places))) {}

  TensorFactors tensor(c10::IntArrayRef sizes) const {
    TensorFactors result = leading_;
    for (size_t d = leading_.size(); d < sizes.size(); ++d) {
      result.push_back({map_.add(sizes[d], false)});
    }
    return result;
  }

 private:
  FactorMap& map_;
  TensorFactors leading_;
};

// The last `places` dims of every tensor stay whole. `input_size` of a gradient is that of its result.
FactorMap plane_map(const Call& call, size_t places, PartialFlow flow) {
  FactorMap map;
  map.partial = flow;
  const Planes planes(map, call.spec(0)->sizes, places);
  for (const Operand& operand : call.operands) {
    map.operands.push_back(planes.tensor(operand.spec->sizes));
  }
  for (const Output& output : call.outputs) {
    map.outputs.push_back(planes.tensor(output.sizes));
  }
  if (call.has_arg("input_size")) {
    map.sizes = {{.arg = call.arg_index("input_size"), .output = 0}};
  }
  return map;
}

bool is_empty(const std::vector<layout::Range>& ranges) {
  return std::any_of(ranges.begin(), ranges.end(), [](const layout::Range& range) { return range.size() == 0; });
}

// A rank without samples or channels has no planes; some kernels refuse that.
void run_planes(const LocalCall& call, torch::jit::Stack& stack) {
  StackArgs args(*call.op, stack);
  if (!is_empty(call.output_ranges[0])) {
    args.close_gaps();
    args.run();
    return;
  }
  const at::TensorOptions options = stack[stack.size() - call.op->schema().arguments().size()].toTensor().options();
  const auto empty = [&](size_t i) {
    return at::empty(sizes_of(call.output_ranges[i]), options.dtype(call.outputs[i]->dtype));
  };
  call.outputs.size() == 1 ? args.give_value(empty(0)) : args.give(empty(0), empty(1));
}

Rule planes(size_t places, PartialFlow flow = PartialFlow::kMerge) {
  return {.map = [places, flow](const Call& call) { return plane_map(call, places, flow); }, .local = run_planes};
}

// For operators without a meta kernel: `sizes(call)` are those of the result.
template <typename Sizes>
Rule rule_of_planes(size_t places, PartialFlow flow, Sizes sizes) {
  return {.map =
              [=](const Call& call) {
                FactorMap map;
                map.partial = flow;
                const Planes planes(map, call.spec(0)->sizes, places);
                for (const Operand& operand : call.operands) {
                  map.operands.push_back(planes.tensor(operand.spec->sizes));
                }
                map.outputs = {planes.tensor(sizes(call))};
                return map;
              },
          .local = run_planes,
          .shape = ShapeSource::kFactors};
}

std::vector<int64_t> input_sizes(const Call& call) { return call.spec(call.operand_of("self"))->sizes; }

// The leading dims of the input, with the places that `output_size` asks for.
std::vector<int64_t> asked_sizes(const Call& call) {
  std::vector<int64_t> sizes = call.spec(0)->sizes;
  const auto asked = call.ints("output_size");
  std::copy(asked.begin(), asked.end(), sizes.end() - static_cast<int64_t>(asked.size()));
  return sizes;
}

std::vector<int64_t> padded_sizes(const Call& call) {
  std::vector<int64_t> sizes = call.spec(0)->sizes;
  const auto padding = call.ints("padding");
  for (size_t i = 0; i < padding.size(); ++i) {
    sizes[sizes.size() - 1 - i / 2] += padding[i];
  }
  return sizes;
}

// An int[3] of a pooling operator for place `d`: one number may stand for all.
int64_t at_place(const std::vector<int64_t>& ints, size_t d) { return ints.size() == 1 ? ints[0] : ints.at(d); }

FactorMap max_pool3d_map(const Call& call) {
  const auto kernel = call.ints("kernel_size"), padding = call.ints("padding"), dilation = call.ints("dilation");
  const auto stride = call.ints("stride").empty() ? kernel : call.ints("stride");
  const auto& from = call.spec(0)->sizes;
  std::vector<int64_t> sizes = from;
  for (size_t d = 0; d < 3; ++d) {
    int64_t& size = sizes[sizes.size() - 3 + d];
    size =
        at::native::pooling_output_shape<int64_t>(size, at_place(kernel, d), at_place(padding, d), at_place(stride, d),
                                                  at_place(dilation, d), call.flag("ceil_mode"));
  }
  FactorMap map;
  map.dtypes = {call.spec(0)->dtype, c10::kLong};
  const Planes planes(map, from, 3);
  map.operands = {planes.tensor(from)};
  map.outputs = {planes.tensor(sizes), planes.tensor(sizes)};
  return map;
}

// [n, c, places...] gives a grid [n, places..., coordinates].
std::vector<int64_t> grid_sizes(const Call& call) {
  std::vector<int64_t> sizes = call.ints("size");
  sizes.erase(sizes.begin() + 1);
  sizes.push_back(static_cast<int64_t>(sizes.size()) - 1);
  return sizes;
}

// The size that is asked for is that of the whole.
void run_affine_grid(const LocalCall& call, torch::jit::Stack& stack) {
  StackArgs args(*call.op, stack);
  std::vector<int64_t> sizes = args["size"].toIntVector();
  sizes.at(0) = call.output_ranges[0][0].size();
  args["size"] = c10::IValue(sizes);
  run_planes(call, stack);
}

// [..., channels, rows, columns] and [..., channels * kernel, windows]: a window's elements follow their channel.
struct Unfolded {
  TensorFactors image, windows;

  Unfolded(FactorMap& map, const Call& call, c10::IntArrayRef image_sizes) {
    const auto kernel = call.ints("kernel_size"), dilation = call.ints("dilation"), padding = call.ints("padding"),
               stride = call.ints("stride");
    int64_t count = 1;
    for (size_t d = 0; d < 2; ++d) {
      count *=
          (image_sizes[image_sizes.size() - 2 + d] + 2 * padding[d] - dilation[d] * (kernel[d] - 1) - 1) / stride[d] +
          1;
    }
    image = map.add_all(image_sizes);
    windows.assign(image.begin(), image.end() - 2);
    windows.back().push_back(map.add(kernel[0] * kernel[1], false));
    windows.push_back({map.add(count, false)});
    map.block(image[image.size() - 2]);
    map.block(image[image.size() - 1]);
  }
};

FactorMap im2col_map(const Call& call) {
  FactorMap map;
  map.partial = PartialFlow::kAny;
  const Unfolded unfolded(map, call, call.spec(0)->sizes);
  map.operands = {unfolded.image};
  map.outputs = {unfolded.windows};
  return map;
}

FactorMap col2im_map(const Call& call) {
  FactorMap map;
  map.partial = PartialFlow::kLinear;
  const auto kernel = call.ints("kernel_size"), places = call.ints("output_size");
  std::vector<int64_t> sizes = call.spec(0)->sizes;
  sizes.pop_back();
  sizes.back() /= kernel.at(0) * kernel.at(1);
  sizes.insert(sizes.end(), places.begin(), places.end());
  const Unfolded unfolded(map, call, sizes);
  map.operands = {unfolded.windows};
  map.outputs = {unfolded.image};
  return map;
}

// [..., channels * r * r, rows, columns] and [..., channels, rows * r, columns * r].
FactorMap shuffle_map(const Call& call, const char* factor, bool shuffles) {
  FactorMap map;
  map.partial = PartialFlow::kAny;
  const int64_t r = call.integer(factor);
  std::vector<int64_t> sizes = call.spec(0)->sizes;
  const size_t channel = sizes.size() - 3;
  sizes[channel] /= shuffles ? r * r : 1;
  for (size_t d = channel + 1; d < sizes.size(); ++d) {
    sizes[d] /= shuffles ? 1 : r;
  }
  const TensorFactors image = map.add_all(sizes);
  TensorFactors deep = image, wide = image;
  for (size_t d = channel + 1; d < sizes.size(); ++d) {
    map.block(image[d]);
    const int part = map.add(r, false);
    deep[channel].push_back(part);
    wide[d].push_back(part);
  }
  map.operands = {shuffles ? deep : wide};
  map.outputs = {shuffles ? wide : deep};
  return map;
}

// Each point of a grid reads an image: (n,c,y,x), (n,i,j,2) -> (n,c,i,j), or a volume: (n,c,z,y,x), (n,h,i,j,3) ->
// (n,c,h,i,j).
struct Sampled {
  TensorFactors image, grid, result;

  Sampled(FactorMap& map, c10::IntArrayRef image_sizes, c10::IntArrayRef grid_sizes) : image(map.add_all(image_sizes)) {
    const TensorFactors points = map.add_all(grid_sizes.slice(1));
    for (size_t d = 2; d < image.size(); ++d) {
      map.block(image[d]);
    }
    map.block(points.back());
    grid = {image[0]};
    grid.insert(grid.end(), points.begin(), points.end());
    result = {image[0], image[1]};
    result.insert(result.end(), points.begin(), points.end() - 1);
  }
};

FactorMap grid_sampler_map(const Call& call) {
  FactorMap map;
  const Sampled sampled(map, call.spec(0)->sizes, call.spec(1)->sizes);
  map.operands = {sampled.image, sampled.grid};
  map.outputs = {sampled.result};
  return map;
}

FactorMap grid_sampler_backward_map(const Call& call) {
  FactorMap map;
  map.partial = PartialFlow::kLinear;
  const Sampled sampled(map, call.spec(1)->sizes, call.spec(2)->sizes);
  map.operands = {sampled.result, sampled.image, sampled.grid};
  map.outputs = {sampled.image, sampled.grid};
  map.dtypes = {call.spec(1)->dtype, call.spec(2)->dtype};
  return map;
}

// A rank without samples, channels or points adds nothing.
void run_grid_sampler(const LocalCall& call, torch::jit::Stack& stack) {
  StackArgs args(*call.op, stack);
  const bool is_backward = args.has("output_mask");
  if (!is_empty(call.operand_ranges[is_backward ? 1 : 0]) && !is_empty(call.operand_ranges[is_backward ? 2 : 1])) {
    args.run();
    return;
  }
  const at::TensorOptions options = args.tensor("input").options();
  const auto nothing = [&](size_t i) { return at::zeros(sizes_of(call.output_ranges[i]), options); };
  if (!is_backward) {
    args.give_value(nothing(0));
    return;
  }
  const std::vector<bool> asked = args["output_mask"].toBoolList().vec();
  args.give(asked.at(0) ? nothing(0) : at::Tensor(), asked.at(1) ? nothing(1) : at::Tensor());
}

void add_pools(RuleTable& table) {
  table.add("aten::max_pool2d_with_indices", planes(2).in_exact(exact::kPerSample));
  table.add("aten::max_pool2d_with_indices_backward", planes(2, PartialFlow::kLinear).in_exact(exact::kPerSample));
  table.add("aten::max_pool3d_with_indices",
            {.map = max_pool3d_map, .local = run_planes, .shape = ShapeSource::kFactors});
  table.add("aten::max_pool3d_with_indices_backward", rule_of_planes(3, PartialFlow::kLinear, input_sizes));
  for (const char* d : {"2d", "3d"}) {
    const size_t places = d[0] - '0';
    const std::string nd = d;
    table.add("aten::adaptive_max_pool" + nd, planes(places).in_exact(exact::kPerSample));
    table.add_all(
        {"aten::adaptive_max_pool" + nd + "_backward", "aten::avg_pool" + nd, "aten::avg_pool" + nd + "_backward"},
        planes(places, PartialFlow::kLinear).in_exact(exact::kPerSample));
    table.add("aten::max_unpool" + nd, rule_of_planes(places, PartialFlow::kLinear, asked_sizes));
    table.add("aten::_adaptive_avg_pool" + nd,
              rule_of_planes(places, PartialFlow::kLinear, asked_sizes).in_exact(exact::kPerSample));
    table.add("aten::_adaptive_avg_pool" + nd + "_backward",
              rule_of_planes(places, PartialFlow::kLinear, input_sizes).in_exact(exact::kPerSample));
  }
}

void add_resamplings(RuleTable& table) {
  const std::vector<std::pair<std::string, size_t>> names = {
      {"upsample_nearest1d", 1},        {"upsample_nearest2d", 2},        {"upsample_nearest3d", 3},
      {"_upsample_nearest_exact1d", 1}, {"_upsample_nearest_exact2d", 2}, {"_upsample_nearest_exact3d", 3},
      {"upsample_linear1d", 1},         {"upsample_bilinear2d", 2},       {"upsample_bicubic2d", 2},
      {"upsample_trilinear3d", 3},      {"_upsample_bilinear2d_aa", 2},   {"_upsample_bicubic2d_aa", 2}};
  for (const auto& [name, places] : names) {
    table.add_all({"aten::" + name, "aten::" + name + "_backward"}, planes(places, PartialFlow::kLinear));
  }
}

// What lies outside is read inside.
void add_paddings(RuleTable& table) {
  table.add_all({"aten::reflection_pad1d", "aten::replication_pad1d"},
                planes(1, PartialFlow::kAny).in_exact(exact::kPerSample));
  table.add_all({"aten::reflection_pad3d", "aten::replication_pad3d"},
                planes(3, PartialFlow::kAny).in_exact(exact::kPerSample));
  table.add("aten::replication_pad2d", planes(2, PartialFlow::kAny).in_exact(exact::kPerSample));
  table.add("aten::reflection_pad2d", rule_of_planes(2, PartialFlow::kAny, padded_sizes).in_exact(exact::kPerSample));
  for (const char* d : {"1d", "2d", "3d"}) {
    const Rule gradient = rule_of_planes(d[0] - '0', PartialFlow::kLinear, input_sizes).in_exact(exact::kPerSample);
    table.add_all(
        {std::string("aten::reflection_pad") + d + "_backward", std::string("aten::replication_pad") + d + "_backward"},
        gradient);
  }
}

}  // namespace

void add_plane_rules(RuleTable& table) {
  add_pools(table);
  add_resamplings(table);
  add_paddings(table);
  table.add("aten::im2col", {.map = im2col_map, .local = run_planes, .shape = ShapeSource::kFactors});
  table.add("aten::col2im", {.map = col2im_map, .local = run_planes, .shape = ShapeSource::kFactors});
  for (const std::string op : {"aten::grid_sampler_2d", "aten::grid_sampler_3d"}) {
    table.add(op, {.map = grid_sampler_map, .local = run_grid_sampler, .shape = ShapeSource::kFactors});
    table.add(op + "_backward",
              {.map = grid_sampler_backward_map, .local = run_grid_sampler, .shape = ShapeSource::kFactors});
  }
  Rule affine_grid = rule_of_planes(2, PartialFlow::kLinear, grid_sizes);
  affine_grid.local = run_affine_grid;
  table.add("aten::affine_grid_generator", affine_grid);
  table.add("aten::pixel_shuffle", {.map = [](const Call& call) { return shuffle_map(call, "upscale_factor", true); },
                                    .local = run_planes,
                                    .shape = ShapeSource::kFactors});
  table.add("aten::pixel_unshuffle",
            {.map = [](const Call& call) { return shuffle_map(call, "downscale_factor", false); },
             .local = run_planes,
             .shape = ShapeSource::kFactors});
}

}  // namespace tessera::rules
