// The merge of exact sums: whoever holds which leaves and whichever way they travel, the bits are those of the tree
// added on one rank.
#include <atomic>
#include <numeric>
#include <random>

#include <ATen/ops/add.h>

#include "tessera/comm/merge/exact_merge.h"
#include "tessera/layout/mesh.h"
#include "tests/unit/comm/support.h"

namespace tessera::comm::exact_merge_test {
namespace {

using sums::Node;

// Leaves of widely mixed magnitude, so that another order of additions gives other bits.
std::vector<at::Tensor> leaves_of(int64_t count, int64_t numel, at::ScalarType dtype) {
  std::vector<at::Tensor> leaves;
  for (int64_t i = 0; i < count; ++i) {
    const at::Tensor exponents = values_of(2 * static_cast<uint64_t>(i) + 1, {numel}, at::kDouble).mul(5).floor();
    leaves.push_back((values_of(2 * static_cast<uint64_t>(i), {numel}, at::kDouble) * exponents.exp2()).to(dtype));
  }
  return leaves;
}

// The definition.
at::Tensor tree(const std::vector<at::Tensor>& leaves, const Node& node) {
  if (node.size() == 1) {
    return leaves[node.begin];
  }
  const int64_t middle = node.begin + sums::left_size(node.size());
  return tree(leaves, {node.begin, middle}) + tree(leaves, {middle, node.end});
}

// Every way to give `leaves` leaves to `members` members in order, some perhaps to none: the ends of their runs.
void each_partition(int64_t leaves, int64_t members, const std::function<void(const std::vector<Node>&)>& body) {
  std::vector<Node> parts(members);
  const std::function<void(int64_t, int64_t)> choose = [&](int64_t member, int64_t begin) {
    if (member == members - 1) {
      parts[member] = {begin, leaves};
      return body(parts);
    }
    for (int64_t end = begin; end <= leaves; ++end) {
      parts[member] = {begin, end};
      choose(member + 1, end);
    }
  };
  choose(0, 0);
}

// The sums over a member's nodes, as it would compute them alone.
std::vector<NodeSum> sums_of(const std::vector<at::Tensor>& leaves, const std::vector<Node>& nodes) {
  std::vector<NodeSum> sums;
  for (const Node& node : nodes) {
    sums.push_back({node, tree(leaves, node)});
  }
  return sums;
}

enum class Form { kOfBackend, kReuse, kCopies };

std::vector<NodeSum> run_form(Form form, Merge merge) {
  if (form == Form::kCopies) {
    return merge_by_copies(world(), merge);
  }
  if (form == Form::kOfBackend) {
    return world().merge(merge);
  }
  for (at::Tensor& sum : merge.sums) {
    sum = sum.clone();
  }
  merge.memory = Merge::Memory::kReuse;
  return world().merge(merge);
}

Merge merge_of(const sums::MergePlan& plan, const std::vector<at::Tensor>& leaves) {
  Merge merge{.plan = plan, .sizes = leaves[0].sizes().vec(), .options = leaves[0].options()};
  for (const NodeSum& node : sums_of(leaves, plan.nodes()[world().rank()])) {
    merge.sums.push_back(node.sum);
  }
  return merge;
}

// Where closed nodes differ from the tree, cut as the merge scatters; empty if nowhere.
std::string difference(const Merge& merge, const std::vector<at::Tensor>& leaves, Form form) {
  const std::vector<NodeSum> closed = run_form(form, merge);
  if (closed.size() != merge.plan.closed().size()) {
    return c10::str(closed.size(), " nodes are left");
  }
  for (size_t k = 0; k < closed.size(); ++k) {
    at::Tensor expected = tree(leaves, merge.plan.closed()[k]);
    if (const auto& scatter = merge.scatter) {
      const layout::Range part = scatter->parts[world().rank()];
      expected = expected.narrow(scatter->dim, part.begin, part.size());
    }
    if (!(closed[k].node == merge.plan.closed()[k]) || !closed[k].sum.is_contiguous()) {
      return "another node " + closed[k].node.str();
    }
    if (!identical(closed[k].sum, expected)) {
      return "other bits of " + closed[k].node.str();
    }
  }
  return "";
}

// Merges the nodes that each member holds into the whole tree, by both forms.
std::string difference(const std::vector<at::Tensor>& leaves, const std::vector<std::vector<Node>>& nodes) {
  const sums::MergePlan plan(nodes, {0, static_cast<int64_t>(leaves.size())});
  if (plan.closed().size() != 1 || !(plan.closed()[0] == plan.root())) {
    return c10::str(plan.closed().size(), " nodes are left");
  }
  const Merge merge = merge_of(plan, leaves);
  const std::string own = difference(merge, leaves, Form::kOfBackend);
  return own.empty() ? difference(merge, leaves, Form::kCopies) : own;
}

std::string described(const std::vector<Node>& parts) {
  std::string text;
  for (const Node& part : parts) {
    text += part.str();
  }
  return text;
}

// One of `every` partitions of all numbers of leaves.
int64_t check_partitions(int64_t members, int64_t numel, at::ScalarType dtype, int64_t every) {
  int64_t checked = 0;
  run_ranks(
      members,
      [&](int64_t rank) {
        for (int64_t count = 1; count <= 16; ++count) {
          const auto leaves = leaves_of(count, numel, dtype);
          int64_t index = 0;
          each_partition(count, members, [&](const std::vector<Node>& parts) {
            if (index++ % every != 0) {
              return;
            }
            std::vector<std::vector<Node>> nodes;
            for (const Node& part : parts) {
              nodes.push_back(sums::cover(part, count));
            }
            EXPECT_EQ(difference(leaves, nodes), "") << count << " leaves, cuts " << described(parts);
            if (rank == 0) {
              ++checked;  // one rank counts
            }
          });
        }
      },
      within(60000));
  return checked;
}

TEST(ExactMerge, EveryPartitionOfUpTo16LeavesOverUpTo5Members) {
  const std::vector<int64_t> partitions = {16, 152, 968, 4844, 20348};
  for (int64_t members = 1; members <= 5; ++members) {
    EXPECT_EQ(check_partitions(members, 3, at::kFloat, 1), partitions[members - 1]);
  }
}

// Above 64 KiB each member finishes a shard; the last shards are short.
TEST(ExactMerge, LargeTensors) {
  for (int64_t members = 1; members <= 5; ++members) {
    EXPECT_GT(check_partitions(members, 8193, at::kDouble, members < 3 ? 7 : 20 * members * members), 10);
  }
}

TEST(ExactMerge, AtTheLimitOfSmallTensors) {
  for (int64_t numel : {0, 1, 16383, 16384, 16385}) {
    EXPECT_GT(check_partitions(3, numel, at::kFloat, 60), 10) << numel;
  }
}

// Zigzag positions and micro-batches: the nodes of a member need not be neighbours.
TEST(ExactMerge, LeavesDealtOutAtRandom) {
  const uint64_t seed = std::random_device()();
  SCOPED_TRACE("seed " + std::to_string(seed));
  run_ranks(
      4,
      [&](int64_t) {
        std::mt19937_64 engine(seed);
        for (int64_t round = 0; round < 300; ++round) {
          const int64_t count = 1 + static_cast<int64_t>(engine() % 16);
          std::vector<std::vector<Node>> nodes(4);
          for (int64_t leaf = 0; leaf < count; ++leaf) {
            nodes[engine() % 4].push_back({leaf, leaf + 1});
          }
          const auto leaves = leaves_of(count, round % 10 == 0 ? 9001 : 5, at::kDouble);
          EXPECT_EQ(difference(leaves, nodes), "") << "round " << round;
        }
      },
      within(60000));
}

// One of the closed nodes of several merges, each of which gets what the one before left.
at::Tensor merge_over(Communicator& group, const std::vector<std::vector<Node>>& nodes, std::vector<NodeSum>& mine,
                      const at::Tensor& like) {
  const sums::MergePlan plan(nodes, {0, 16});
  Merge merge{.plan = plan, .sizes = like.sizes().vec(), .options = like.options()};
  for (const NodeSum& node : mine) {
    merge.sums.push_back(node.sum);
  }
  mine = group.merge(merge);
  return mine.at(0).sum;
}

// One axis after the other, the fastest first, as a mesh of 2 x 2 merges.
TEST(ExactMerge, TwoAxes) {
  run_ranks(
      4,
      [&](int64_t rank) {
        RankContext& ctx = RankContext::require();
        const auto mesh = layout::Mesh::parse("a=2,b=2");
        const auto leaves = leaves_of(16, 6, at::kFloat);
        for (int64_t each = 1; each <= 7; ++each) {
          const auto part = [&](int64_t index) {
            return Node{std::min<int64_t>(16, index * each),
                        index == 3 ? 16 : std::min<int64_t>(16, (index + 1) * each)};
          };
          const int64_t line = rank / 2 * 2;
          std::vector<std::vector<Node>> nodes = {sums::cover(part(line), 16), sums::cover(part(line + 1), 16)};
          auto mine = sums_of(leaves, nodes[rank % 2]);
          merge_over(ctx.axis(mesh, 1), nodes, mine, leaves[0]);
          nodes.clear();
          for (int64_t i = 0; i < 2; ++i) {
            nodes.push_back(sums::cover({part(2 * i).begin, part(2 * i + 1).end}, 16));
          }
          ASSERT_EQ(mine.size(), nodes[rank / 2].size());
          const at::Tensor sum = merge_over(ctx.axis(mesh, 0), nodes, mine, leaves[0]);
          ASSERT_EQ(mine.size(), 1u);
          EXPECT_TRUE(identical(sum, tree(leaves, {0, 16}))) << each;
        }
      },
      within(60000));
}

// A step whose other samples are still to come: the nodes stay open, and the inputs keep their values.
TEST(ExactMerge, MissingLeavesStayOpen) {
  const auto leaves = leaves_of(8, 4, at::kDouble);
  std::vector<at::Tensor> before;
  for (const at::Tensor& leaf : leaves) {
    before.push_back(leaf.clone());
  }
  const sums::MergePlan plan({{{0, 2}, {5, 6}}, {{2, 4}, {7, 8}}}, {0, 8});
  EXPECT_EQ(plan.closed(), (std::vector<Node>{{0, 4}, {5, 6}, {7, 8}}));
  run_ranks(
      2,
      [&](int64_t) {
        for (Form form : {Form::kOfBackend, Form::kReuse, Form::kCopies}) {
          EXPECT_EQ(difference(merge_of(plan, leaves), leaves, form), "");
        }
      },
      within(20000));
  for (size_t i = 0; i < leaves.size(); ++i) {
    EXPECT_TRUE(identical(leaves[i], before[i]));
  }
}

TEST(ExactMerge, NobodyHasAnything) {
  const sums::MergePlan plan({{}, {}}, {0, 4});
  run_ranks(
      2,
      [&](int64_t) {
        for (Form form : {Form::kOfBackend, Form::kCopies}) {
          EXPECT_TRUE(run_form(form, {.plan = plan, .sizes = {3}, .options = at::kDouble}).empty());
        }
      },
      within(20000));
}

TEST(ExactMerge, ResultsLieWhereSumsThatMayBeWrittenLay) {
  const auto leaves = leaves_of(4, 3, at::kFloat);
  const sums::MergePlan plan({{{2, 4}}, {{0, 2}}}, {0, 4});
  run_ranks(
      2,
      [&](int64_t) {
        Merge merge = merge_of(plan, leaves);
        merge.sums[0] = merge.sums[0].clone();
        EXPECT_NE(world().merge(merge)[0].sum.const_data_ptr(), merge.sums[0].const_data_ptr());
        merge.memory = Merge::Memory::kReuse;
        EXPECT_EQ(world().merge(merge)[0].sum.const_data_ptr(), merge.sums[0].const_data_ptr());
        EXPECT_TRUE(identical(merge.sums[0], tree(leaves, {0, 4})));
      },
      within(20000));
}

// Each addition rounds, as ATen's does.
TEST(ExactMerge, HalfPrecision) {
  for (at::ScalarType dtype : {at::kHalf, at::kBFloat16}) {
    const auto leaves = leaves_of(8, 1001, dtype);
    run_ranks(
        2, [&](int64_t) { EXPECT_EQ(difference(leaves, {{{0, 4}}, {{4, 6}, {6, 8}}}), "") << dtype; }, within(20000));
  }
}

// Any merge at all, of both forms, the same on every rank.
struct Trial {
  int64_t leaves = 0;
  std::vector<int64_t> sizes;
  at::ScalarType dtype = at::kFloat;
  std::vector<std::vector<Node>> nodes;
  std::optional<sums::Scatter> scatter;
};

// Cuts anywhere, some parts empty, in no order.
std::vector<layout::Range> random_parts(std::mt19937_64& engine, int64_t size, int64_t members) {
  std::vector<int64_t> cuts = {0, size};
  for (int64_t i = 1; i < members; ++i) {
    cuts.push_back(static_cast<int64_t>(engine() % static_cast<uint64_t>(size + 1)));
  }
  std::sort(cuts.begin(), cuts.end());
  std::vector<layout::Range> parts;
  for (int64_t i = 0; i < members; ++i) {
    parts.push_back({cuts[i], cuts[i + 1]});
  }
  std::shuffle(parts.begin(), parts.end(), engine);
  return parts;
}

Trial random_trial(std::mt19937_64& engine, int64_t members) {
  const auto below = [&](int64_t limit) { return static_cast<int64_t>(engine() % static_cast<uint64_t>(limit)); };
  Trial trial;
  trial.leaves = 1 + below(16);
  trial.dtype = below(2) == 0 ? at::kFloat : at::kDouble;
  const bool is_large = below(8) == 0;
  trial.sizes = is_large ? std::vector<int64_t>{1 + below(9), 4000 + below(3000), 1 + below(3)}
                         : std::vector<int64_t>{below(9), below(70), 1 + below(40)};
  trial.nodes.resize(members);
  for (int64_t leaf = 0, member = below(members); leaf < trial.leaves;) {
    const int64_t end = leaf + 1 + below(trial.leaves - leaf);
    for (const Node& node : sums::cover({leaf, end}, trial.leaves)) {
      if (below(20) > 0) {
        trial.nodes[member].push_back(node);  // some are missing
      }
    }
    leaf = end;
    member = below(members);
  }
  if (below(2) == 0) {
    trial.scatter = sums::Scatter{.dim = below(3)};
    trial.scatter->parts = random_parts(engine, trial.sizes[trial.scatter->dim], members);
  }
  return trial;
}

TEST(ExactMerge, AnythingOverUpTo8Members) {
  const uint64_t seed = std::random_device()();
  SCOPED_TRACE("seed " + std::to_string(seed));
  for (int64_t members = 1; members <= 8; ++members) {
    run_ranks(
        members,
        [&](int64_t rank) {
          std::mt19937_64 engine(seed + members);
          for (int64_t round = 0; round < 60; ++round) {
            const Trial trial = random_trial(engine, members);
            std::vector<at::Tensor> leaves;
            for (const at::Tensor& leaf : leaves_of(trial.leaves, c10::multiply_integers(trial.sizes), trial.dtype)) {
              leaves.push_back(leaf.view(trial.sizes));
            }
            const sums::MergePlan plan(trial.nodes, {0, trial.leaves});
            Merge merge = merge_of(plan, leaves);
            merge.scatter = trial.scatter;
            for (Form form : {Form::kOfBackend, Form::kReuse, Form::kCopies}) {
              EXPECT_EQ(difference(merge, leaves, form), "") << members << " members, round " << round << ", rank "
                                                             << rank << ", form " << int(form) << ": " << merge.str();
            }
          }
        },
        within(120000));
  }
}

// Each dim, cut unevenly: 3 ranks of 8 leaves hold 3, 3 and 2.
TEST(ExactMerge, ScatterAlongEachDim) {
  std::vector<at::Tensor> leaves;
  for (const at::Tensor& leaf : leaves_of(8, 7 * 5 * 9, at::kFloat)) {
    leaves.push_back(leaf.view({7, 5, 9}));
  }
  sums::MergePlan::Nodes nodes;
  for (const Node& part : {Node{0, 3}, Node{3, 6}, Node{6, 8}}) {
    nodes.push_back(sums::cover(part, 8));
  }
  const sums::MergePlan plan(nodes, {0, 8});
  run_ranks(
      3,
      [&](int64_t) {
        for (int64_t dim = 0; dim < 3; ++dim) {
          Merge merge = merge_of(plan, leaves);
          merge.scatter = sums::Scatter{.dim = dim};
          for (int64_t i = 0; i < 3; ++i) {
            merge.scatter->parts.push_back(layout::cut(merge.sizes[dim], 3, i));
          }
          for (Form form : {Form::kOfBackend, Form::kReuse, Form::kCopies}) {
            EXPECT_EQ(difference(merge, leaves, form), "") << dim;
          }
        }
      },
      within(20000));
}

// Members that know their own nodes alone.
TEST(ExactMerge, ExchangedNodes) {
  const std::vector<sums::MergePlan::Nodes> nodes = {{{{0, 2}, {5, 6}}, {}, {{2, 4}}}, {{}, {{0, 8}}, {}}};
  run_ranks(
      3,
      [&](int64_t rank) {
        EXPECT_EQ(exchange_nodes(world(), {nodes[0][rank], nodes[1][rank]}, {0, 8}, at::kCPU), nodes);
      },
      within(20000));
}

// What member 1 does otherwise, and what all of them are told.
std::string told_when_one_differs(const std::function<void(Merge&)>& differ) {
  const sums::MergePlan plan({{{0, 1}}, {{1, 2}}, {{2, 3}}}, {0, 3});
  std::atomic<int> told{0};
  const std::string message = message_from<DivergenceError>([&] {
    run_ranks(
        3,
        [&](int64_t rank) {
          Merge merge{.plan = plan, .sums = {at::zeros({6, 2})}, .sizes = {6, 2}, .options = at::kFloat};
          try {
            if (rank == 1) {
              differ(merge);
            }
            if (merge.sums.size() == 1) {
              world().merge(merge);
            }
          } catch (const DivergenceError&) {
            ++told;
            throw;
          }
        },
        within(20000));
  });
  EXPECT_EQ(told, 3) << message;
  return message;
}

TEST(ExactMerge, AMemberThatAsksForSomethingElseIsNamed) {
  const auto sizes =
      told_when_one_differs([](Merge& merge) { merge.sizes = {2, 6}, merge.sums = {at::zeros({2, 6})}; });
  EXPECT_TRUE(contains(
      sizes, "rank 0 calls merge to [0,3) of [0,1) | [1,2) | [2,3), Float[6, 2] over world, rank 1 calls merge to"))
      << sizes;
  EXPECT_TRUE(contains(sizes, "Float[2, 6] over world")) << sizes;
  const auto scatter = told_when_one_differs(
      [](Merge& merge) { merge.scatter = sums::Scatter{.dim = 0, .parts = {{0, 2}, {2, 3}, {3, 6}}}; });
  EXPECT_TRUE(contains(scatter, "Float[6, 2], dim 0 in 2,1,3 over world")) << scatter;
  const auto root = told_when_one_differs([](Merge& merge) {
    const sums::MergePlan other({{{0, 1}}, {{1, 2}}, {{2, 3}}}, {0, 5});
    world().merge({.plan = other, .sums = merge.sums, .sizes = merge.sizes, .options = merge.options});
  });
  EXPECT_TRUE(contains(root, "rank 1 calls merge to [0,5) of")) << root;
  const auto other =
      told_when_one_differs([](Merge& merge) { world().all_reduce(merge.sums[0], ReduceOp::kSum)->wait(); });
  EXPECT_TRUE(contains(other, "rank 1 calls all_reduce(sum) of Float[6, 2] over world")) << other;
}

TEST(ExactMerge, AFailingMemberWakesTheOthers) {
  const sums::MergePlan plan({{{0, 1}}, {{1, 2}}, {{2, 3}}}, {0, 3});
  std::atomic<int> woken{0};
  const std::string message = message_from<std::runtime_error>([&] {
    run_ranks(
        3,
        [&](int64_t rank) {
          if (rank == 1) {
            throw std::runtime_error("no sum here");
          }
          try {
            world().merge({.plan = plan, .sums = {at::zeros({9000})}, .sizes = {9000}, .options = at::kFloat});
          } catch (const RankFailed& error) {
            woken += contains(base::message_of(error), "merge to [0,3)");
            throw;
          }
        },
        within(20000));
  });
  EXPECT_TRUE(contains(message, "no sum here")) << message;
  EXPECT_EQ(woken, 2);
}

TEST(ExactMerge, SumsThatDoNotFitAreRefusedBeforeAnyMeeting) {
  const sums::MergePlan plan({{{0, 1}}}, {0, 1});
  run_ranks(
      1,
      [&](int64_t) {
        const auto refusal = [&](const Merge& merge) {
          return message_from<c10::Error>([&] { world().merge(merge); });
        };
        const at::Tensor sum = at::zeros({4, 6});
        EXPECT_TRUE(contains(refusal({.plan = plan, .sizes = {4, 6}, .options = at::kFloat}), "0 sums for 1 nodes"));
        EXPECT_TRUE(contains(refusal({.plan = plan, .sums = {sum}, .sizes = {6, 4}, .options = at::kFloat}),
                             "a sum of Float[4, 6]"));
        EXPECT_TRUE(
            contains(refusal({.plan = plan, .sums = {sum.t()}, .sizes = {6, 4}, .options = at::kFloat}), "contiguous"));
        EXPECT_TRUE(
            contains(refusal({.plan = plan, .sums = {sum}, .sizes = {4, 6}, .options = at::kLong}), "floating point"));
        const sums::MergePlan of_two({{{0, 1}}, {}}, {0, 1});
        EXPECT_TRUE(contains(refusal({.plan = of_two, .sums = {sum}, .sizes = {4, 6}, .options = at::kFloat}),
                             "each of its 1 members"));
        Merge merge{
            .plan = plan, .sums = {sum}, .sizes = {4, 6}, .options = at::kFloat, .scatter = sums::Scatter{.dim = 2}};
        EXPECT_TRUE(contains(refusal(merge), "dim 2 of"));
        merge.scatter = sums::Scatter{.dim = 1, .parts = {{3, 7}}};
        EXPECT_TRUE(contains(refusal(merge), "part 3 to 7"));
        merge.scatter = sums::Scatter{.dim = 1};
        EXPECT_TRUE(contains(refusal(merge), "one part for each"));
      },
      within(20000));
}

// The control: a plain sum in rank order has other bits, so the values above tell orders apart.
TEST(ExactMerge, OtherOrdersHaveOtherBits) {
  const auto leaves = leaves_of(16, 64, at::kFloat);
  at::Tensor chain = leaves[0];
  for (size_t i = 1; i < leaves.size(); ++i) {
    chain = chain + leaves[i];
  }
  EXPECT_GT(chain.ne(tree(leaves, {0, 16})).sum().item<int64_t>(), 16);
}

TEST(ExactMerge, OverlappingNodesAreOurMistake) {
  const auto leaves = leaves_of(4, 2, at::kDouble);
  EXPECT_TRUE(
      contains(message_from<c10::Error>([&] { close_nodes(sums_of(leaves, {{0, 2}, {1, 2}}), {0, 4}); }), "overlap"));
}

}  // namespace
}  // namespace tessera::comm::exact_merge_test
