// Every operator of the table of exact rules has the same bits on any number of threads, on both sides of the size at
// which libtorch's loops are cut (Note [Threads]).
#include <map>
#include <set>

#include <ATen/Parallel.h>
#include <ATen/TensorIterator.h>

#include "tessera/rules/exact/exact.h"
#include "tessera/rules/exact/exact_table.h"
#include "tests/ranks/exact_samples.h"
#include "tests/support/sampled.h"

namespace tessera::ranks::exact_threads_test {
namespace {

using dtensor::Numerics;

const std::vector<int> kThreads = {1, 2, 4};
constexpr int64_t kLong = 3 * at::internal::GRAIN_SIZE + 5;

// Which tensors of a sample grow along which dim (-1: their last).
struct Growth {
  bool only_one, only_of_most_dims;
  int64_t dim;
};

constexpr Growth kGrowths[] = {{false, true, 0},  {false, false, 0},  {true, true, 0},  {true, false, 0},
                               {false, true, -1}, {false, false, -1}, {true, true, -1}, {true, false, -1}};

// Whether kernels that trust their callers may get such operands, and the result is not the square of kLong.
bool is_safe(const Sample& sample, const Growth& growth) {
  if (sample.op == "aten::_reshape_alias") {
    return false;
  }
  return growth.only_one ? sample.op.find("_backward") == std::string::npos : sample.op != "tessera::contract";
}

// The sample with tensors of which one has kLong elements or more; nothing if none grows.
std::optional<Sample> lengthened(Sample sample, const Growth& growth) {
  if (!is_safe(sample, growth)) {
    return std::nullopt;
  }
  const auto all = rules::testing::tensors_of(sample.args);
  int64_t dims = 0;
  for (const auto& [tensor, arg] : all) {
    dims = std::max(dims, tensor.dim());
  }
  std::vector<at::Tensor> tensors;
  int64_t times = 0;
  for (const auto& [tensor, arg] : all) {
    const bool grows = tensor.dim() > 0 && tensor.numel() > 0 && !(growth.only_one && times > 0) &&
                       !(growth.only_of_most_dims && tensor.dim() < dims);
    if (grows && times == 0) {
      times = kLong / tensor.numel() + 1;
    }
    std::vector<int64_t> repeats(tensor.dim(), 1);
    if (grows) {
      (growth.dim < 0 ? repeats.back() : repeats.front()) = times;
    }
    tensors.push_back(grows ? tensor.repeat(repeats) : tensor);
  }
  if (times == 0) {
    return std::nullopt;
  }
  sample.args = rules::testing::with_tensors(sample.args, tensors);
  return sample;
}

CallOutcome outcome_on(int threads, const Sample& sample) {
  CallOutcome outcome;
  run_on(Mesh(), [&](int64_t) {
    at::set_num_threads(threads);  // the rank's share of the cores
    dtensor::set_numerics(Numerics::kExact);
    outcome = run_call(sample, Mesh(), std::vector<Placements>(9));
  });
  return outcome;
}

// Whether the sample runs; if so its bits are compared.
bool check(const Sample& sample) {
  const CallOutcome one = outcome_on(1, sample);
  if (!one.error.empty()) {
    return false;
  }
  for (int threads : support::sampled(kThreads, 1, sample.op)) {
    EXPECT_EQ(difference(outcome_on(threads, sample), one), "") << sample.op << " on " << threads << " threads";
  }
  return true;
}

// Whose sizes stand in their other arguments. They make a view, or copy elements into zeros.
const std::set<std::string> kNotLengthened = {"aten::_reshape_alias", "aten::select_backward", "aten::slice_backward"};

void expect_no_bit_of_threads(c10::ScalarType dtype) {
  std::set<std::string> ops, is_long;
  std::map<std::string, int> is_short;
  for (const Sample& sample : exact_samples()) {
    if (!rules::find_exact_rule(sample.op) || sample.compare != audit::Compare::kValues || writes(sample)) {
      continue;
    }
    if (is_short[sample.op] < 3) {
      is_short[sample.op] += check(made_wild(sample, dtype));
    }
    if (is_short[sample.op] == 0) {
      continue;  // refused so far
    }
    ops.insert(sample.op);
    for (const Growth& growth : kGrowths) {
      if (is_long.contains(sample.op)) {
        break;
      }
      const auto grown = lengthened(sample, growth);
      if (grown && check(made_wild(*grown, dtype))) {
        is_long.insert(sample.op);
      }
    }
  }
  for (const std::string& op : ops) {
    EXPECT_EQ(is_long.contains(op), !kNotLengthened.contains(op)) << op;
  }
  std::printf("%zu operators, %zu of them on long tensors\n", ops.size(), is_long.size());
  EXPECT_GT(is_long.size(), 100u);
}

// Of any operator of the table.
TEST(ExactThreads, EnterNoBitInFloat) { expect_no_bit_of_threads(at::kFloat); }
TEST(ExactThreads, EnterNoBitInDouble) { expect_no_bit_of_threads(at::kDouble); }

}  // namespace
}  // namespace tessera::ranks::exact_threads_test
