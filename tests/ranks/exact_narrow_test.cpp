// bfloat16 and float16 in `exact` numerics: each operator is its float32 form on widened operands, rounded once.
#include <cstring>
#include <random>

#include "tessera/rules/exact/exact_table.h"
#include "tests/ranks/exact_program.h"
#include "tests/ranks/exact_samples.h"

namespace tessera::ranks::exact_narrow_test {
namespace {

constexpr int64_t kPatterns = 65536;

// All values of the dtype, in the order of their bits.
at::Tensor all_values(c10::ScalarType dtype) { return at::arange(kPatterns, at::kInt).to(at::kShort).view(dtype); }

template <typename T>
T with_bits(uint16_t bits) {
  T result;
  std::memcpy(&result, &bits, sizeof(result));
  return result;
}

// To nearest, ties to even, of the value as a double: shares nothing with conversions of libraries.
template <typename T>
T rounded(float x) {
  if (std::isnan(x)) {
    return std::numeric_limits<T>::quiet_NaN();
  }
  const double magnitude = std::fabs(static_cast<double>(x));
  const int digits = std::numeric_limits<T>::digits, lowest = std::numeric_limits<T>::min_exponent - digits;
  const int exponent = magnitude == 0 || std::isinf(x) ? 0 : std::max(std::ilogb(magnitude) + 1 - digits, lowest);
  const double whole =
      std::isinf(x) ? magnitude : std::ldexp(std::nearbyint(std::ldexp(magnitude, -exponent)), exponent);
  const double most = std::ldexp(2 - std::ldexp(1, 1 - digits), std::numeric_limits<T>::max_exponent - 1);
  const uint16_t sign = std::signbit(x) ? 0x8000 : 0;
  if (whole > most) {
    return with_bits<T>(sign | static_cast<uint16_t>(digits == 8 ? 0x7F80 : 0x7C00));
  }
  // As a whole number of the spacing at its exponent, of which denormals have none.
  const int place = whole == 0 ? 0 : std::max(std::ilogb(whole) - (std::numeric_limits<T>::min_exponent - 1), 0);
  const int spacing = std::numeric_limits<T>::min_exponent - digits + place;
  const auto steps = static_cast<uint16_t>(std::ldexp(whole, -spacing));
  return with_bits<T>(static_cast<uint16_t>(sign | (steps + (place << (digits - 1)))));
}

at::Tensor rounded(const at::Tensor& x, c10::ScalarType dtype) {
  if (!x.is_floating_point()) {
    return x;
  }
  const at::Tensor wide = x.contiguous(), result = at::empty(x.sizes(), x.options().dtype(dtype));
  for (int64_t i = 0; i < x.numel(); ++i) {
    const float value = wide.const_data_ptr<float>()[i];
    dtype == at::kHalf ? void(result.data_ptr<c10::Half>()[i] = rounded<c10::Half>(value))
                       : void(result.data_ptr<c10::BFloat16>()[i] = rounded<c10::BFloat16>(value));
  }
  return result;
}

// How many elements differ in their bits; all NaN are one.
int64_t differ(const at::Tensor& a, const at::Tensor& b) {
  if (a.scalar_type() != b.scalar_type()) {
    return a.numel();
  }
  if (!a.is_floating_point()) {
    return a.ne(b).sum().item<int64_t>();
  }
  const at::Tensor are_nan = a.isnan().logical_and_(b.isnan());
  return a.view(at::kShort).ne(b.view(at::kShort)).logical_and_(are_nan.logical_not_()).sum().item<int64_t>();
}

// Operators of `tensors` tensors first, then `numbers` numbers, and nothing else that has no default.
std::vector<std::string> elementwise_ops(size_t tensors, size_t numbers) {
  std::vector<std::string> ops;
  for (const std::string& name : rules::RuleTable::instance().names()) {
    const bool has_values = rules::RuleTable::instance().row(name).makes == rules::Makes::kValues;
    if (!name.starts_with("aten::") || !rules::find_exact_rule(name) || !has_values) {
      continue;
    }
    const c10::FunctionSchema& schema = rules::testing::find_op(name).schema();
    const auto& arguments = schema.arguments();
    bool fits = !schema.is_mutable() && schema.returns().size() == 1 && arguments.size() >= tensors + numbers;
    for (size_t i = 0; i < arguments.size() && fits; ++i) {
      const auto kind = arguments[i].type()->kind();
      fits = i < tensors             ? kind == c10::TypeKind::TensorType
             : i < tensors + numbers ? kind == c10::TypeKind::NumberType
                                     : arguments[i].default_value().has_value();
    }
    if (fits) {
      ops.push_back(name);
    }
  }
  return ops;
}

// The call with defaults behind; undefined if this is no elementwise function of reals, which it says with an error or
// with another size.
at::Tensor call(const std::string& name, const std::vector<at::Tensor>& tensors, const std::vector<double>& numbers) {
  const c10::OperatorHandle op = rules::testing::find_op(name);
  torch::jit::Stack stack(tensors.begin(), tensors.end());
  stack.insert(stack.end(), numbers.begin(), numbers.end());
  for (size_t i = stack.size(); i < op.schema().arguments().size(); ++i) {
    stack.push_back(*op.schema().arguments()[i].default_value());
  }
  op.callBoxed(stack);
  const at::Tensor result = stack.back().isTensor() ? stack.back().toTensor() : at::Tensor();
  return result.defined() && result.sizes() == tensors[0].sizes() ? result : at::Tensor();
}

// What the form in float32 of each call gives, rounded, on every layout of rows.
void check_calls(const std::vector<std::string>& ops, const std::vector<at::Tensor>& tensors,
                 const std::vector<double>& numbers, size_t at_least) {
  for (const char* text : {"1", "tp=3"}) {
    const Mesh mesh = Mesh::parse(text);
    std::vector<std::string> ran;
    run_on(mesh, [&](int64_t rank) {
      dtensor::set_numerics(Numerics::kExact);
      const at::NoGradGuard no_grad;
      std::vector<at::Tensor> narrow, wide;
      const Placements rows(mesh.ndim(), layout::Shard(0));
      for (const at::Tensor& tensor : tensors) {
        narrow.push_back(tensor.dim() == 0 ? tensor : distribute(tensor, mesh, rows));
        wide.push_back(tensor.dim() == 0 ? tensor : distribute(tensor.to(at::kFloat), mesh, rows));
      }
      for (const std::string& op : ops) {
        at::Tensor expected, found;
        try {
          expected = call(op, wide, numbers);
        } catch (const std::exception&) {  // of integers only, or of matrices
          continue;
        }
        if (!expected.defined()) {
          continue;
        }
        found = full_tensor(call(op, narrow, numbers)).clone();
        expected = full_tensor(expected).clone();
        if (rank != 0) {
          continue;
        }
        ran.push_back(op);
        const auto dtype = tensors[0].scalar_type();
        if (op == "aten::signbit") {  // a NaN has no sign of its own
          found.masked_fill_(tensors[0].isnan(), false), expected.masked_fill_(tensors[0].isnan(), false);
        }
        EXPECT_EQ(differ(found, rounded(expected, dtype)), 0)
            << op << " of " << tensors.size() << " tensors in " << dtype << " on " << text;
      }
    });
    std::printf("%s: %zu operators of %zu tensors and %zu numbers in %s\n", text, ran.size(), tensors.size(),
                numbers.size(), c10::toString(tensors[0].scalar_type()));
    EXPECT_GE(ran.size(), at_least);
  }
}

class ExactNarrow : public ::testing::TestWithParam<c10::ScalarType> {};
INSTANTIATE_TEST_SUITE_P(Dtypes, ExactNarrow, ::testing::Values(at::kBFloat16, at::kHalf),
                         [](const auto& info) { return std::string(c10::toString(info.param)); });

TEST_P(ExactNarrow, UnaryOperatorsOnAllValues) { check_calls(elementwise_ops(1, 0), {all_values(GetParam())}, {}, 45); }

TEST_P(ExactNarrow, OperatorsOfATensorAndANumber) {
  for (double number : {0.3, -7.25, 1e-3}) {
    const at::Tensor values = all_values(GetParam());
    check_calls(elementwise_ops(1, 1), {values}, {number}, 10);
    at::Tensor wrapped = at::full({}, number, at::kDouble);  // as Python writes x + 0.3
    wrapped.unsafeGetTensorImpl()->set_wrapped_number(true);
    check_calls(elementwise_ops(2, 0), {values, wrapped}, {}, 15);
    check_calls(elementwise_ops(2, 0), {values, at::full({}, number, at::kFloat)}, {}, 15);
  }
}

// Pairs of values of any bits, and of like size, where sums and quotients are between two values.
TEST_P(ExactNarrow, OperatorsOfTwoTensors) {
  const uint32_t seed = is_full() ? std::random_device{}() : 40;
  std::printf("seed %u\n", seed);
  std::mt19937 engine(seed);
  const int64_t exponents = GetParam() == at::kHalf ? 3 << 10 : 6 << 7;  // near those of 1
  const int64_t one = GetParam() == at::kHalf ? 15 << 10 : 127 << 7;
  const auto some = [&](bool near) {
    const at::Tensor bits = at::empty({kPatterns}, at::kInt);
    for (int64_t i = 0; i < kPatterns; ++i) {
      const auto drawn = static_cast<int32_t>(engine() % kPatterns);
      bits.data_ptr<int32_t>()[i] =
          near ? static_cast<int32_t>(one - exponents / 2 + drawn % exponents) | (drawn & 0x8000) : drawn;
    }
    return bits.to(at::kShort).view(GetParam());
  };
  for (bool near : {false, true}) {
    check_calls(elementwise_ops(2, 0), {some(near), some(near)}, {}, 15);
  }
}

// The definition of rounding itself, where libtorch's conversions do it.
TEST_P(ExactNarrow, CastsRoundToNearestEven) {
  const at::Tensor values = all_values(GetParam()), finite = values.index({values.isfinite()}).to(at::kFloat);
  const at::Tensor above = std::get<0>(finite.sort()), middles = (above.slice(0, 0, -1) + above.slice(0, 1)) / 2;
  const float infinity = std::numeric_limits<float>::infinity();
  for (const at::Tensor& x : {finite, middles, at::nextafter(middles, at::full({}, infinity)),
                              at::nextafter(middles, at::full({}, -infinity)), at::full({1}, infinity)}) {
    EXPECT_EQ(differ(x.to(GetParam()), rounded(x, GetParam())), 0);
  }
  EXPECT_EQ(differ(values.to(at::kFloat).to(GetParam()), values), 0);
}

// The bits of one rank that sees all samples at once, on every layout and in every cut of the step.
void check_bits(const char* name, const Program& program) {
  SCOPED_TRACE(name);
  for (const Lattice& lattice : {Lattice{2, 1, 8}, Lattice{8, 2, 8}}) {
    const Outcome whole = run_program(program, kWhole, Numerics::kExact, lattice);
    ASSERT_EQ(difference(whole, whole), "");
    for (const std::vector<Cell>* cells : {&kLayouts, &kCuts}) {
      for (const Cell& cell : *cells) {
        if (std::string(cell.mesh) == "dp=3" && lattice.sequence == 1) {
          continue;
        }
        EXPECT_EQ(difference(run_program(program, cell, Numerics::kExact, lattice), whole), "")
            << cell.str() << ", lattice " << lattice.str();
      }
    }
  }
}

TEST_P(ExactNarrow, GradientsOfANet) {
  check_bits("left in grad, and stepped with", [](World& world) {
    world.dtype = GetParam();
    Net net(world);
    torch::optim::AdamW optimizer(net.parameters(), torch::optim::AdamWOptions(1e-2).eps(1e-3));
    for (int64_t step = 0; step < 2; ++step) {
      optimizer.zero_grad();
      net.backward();
      net.keep_gradients(std::to_string(step));
      optimizer.step();
    }
    net.keep();
  });
  check_bits("read between, and added to", [](World& world) {
    world.dtype = GetParam();
    Net net(world);
    net.backward([&](const Batch&) { world.keep("seen", net.w1.grad()); });
    world.results.erase("seen");
    world.keep("doubled", net.w1.grad() + net.w1.grad());
    net.keep_gradients();
  });
}

// A norm, a softmax and products of activations, whose gradients have sums of every kind.
TEST_P(ExactNarrow, GradientsOfNormsAndAttention) {
  check_bits("norms and attention", [](World& world) {
    world.dtype = GetParam();
    const at::Tensor w = world.parameter("w", {3 * kWidth, kWidth}, layout::InterleavedShard(0, 3)),
                     gain = world.parameter("gain", {kWidth}), bias = world.parameter("bias", {kWidth});
    world.each_batch([&](const Batch& batch) {
      const at::Tensor x = at::layer_norm(batch.x, {kWidth}, gain, bias);
      const auto parts = at::linear(x, w).chunk(3, -1);
      const auto heads = [](const at::Tensor& y) { return y.unflatten(-1, {2, kWidth / 2}).transpose(1, 2); };
      const at::Tensor mixed = at::scaled_dot_product_attention(heads(parts[0]), heads(parts[1]), heads(parts[2]));
      at::gelu(mixed.transpose(1, 2).flatten(2)).square().sum().backward();
    });
    for (const auto& [name, parameter] : {std::pair("w", w), std::pair("gain", gain), std::pair("bias", bias)}) {
      world.keep(name, parameter.grad());
    }
  });
}

// What a cast hands on is the sum itself: a float32 parameter's gradient has bits that 16 do not.
TEST_P(ExactNarrow, GradientsOfFloat32ParametersAreNotRounded) {
  const Program program = [](World& world) {
    world.dtype = at::kFloat;
    Net net(world);
    world.each_batch([&](const Batch& batch) {
      const auto cast = [&](const at::Tensor& x) { return x.to(GetParam()); };
      const at::Tensor hidden = at::linear(cast(batch.x), cast(net.w1), cast(net.b1)).tanh();
      net.loss_of(at::linear(hidden, cast(net.w2)).to(at::kFloat), batch.y).backward();
    });
    net.keep_gradients();
  };
  check_bits("cast", program);
  for (const auto& [name, gradient] : run_program(program, kWhole, Numerics::kExact, {}).results) {
    EXPECT_EQ(gradient.scalar_type(), at::kFloat);
    EXPECT_GT(gradient.ne(gradient.to(GetParam()).to(at::kFloat)).sum().item<int64_t>(), gradient.numel() / 2) << name;
  }
}

}  // namespace
}  // namespace tessera::ranks::exact_narrow_test
