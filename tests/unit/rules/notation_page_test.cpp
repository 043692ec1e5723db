// What docs/notation.md says is what is read and printed, and nothing that is read is missing there.
#include <fstream>
#include <regex>
#include <set>

#include <gtest/gtest.h>

#include "tessera/sums/lattice.h"
#include "tests/support/rule_calls.h"

namespace tessera::notation_page_test {
namespace {

// The lines of the section whose heading begins so; the heading first.
std::vector<std::string> section(const std::string& name) {
  std::ifstream page(TESSERA_NOTATION_PAGE);
  std::vector<std::string> lines;
  bool is_inside = false;
  for (std::string line; std::getline(page, line);) {
    if (line.starts_with("## ")) {
      is_inside = line.starts_with("## " + name);
    }
    if (is_inside) {
      lines.push_back(line);
    }
  }
  EXPECT_FALSE(lines.empty()) << name;
  return lines;
}

// What stands between backticks.
std::vector<std::string> code_of(const std::string& line) {
  static const std::regex pattern("`([^`]+)`");
  std::vector<std::string> texts;
  for (auto it = std::sregex_iterator(line.begin(), line.end(), pattern); it != std::sregex_iterator(); ++it) {
    texts.push_back((*it)[1]);
  }
  return texts;
}

std::string heading(const std::string& name) { return code_of(section(name).at(0)).at(0); }

// The texts of the table of placements: its first column, in which a `|` of a text is written `\|`.
std::vector<std::string> placements() {
  std::vector<std::string> texts;
  for (const auto& line : section("Placements")) {
    if (line.starts_with("| `")) {
      const auto column = line.substr(0, line.find(" | "));
      const auto more = code_of(std::regex_replace(column, std::regex(R"(\\\|)"), "|"));
      texts.insert(texts.end(), more.begin(), more.end());
    }
  }
  return texts;
}

// `S(0;64@1)` as `S(n;n@n)`.
std::string shape_of(const std::string& text) { return std::regex_replace(text, std::regex("[0-9]+"), "n"); }

TEST(NotationPage, PlacementsAreReadAndPrinted) {
  ASSERT_GT(placements().size(), 10u);
  for (const auto& text : placements()) {
    EXPECT_EQ(layout::parse_placement(text).str(), text == "P(sum)" ? "P" : text);
  }
}

TEST(NotationPage, NoPlacementIsMissing) {
  std::set<std::string> there;
  for (const auto& text : placements()) {
    there.insert(shape_of(text));
  }
  for (const int64_t blocks : {1, 3}) {
    for (const int64_t unit : {1, 64}) {
      for (const int order : {-1, 1}) {
        const auto text = layout::Shard(0, {.unit = unit, .order = order, .blocks = blocks}).str();
        EXPECT_EQ(there.count(shape_of(text)), 1u) << text;
      }
    }
    for (const int order : {-1, 1}) {
      const auto text = layout::RaggedShard({0}, {3, 0, 5}, {.order = order, .blocks = blocks}).str();
      EXPECT_EQ(there.count(shape_of(text)), 1u) << text;
    }
  }
  EXPECT_EQ(there.count(layout::Replicate().str()), 1u);
  for (const auto op : {layout::ReduceOp::kSum, layout::ReduceOp::kMax, layout::ReduceOp::kMin, layout::ReduceOp::kProd,
                        layout::ReduceOp::kAvg}) {
    EXPECT_EQ(there.count(layout::Partial(op).str()), 1u);
    EXPECT_EQ(there.count(std::string("P(") + layout::name_of(op) + ")"), 1u);
  }
}

TEST(NotationPage, MeshesLayoutsLatticesAndLabels) {
  const auto mesh = layout::Mesh::parse(heading("Meshes"));
  EXPECT_EQ(mesh.str(), heading("Meshes"));
  EXPECT_EQ(layout::str(mesh, layout::parse_placements(mesh, heading("Layouts"))), heading("Layouts"));
  EXPECT_EQ(sums::Lattice::parse(heading("Lattices")).str(), heading("Lattices"));
  using layout::Factor;
  const layout::Labels labels = {{Factor{.label = layout::Label::kBatch, .extent = 4, .offset = 2, .total = 8}},
                                 {Factor{.label = layout::Label::kSequence, .extent = 16, .total = 16}},
                                 {}};
  EXPECT_EQ(layout::str(labels), heading("Labels"));
}

TEST(NotationPage, RulesAreReadAndPrinted) {
  const rules::testing::Caller caller("tp=2");
  const auto product = [&](const std::string& text, std::vector<int64_t> left, std::vector<int64_t> right) {
    auto call = caller.call("aten::mm", {{.sizes = {4, 6}}, {.sizes = {6, 3}}});
    call.operands[0].spec = caller.spec({.sizes = std::move(left)});
    call.operands[1].spec = caller.spec({.sizes = std::move(right)});
    call.outputs.clear();
    const auto map = rules::parse_factors(text, call);
    EXPECT_EQ(rules::parse_factors(map.str(), call).str(), map.str());
    return map.str();
  };
  EXPECT_EQ(product(heading("Rules"), {4, 6}, {6, 3}), "(a,b),(b,c)->(a,c)");
  std::set<std::string> there;
  for (const auto& line : section("Rules")) {
    for (const auto& text : code_of(line)) {
      there.insert(text);
    }
  }
  for (const char* text : {"(a,b),(1,b)->(a,b)", "(a,b),(b,c)->();!a,!c"}) {
    EXPECT_EQ(there.count(text), 1u) << text;
    EXPECT_EQ(product(text, {4, 6}, {text[7] == '1' ? 1 : 6, text[7] == '1' ? 6 : 3}), text);
  }
  EXPECT_EQ(there.count("(b*s,f)->(b,s,f)"), 1u);
}

}  // namespace
}  // namespace tessera::notation_page_test
