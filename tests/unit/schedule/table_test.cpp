// What each schedule promises, from the lists that its generator makes.
#include <algorithm>
#include <fstream>
#include <sstream>

#include <gtest/gtest.h>

#include "tessera/schedule/families/family.h"
#include "tessera/schedule/verify.h"
#include "tests/support/schedule_table.h"

namespace tessera::schedule::table_test {
namespace {

TEST(ScheduleTable, IsWhatListsGive) {
  for (const support::ScheduleRow& row : support::schedule_table()) {
    SCOPED_TRACE(testing::Message() << row.name << " " << row.ranks << " " << row.micro_batches);
    const auto schedule = make_schedule(row.name, {.ranks = row.ranks, .micro_batches = row.micro_batches});
    verify_schedule(schedule);
    support::expect_figures(schedule, row);
  }
}

// Whoever adds a family says its figures there, and what it is for on the guide's page.
TEST(ScheduleTable, HasEveryFamilyAndSoHasTheGuide) {
  std::ifstream file(TESSERA_GUIDE "schedules.md");
  std::ostringstream guide;
  guide << file.rdbuf();
  const auto known = support::schedule_table();
  for (const Family& family : families()) {
    const std::string name = family.name;
    EXPECT_TRUE(std::any_of(known.begin(), known.end(), [&](const auto& row) { return name == row.name; })) << name;
    EXPECT_NE(guide.str().find("\n| `" + name + "` |"), std::string::npos) << name;
    EXPECT_NE(std::string(family.what), "") << name;
  }
}

}  // namespace
}  // namespace tessera::schedule::table_test
