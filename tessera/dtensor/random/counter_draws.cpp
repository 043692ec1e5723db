#include "tessera/dtensor/random/counter_draws.h"

#include <limits>
#include <unordered_map>

#include <ATen/CPUGeneratorImpl.h>
#include <torch/types.h>

#include "tessera/base/error.h"
#include "tessera/base/hash.h"

namespace tessera::dtensor {
namespace {

using c10::IValue;
using Args = c10::ArrayRef<IValue>;

// 16-bit weights are drawn with in float32: their quotients by exponential numbers would often be equal.
at::Tensor weights_of(const at::Tensor& weights) {
  TESSERA_CHECK(weights.is_floating_point() && (weights.dim() == 1 || weights.dim() == 2), "[multinomial] weights of ",
                weights.scalar_type(), " and ", weights.dim(),
                " dims; accepted: floating-point weights of one distribution, or of one in each row");
  const at::Tensor wide = at::elementSize(weights.scalar_type()) < 4 ? weights.to(at::kFloat) : weights;
  const at::Tensor valid = wide.ge(0).logical_and(wide.lt(std::numeric_limits<double>::infinity()));
  TESSERA_CHECK(valid.all().item<bool>(), "[multinomial] the weights hold `inf`, `nan` or a value below 0");
  TESSERA_CHECK(wide.amax(-1).gt(0).all().item<bool>(), "[multinomial] a distribution whose weights are all 0");
  return wide;
}

// The class whose weight over an exponential number is largest has probability weight / sum; the next are a draw
// without replacement (Efraimidis and Spirakis, "Weighted random sampling with a reservoir", 2006).
at::Tensor multinomial(Args args) {
  const int64_t count = args[1].toInt();
  const bool replacement = args[2].toBool();
  const at::Tensor weights = weights_of(args[0].toTensor().detach());
  TESSERA_CHECK(count > 0, "[multinomial] ", count, " samples; it must be at least 1");
  TESSERA_CHECK(replacement || count <= weights.size(-1), "[multinomial] ", count, " samples without replacement of ",
                weights.size(-1), " classes");
  if (replacement && count > 1) {
    std::vector<int64_t> sizes = weights.sizes().vec();
    sizes.insert(sizes.end() - 1, count);
    const at::Tensor draws = weights.unsqueeze(-2).expand(sizes);
    return at::argmax(draws.div(at::empty_like(draws).exponential_()), -1);
  }
  const at::Tensor scores = weights.div(at::empty_like(weights).exponential_());
  return count == 1 ? at::argmax(scores, -1, /*keepdim=*/true) : std::get<1>(scores.topk(count));
}

// Gradients do not pass draws of normal numbers, as in libtorch.
at::Tensor checked_std(const IValue& value) {
  const at::Tensor std = value.toTensor().detach();
  TESSERA_CHECK(std.ge(0).all().item<bool>(), "[normal] a standard deviation below 0");
  return std;
}

at::Tensor normal_of_means(Args args) {
  const at::Tensor mean = args[0].toTensor().detach();
  const double std = args[1].toDouble();
  TESSERA_CHECK(std >= 0, "[normal] standard deviation ", std, "; it must be at least 0");
  return at::randn_like(mean).mul(std).add(mean);
}

at::Tensor normal_of_stds(Args args) {
  const at::Tensor std = checked_std(args[1]);
  return at::randn_like(std).mul(std).add(args[0].toDouble());
}

at::Tensor normal_of_both(Args args) {
  const at::Tensor mean = args[0].toTensor().detach(), std = checked_std(args[1]);
  return at::randn_like(mean.add(std)).mul(std).add(mean);
}

// `noise` is the slope: drawn where self is at most 0, else 1.
at::Tensor rrelu_with_noise(Args args) {
  const at::Tensor self = args[0].toTensor();
  at::Tensor noise = args[1].toTensor();
  const double lower = args[2].toScalar().toDouble(), upper = args[3].toScalar().toDouble();
  if (!args[4].toBool()) {
    return at::leaky_relu(self, (lower + upper) / 2);
  }
  noise.copy_(at::where(self.le(0), at::empty_like(self).uniform_(lower, upper), at::ones_like(self)));
  return self.mul(noise);
}

at::Tensor rrelu_with_noise_(Args args) {
  at::Tensor self = args[0].toTensor();
  return self.copy_(rrelu_with_noise(args));
}

}  // namespace

CounterDraw find_counter_draw(const std::string& op) {
  static const std::unordered_map<std::string, CounterDraw> table = {
      {"aten::multinomial", multinomial},
      {"aten::normal.Tensor_Tensor", normal_of_both},
      {"aten::normal.Tensor_float", normal_of_means},
      {"aten::normal.float_Tensor", normal_of_stds},
      {"aten::rrelu_with_noise", rrelu_with_noise},
      {"aten::rrelu_with_noise_", rrelu_with_noise_},
  };
  const auto found = table.find(op);
  return found == table.end() ? nullptr : found->second;
}

at::Generator generator_for_draw(RankState& state) {
  const random::Stream stream = state.sites.next();
  return at::make_generator<at::CPUGeneratorImpl>(
      base::hash_combine(base::hash_combine(base::hash_mix(stream.seed), stream.site), stream.step));
}

}  // namespace tessera::dtensor
