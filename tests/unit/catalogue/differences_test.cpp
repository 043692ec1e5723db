#include "tessera/catalogue/differences.h"

#include <gtest/gtest.h>

#include "tessera/base/error.h"

namespace tessera::catalogue::differences_test {
namespace {

using layout::Spec;

Entry entry(const std::string& name, std::vector<int64_t> sizes = {8}, std::vector<std::string> aliases = {},
            c10::ScalarType dtype = c10::ScalarType::Float) {
  return {name, std::move(aliases), Role::kParameter, Spec::contiguous(layout::Mesh(), {}, sizes, dtype)};
}

TEST(Differences, NamesAllOfEachKind) {
  const Catalogue wanted({entry("a"), entry("b"), entry("c", {9, 2}), entry("d"), entry("e")});
  const Catalogue found({entry("b"), entry("c", {8}), entry("d", {8}, {}, c10::ScalarType::Half), entry("x")});
  const Differences differences = differences_of(wanted, found);
  EXPECT_EQ(differences.missing, (std::vector<std::string>{"a", "e"}));
  EXPECT_EQ(differences.extra, (std::vector<std::string>{"x"}));
  EXPECT_EQ(differences.misshapen.size(), 2u);
  EXPECT_EQ(differences.str(),
            "2 missing: a, e; 1 extra: x; 2 misshapen: c is float32[8], wanted float32[9, 2], d is float16[8], wanted "
            "float32[8]");
  EXPECT_TRUE(differences_of(wanted, wanted).is_none());
  EXPECT_EQ(differences_of(wanted, wanted).str(), "no differences");
}

TEST(Differences, OfManyNamesPrintSome) {
  std::vector<Entry> entries;
  for (int i = 0; i < 133; ++i) {
    entries.push_back(entry("layer." + std::to_string(1000 + i)));
  }
  const std::string text = differences_of(Catalogue(entries), Catalogue()).str();
  EXPECT_EQ(text.substr(0, 25), "133 missing: layer.1000, ");
  EXPECT_NE(text.find("layer.1019 and 113 more"), std::string::npos) << text;
  EXPECT_EQ(text.find("layer.1020"), std::string::npos);
  EXPECT_EQ(differences_of(Catalogue(), Catalogue({entry("a"), entry("b")})).str(2), "2 extra: a, b");
}

TEST(Differences, OfTiedParametersAreOfTensorsNotOfNames) {
  const Catalogue tied({entry("wte", {8}, {"head"})});
  EXPECT_TRUE(differences_of(Catalogue({entry("head")}), tied).is_none());
  EXPECT_TRUE(differences_of(tied, Catalogue({entry("head")})).is_none());
  // Two tensors for one: the second one would be lost. One for two: both get it.
  EXPECT_EQ(differences_of(tied, Catalogue({entry("wte"), entry("head")})).str(), "1 extra: head");
  EXPECT_TRUE(differences_of(Catalogue({entry("wte"), entry("head")}), tied).is_none());
}

TEST(Differences, AreOneError) {
  const Catalogue wanted({entry("a"), entry("b")});
  const Catalogue found({entry("a"), entry("x")});
  try {
    verify_fits(wanted, found, "step_000100");
    FAIL();
  } catch (const DataError& error) {
    EXPECT_NE(std::string(error.what()).find("step_000100 is not what is wanted: 1 missing: b; 1 extra: x; accepted: "),
              std::string::npos);
  }
  EXPECT_THROW(verify_fits(wanted.subset({"a"}), found, "there"), DataError);
  EXPECT_NO_THROW(verify_fits(wanted.subset({"a"}), found, "there", {.allows_extra = true}));
  EXPECT_THROW(verify_fits(wanted, found, "there", {.allows_extra = true}), DataError);
}

}  // namespace
}  // namespace tessera::catalogue::differences_test
