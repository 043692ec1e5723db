#include "tessera/plan/roles.h"

#include <gtest/gtest.h>

#include "tessera/base/text.h"

namespace tessera::plan::roles_test {
namespace {

// Groups as `q,k,v>o | up>down | head`, from names with widths in x out.
std::string pairs(const std::vector<std::tuple<std::string, int64_t, int64_t>>& linears, bool is_chain) {
  std::vector<LinearInfo> infos;
  for (const auto& [name, in, out] : linears) {
    infos.push_back({name, in, out, false});
  }
  return base::join(pair_linears(infos, is_chain), " | ", [](std::ostream& out, const LinearGroup& group) {
    out << base::join(group.columns, ",", [](std::ostream& o, const LinearInfo& linear) { o << linear.name; });
    out << (group.row ? ">" + group.row->name : "");
  });
}

TEST(Roles, SiblingsArePairedWithTheirReader) {
  EXPECT_EQ(pairs({{"q", 64, 64}, {"k", 64, 64}, {"v", 64, 64}, {"o", 64, 64}}, false), "q,k,v>o");
  EXPECT_EQ(pairs({{"q", 64, 64}, {"k", 64, 16}, {"v", 64, 16}, {"o", 64, 64}}, false), "q,k,v>o");
  EXPECT_EQ(pairs({{"k", 64, 16}, {"v", 64, 16}, {"q", 64, 64}, {"o", 64, 64}}, false), "k,v,q>o");
  EXPECT_EQ(pairs({{"q", 64, 96}, {"k", 64, 32}, {"v", 64, 32}, {"o", 96, 64}}, false), "q,k,v>o");
  EXPECT_EQ(pairs({{"qkv", 64, 192}, {"o", 64, 64}}, false), "qkv>o");
  EXPECT_EQ(pairs({{"up", 64, 256}, {"down", 256, 64}}, false), "up>down");
  EXPECT_EQ(pairs({{"gate", 64, 256}, {"up", 64, 256}, {"down", 256, 64}}, false), "gate,up>down");
  EXPECT_EQ(pairs({{"gate_up", 64, 512}, {"down", 256, 64}}, false), "gate_up>down");
  EXPECT_EQ(pairs({{"head", 64, 1000}}, false), "head");
  EXPECT_EQ(pairs({{"fc1", 784, 256}, {"fc2", 256, 256}, {"fc3", 256, 10}}, false), "fc1>fc2 | fc3");
  // A whole block in one module.
  EXPECT_EQ(
      pairs({{"q", 64, 64}, {"k", 64, 64}, {"v", 64, 64}, {"o", 64, 64}, {"up", 64, 256}, {"down", 256, 64}}, false),
      "q,k,v>o | up>down");
}

TEST(Roles, ChainsAlternate) {
  EXPECT_EQ(pairs({{"0", 64, 64}, {"1", 64, 64}, {"2", 64, 64}, {"3", 64, 64}}, true), "0>1 | 2>3");
  EXPECT_EQ(pairs({{"0", 784, 256}, {"1", 256, 256}, {"2", 256, 10}}, true), "0>1 | 2");
  EXPECT_EQ(pairs({{"0", 8, 32}, {"1", 12, 8}}, true), "0 | 1");
}

}  // namespace
}  // namespace tessera::plan::roles_test
