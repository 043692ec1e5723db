// Operators that draw random numbers.
#include "tessera/rules/families/families.h"

#include <limits>

#include <torch/types.h>

#include "tessera/base/error.h"
#include "tessera/rules/engine/draws.h"

namespace tessera::rules {

namespace {

using Args = Draws::Args;
using c10::IValue;
using random::Distribution;
using random::StockDraw;
using Target = at::Tensor&;
using From = const at::Generator&;

double number(const IValue& value) { return value.toScalar().toDouble(); }
double number(const IValue& value, double if_none) { return value.isNone() ? if_none : number(value); }

std::optional<int64_t> integer_or_none(const IValue& value) {
  return value.isNone() ? std::nullopt : std::optional(value.toInt());
}

StockDraw integers(int64_t from, std::optional<int64_t> to) {
  return {[=](Target x, From g) { x.random_(from, to, g); }};
}

StockDraw normal(double mean, double std) {
  return {[=](Target x, From g) { x.normal_(mean, std, g); }, /*in_blocks=*/true};
}

constexpr Draws kNormal = {
    .counter = [](Args args, c10::ScalarType) -> Distribution {
      return random::Normal{number(args[1], 0), number(args[2], 1)};
    },
    .stock = [](Args args) { return normal(number(args[1]), number(args[2])); },
};

constexpr Draws kCauchy = {
    .counter = [](Args args, c10::ScalarType) -> Distribution {
      return random::Cauchy{number(args[1], 0), number(args[2], 1)};
    },
    .stock =
        [](Args args) {
          const double median = number(args[1]), sigma = number(args[2]);
          return StockDraw{[=](Target x, From g) { x.cauchy_(median, sigma, g); }};
        },
};

constexpr Draws kExponential = {
    .counter = [](Args args, c10::ScalarType) -> Distribution { return random::Exponential{number(args[1], 1)}; },
    .stock =
        [](Args args) {
          const double lambda = number(args[1]);
          return StockDraw{[=](Target x, From g) { x.exponential_(lambda, g); }};
        },
};

constexpr Draws kGeometric = {
    .counter = [](Args args, c10::ScalarType) -> Distribution { return random::Geometric{number(args[1], 0.5)}; },
    .stock =
        [](Args args) {
          const double p = number(args[1]);
          return StockDraw{[=](Target x, From g) { x.geometric_(p, g); }};
        },
};

constexpr Draws kLogNormal = {
    .counter = [](Args args, c10::ScalarType) -> Distribution {
      return random::LogNormal{number(args[1], 1), number(args[2], 2)};
    },
    .stock =
        [](Args args) {
          const double mean = number(args[1]), std = number(args[2]);
          return StockDraw{[=](Target x, From g) { x.log_normal_(mean, std, g); }};
        },
};

// Largest integer that torch's `random_` draws for a dtype, plus one.
int64_t integer_limit(c10::ScalarType type) {
  switch (type) {
    case c10::ScalarType::Bool: return 2;
    case c10::ScalarType::Byte: return 1 << 8;
    case c10::ScalarType::Char: return 1 << 7;
    case c10::ScalarType::Short: return 1 << 15;
    case c10::ScalarType::Int: return int64_t{1} << 31;
    case c10::ScalarType::Long: return std::numeric_limits<int64_t>::max();
    case c10::ScalarType::Half: return (1 << 11) + 1;
    case c10::ScalarType::BFloat16: return (1 << 8) + 1;
    case c10::ScalarType::Float: return (1 << 24) + 1;
    default: return (int64_t{1} << 53) + 1;
  }
}

constexpr Draws kAnyInteger = {
    .counter = [](Args, c10::ScalarType dtype) -> Distribution { return random::Integers{0, integer_limit(dtype)}; },
    .stock = [](Args) { return StockDraw{[](Target x, From g) { x.random_(g); }}; },
};

constexpr Draws kIntegersFrom = {
    .counter = [](Args args, c10::ScalarType dtype) -> Distribution {
      return random::Integers{args[1].toInt(), args[2].isNone() ? integer_limit(dtype) : args[2].toInt()};
    },
    .stock = [](Args args) { return integers(args[1].toInt(), integer_or_none(args[2])); },
};

// Of [0, high), and of [low, high): the arguments from `first` on.
template <size_t first>
constexpr Draws kIntegersTo = {
    .counter = [](Args args, c10::ScalarType) -> Distribution { return random::Integers{0, args[first].toInt()}; },
    .stock = [](Args args) { return integers(0, args[first].toInt()); },
};
template <size_t first>
constexpr Draws kIntegersBetween = {
    .counter = [](Args args, c10::ScalarType) -> Distribution {
      return random::Integers{args[first].toInt(), args[first + 1].toInt()};
    },
    .stock = [](Args args) { return integers(args[first].toInt(), args[first + 1].toInt()); },
};

constexpr Draws kStandardUniform = {
    .counter = [](Args, c10::ScalarType) -> Distribution { return random::Uniform{0, 1}; },
    .stock = [](Args) { return StockDraw{[](Target x, From g) { x.uniform_(0, 1, g); }}; },
};

constexpr Draws kStandardNormal = {
    .counter = [](Args, c10::ScalarType) -> Distribution { return random::Normal{0, 1}; },
    .stock = [](Args) { return normal(0, 1); },
};

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

Draws in_stock_only(const Draws& draws) { return {.stock = draws.stock}; }

void add_random_fills(RuleTable& table) {
  const auto fill = [&](const char* op, const Draws& draws) {
    table.add(op, {.special = Special::kRandomFill, .caught = Caught::kRandomFill, .draws = draws});
  };
  fill("aten::bernoulli_.float", kBernoulli);
  fill("aten::cauchy_", kCauchy);
  fill("aten::exponential_", kExponential);
  fill("aten::geometric_", kGeometric);
  fill("aten::log_normal_", kLogNormal);
  fill("aten::normal_", kNormal);
  fill("aten::random_", kAnyInteger);
  fill("aten::random_.from", kIntegersFrom);
  fill("aten::random_.to", kIntegersTo<1>);
  fill("aten::uniform_", kUniform);
  table.add("aten::normal_functional", {.draws = kNormal});
  table.add("aten::uniform", {.draws = kUniform});
}

void add_likes(RuleTable& table) {
  const auto like = [&](const char* op, const Draws& draws) {
    table.add(op, {.special = Special::kRandomLike, .caught = Caught::kRandomFill, .draws = draws});
  };
  like("aten::bernoulli.p", kBernoulli);
  like("aten::rand_like", kStandardUniform);
  like("aten::randint_like", kIntegersTo<1>);
  like("aten::randint_like.low_dtype", kIntegersBetween<1>);
  like("aten::randn_like", kStandardNormal);
  table.add_optional("aten::rand_like.generator", {.draws = in_stock_only(kStandardUniform)});
  table.add_optional("aten::randint_like.generator", {.draws = in_stock_only(kIntegersTo<1>)});
  table.add_optional("aten::randn_like.generator", {.draws = in_stock_only(kStandardNormal)});
}

void add_factories(RuleTable& table) {
  const auto factory = [&](const char* op, const Draws& draws) {
    table.add(op, {.caught = Caught::kRandomFactory, .draws = draws});
  };
  factory("aten::rand", kStandardUniform);
  factory("aten::rand.generator", kStandardUniform);
  factory("aten::randint", kIntegersTo<0>);
  factory("aten::randint.generator", kIntegersTo<0>);
  factory("aten::randint.low", kIntegersBetween<0>);
  factory("aten::randint.low_generator", kIntegersBetween<0>);
  factory("aten::randn", kStandardNormal);
  factory("aten::randn.generator", kStandardNormal);
  table.add_all({"aten::randperm", "aten::randperm.generator"}, {.caught = Caught::kRandomFactory, .permutes = true});
}

// Of one probability, rate or class weight for each element.
void add_by_values(RuleTable& table) {
  const auto by_values = [&](const char* op, at::Tensor (*draw)(Args) = nullptr) {
    table.add(op, {.special = Special::kDrawByValues, .caught = Caught::kDrawByValues, .draws = {.by_values = draw}});
  };
  by_values("aten::_sample_dirichlet");
  by_values("aten::_standard_gamma");
  by_values("aten::binomial");
  by_values("aten::multinomial", multinomial);
  by_values("aten::normal.Tensor_Tensor", normal_of_both);
  by_values("aten::normal.Tensor_float", normal_of_means);
  by_values("aten::normal.float_Tensor", normal_of_stds);
  by_values("aten::poisson");
  by_values("aten::rrelu_with_noise", rrelu_with_noise);
  by_values("aten::rrelu_with_noise_", rrelu_with_noise_);
  table.add_all({"aten::bernoulli", "aten::bernoulli_.Tensor"},
                {.special = Special::kBernoulli, .caught = Caught::kBernoulli});
}

}  // namespace

void add_random_rules(RuleTable& table) {
  add_random_fills(table);
  add_likes(table);
  add_factories(table);
  add_by_values(table);
  table.add("aten::native_dropout", {.special = Special::kDropout});
}

}  // namespace tessera::rules
