#include "tessera/plan/plan.h"

#include <random>

#include <gtest/gtest.h>

#include "tessera/base/error.h"
#include "tessera/base/text.h"

namespace tessera::plan::plan_test {
namespace {

layout::Placement random_placement(std::mt19937_64& random) {
  switch (random() % 3) {
    case 0: return layout::Replicate();
    case 1: return layout::Shard(static_cast<int64_t>(random() % 4));
    default:
      return layout::Shard(static_cast<int64_t>(random() % 4),
                           {.unit = static_cast<int64_t>(random() % 100 + 1), .order = static_cast<int>(random() % 3)});
  }
}

std::string random_text(std::mt19937_64& random) {
  static const std::vector<std::string> kParts = {"layers", "*",  "**",          "0", "weight",
                                                  "a\"b",   "\\", "caf\xc3\xa9", "\t"};
  std::string text = "m";
  for (size_t i = random() % 5; i > 0; --i) {
    text += "." + kParts[random() % kParts.size()];
  }
  return text;
}

Plan random_plan(std::mt19937_64& random) {
  const auto size = [&] { return static_cast<int64_t>(random() % 4 + 1); };
  std::vector<layout::Axis> axes = {{"dp", size()}, {"tp", size()}, {"dp_replicate", size()}};
  axes.resize(random() % 4);
  Plan plan;
  plan.mesh = axes.empty() ? layout::Mesh() : layout::Mesh(axes);
  if (random() % 4 == 0) {
    auto ranks = plan.mesh.ranks();
    std::shuffle(ranks.begin(), ranks.end(), random);
    plan.mesh = layout::Mesh(plan.mesh.axes(), ranks);
  }
  for (const auto& axis : axes) {
    if (random() % 2 == 0) {
      plan.batch_axes.push_back(axis.name);
    }
  }
  const auto placements = [&] {
    layout::Placements all;
    std::generate_n(std::back_inserter(all), plan.mesh.ndim(), [&] { return random_placement(random); });
    return all;
  };
  for (size_t i = random() % 6; i > 0; --i) {
    ParameterPlan entry{random_text(random), placements(), {}, {}};
    if (random() % 3 == 0) {
      entry.input = placements();
    }
    if (random() % 3 == 0) {
      entry.output = placements();
    }
    entry.group = random() % 2 == 0 ? "" : "layers.*";
    for (auto* state : {&entry.compute, &entry.kept, &entry.gradient}) {
      if (random() % 3 == 0) {
        *state = placements();
      }
    }
    plan.parameters.push_back(entry);
  }
  for (size_t i = random() % 3; i > 0; --i) {
    plan.notes.push_back(random_text(random));
  }
  for (auto* names : {&plan.recompute, &plan.recompute_keep, &plan.offload, &plan.always_walked}) {
    for (size_t i = random() % 3; i > 0; --i) {
      names->push_back(random_text(random));
    }
  }
  plan.keep_gathered_bytes = static_cast<int64_t>(random() >> 2);
  return plan;
}

// A small plan to break: column and row on mesh dp=2,tp=2.
Plan small_plan() {
  const layout::Mesh mesh({{"dp", 2}, {"tp", 2}});
  Plan plan;
  plan.mesh = mesh;
  plan.batch_axes = {"dp"};
  plan.parameters = {{"up.weight", layout::parse_placements(mesh, "{tp: S(0;4)}"), {}, {}},
                     {"down.weight",
                      layout::parse_placements(mesh, "{tp: S(1)}"),
                      {},
                      layout::parse_placements(mesh, "{dp: S(0), tp: S(1)}")}};
  plan.notes = {"nothing to say"};
  return plan;
}

template <typename Action>
std::string plan_error(Action action) {
  try {
    action();
  } catch (const PlanError& error) {
    return base::message_of(error);
  }
  return "no PlanError";
}

TEST(Plan, JsonRoundTripsRandomPlans) {
  const auto seed = std::random_device()();
  SCOPED_TRACE("seed " + std::to_string(seed));
  std::mt19937_64 random(seed);
  for (int i = 0; i < 500; ++i) {
    const auto plan = random_plan(random);
    const auto text = plan.json();
    const auto again = Plan::from_json(text);
    ASSERT_EQ(again, plan) << text;
    ASSERT_EQ(again.json(), text);
  }
}

TEST(Plan, JsonIsOneLinePerEntry) {
  EXPECT_EQ(small_plan().json(),
            "{\n"
            "  \"version\": 5,\n"
            "  \"mesh\": \"dp=2,tp=2\",\n"
            "  \"batch_axes\": [\"dp\"],\n"
            "  \"keep_gathered_bytes\": 1073741824,\n"
            "  \"parameters\": [\n"
            "    {\"pattern\": \"up.weight\", \"storage\": \"{tp: S(0;4)}\"},\n"
            "    {\"pattern\": \"down.weight\", \"storage\": \"{tp: S(1)}\", \"output\": \"{dp: S(0), tp: S(1)}\"}\n"
            "  ],\n"
            "  \"notes\": [\n"
            "    \"nothing to say\"\n"
            "  ]\n"
            "}\n");
}

TEST(Plan, JsonSaysWhatIsRecomputed) {
  auto plan = small_plan();
  plan.recompute = {"layers.*", "head"};
  EXPECT_NE(plan.json().find("\n  \"recompute\": [\"layers.*\",\"head\"],\n"), std::string::npos) << plan.json();
  EXPECT_TRUE(plan.recomputes("layers.3"));
  EXPECT_FALSE(plan.recomputes("layers.3.mlp"));
  plan.recompute_keep = {"mm"}, plan.offload = {"layers.*"};
  EXPECT_NE(plan.json().find("],\n  \"recompute_keep\": [\"mm\"],\n  \"offload\": [\"layers.*\"],\n"),
            std::string::npos)
      << plan.json();
  EXPECT_TRUE(plan.offloads("layers.3"));
  EXPECT_FALSE(plan.offloads("head"));
  EXPECT_NE(plan_error([] {
              Plan::from_json(
                  "{\"version\": 4, \"mesh\": \"1\", \"batch_axes\": [], \"parameters\": "
                  "[], \"keep_gathered_bytes\": 1,\n\"recompute\": \"layers.*\"}");
            }).find("line 2: \"recompute\" cannot be \"layers.*\""),
            std::string::npos);
}

TEST(Plan, ChangingAnEntryChangesItsLine) {
  const auto before = base::split(small_plan().json(), '\n');
  auto plan = small_plan();
  plan.parameters[0].storage[1] = layout::Shard(1);
  const auto after = base::split(plan.json(), '\n');
  ASSERT_EQ(before.size(), after.size());
  for (size_t i = 0; i < before.size(); ++i) {
    EXPECT_EQ(before[i] != after[i], after[i].find("up.weight") != std::string::npos) << before[i];
  }
}

TEST(Plan, FirstMatchWins) {
  auto plan = small_plan();
  plan.parameters.push_back({"**", layout::parse_placements(plan.mesh, "{}"), {}, {}});
  EXPECT_EQ(plan.find("up.weight"), &plan.parameters[0]);
  EXPECT_EQ(plan.find("a.b.c"), &plan.parameters[2]);
  plan.parameters.pop_back();
  EXPECT_EQ(plan.find("a.b.c"), nullptr);
}

TEST(Plan, GlobsMatchWithinAndAcrossParts) {
  const std::vector<std::tuple<std::string, std::string, bool>> table = {
      {"a.b", "a.b", true},
      {"a.b", "a.bc", false},
      {"a.*", "a.b", true},
      {"a.*", "a.b.c", false},
      {"a.**", "a.b.c", true},
      {"**.c", "a.b.c", true},
      {"*.c", "a.b.c", false},
      {"a.*.c", "a.b.c", true},
      {"a.*.c", "a.b.b.c", false},
      {"a.**.c", "a.b.b.c", true},
      {"*", "", true},
      {"", "", true},
      {"", "a", false},
      {"h.*.w*t", "h.12.weight", true},
      {"h.*.w*t", "h.12.bias", false},
      {"**", "a.b", true},
      {"a*b*c", "aXbYc", true},
      {"a*b*c", "aXb.c", false},
      {"a***c", "a.b.c", true},
      {"a.?", "a.b", false},
  };
  for (const auto& [pattern, name, expected] : table) {
    EXPECT_EQ(matches(pattern, name), expected) << pattern << " on " << name;
  }
  // A pattern that would take a backtracking matcher ages.
  std::string hard;
  for (int i = 0; i < 30; ++i) {
    hard += "*a";
  }
  std::string name(200, 'a');
  name.back() = 'b';
  EXPECT_FALSE(matches(hard, name));
}

TEST(Plan, VerifyNamesWhatDoesNotFit) {
  const std::map<std::string, std::vector<int64_t>> sizes = {
      {"up.weight", {8, 4}}, {"down.weight", {4, 8}}, {"norm", {4}}};
  EXPECT_NO_THROW(small_plan().verify(sizes));

  struct Case {
    std::function<void(Plan&)> change;
    std::string says;
  };
  const auto text = [](const char* placements) { return layout::parse_placements(small_plan().mesh, placements); };
  const std::vector<Case> cases = {
      {[](Plan& p) { p.parameters[0].pattern = "up.wieght"; },
       "matches no parameter of the model; did you mean \"up.weight\"?"},
      {[&](Plan& p) { p.parameters.push_back({"up.*", text("{}"), {}, {}}); },
       "\"up.*\" has no effect: earlier entries"},
      {[&](Plan& p) { p.parameters[0].storage = text("{tp: S(2)}"); },
       "up.weight of sizes [8, 4] has no dim 2; accepted: S(0) to S(1)"},
      {[&](Plan& p) { p.parameters[0].storage = text("{tp: P}"); }, "the storage of \"up.weight\" is {dp: R, tp: P}"},
      {[&](Plan& p) { p.parameters[1].output = text("{tp: P}"); }, "the output of \"down.weight\""},
      {[](Plan& p) { p.parameters[0].storage.pop_back(); }, "has 1 placements for the axes of mesh {dp=2,tp=2}"},
      {[](Plan& p) { p.batch_axes = {"pd"}; }, "batch axis \"pd\" is not in mesh {dp=2,tp=2}; did you mean \"dp\"?"},
      {[](Plan& p) { p.batch_axes = {"dp", "dp"}; }, "named twice"},
      {[&](Plan& p) { p.parameters[0].storage = text("{dp: S(0@1), tp: S(0@1)}"); }, "distinct orders"},
  };
  for (const auto& [change, says] : cases) {
    auto plan = small_plan();
    change(plan);
    const auto message = plan_error([&] { plan.verify(sizes); });
    EXPECT_NE(message.find(says), std::string::npos) << message << "\nexpected: " << says;
  }
}

TEST(Plan, FromJsonNamesTheLine) {
  const auto good = small_plan().json();
  const std::vector<std::array<std::string, 3>> cases = {
      {"\"version\": 5", "\"version\": 6", "line 2: version 6 is none of 1 to 5, which is the newest"},
      {"\"version\": 5", "\"version\": \"one\"", "line 2: \"version\" cannot be \"one\""},
      {"\"mesh\": \"dp=2,tp=2\"", "\"mesh\": \"dp=2,tp\"", "line 3: [mesh] \"dp=2,tp\" is no mesh"},
      {"\"mesh\"", "\"meshes\"", "line 3: unknown key \"meshes\"; did you mean \"mesh\"?"},
      {"\"storage\": \"{tp: S(1)}\"", "\"storage\": \"{tp: Q}\"",
       "line 8: \"storage\": [layout] \" Q\" is no placement"},
      {"\"storage\": \"{tp: S(1)}\"", "\"storage\": \"{pp: S(1)}\"", "line 8: \"storage\": [layout] no axis \"pp\""},
      {"\"pattern\": \"down", "\"patern\": \"down", "line 8: unknown key \"patern\"; did you mean \"pattern\"?"},
      {"\"pattern\": \"up.weight\", ", "", "line 7: \"pattern\" is missing"},
      {"[\"dp\"]", "[\"dp\"", "line 5 is not JSON"},
      {"{\n  \"version\"", "[{\n  \"version\"", "is not JSON"},
  };
  for (const auto& [from, to, says] : cases) {
    auto text = good;
    text.replace(text.find(from), from.size(), to);
    const auto message = plan_error([&] { Plan::from_json(text); });
    EXPECT_NE(message.find(says), std::string::npos) << message << "\nexpected: " << says;
  }
  EXPECT_NE(plan_error([] { Plan::from_json("[]"); }).find("no object"), std::string::npos);
  EXPECT_NE(plan_error([] { Plan::from_json(""); }).find("is not JSON"), std::string::npos);
}

}  // namespace
}  // namespace tessera::plan::plan_test
