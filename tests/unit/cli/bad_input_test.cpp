// Bad input as a user meets it, on the command line and in a program of ranks: it ends soon, with one paragraph that
// names what is at fault and says what to change.
#include <chrono>
#include <filesystem>
#include <fstream>
#include <functional>
#include <sstream>

#include <ATen/ops/arange.h>
#include <gtest/gtest.h>
#include <unistd.h>

#include "tessera/base/error.h"
#include "tessera/comm/threads/run_ranks.h"
#include "tessera/dtensor/front/dtensor.h"
#include "tests/unit/cli/support.h"

namespace tessera::cli::bad_input_test {
namespace {

constexpr auto kLimit = std::chrono::seconds(20);  // of a case; what a collective may wait is a quarter of it

// A folder with texts, configurations and plans, good and bad.
class Folder {
 public:
  Folder() : path_(std::filesystem::temp_directory_path() / ("tessera_bad_input_" + std::to_string(::getpid()))) {
    std::filesystem::create_directories(path_);
    std::ofstream text(path_ / "text.txt");
    for (int i = 0; i < 100; ++i) {
      text << "line " << i << " of a text that repeats itself\n";
    }
    write("empty.txt", "");
    write("empty.toml", "");
    write("good.toml", kGood);
    write("broken.toml", "[model]\nkind = \"llama\n");
    write("axis.json", plan("{xp: S(0)}", "[]"));
    write("batch_axis.json", plan("{tp: S(0)}", "[\"samples\"]"));
    write("dim.json", plan("{tp: S(2)}", "[]"));
  }
  ~Folder() { std::filesystem::remove_all(path_); }
  Folder(const Folder&) = delete;
  Folder& operator=(const Folder&) = delete;

  std::string operator()(const std::string& name) const { return (path_ / name).string(); }

 private:
  static constexpr const char* kGood =
      "[model]\nkind = \"llama\"\ndim = 16\nlayers = 1\nheads = 2\nhidden = 24\n[data]\nfile = \"text.txt\"\nsequence "
      "= 8\n"
      "[train]\nsteps = 4\nbatch = 4\nlr = 1e-2\neval_batches = 1\n[parallel]\nmesh = \"tp=2\"\n";

  static std::string plan(const std::string& storage, const std::string& batch_axes) {
    return "{\n  \"version\": 1,\n  \"mesh\": \"tp=2\",\n  \"batch_axes\": " + batch_axes +
           ",\n  \"keep_gathered_bytes\": 0,\n  \"parameters\": [\n    {\"pattern\": \"**.q_proj.weight\", "
           "\"storage\": \"" +
           storage + "\"}\n  ],\n  \"notes\": []\n}\n";
  }
  void write(const std::string& name, const std::string& content) const { std::ofstream(path_ / name) << content; }

  std::filesystem::path path_;
};

// The exit status, and what a person reads.
struct Answer {
  int code = 0;
  std::string text;
};

Answer on_command_line(const std::vector<std::string>& arguments) {
  const Outcome outcome = call(arguments);
  return {outcome.code, outcome.err};
}

Answer in_a_program(int64_t ranks, const std::function<void(int64_t)>& body) {
  try {
    comm::run_ranks(ranks, body, {.deadline = kLimit / 4});
  } catch (const std::exception& error) {
    return {1, "program: " + base::message_of(error) + "\n"};
  }
  return {};
}

struct Case {
  const char* name;
  std::function<Answer(const Folder&)> run;
  std::string at_fault;
  std::string what_to_change;
};

void PrintTo(const Case& each, std::ostream* out) { *out << each.name; }

std::function<Answer(const Folder&)> train_with(std::vector<std::string> flags, const char* file_flag = "",
                                                const char* file = "") {
  return [=](const Folder& folder) {
    std::vector<std::string> arguments = {"train", folder("good.toml")};
    arguments.insert(arguments.end(), flags.begin(), flags.end());
    if (*file_flag) {
      arguments.push_back("--set");
      arguments.push_back(file_flag + folder(file));
    }
    return on_command_line(arguments);
  };
}

at::Tensor picture(const std::string& mesh, int64_t rows = 6) {
  return dtensor::distribute(at::arange(rows * 4, at::kDouble).reshape({rows, 4}), layout::Mesh::parse(mesh),
                             "{tp: S(0)}");
}

std::function<Answer(const Folder&)> ranks_running(int64_t ranks, std::function<void(int64_t)> body) {
  return [=](const Folder&) { return in_a_program(ranks, body); };
}

const std::vector<Case>& cases() {
  static const std::vector<Case> all = {
      {"MalformedToml", [](const Folder& folder) { return on_command_line({"train", folder("broken.toml")}); },
       "broken.toml line 2 is not TOML", "accepted: [section] lines and key = value lines, texts in quotes"},
      {"EmptyToml", [](const Folder& folder) { return on_command_line({"train", folder("empty.toml")}); },
       "data.file is not given", "accepted: the path of a text file"},
      {"MoreThanTheMachineHas", train_with({"--set", "model.dim=6000000"}),
       "with its gradients and the optimizer's state, ",
       "accepted: a smaller model, a mesh that cuts it into smaller parts"},
      {"NoMesh", train_with({"--mesh", "dp=2;tp=2"}), "\"dp=2;tp=2\" is no mesh", "accepted: dp=2,tp=4"},
      {"EmptyMesh", train_with({"--mesh", ""}), "\"\" is no mesh", "accepted: dp=2,tp=4"},
      {"UnknownAxisOfAPlan", train_with({}, "parallel.plan=", "axis.json"), "no axis \"xp\" in mesh {tp=2}",
       "did you mean \"tp\"?"},
      {"UnknownBatchAxis", train_with({}, "parallel.plan=", "batch_axis.json"),
       "batch axis \"samples\" is not in mesh {tp=2}", "accepted: axes of the mesh"},
      {"MeshOfOtherRanks", train_with({"--mesh", "dp=2,tp=2", "--ranks", "3"}),
       "{dp=2,tp=2} has 4 ranks, but parallel.ranks is 3",
       "accepted: parallel.ranks = 4, or a mesh whose sizes multiply to 3"},
      {"MeshBeyondTheRanks", ranks_running(2, [](int64_t) { picture("dp=2,tp=2"); }),
       "mesh {dp=2,tp=2} needs ranks 0 to 3, this job has 2", "start 4 ranks, or give a mesh of 2"},
      {"MeshOfFewerRanks", ranks_running(3, [](int64_t) { picture("tp=2"); }), "rank 2 of 3 is not on mesh {tp=2}",
       "start 2 ranks, or give a mesh of 3"},
      {"TooManyRanks", train_with({"--ranks", "2000000"}), "2000000 ranks", "accepted: 1 to 4096"},
      {"PlanOfADimThatIsNotThere", train_with({}, "parallel.plan=", "dim.json"),
       "q_proj.weight of sizes [16, 16] has no dim 2", "accepted: S(0) to S(1)"},
      {"HeadsThatDoNotDivide", train_with({"--set", "model.heads=3"}), "dim 16 with 3 heads",
       "dim must be an even multiple of heads"},
      {"MissingData", train_with({}, "data.file=", "none.txt"), "none.txt\": No such file",
       "give the path of a readable text file"},
      {"EmptyData", train_with({}, "data.file=", "empty.txt"), "empty.txt\" is empty",
       "give the path of a file with text in it"},
      {"SequenceLongerThanTheText", train_with({"--set", "data.sequence=100000"}),
       "a sample of 100000 tokens needs 100001", "give a longer text, a shorter sequence, or hold out less"},
      {"ExceptionOnOneRank",
       ranks_running(3,
                     [](int64_t rank) {
                       const auto x = picture("tp=3");
                       TESSERA_CHECK(rank != 1, "the reader found 3 columns; accepted: 4");
                       x.sum().item<double>();
                     }),
       "rank 1: the reader found 3 columns", "accepted: 4"},
      {"OneOpMoreOnOneRank",
       ranks_running(2,
                     [](int64_t rank) {
                       auto x = picture("tp=2");
                       x = rank == 1 ? x.exp() : x;
                       x.sum().item<double>();
                     }),
       "they parted at op 0: rank 0 ran aten::sum, rank 1 ran aten::exp", "look for what depends on the rank"},
      {"OneOpMoreAtTheEnd",
       ranks_running(2,
                     [](int64_t rank) {
                       const auto x = picture("tp=2");
                       if (rank == 1) {
                         x.sum().item<double>();
                       }
                     }),
       "rank 0 has finished; rank 1 waits in all_reduce(sum)", "every rank must make the same calls"},
      {"AnotherShapeOnOneRank", ranks_running(2, [](int64_t rank) { picture("tp=2", 6 + rank).sum().item<double>(); }),
       "they parted at op 0: rank ", "with other shapes, layouts or numbers"},
      {"AnotherSeedOnOneRank",
       ranks_running(2,
                     [](int64_t rank) {
                       dtensor::manual_seed(static_cast<uint64_t>(rank));
                       picture("tp=2").sum().item<double>();
                     }),
       "they parted at op 0: rank ", "ran manual_seed with other shapes, layouts or numbers"},
      {"PrintedDTensor", ranks_running(2, [](int64_t) { std::ostringstream() << picture("tp=2"); }),
       "a DTensor has no storage of its own", "print tessera::to_string(x)"},
      {"MemoryOfADTensor", ranks_running(2, [](int64_t) { picture("tp=2").storage(); }),
       "a DTensor has no storage of its own", "to_local(x)"},
      {"LossThatIsNotFinite", train_with({"--set", "train.lr=1e30"}), "of step 2 is nan", "try a smaller optimizer.lr"},
  };
  return all;
}

class BadInput : public testing::TestWithParam<Case> {};

TEST_P(BadInput, EndsSoonWithOneParagraphOfAdvice) {
  const Folder folder;
  const auto begin = std::chrono::steady_clock::now();
  const Answer outcome = GetParam().run(folder);
  EXPECT_LT(std::chrono::steady_clock::now() - begin, kLimit);
  SCOPED_TRACE(outcome.text);
  EXPECT_EQ(outcome.code, 1);
  EXPECT_EQ(std::count(outcome.text.begin(), outcome.text.end(), '\n'), 1);
  EXPECT_EQ(outcome.text.find('\n'), outcome.text.size() - 1);
  for (const char* frame : {"frame #", "Exception raised from", ".cpp:", "0x"}) {
    EXPECT_EQ(outcome.text.find(frame), std::string::npos) << frame;
  }
  EXPECT_NE(outcome.text.find(GetParam().at_fault), std::string::npos) << GetParam().at_fault;
  EXPECT_NE(outcome.text.find(GetParam().what_to_change), std::string::npos) << GetParam().what_to_change;
}

INSTANTIATE_TEST_SUITE_P(All, BadInput, testing::ValuesIn(cases()), [](const auto& info) { return info.param.name; });

// What the command line itself cannot mean.
TEST(Usage, IsSaid) {
  const std::vector<std::pair<std::vector<std::string>, std::vector<std::string>>> cases = {
      {{"trian"}, {"there is no command \"trian\"", "did you mean \"train\"?", "accepted: ckpt, compare, "}},
      {{"train", "run.toml", "--ranks", "0"}, {"--ranks: 0; accepted: a number of at least 1"}},
      {{"train", "run.toml", "--save-every", "-2"}, {"--save-every: -2; accepted: a number of at least 0"}},
      {{"train", "run.toml", "--keep", "3"}, {"--keep requires --save-every"}},
      {{"train"}, {"config is required"}},
  };
  for (const auto& [arguments, parts] : cases) {
    const Outcome outcome = call(arguments);
    EXPECT_EQ(outcome.code, 2) << outcome.err;
    for (const auto& part : parts) {
      EXPECT_NE(outcome.err.find(part), std::string::npos) << outcome.err;
    }
  }
  const Outcome version = call({"--version"});
  EXPECT_EQ(version.code, 0);
  EXPECT_EQ(version.out.find("tessera "), 0U) << version.out;
}

// The control: the same folder and command without anything bad.
TEST(GoodInput, Trains) {
  const Folder folder;
  const Answer outcome = on_command_line({"train", folder("good.toml"), "--quiet"});
  EXPECT_EQ(outcome.code, 0);
  EXPECT_EQ(outcome.text, "");
}

// A disk without room.
TEST(FullDisk, IsNoFinishedRun) {
  if (!std::filesystem::exists("/dev/full")) {
    GTEST_SKIP() << "no /dev/full here";
  }
  const Folder folder;
  for (const char* flag : {"--metrics", "--ledger"}) {
    const Answer outcome = on_command_line({"train", folder("good.toml"), "--quiet", flag, "/dev/full"});
    EXPECT_EQ(outcome.code, 1);
    EXPECT_NE(outcome.text.find(std::string("writing ") + flag + " failed"), std::string::npos) << outcome.text;
  }
}

}  // namespace
}  // namespace tessera::cli::bad_input_test
