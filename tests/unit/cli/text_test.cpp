// From text to a model to text on the command line: documents, tokens, tokenizers, run folders; and what is bad about
// them.
#include <algorithm>
#include <filesystem>
#include <fstream>
#include <functional>
#include <thread>

#include <gtest/gtest.h>
#include <unistd.h>

#include "tessera/data/utf8.h"
#include "tessera/train/run/config.h"
#include "tessera/train/run/run_folder.h"
#include "tests/unit/cli/support.h"

namespace tessera::cli::text_test {
namespace {

namespace fs = std::filesystem;

// A folder with a text in several forms, and a run of a model that trained on it for two steps.
class Folder {
 public:
  Folder() : path_(fs::temp_directory_path() / ("tessera_cli_text_" + std::to_string(::getpid()))) {
    fs::create_directories(path_);
    std::string text, documents;
    for (int i = 0; i < 120; ++i) {
      text += "the river and a little house, line " + std::to_string(i) + "\n";
      documents += "{\"text\": \"the river and a little house, document " + std::to_string(i) + "\"}\n";
    }
    write("text.txt", text);
    write("docs.jsonl", documents);
    write("broken.jsonl", documents + "{\"text\": \n");
    write("no_text.jsonl", documents + "{\"body\": \"x\"}\n");
    write("tokens.bin", std::string(text.size() * 2, '\1'));  // the token 257
    write("torn.bin", "abc");
    write("unigram.json", R"({"model": {"type": "Unigram", "vocab": []}})");
    write("no_json.json", "{");
    write("empty.json", "");
    for (const char* name : {"gpt2", "llama3"}) {
      fs::copy_file(std::string(TESSERA_TOKENIZERS) + name + ".json", path_ / (std::string(name) + ".json"));
    }
    write("small.toml",
          "[model]\nkind = \"llama\"\ndim = 16\nlayers = 1\nheads = 2\nhidden = 24\n[data]\nfile = "
          "\"text.txt\"\nsequence = 8\n"
          "[train]\nsteps = 2\nbatch = 4\nlr = 1e-2\neval_batches = 1\n[parallel]\nmesh = \"tp=2\"\n");
  }
  ~Folder() { fs::remove_all(path_); }
  Folder(const Folder&) = delete;
  Folder& operator=(const Folder&) = delete;

  std::string operator()(const std::string& name) const { return (path_ / name).string(); }
  void write(const std::string& name, const std::string& content) const {
    std::ofstream(path_ / name, std::ios::binary) << content;
  }

  Outcome train(const std::vector<std::string>& more) const {
    std::vector<std::string> arguments = {"train", (*this)("small.toml")};
    arguments.insert(arguments.end(), more.begin(), more.end());
    return call(arguments);
  }

 private:
  fs::path path_;
};

TEST(Text, ARunWritesAndContinues) {
  const Folder folder;
  struct Case {
    std::vector<std::string> settings;
    std::string says;
  };
  const auto file = [&](const std::string& name) {
    return std::vector<std::string>{"--set", "data.file=" + folder(name)};
  };
  const auto with = [](std::vector<std::string> a, const std::vector<std::string>& b) {
    a.insert(a.end(), b.begin(), b.end());
    return a;
  };
  const std::vector<std::string> gpt2 = {"--set", "data.tokenizer=" + folder("gpt2.json")},
                                 llama3 = {"--set", "data.tokenizer=" + folder("llama3.json")};
  for (const auto& [settings, says] :
       std::vector<Case>{{{}, "bits/byte"},
                         {{"--set", "model.kind=gpt", "--set", "model.hidden=0"}, "bits/byte"},
                         {file("docs.jsonl"), "bits/byte"},
                         {gpt2, "bits/token"},
                         {with(file("docs.jsonl"), llama3), "bits/byte)"}}) {
    const auto trained = folder.train(with(settings, {"--out", folder("run")}));
    ASSERT_EQ(trained.code, 0) << trained.err;
    EXPECT_NE(trained.out.find(says), std::string::npos) << trained.out;
    const auto sample = trained.out.find("sample (temperature 0.8):\n");
    ASSERT_NE(sample, std::string::npos) << trained.out;
    EXPECT_EQ(data::valid_utf8_prefix(trained.out), trained.out.size());
    const std::vector<std::string> arguments = {"generate",     folder("run"), "--prompt", "the river",
                                                "--max-tokens", "30",          "--seed",   "7"};
    const auto one = call(arguments), other = call(arguments);
    ASSERT_EQ(one.code, 0) << one.err;
    EXPECT_EQ(one.out.rfind("the river", 0), 0u);
    EXPECT_EQ(data::valid_utf8_prefix(one.out), one.out.size());
    EXPECT_EQ(one.out, other.out);
    EXPECT_EQ(call({"generate", folder("run/model.safetensors"), "--prompt", "the river", "--max-tokens", "30",
                    "--seed", "7"})
                  .out,
              one.out);
    EXPECT_EQ(call({"generate", folder("run"), "--prompt", "", "--max-tokens", "3", "--temperature", "0"}).code, 0);
    fs::remove_all(folder("run"));
  }
}

// The same training on other ranks leaves nearly the same model: greedy text is the same.
TEST(Text, RanksDoNotChangeWhatIsSaved) {
  const Folder folder;
  std::vector<std::string> texts;
  for (const char* mesh : {"dp=1", "dp=2", "tp=2"}) {
    ASSERT_EQ(folder.train({"--mesh", mesh, "--quiet", "--out", folder(mesh), "--dtype", "float64"}).code, 0);
    texts.push_back(
        call({"generate", folder(mesh), "--prompt", "the", "--temperature", "0", "--max-tokens", "20"}).out);
  }
  EXPECT_EQ(texts[1], texts[0]);
  EXPECT_EQ(texts[2], texts[0]);
}

std::string content_of(const std::string& path) {
  std::ifstream file(path);
  return {std::istreambuf_iterator<char>(file), {}};
}

TEST(Text, AFolderKeepsItsRunUnlessItIsToBeReplaced) {
  const Folder folder;
  ASSERT_EQ(folder.train({"--quiet", "--out", folder("run")}).code, 0);
  const auto metrics = content_of(folder("run/metrics.jsonl")), model = content_of(folder("run/model.safetensors"));
  const auto again = folder.train({"--quiet", "--out", folder("run"), "--seed", "1"});
  EXPECT_EQ(again.code, 1);
  EXPECT_NE(again.err.find("run\" holds a run already; accepted: another folder, --replace, or --resume auto"),
            std::string::npos)
      << again.err;
  EXPECT_EQ(content_of(folder("run/metrics.jsonl")), metrics);
  EXPECT_EQ(content_of(folder("run/model.safetensors")), model);
  ASSERT_EQ(folder.train({"--quiet", "--out", folder("run"), "--seed", "1", "--replace"}).code, 0);
  EXPECT_NE(content_of(folder("run/metrics.jsonl")), metrics);
  EXPECT_NE(content_of(folder("run/model.safetensors")), model);
}

// Of two at once one is refused, whatever it was told, and the other's files are whole.
TEST(Text, AFolderTakesOneRunAtATime) {
  const Folder folder;
  {
    const train::RunFolder first(folder("run"), train::EarlierRun::kRefuse);
    const auto second = folder.train({"--quiet", "--out", folder("run"), "--replace"});
    EXPECT_EQ(second.code, 1);
    EXPECT_NE(second.err.find("another run is writing into --out"), std::string::npos) << second.err;
  }
  std::vector<int> codes(2);
  {
    std::vector<std::jthread> runs;
    for (int& code : codes) {
      runs.emplace_back([&] { code = folder.train({"--quiet", "--steps", "10", "--out", folder("run")}).code; });
    }
  }
  std::sort(codes.begin(), codes.end());
  EXPECT_EQ(codes, (std::vector<int>{0, 1}));
  const auto metrics = content_of(folder("run/metrics.jsonl"));
  EXPECT_EQ(std::count(metrics.begin(), metrics.end(), '\n'), 10);
}

TEST(Text, PreTokenisedTextTrains) {
  const Folder folder;
  const auto trained = folder.train(
      {"--set", "data.file=" + folder("tokens.bin"), "--set", "model.vocab_size=300", "--out", folder("run")});
  ASSERT_EQ(trained.code, 0) << trained.err;
  EXPECT_NE(trained.out.find("tokens to train on"), std::string::npos);
  EXPECT_EQ(trained.out.find("sample"), std::string::npos);
}

TEST(Text, ConfigurationsAreReadBack) {
  train::Config config;
  config.model.dim = 48;
  config.model.norm_eps = 0.1;
  config.data.file = "a \"b\"\\c";
  config.optimizer.betas = {0.1, 0.7};
  config.train.lattice = sums::Lattice::parse("batch=4,sequence=2,feature=8");
  const auto text = train::to_toml(config);
  EXPECT_EQ(train::to_toml(train::parse_config(text, "text")), text);
  const auto back = train::parse_config(text, "text");
  EXPECT_EQ(back.model.dim, 48);
  EXPECT_EQ(back.model.norm_eps, 0.1);
  EXPECT_EQ(back.data.file, config.data.file);
  EXPECT_EQ(back.optimizer.betas, config.optimizer.betas);
  EXPECT_EQ(back.train.lattice.str(), config.train.lattice.str());
}

struct Case {
  const char* name;
  std::function<Outcome(const Folder&)> run;
  std::string at_fault;
  std::string what_to_change;
};

void PrintTo(const Case& each, std::ostream* out) { *out << each.name; }

std::function<Outcome(const Folder&)> train_on(const char* file, const char* tokenizer = "",
                                               std::vector<std::string> more = {}) {
  return [=](const Folder& folder) {
    auto arguments = more;
    arguments.insert(arguments.end(), {"--quiet", "--set", "data.file=" + folder(file)});
    if (*tokenizer) {
      arguments.insert(arguments.end(), {"--set", "data.tokenizer=" + folder(tokenizer)});
    }
    return folder.train(arguments);
  };
}

// Generates from a run that `damage` has changed.
std::function<Outcome(const Folder&)> generate_after(std::function<void(const Folder&)> damage,
                                                     std::vector<std::string> more = {}) {
  return [=](const Folder& folder) {
    const auto trained =
        folder.train({"--quiet", "--out", folder("run"), "--set", "data.tokenizer=" + folder("llama3.json")});
    EXPECT_EQ(trained.code, 0) << trained.err;
    damage(folder);
    std::vector<std::string> arguments = {"generate", folder("run"), "--prompt", "the"};
    arguments.insert(arguments.end(), more.begin(), more.end());
    return call(arguments);
  };
}

void nothing(const Folder&) {}

const std::vector<Case>& cases() {
  static const std::vector<Case> all = {
      {"BrokenLine", train_on("broken.jsonl"), "broken.jsonl\" line 121 is no JSON",
       "accepted: one JSON object a line"},
      {"LineWithoutText", train_on("no_text.jsonl"), "no_text.jsonl\" line 121 has no member \"text\"",
       "accepted: one JSON object a line"},
      {"TornTokens", train_on("torn.bin", "", {"--set", "model.vocab_size=300"}), "torn.bin\" has 3 bytes of tokens",
       "accepted: a complete file"},
      {"TokensOfUnknownVocabulary", train_on("tokens.bin"), "the vocabulary of",
       "accepted: model.vocab_size = its size, or data.tokenizer"},
      {"TokensBeyondTheModel", train_on("tokens.bin", "", {"--set", "model.vocab_size=257"}),
       "has the token 257, the model has 257", "accepted: model.vocab_size of at least 258"},
      {"TokenWidthOfAText", train_on("text.txt", "", {"--set", "data.token_dtype=uint32"}),
       "data.token_dtype has no effect", "accepted: leave it out"},
      {"NoTokenizer", train_on("text.txt", "none.json"), "cannot read \"", "accepted: the path of a tokenizer.json"},
      {"EmptyTokenizer", train_on("text.txt", "empty.json"), "empty.json\" is no JSON", "accepted: a tokenizer.json"},
      {"TokenizerOfNoJson", train_on("text.txt", "no_json.json"), "no_json.json\" is no JSON",
       "accepted: a tokenizer.json"},
      {"TokenizerOfAnotherKind", train_on("text.txt", "unigram.json"), "has the model Unigram", "accepted: BPE"},
      {"VocabularyTooSmall", train_on("text.txt", "llama3.json", {"--set", "model.vocab_size=500"}),
       "model.vocab_size 500 is too small", "accepted: 900 or more"},
      {"VocabularyBelowBytes", train_on("text.txt", "", {"--set", "model.vocab_size=100"}),
       "model.vocab_size 100 is less than the 256 bytes", "a whole number of at least 256"},
      {"UnknownEnd", train_on("docs.jsonl", "llama3.json", {"--set", "data.eos=<|end|>"}),
       "no token is called \"<|end|>\"", "accepted: <|begin_of_text|>, <|end_of_text|>, <|eot_id|>"},
      {"EndWithoutTokenizer", train_on("docs.jsonl", "", {"--set", "data.eos=</s>"}),
       "data.eos \"</s>\" has no effect without data.tokenizer", "accepted: leave it out"},
      {"FolderThatIsAFile", [](const Folder& folder) { return folder.train({"--quiet", "--out", folder("text.txt")}); },
       "cannot write --out", "accepted: a folder that may be written to"},
      {"NoRun", [](const Folder& folder) { return call({"generate", folder("none"), "--prompt", "a"}); },
       "none\" is not there", "accepted: the folder that `tessera train --out` wrote"},
      {"FolderWithoutARun", [](const Folder& folder) { return call({"generate", folder(""), "--prompt", "a"}); },
       "has no config.toml", "accepted: the folder that `tessera train --out` wrote"},
      {"RunWithoutModel", generate_after([](const Folder& folder) { fs::remove(folder("run/model.safetensors")); }),
       "cannot read \"", "accepted: the path of a safetensors file"},
      {"RunWithoutTokenizer", generate_after([](const Folder& folder) { fs::remove(folder("run/tokenizer.json")); }),
       "cannot read \"", "accepted: the path of a tokenizer.json"},
      {"ModelCutShort",
       generate_after([](const Folder& folder) { fs::resize_file(folder("run/model.safetensors"), 5000); }),
       "it is cut short", "accepted: a complete safetensors file"},
      {"ModelOfAnotherSize", generate_after([](const Folder& folder) {
         std::ifstream file(folder("run/config.toml"));
         std::string text(std::istreambuf_iterator<char>(file), {});
         text.replace(text.find("hidden = 24"), 11, "hidden = 32");
         folder.write("run/config.toml", text);
       }),
       "down_proj.weight of F32 and sizes [16, 24], the model has F32 and sizes [16, 32]",
       "accepted: the file of a model with this configuration"},
      {"NegativeTemperature", generate_after(nothing, {"--temperature", "-1"}), "temperature -1",
       "accepted: at least 0"},
      {"NoTokens", generate_after(nothing, {"--max-tokens", "0"}), "max_tokens 0", "accepted: at least 1"},
      {"ShareAboveOne", generate_after(nothing, {"--top-p", "1.5"}), "top_p 1.5", "accepted: above 0 and at most 1"},
      {"NegativeSeed", generate_after(nothing, {"--seed", "-1"}), "seed -1", "accepted: at least 0"},
      {"NegativeK", generate_after(nothing, {"--top-k", "-3"}), "top_k -3", "accepted: at least 0"},
  };
  return all;
}

class BadText : public testing::TestWithParam<Case> {};

TEST_P(BadText, EndsWithOneParagraphOfAdvice) {
  const Folder folder;
  const auto outcome = GetParam().run(folder);
  SCOPED_TRACE(outcome.err);
  EXPECT_EQ(outcome.code, 1);
  EXPECT_EQ(outcome.out, "");
  EXPECT_EQ(outcome.err.find('\n'), outcome.err.size() - 1);
  EXPECT_NE(outcome.err.find(GetParam().at_fault), std::string::npos) << GetParam().at_fault;
  EXPECT_NE(outcome.err.find(GetParam().what_to_change), std::string::npos) << GetParam().what_to_change;
}

INSTANTIATE_TEST_SUITE_P(All, BadText, testing::ValuesIn(cases()), [](const auto& info) { return info.param.name; });

}  // namespace
}  // namespace tessera::cli::text_test
