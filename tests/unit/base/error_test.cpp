#include "tessera/base/error.h"

#include <new>
#include <stdexcept>

#include <gtest/gtest.h>

namespace tessera::base::error_test {
namespace {

template <typename Body>
std::string message_from(Body body) {
  try {
    body();
  } catch (...) {
    return message_of(std::current_exception());
  }
  return "nothing was thrown";
}

TEST(Error, CheckWritesItsArgumentsAndNothingElse) {
  EXPECT_EQ(message_from([] { TESSERA_CHECK(1 > 2, "[add] no rule for ", 3, " (rank ", 0, ")"); }),
            "[add] no rule for 3 (rank 0)");
  EXPECT_NO_THROW({ TESSERA_CHECK(true, "unused"); });
}

TEST(Error, AssertNamesItsConditionAndPlace) {
  const auto message = message_from([] { TESSERA_ASSERT(2 + 2 == 5, "sum ", 4); });
  EXPECT_NE(message.find("2 + 2 == 5"), std::string::npos) << message;
  EXPECT_NE(message.find("error_test.cpp:"), std::string::npos) << message;
  EXPECT_NE(message.find("sum 4"), std::string::npos) << message;
  EXPECT_EQ(message.find("PyTorch"), std::string::npos) << message;
  EXPECT_THROW({ TESSERA_ASSERT(false); }, c10::Error);
}

TEST(Error, TypedErrorsBelongToTheirFamilies) {
  EXPECT_THROW(TESSERA_THROW(CommTimeout, "late"), CommError);
  EXPECT_THROW(TESSERA_THROW(CommError, "gone"), c10::DistError);
  EXPECT_THROW(TESSERA_THROW(DataError, "torn"), c10::Error);
  EXPECT_THROW(TESSERA_THROW(ConfigError, "what"), c10::ValueError);
  EXPECT_THROW({ TESSERA_CHECK_AS(PlanError, false, "does not fit ", 3); }, c10::ValueError);
  EXPECT_EQ(message_from([] { TESSERA_CHECK_AS(PlanError, false, "does not fit ", 3); }), "does not fit 3");
}

TEST(Error, RankFailedKnowsItsRank) {
  try {
    throw RankFailed({__func__, __FILE__, __LINE__}, 3, "rank 3 failed: boom");
  } catch (const c10::DistError& error) {
    EXPECT_EQ(dynamic_cast<const RankFailed&>(error).rank(), 3);
    EXPECT_EQ(message_of(error), "rank 3 failed: boom");
  }
}

TEST(Error, MessageIsOneParagraphWithoutFrames) {
  EXPECT_EQ(message_of(std::runtime_error("a\n  b\n\nc \n")), "a b c");
  EXPECT_EQ(
      message_of(std::runtime_error("bad\nException raised from f at x.cpp:1 (most recent call first):\nframe #0")),
      "bad");
  EXPECT_EQ(message_of(std::runtime_error("bad\nframe #0: f")), "bad");
  EXPECT_EQ(message_of(std::bad_alloc()), "out of memory: an allocation by the C++ runtime failed");
  EXPECT_EQ(message_of(std::runtime_error("")), "an error of type std::runtime_error without a message");
  EXPECT_EQ(message_from([] { throw 3; }), "an exception that is not a std::exception");
}

TEST(Error, MessageKeepsTheContextThatWasAdded) {
  EXPECT_EQ(message_from([] {
              try {
                TESSERA_THROW(DataError, "torn file");
              } catch (c10::Error& error) {
                TORCH_RETHROW(error, "while reading kjv.txt");
              }
            }),
            "torn file (while reading kjv.txt)");
}

}  // namespace
}  // namespace tessera::base::error_test
