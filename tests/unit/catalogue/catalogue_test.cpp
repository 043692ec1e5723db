#include "tessera/catalogue/catalogue.h"

#include <gtest/gtest.h>

#include <c10/util/Exception.h>

namespace tessera::catalogue::catalogue_test {
namespace {

using layout::Mesh;
using layout::Spec;

Spec spec_of(const char* layout, std::vector<int64_t> sizes = {8, 4}) {
  const Mesh mesh = Mesh::parse("dp=2,tp=4");
  return Spec::contiguous(mesh, layout::parse_placements(mesh, layout), sizes, c10::ScalarType::Float);
}

std::string error_of(const std::function<void()>& body) {
  try {
    body();
  } catch (const c10::Error& error) {
    return error.what_without_backtrace();
  }
  return "nothing thrown";
}

Catalogue small() {
  return Catalogue({{"model.wte", {"model.head"}, Role::kParameter, spec_of("{tp: S(0)}")},
                    {"exp_avg/model.wte", {}, Role::kMoment, spec_of("{dp: S(1), tp: S(0)}")},
                    {"model.count", {}, Role::kBuffer, spec_of("{}", {})}},
                   {{"step", "100"}, {"data", "{ \"seed\": 7 }"}});
}

TEST(Catalogue, IsSortedByNameAndFoundByNameAndAlias) {
  const Catalogue catalogue = small();
  ASSERT_EQ(catalogue.entries().size(), 3u);
  EXPECT_EQ(catalogue.entries()[0].name, "exp_avg/model.wte");
  EXPECT_EQ(catalogue.entries()[2].name, "model.wte");
  EXPECT_EQ(catalogue.find("model.head"), &catalogue.entries()[2]);
  EXPECT_EQ(catalogue.find("model.hea"), nullptr);
  EXPECT_NE(error_of([&] { catalogue.at("model.wtt"); }).find("did you mean \"model.wte\"?"), std::string::npos);
  EXPECT_EQ(catalogue.values().at("data"), "{\"seed\":7}");
  // The tied parameter counts once.
  EXPECT_EQ(catalogue.bytes(), 2 * 8 * 4 * 4 + 4);
}

TEST(Catalogue, RefusesWhatCannotPersist) {
  const auto one = [](Entry entry) { return error_of([&] { Catalogue catalogue({entry}); }); };
  EXPECT_NE(one({"w", {}, Role::kParameter, spec_of("{dp: P}")}).find("w is float32[8, 4] {dp: P, tp: R}"),
            std::string::npos);
  EXPECT_NE(one({"", {}, Role::kParameter, spec_of("{}")}).find("without a name"), std::string::npos);
  EXPECT_NE(one({"w", {""}, Role::kParameter, spec_of("{}")}).find("an alias of w is empty"), std::string::npos);
  EXPECT_NE(one({"w", {}, Role::kParameter, {}}).find("w has no Spec"), std::string::npos);
  EXPECT_NE(one({"w", {"w"}, Role::kParameter, spec_of("{}")}).find("every name and alias once"), std::string::npos);
  EXPECT_NE(one({"w", {"v", "v"}, Role::kParameter, spec_of("{}")}).find("v names w"), std::string::npos);
  const auto two = [](const char* alias) {
    return error_of([&] {
      Catalogue catalogue(
          {{"a", {alias}, Role::kParameter, spec_of("{}")}, {"b", {}, Role::kParameter, spec_of("{}")}});
    });
  };
  EXPECT_NE(two("b").find("b names a"), std::string::npos);
  EXPECT_EQ(two("c"), "nothing thrown");
  EXPECT_NE(error_of([] { Catalogue catalogue({}, {{"step", "{"}}); }).find("the value step is not JSON"),
            std::string::npos);
  const int64_t most = int64_t{1} << 60;
  EXPECT_NE(error_of([&] {
              Catalogue catalogue({{"a", {}, Role::kParameter, spec_of("{}", {most})},
                                   {"b", {}, Role::kParameter, spec_of("{}", {most})}});
            }).find("more bytes than int64 counts, with b"),
            std::string::npos);
}

TEST(Catalogue, KeepsNeitherStridesNorLabels) {
  const Mesh mesh = Mesh::parse("x=2");
  const layout::Labels labels = {{{layout::Label::kFeature, 4, 0, 4, 1}}, {}};
  const Catalogue catalogue(
      {{"w", {}, Role::kOther, Spec::make(mesh, {layout::Shard(0)}, {4, 6}, {1, 4}, c10::ScalarType::Half, labels)}});
  EXPECT_EQ(catalogue.at("w").spec, Spec::contiguous(mesh, {layout::Shard(0)}, {4, 6}, c10::ScalarType::Half));
}

TEST(Catalogue, HasSubsetsAndOtherPrefixes) {
  const Catalogue catalogue = small();
  const Catalogue moments = catalogue.subset([](const Entry& entry) { return entry.role == Role::kMoment; });
  EXPECT_EQ(moments.entries(), std::vector<Entry>{catalogue.at("exp_avg/model.wte")});
  EXPECT_EQ(moments.values(), catalogue.values());
  const Catalogue named = catalogue.subset({"model.head", "model.count"});
  EXPECT_EQ(named.entries(), (std::vector<Entry>{catalogue.at("model.count"), catalogue.at("model.wte")}));
  EXPECT_THROW(catalogue.subset({"model.heads"}), c10::Error);

  const Catalogue renamed = catalogue.with_prefix("model.", "gpt.");
  EXPECT_EQ(renamed.at("gpt.head").name, "gpt.wte");
  EXPECT_EQ(renamed.find("model.wte"), nullptr);
  EXPECT_NE(renamed.find("exp_avg/model.wte"), nullptr);
  EXPECT_EQ(renamed.with_prefix("gpt.", "model."), catalogue);
  EXPECT_NE(error_of([&] { catalogue.with_prefix("models.", ""); }).find("no name begins with \"models.\""),
            std::string::npos);
  EXPECT_THROW(catalogue.with_prefix("exp_avg/", ""), c10::Error);  // two would be model.wte
}

TEST(Catalogue, FindsTheMatchOfAnEntryByNameFirst) {
  const Catalogue found({{"a", {"b"}, Role::kParameter, spec_of("{}")}, {"c", {}, Role::kParameter, spec_of("{}")}});
  const Spec spec = spec_of("{}");
  EXPECT_EQ(found.find_match({"b", {}, Role::kParameter, spec}), &found.at("a"));
  EXPECT_EQ(found.find_match({"c", {"a"}, Role::kParameter, spec}), &found.at("c"));
  EXPECT_EQ(found.find_match({"x", {"y", "c"}, Role::kParameter, spec}), &found.at("c"));
  EXPECT_EQ(found.find_match({"x", {"y"}, Role::kParameter, spec}), nullptr);
}

}  // namespace
}  // namespace tessera::catalogue::catalogue_test
