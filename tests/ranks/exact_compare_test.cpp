// `compare` in `exact` numerics: small models have the same bits on every layout, and where an operator is made wrong
// on purpose it is found and named.
#include <filesystem>
#include <fstream>

#include <ATen/ATen.h>
#include <gtest/gtest.h>
#include <nlohmann/json.hpp>
#include <unistd.h>

#include "tessera/rules/exact/exact_kernels.h"
#include "tessera/rules/exact/exact_table.h"
#include "tessera/train/compare/bit_compare.h"

namespace tessera::train::exact_compare_test {
namespace {

using c10::IValue;
using rules::ExactCall;
using rules::ScopedExactRule;

constexpr int64_t kHidden = 48;  // of the Llama's wide layer

class ExactCompare : public testing::Test {
 protected:
  void SetUp() override {
    folder_ = std::filesystem::temp_directory_path() / ("tessera_exact_compare_" + std::to_string(::getpid()));
    std::filesystem::create_directories(folder_);
    std::ofstream text(folder_ / "text.txt");
    for (int i = 0; i < 300; ++i) {
      text << "line " << i << " of a text that repeats itself, line after line.\n";
    }
  }
  void TearDown() override { std::filesystem::remove_all(folder_); }

  Config config_of(const std::string& kind, const std::string& lattice = "") const {
    Config config;
    config.data.file = (folder_ / "text.txt").string();
    for (const std::string set : {"model.dim=32", "model.layers=2", "model.heads=4", "data.sequence=12",
                                  "train.batch=12", "train.lr=1e-2", "train.numerics=exact"}) {
      set_field(config, set);
    }
    set_field(config, "model.kind=" + kind);
    set_field(config, kind == "gpt" ? "model.dropout=0.1" : c10::str("model.hidden=", kHidden));
    set_field(config, "train.lattice=" + (lattice.empty() ? sums::Lattice().str() : lattice));
    return config;
  }

  BitComparison run(const std::string& kind, const std::vector<std::string>& layouts, int64_t steps,
                    const std::string& lattice = "") const {
    std::vector<Side> sides;
    for (const auto& layout : layouts) {
      sides.push_back(parse_side(config_of(kind, lattice), layout));
    }
    EXPECT_TRUE(are_exact(sides));
    return compare_bits(sides, steps);
  }

  // What differs on the second of two layouts after a step, which must be an operator's result.
  OperatorDifference difference(const std::string& kind, const std::string& layout,
                                const std::string& lattice = "") const {
    const auto comparison = run(kind, {"1", layout}, 2, lattice);
    SCOPED_TRACE(comparison.text());
    EXPECT_FALSE(comparison.is_same());
    const auto& found = comparison.sides.at(0).difference;
    if (!found || !found->op) {
      ADD_FAILURE() << "no operator is named";
      return {};
    }
    EXPECT_EQ(found->step, 1);
    EXPECT_GT(found->op->different, 0);
    EXPECT_NE(found->op->values[0], found->op->values[1]);
    EXPECT_NE(comparison.text().find("first operator " + found->op->op + ", number "), std::string::npos);
    const auto json = nlohmann::json::parse(comparison.json());
    EXPECT_FALSE(json.at("same_bits"));
    EXPECT_EQ(json.at("sides")[0].at("operator").at("op"), found->op->op);
    return *found->op;
  }

 private:
  std::filesystem::path folder_;
};

const std::vector<std::string> kLayouts = {"1",
                                           "dp=2",
                                           "tp=2",
                                           "dp=2,tp=2",
                                           "1;accumulate=2",
                                           "dp=3;accumulate=3",
                                           "pp=2;accumulate=2",
                                           "pp=2;accumulate=3;schedule=1f1b",
                                           "pp=2,tp=2;accumulate=3;schedule=interleaved"};

TEST_F(ExactCompare, BothModelsHaveTheSameBitsOnEveryLayout) {
  for (const char* kind : {"llama", "gpt"}) {
    const auto comparison = run(kind, kLayouts, 4);
    EXPECT_TRUE(comparison.is_same()) << comparison.text();
    EXPECT_EQ(comparison.sides.size(), kLayouts.size() - 1);
    EXPECT_NE(comparison.text().find("dp=3;accumulate=3: same bits\n"), std::string::npos) << comparison.text();
    EXPECT_TRUE(nlohmann::json::parse(comparison.json()).at("same_bits"));
    EXPECT_EQ(comparison.tensors % 3, 0);
    EXPECT_GT(comparison.tensors, 30);
  }
}

// The control of those below: nothing is named where nothing is wrong. Operators that only some layouts run have other
// keys.
TEST_F(ExactCompare, EveryOperatorOfAStepIsTheSame) {
  for (const char* kind : {"llama", "gpt"}) {
    const auto reference = trace_step(parse_side(config_of(kind), "1"), 2);
    std::map<std::string, uint64_t> hashes;
    for (const auto& record : reference) {
      EXPECT_TRUE(hashes.emplace(record.key, record.hash).second) << record.key;
    }
    EXPECT_GT(hashes.size(), 400u);
    for (const auto& layout : kLayouts) {
      SCOPED_TRACE(c10::str(kind, " on ", layout));
      size_t known = 0;
      for (const auto& record : trace_step(parse_side(config_of(kind), layout), 2)) {
        const auto found = hashes.find(record.key);
        known += found != hashes.end();
        EXPECT_TRUE(found == hashes.end() || found->second == record.hash) << record.key;
      }
      EXPECT_GE(known + 4, hashes.size());
    }
  }
}

// One product over the whole run of the summed dim, by the library.
at::Tensor stock_node(const ExactCall& call, c10::ArrayRef<IValue> args) {
  const auto a = args[0].toTensor(), b = args[1].toTensor();
  const auto equation = args[2].toStringRef();
  return call.leaf == 0 ? rules::exact::contract_node(call, args) : at::einsum(equation, {a, b}).contiguous();
}

TEST_F(ExactCompare, NamesAStockProduct) {
  const ScopedExactRule wrong("tessera::contract", {.node = stock_node, .sample = rules::exact::contract_sample});
  const auto op = difference("llama", "tp=2");
  EXPECT_EQ(op.op, "tessera::contract");
  EXPECT_EQ(op.phase, "forward");
  EXPECT_NE(op.site.find("layers.0."), std::string::npos) << op.site;
}

// Leaves one after the other, as a ring adds ranks, instead of by the tree.
at::Tensor sequential_node(const ExactCall& call, c10::ArrayRef<IValue> args) {
  const auto equation = args[2].toStringRef();
  const auto comma = equation.find(','), arrow = equation.find("->");
  const auto of_a = equation.substr(0, comma), of_b = equation.substr(comma + 1, arrow - comma - 1),
             out = equation.substr(arrow + 2);
  int64_t dim_a = -1, dim_b = -1;
  for (size_t d = 0; d < of_a.size(); ++d) {
    if (out.find(of_a[d]) == std::string::npos) {
      dim_a = static_cast<int64_t>(d);
      dim_b = static_cast<int64_t>(of_b.find(of_a[d]));
    }
  }
  const auto size = args[0].toTensor().size(dim_a);
  at::Tensor sum;
  for (int64_t begin = 0; begin < size; begin += call.leaf) {
    const auto length = std::min(call.leaf, size - begin);
    std::vector<IValue> leaf(args.begin(), args.end());
    leaf[0] = args[0].toTensor().narrow(dim_a, begin, length);
    leaf[1] = args[1].toTensor().narrow(dim_b, begin, length);
    const auto term = rules::exact::contract_node(call, leaf);
    sum = sum.defined() ? at::add(sum, term) : term;
  }
  return sum;
}

TEST_F(ExactCompare, NamesAMergeInRingOrder) {
  const ScopedExactRule wrong("tessera::contract", {.node = sequential_node, .sample = rules::exact::contract_sample});
  const auto op = difference("gpt", "tp=2");
  EXPECT_EQ(op.op, "tessera::contract");
  EXPECT_EQ(op.phase, "forward");
}

// Two sums over the features of the wide layer in backward (of the gradients that gate and up send back), added before
// they are merged: the first call gives nothing and keeps its part, the second gives both.
at::Tensor added_before_merge(const ExactCall& call, c10::ArrayRef<IValue> args) {
  static thread_local at::Tensor kept;
  at::Tensor sum = rules::exact::contract_node(call, args);
  const bool is_gradient = call.leaf == kHidden / 8 && args[2].toStringRef() == "abz,zy->aby";
  if (!is_gradient) {
    return sum;
  }
  if (!kept.defined()) {
    return kept = sum, at::zeros_like(sum);
  }
  return at::add(std::exchange(kept, at::Tensor()), sum);
}

TEST_F(ExactCompare, NamesPartialsAddedBeforeTheMerge) {
  const ScopedExactRule wrong("tessera::contract",
                              {.node = added_before_merge, .sample = rules::exact::contract_sample});
  const auto op = difference("llama", "tp=2");
  EXPECT_EQ(op.op, "tessera::contract");
  EXPECT_EQ(op.phase, "backward");
  EXPECT_NE(op.site.find("layers.1."), std::string::npos) << op.site;  // the last layer is the first in backward
}

// As if the wide layer had leaves of 5: one rank sums ten of them; of two, which are cut at 24, inside the fifth, the
// second begins with the rest of it.
at::Tensor leaves_of_five(const ExactCall& call, c10::ArrayRef<IValue> args) {
  if (call.leaf != kHidden / 8 || args[2].toStringRef() != "aby,zy->abz") {
    return rules::exact::contract_node(call, args);
  }
  const ExactCall by_five{call.local, 5};
  const int64_t held = args[0].toTensor().size(-1), rest = (5 - call.local->operand_ranges[0].back().begin % 5) % 5;
  const auto sum_of = [&](int64_t begin, int64_t length) {
    std::vector<IValue> part(args.begin(), args.end());
    part[0] = args[0].toTensor().narrow(-1, begin, length);
    part[1] = args[1].toTensor().narrow(1, begin, length);
    return rules::exact::contract_node(by_five, part);
  };
  return rest == 0 ? sum_of(0, held) : at::add(sum_of(0, rest), sum_of(rest, held - rest));
}

TEST_F(ExactCompare, NamesACutInsideALeaf) {
  const ScopedExactRule wrong("tessera::contract", {.node = leaves_of_five, .sample = rules::exact::contract_sample});
  const auto op = difference("llama", "tp=2");
  EXPECT_EQ(op.op, "tessera::contract");
  EXPECT_EQ(op.phase, "forward");
  EXPECT_NE(op.site.find("down"), std::string::npos) << op.site;
}

// The samples of one call from the last to the first. The terms so far of the sum that begins with zeros.
void reversed_sample(const ExactCall& call, c10::ArrayRef<IValue> args, const at::Tensor& onto) {
  static thread_local std::vector<at::Tensor> terms;
  static thread_local const void* last = nullptr;
  if (std::exchange(last, onto.data_ptr()) != onto.data_ptr() || onto.count_nonzero().item<int64_t>() == 0) {
    terms.clear();
    if (onto.count_nonzero().item<int64_t>() != 0) {
      terms.push_back(onto.clone());
    }
  }
  terms.push_back(at::zeros_like(onto));
  rules::exact::contract_sample(call, args, terms.back());
  onto.zero_();
  for (auto term = terms.rbegin(); term != terms.rend(); ++term) {
    onto.add_(*term);
  }
}

TEST_F(ExactCompare, NamesSamplesInReversedOrder) {
  const ScopedExactRule wrong("tessera::contract", {.node = rules::exact::contract_node, .sample = reversed_sample});
  const auto op = difference("llama", "1;accumulate=3", "batch=1");
  EXPECT_EQ(op.op, "tessera::contract");
  EXPECT_EQ(op.phase, "backward");
  EXPECT_NE(op.site.find("head"), std::string::npos) << op.site;  // the first gradient of backward
}

// A function of elements that differs in one place of one sample, in micro-batches too.
void wrong_silu(const rules::LocalCall& call, torch::jit::Stack& stack) {
  rules::exact::run_map<kernels::Function::kSilu>(call, stack);
  const auto result = stack.back().toTensor();
  if (call.output_ranges[0].back().begin > 0) {  // on the second rank of tp
    result.view(at::kInt).select(0, 0).select(0, 3).select(0, 2).add_(1);
  }
}

TEST_F(ExactCompare, NamesTheElement) {
  const ScopedExactRule wrong("aten::silu", {.local = wrong_silu});
  const auto op = difference("llama", "tp=2");
  EXPECT_EQ(op.op, "aten::silu");
  EXPECT_EQ(op.sizes, (std::vector<int64_t>{12, 12, 48}));
  EXPECT_EQ(op.index, (std::vector<int64_t>{0, 3, 24 + 2}));
  EXPECT_EQ(op.different, 1);
  const auto micro = difference("llama", "tp=2;accumulate=2");
  EXPECT_EQ(micro.op, "aten::silu");
  EXPECT_EQ(micro.different, 2);  // row 0 of both micro-batches
}

TEST_F(ExactCompare, OtherValuesBeforeTheFirstStep) {
  const auto comparison = run("llama", {"1", "1;train.seed=1"}, 2);
  ASSERT_TRUE(comparison.sides[0].difference);
  EXPECT_EQ(comparison.sides[0].difference->step, 0);
  EXPECT_NE(comparison.text().find("NOT the same bits before the first step ("), std::string::npos)
      << comparison.text();
}

TEST_F(ExactCompare, AnotherModelIsSaidToBe) {
  const auto comparison = run("llama", {"1", "1;model.layers=1"}, 1);
  EXPECT_NE(comparison.text().find("NOT the same bits before the first step (parameters)"), std::string::npos)
      << comparison.text();
}

TEST_F(ExactCompare, AnotherLatticeIsAnotherResult) {
  const auto comparison = run("llama", {"1", "1;train.lattice=batch=4,feature=2"}, 2);
  ASSERT_TRUE(comparison.sides[0].difference);
  EXPECT_EQ(comparison.sides[0].difference->step, 1);
}

}  // namespace
}  // namespace tessera::train::exact_compare_test
