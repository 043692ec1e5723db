// The table as a whole.
#include <gtest/gtest.h>

#include "tests/support/rule_calls.h"

namespace tessera::rules::table_test {
namespace {

TEST(Table, NamesOperatorsThatReachTheKernel) {
  for (const std::string& name : RuleTable::instance().names()) {
    if (!name.starts_with("aten::")) {
      continue;
    }
    const auto op = tessera::rules::testing::find_op(name);
    EXPECT_TRUE(!op.hasKernelForDispatchKey(c10::DispatchKey::CompositeImplicitAutograd) ||
                op.hasKernelForDispatchKey(c10::DispatchKey::CPU))
        << name;
  }
}

const Rule& row(const char* op) { return RuleTable::instance().row(op); }

TEST(Table, InPlaceFormsShareTheRuleAndNothingElse) {
  const RuleTable& table = RuleTable::instance();
  EXPECT_EQ(table.find("aten::mul_.Tensor"), table.find("aten::mul.Tensor"));
  EXPECT_EQ(table.find_exact("aten::mul_.Tensor"), table.find_exact("aten::mul.Tensor"));
  EXPECT_EQ(row("aten::mul.Tensor").carry, Carry::kInEither);
  EXPECT_EQ(row("aten::mul_.Tensor").carry, Carry::kNo);
  // A row of its own without a rule keeps nobody from the functional form's.
  EXPECT_TRUE(row("aten::zero_").overwrites);
  EXPECT_EQ(table.find("aten::zero_"), table.find("aten::zero"));
  EXPECT_EQ(table.find_exact("aten::zero_"), table.find_exact("aten::zero"));
  EXPECT_EQ(row("aten::add_.Tensor").carry, Carry::kAdd);
  EXPECT_EQ(table.find("aten::add_.Tensor"), table.find("aten::add.Tensor"));
}

TEST(Table, RowsWithoutARuleAreNotAmongTheRules) {
  const RuleTable& table = RuleTable::instance();
  for (const char* op : {"aten::rrelu_with_noise", "aten::rrelu_with_noise_", "aten::linalg_cross", "aten::zeros"}) {
    EXPECT_TRUE(table.rows().contains(op)) << op;
    EXPECT_EQ(table.find(op), nullptr) << op;
  }
  EXPECT_EQ(table.find_exact("aten::linalg_cross"), nullptr);
  EXPECT_EQ(row("aten::no_such_operator").special, Special::kNone);
}

TEST(Table, WhatIsCarriedHasAnExactForm) {
  for (const auto& [op, row] : RuleTable::instance().rows()) {
    EXPECT_TRUE(row.carry == Carry::kNo || RuleTable::instance().find_exact(op)) << op;
    // A step of an optimizer has no rule: its kernel (fused_update) runs the exact form itself.
    EXPECT_TRUE(!row.exact || RuleTable::instance().find(op) || row.special == Special::kFusedUpdate) << op;
  }
}

TEST(Table, ViewsInPlaceBecomeViewsWithARule) {
  for (const auto& [op, row] : RuleTable::instance().rows()) {
    EXPECT_EQ(row.special == Special::kViewInPlace, RuleTable::instance().find(row.becomes) != nullptr) << op;
  }
}

}  // namespace

}  // namespace tessera::rules::table_test
