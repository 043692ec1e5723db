#include "tessera/trace/ledger.h"

#include <gtest/gtest.h>

namespace tessera::trace::ledger_test {
namespace {

TEST(Ledger, AddsUpByAxisCollectiveAndOp) {
  Ledger ledger;
  ledger.record("all_reduce", "tp", "aten::mm", 100);
  ledger.record("all_gather", "tp", "aten::mm", 7);
  ledger.record("all_reduce", "dp", "step", 30);
  ledger.record("all_reduce", "tp", std::string("aten::mm").c_str(), 11);
  ledger.record("all_reduce", "tp", nullptr, 1);

  EXPECT_EQ(ledger.total_bytes(), 149);
  EXPECT_EQ(ledger.bytes_of("all_reduce", "tp"), 112);
  EXPECT_EQ(ledger.calls_of("all_reduce", "tp"), 3);
  EXPECT_EQ(ledger.bytes_of("all_reduce", "dp"), 30);
  EXPECT_EQ(ledger.calls_of("broadcast", "dp"), 0);

  const auto entries = ledger.entries();
  ASSERT_EQ(entries.size(), 4u);
  EXPECT_EQ(entries[0].axis, "dp");
  EXPECT_EQ(entries[1].collective, "all_gather");
  EXPECT_EQ(entries[2].op, "");
  EXPECT_EQ(entries[3].op, "aten::mm");
  EXPECT_EQ(entries[3].calls, 2);
  EXPECT_EQ(entries[3].bytes, 111);
}

TEST(Ledger, AddsAgainWhatWasRecorded) {
  Ledger ledger;
  ledger.record("all_reduce", "tp", "aten::mm", 100);
  const auto before = ledger.entries();
  ledger.record("all_gather", "dp", "aten::mm", 7);
  ledger.record("all_reduce", "tp", "aten::mm", 11);
  ledger.record("send", "tp", nullptr, 3);
  const auto since = ledger.since(before);
  ASSERT_EQ(since.size(), 3u);
  EXPECT_EQ(since[1].calls, 1);
  EXPECT_EQ(since[1].bytes, 11);
  EXPECT_TRUE(ledger.since(ledger.entries()).empty());
  ledger.add(since);
  EXPECT_EQ(ledger.total_bytes(), 100 + 2 * 21);
  EXPECT_EQ(ledger.calls_of("all_reduce", "tp"), 3);
  EXPECT_EQ(ledger.calls_of("send", "tp"), 2);
}

TEST(Ledger, TellsWhatWasComposedOfWhat) {
  Ledger ledger;
  ledger.record_composed("all_reduce", "tp", "all_to_all, all_gather");
  ledger.record_composed("all_reduce", "tp", "all_gather");
  ledger.record_composed("all_reduce", "tp", "all_gather");
  ledger.record_composed("all_gather", "dp", "send, receive");
  const auto all = ledger.compositions();
  ASSERT_EQ(all.size(), 3u);
  EXPECT_EQ(all[0].axis + " " + all[0].collective + " " + all[0].parts, "dp all_gather send, receive");
  EXPECT_EQ(all[1].parts, "all_gather");
  EXPECT_EQ(all[1].calls, 2);
  EXPECT_EQ(all[2].calls, 1);
  EXPECT_TRUE(ledger.entries().empty());
  EXPECT_EQ(ledger.total_bytes(), 0);
  ledger.clear();
  ledger.record_composed("barrier", "tp", "send, receive");
  EXPECT_EQ(ledger.json(), R"({"entries": [], "total_bytes": 0, "composed": [{"axis": "tp", "collective": "barrier", )"
                           R"("parts": "send, receive", "calls": 1}]})");
}

TEST(Ledger, WritesJson) {
  Ledger ledger;
  EXPECT_EQ(ledger.json(), R"({"entries": [], "total_bytes": 0})");
  ledger.record("send", "pp", "a\"b\\\n", 5);
  EXPECT_EQ(ledger.json(),
            R"({"entries": [{"axis": "pp", "collective": "send", "op": "a\"b\\\u000a", "calls": 1, "bytes": 5}], )"
            R"("total_bytes": 5})");
  ledger.clear();
  EXPECT_EQ(ledger.total_bytes(), 0);
  EXPECT_TRUE(ledger.entries().empty());
}

}  // namespace
}  // namespace tessera::trace::ledger_test
