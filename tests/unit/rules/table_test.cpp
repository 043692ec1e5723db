// The table as a whole.
#include <gtest/gtest.h>

#include "tests/support/rule_calls.h"

using namespace tessera::rules;

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

}  // namespace
