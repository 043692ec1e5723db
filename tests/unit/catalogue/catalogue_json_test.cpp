#include "tessera/catalogue/catalogue_json.h"

#include <random>

#include <gtest/gtest.h>

#include "tessera/base/error.h"
#include "tests/unit/catalogue/random_catalogue.h"

namespace tessera::catalogue::catalogue_json_test {
namespace {

using layout::Mesh;
using layout::Spec;

const char* const kText =
    "{\"version\": 1,\n\"meshes\": [\n{\"axes\": \"dp=2,tp=4\"},\n{\"axes\": \"x=3\", \"ranks\": [4, 2, 3]}],\n"
    "\"entries\": [\n"
    "{\"name\": \"v\", \"role\": \"moment\", \"dtype\": \"bfloat16\", \"sizes\": [], \"mesh\": 0, \"layout\": "
    "\"{}\"},\n"
    "{\"name\": \"w\", \"role\": \"parameter\", \"dtype\": \"float32\", \"sizes\": [6, 4], \"mesh\": 1, \"layout\": "
    "\"{x: S(0/3)}\", \"aliases\": [\"u\"]}],\n"
    "\"values\": {\n\"step\": 100}}\n";

TEST(CatalogueJson, IsALineForEachMeshAndEntry) {
  const Mesh mesh = Mesh::parse("dp=2,tp=4");
  const Catalogue catalogue(
      {{"w",
        {"u"},
        Role::kParameter,
        Spec::contiguous(Mesh({{"x", 3}}, {4, 6, 8}), {layout::InterleavedShard(0, 3)}, {6, 4},
                         c10::ScalarType::Float)},
       {"v",
        {},
        Role::kMoment,
        Spec::contiguous(mesh, {layout::Replicate(), layout::Replicate()}, {}, c10::ScalarType::BFloat16)}},
      {{"step", "100"}});
  EXPECT_EQ(to_json(catalogue), kText);
  EXPECT_EQ(from_json(kText, "here"), catalogue);
  EXPECT_EQ(from_json(to_json(Catalogue()), "here"), Catalogue());
}

TEST(CatalogueJson, OfRandomCataloguesIsReadBackAsItWas) {
  const uint32_t seed = std::random_device{}();
  SCOPED_TRACE("seed " + std::to_string(seed));
  RandomCatalogues random(seed);
  for (int i = 0; i < 300; ++i) {
    const Catalogue made = random.catalogue(random.random.number(0, 12));
    const Catalogue catalogue(made.entries(), {{"a", "[1, 0.1, null]"}, {"\"\\u00e9\n", "{\"x\": -3e-300}"}});
    const std::string text = to_json(catalogue);
    EXPECT_EQ(from_json(text, "here"), catalogue) << text;
    EXPECT_EQ(to_json(from_json(text, "here")), text);
  }
}

TEST(CatalogueJson, OfAnyOrderOfRanksIsReadBack) {
  const std::vector<std::vector<int64_t>> orders = {{7, 5, 3, 1}, {0, 1, 2, 4}, {3, 1, 0, 2}, {9, 8, 20, 21}};
  for (const std::vector<int64_t>& ranks : orders) {
    const Spec spec = Spec::contiguous(Mesh({{"x", 4}}, ranks), {layout::Shard(0)}, {8}, c10::ScalarType::Byte);
    const Catalogue catalogue({{"w", {}, Role::kOther, spec}});
    EXPECT_EQ(from_json(to_json(catalogue), "here"), catalogue);
  }
}

// `what` of the text becomes `by`.
std::string error_of(const std::string& what, const std::string& by) {
  std::string text = kText;
  const size_t at = text.find(what);
  EXPECT_NE(at, std::string::npos) << what;
  text.replace(at, what.size(), by);
  try {
    from_json(text, "m.json");
  } catch (const DataError& error) {
    return error.what_without_backtrace();
  }
  return "no DataError";
}

TEST(CatalogueJson, RefusesWhatIsNoCatalogueAndNamesEntryAndField) {
  const std::vector<std::vector<std::string>> faults = {
      {"\"version\": 1", "\"version\": 2", "m.json: version 2 is not 1, which is the newest"},
      {"\"version\": 1", "\"version\": 1.0", "m.json: \"version\" has 1.0; accepted: integers"},
      {"{\"version\": 1,", "{", "m.json: the field \"version\" is missing"},
      {"\"values\"", "\"value\"", "m.json: unknown field \"value\"; did you mean \"values\"?"},
      {"\"step\": 100}", "\"step\": 100", "m.json: is not JSON"},
      {"\"values\": {\n\"step\": 100}", "\"values\": [7]", "m.json: \"values\" is no object"},
      {"\"role\": \"moment\"", "\"role\": \"momentum\"", "entry 0 (v): \"role\" is \"momentum\""},
      {"\"role\": \"moment\"", "\"role\": 3", "entry 0 (v): \"role\" is 3; accepted: a text"},
      {"\"role\": \"moment\", ", "", "entry 0: the field \"role\" is missing"},
      {"\"role\": \"moment\"", "\"role\": \"moment\", \"role\": \"other\"", "the field \"role\" stands twice"},
      {"\"role\": \"moment\"", "\"role\": \"moment\", \"colour\": 1", "entry 0: unknown field \"colour\""},
      {"\"bfloat16\"", "\"bf16\"", "entry 0 (v): \"dtype\" is \"bf16\""},
      {"\"bfloat16\"", "\"half\"", "entry 0 (v): \"dtype\" is \"half\""},
      {"\"sizes\": [6, 4]", "\"sizes\": [6, -4]", "entry 1 (w): \"sizes\" are [6,-4]"},
      {"\"sizes\": [6, 4]", "\"sizes\": [6, 4.5]", "entry 1 (w): \"sizes\" has 4.5; accepted: integers"},
      {"\"sizes\": [6, 4]", "\"sizes\": [4611686018427387904, 6]", "entry 1 (w): \"sizes\" are"},
      {"\"sizes\": [6, 4]", "\"sizes\": [0, 18446744073709551615]", "entry 1 (w): \"sizes\" has 184467"},
      {"\"sizes\": [6, 4]", "\"sizes\": 6", "entry 1 (w): \"sizes\" is 6; accepted: a list"},
      {"\"sizes\": [6, 4]", "\"sizes\": [5, 4]",
       "entry 1 (w): \"layout\": [layout] {x: S(0/3)} on mesh {x=3}: S(0/3) of 5 elements"},
      {"\"mesh\": 1", "\"mesh\": 2", "entry 1 (w): \"mesh\" is 2 of 2"},
      {"\"mesh\": 1", "\"mesh\": -1", "entry 1 (w): \"mesh\" is -1 of 2"},
      {"{x: S(0/3)}", "{y: S(0)}", "entry 1 (w): \"layout\": [layout] no axis \"y\""},
      {"{x: S(0/3)}", "{x: S(2)}", "entry 1 (w): \"layout\""},
      {"{x: S(0/3)}", "{x: On(3)}", "entry 1 (w): \"layout\""},
      {"{x: S(0/3)}", "{x: P}", "m.json: the entries: [catalogue] w is float32[6, 4] {x: P}"},
      {"[\"u\"]", "[\"v\"]", "m.json: the entries: [catalogue] v names v"},
      {"[\"u\"]", "[1]", "entry 1 (w): \"aliases\" is 1; accepted: a text"},
      {"\"dp=2,tp=4\"", "\"dp=2,tp\"", "mesh 0: \"axes\": [mesh]"},
      {"[4, 2, 3]", "[4, 2, 2]", "mesh 1: \"ranks\" are not the 3 of x=3"},
      {"[4, 2, 3]", "[4, 2, 9223372036854775807]", "mesh 1: \"ranks\": [runs]"},
      {"[4, 2, 3]", "[4, 0, 9223372036854775807]", "mesh 1: \"ranks\" are not the 3 of x=3"},
      {"[4, 2, 3]", "[4, -3, 3]", "mesh 1: \"ranks\": [mesh] rank -2 is negative"},
      {"[4, 2, 3]", "[4, 0, 3]", "mesh 1: \"ranks\": [mesh] rank 4 is given twice"},
      {"[4, 2, 3]", "[4, 4611686018427387904, 3]", "mesh 1: \"ranks\": [runs]"},
      {"[4, 2, 3]", "[4, 2]", "mesh 1: \"ranks\": [runs] the numbers end within a run"},
      {"[4, 2, 3]", "[4, 2, [3]]", "mesh 1: \"ranks\" has [3]; accepted: integers"},
  };
  for (const auto& fault : faults) {
    EXPECT_NE(error_of(fault[0], fault[1]).find(fault[2]), std::string::npos)
        << fault[1] << ": " << error_of(fault[0], fault[1]);
  }
}

TEST(CatalogueJson, RefusesEveryCutText) {
  const std::string text = kText;
  for (size_t size = 0; size + 1 < text.size(); ++size) {
    EXPECT_THROW(from_json(text.substr(0, size), "m.json"), DataError) << size;
  }
  const Catalogue not_utf8({}, {{"\xff", "1"}});
  EXPECT_THROW(to_json(not_utf8), c10::Error);
}

}  // namespace
}  // namespace tessera::catalogue::catalogue_json_test
