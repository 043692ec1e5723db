#include "tessera/base/hints.h"

#include <gtest/gtest.h>

namespace tessera::base::hints_test {
namespace {

class Hints : public testing::Test {
 protected:
  void TearDown() override { set_language(Language::kCpp); }
};

TEST_F(Hints, AreCppUntilAPythonProgramReadsThem) {
  EXPECT_EQ(language(), Language::kCpp);
  EXPECT_STREQ(in_language("job.set_step_tokens(n);", "tessera.set_step_tokens(n)"), "job.set_step_tokens(n);");
  EXPECT_EQ(in_library("to_local(x)"), "tessera::to_local(x)");
  EXPECT_EQ(redistribute_line("a", "{tp: R}"), "a = tessera::redistribute(a, \"{tp: R}\");");
}

TEST_F(Hints, ArePythonAfterwards) {
  set_language(Language::kPython);
  EXPECT_STREQ(in_language("job.set_step_tokens(n);", "tessera.set_step_tokens(n)"), "tessera.set_step_tokens(n)");
  EXPECT_EQ(in_library("to_local(x)"), "tessera.to_local(x)");
  EXPECT_EQ(redistribute_line("tensors[1]", "{tp: R}"), "tensors[1] = tessera.redistribute(tensors[1], \"{tp: R}\")");
}

}  // namespace
}  // namespace tessera::base::hints_test
