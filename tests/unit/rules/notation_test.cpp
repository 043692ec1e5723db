// The notation of factor maps, read and written.
#include <gtest/gtest.h>

#include "tests/support/rule_calls.h"

namespace tessera::rules::notation_test {

using tessera::rules::testing::Caller;

namespace {

const Caller kCaller("tp=2");

TEST(Notation, RoundTrips) {
  for (const char* text : {"(a,b),(b,c)->(a,c)", "(a,b),(b,c)->(a,c);!b", "(a,b),(1,b)->(a,b)", "(a,b),(b,c)->(a*c,b)",
                           "(a,b),(b,c)->();!a,!c"}) {
    Call call = kCaller.call("aten::mm", {{.sizes = {4, 6}}, {.sizes = {6, 3}}});
    call.outputs.clear();
    const FactorMap map = parse_factors(text, call);
    EXPECT_EQ(map.str(), text);
    EXPECT_EQ(parse_factors(map.str(), call).str(), text);
  }
}

TEST(Notation, NamesBecomeLettersInOrder) {
  const Call call = kCaller.call("aten::mm", {{.sizes = {4, 6}}, {.sizes = {6, 3}}});
  EXPECT_EQ(parse_factors("(row,k1),(k1,col)->(row,col);!k1", call).str(), "(a,b),(b,c)->(a,c);!b");
}

TEST(Notation, LearnsExtents) {
  Call call = kCaller.call("aten::mm", {{.sizes = {12, 6}}, {.sizes = {6, 3}}});
  call.operands[1].spec = kCaller.spec({.sizes = {4, 3}});
  call.outputs.clear();
  const FactorMap map = parse_factors("(b*s,f),(b,s)->(b,s,f)", call);
  ASSERT_EQ(map.factors.size(), 3U);
  EXPECT_EQ(map.factors[0].extent, 4);
  EXPECT_EQ(map.factors[1].extent, 3);
  EXPECT_EQ(map.factors[2].extent, 6);
  call.operands.pop_back();
  EXPECT_ANY_THROW(parse_factors("(b*s,f)->(b,s,f)", call));
  EXPECT_ANY_THROW(parse_factors("(b,f", call));
  EXPECT_ANY_THROW(parse_factors("(b)->(b)", call));
}

TEST(Notation, BroadcastAlignsFromTheRight) {
  const Call call = kCaller.call("aten::add.Tensor", {{.sizes = {4, 1, 6}}, {.sizes = {5, 1}}});
  EXPECT_EQ(broadcast_factors(call).str(), "(a,1,c),(b,1)->(a,b,c)");
  const Call ones = kCaller.call("aten::add.Tensor", {{.sizes = {1, 6}}, {.sizes = {}}});
  EXPECT_EQ(broadcast_factors(ones).str(), "(a,b),()->(a,b)");
}

TEST(Names, FunctionalForms) {
  EXPECT_EQ(functional_name("aten::add_.Tensor"), "aten::add.Tensor");
  EXPECT_EQ(functional_name("aten::add.out"), "aten::add.Tensor");
  EXPECT_EQ(functional_name("aten::mm.out"), "aten::mm");
  EXPECT_EQ(functional_name("aten::sum.IntList_out"), "aten::sum.dim_IntList");
  EXPECT_EQ(functional_name("aten::__iand__.Tensor"), "aten::__and__.Tensor");
  EXPECT_EQ(functional_name("aten::mm"), "aten::mm");
  EXPECT_EQ(functional_name("aten::__and__.Tensor"), "aten::__and__.Tensor");
  EXPECT_NE(RuleTable::instance().find("aten::relu_"), nullptr);
  EXPECT_EQ(RuleTable::instance().find("aten::no_such_operator"), nullptr);
  EXPECT_EQ(RuleTable::instance().find("aten::squeeze_"), nullptr);
  EXPECT_EQ(RuleTable::instance().find("aten::t_"), nullptr);
}

}  // namespace

}  // namespace tessera::rules::notation_test
