// Training that ends, is loaded on another mesh and goes on: the bits of training that never ended.
#include <filesystem>

#include <unistd.h>

#include "tessera/checkpoint/folder/steps.h"
#include "tessera/checkpoint/store/posix_store.h"
#include "tessera/models/hugging_face.h"
#include "tests/ranks/support.h"
#include "tests/ranks/training_run.h"
#include "tests/support/sampled.h"

namespace tessera::ranks::resume_test {
namespace {

constexpr int64_t kSteps = 30, kHalf = 15;

models::GptConfig gpt() {
  models::GptConfig config;
  config.vocab_size = 64, config.dim = 32, config.layers = 2, config.heads = 4, config.max_seq = 8;
  config.dropout = 0.1, config.tie_embeddings = true;
  return config;
}

// A folder that is gone afterwards.
class Folder {
 public:
  Folder() : path_(std::filesystem::temp_directory_path() / ("tessera_resume_" + std::to_string(::getpid()))) {
    std::filesystem::remove_all(path_);
    std::filesystem::create_directories(path_);
  }
  ~Folder() { std::filesystem::remove_all(path_); }
  std::string run(const std::string& name) const { return path_ / name; }

 private:
  std::filesystem::path path_;
};

Setting setting(std::optional<sums::Lattice> lattice) {
  return {.steps = kSteps, .batch = 12, .length = 8, .vocabulary = 64, .lattice = std::move(lattice)};
}

// What is saved of each tensor, whatever the layout.
std::map<std::string, uint64_t> hashes_of(const std::string& run) {
  checkpoint::PosixStore store;
  std::map<std::string, uint64_t> hashes;
  for (const auto& tensor : checkpoint::open_checkpoint(store, checkpoint::newest_whole(store, run)->path).tensors) {
    hashes[tensor.name] = tensor.value_hash;
  }
  return hashes;
}

Case on(const std::string& mesh) { return {.mesh = mesh, .accumulate = mesh == "dp=2" || mesh == "tp=2" ? 2 : 1}; }

// The first half on each mesh, the second on each, in pairs.
std::vector<std::pair<std::string, std::string>> pairs_of_meshes() {
  const std::vector<std::string> meshes = {"1",    "dp=2",      "dp=3",   "dp=4",       "tp=2",
                                           "tp=4", "dp=2,tp=2", "fsdp=3", "fsdp=2,tp=2"};
  std::vector<std::pair<std::string, std::string>> pairs;
  for (const std::string& first : meshes) {
    for (const std::string& second : meshes) {
      pairs.emplace_back(first, second);
    }
  }
  return support::sampled(pairs, 10);
}

TEST(Resume, OnAnyMeshHasTheBitsOfTrainingThatNeverEnded) {
  const Folder folder;
  Setting whole = setting(sums::Lattice());
  whole.save_to = folder.run("whole");
  const Curve expected = train<models::Gpt>(whole, gpt(), {});
  const auto hashes = hashes_of(whole.save_to);
  EXPECT_TRUE(hashes.contains("exp_avg_sq/transformer.h.1.mlp.c_fc.weight")) << hashes.size();
  for (const auto& [begun, resumed] : pairs_of_meshes()) {
    SCOPED_TRACE(begun + " -> " + resumed);
    Setting first = setting(sums::Lattice());
    first.steps = kHalf, first.save_to = folder.run(begun);
    if (!std::filesystem::exists(first.save_to)) {
      train<models::Gpt>(first, gpt(), on(begun));
    }
    Setting second = setting(sums::Lattice());
    second.seed = 8;  // what the model is made with is not what it goes on with
    second.load_from = first.save_to, second.save_to = folder.run(begun + " then " + resumed);
    const Curve curve = train<models::Gpt>(second, gpt(), on(resumed));
    ASSERT_EQ(curve.losses.size(), static_cast<size_t>(kSteps - kHalf));
    EXPECT_TRUE(std::equal(curve.losses.begin(), curve.losses.end(), expected.losses.begin() + kHalf));
    EXPECT_TRUE(std::equal(curve.norms.begin(), curve.norms.end(), expected.norms.begin() + kHalf));
    EXPECT_EQ(hashes_of(second.save_to), hashes);
  }
}

TEST(Resume, InFastOnTheSameMeshHasTheSameBits) {
  const Folder folder;
  for (const char* mesh : {"1", "dp=2", "tp=2", "dp=2,tp=2"}) {
    SCOPED_TRACE(mesh);
    const Curve expected = train<models::Gpt>(setting({}), gpt(), {.mesh = mesh});
    Setting first = setting({}), second = setting({});
    first.steps = kHalf, first.save_to = second.load_from = folder.run(mesh);
    train<models::Gpt>(first, gpt(), {.mesh = mesh});
    const Curve curve = train<models::Gpt>(second, gpt(), {.mesh = mesh});
    EXPECT_TRUE(std::equal(curve.losses.begin(), curve.losses.end(), expected.losses.begin() + kHalf));
    for (const auto& [name, value] : expected.parameters) {
      EXPECT_TRUE(at::equal(value, curve.parameters.at(name))) << name;
    }
  }
}

// Kept in the form of other libraries' files, a run goes on with the same bits; a job that does not know of the form is
// refused, although its matrices might be of the same sizes.
TEST(Resume, InTheFormOfOtherFilesIsTheSame) {
  const Folder folder;
  const Curve expected = train<models::Gpt>(setting(sums::Lattice()), gpt(), {});
  const auto names = models::hugging_face_names(gpt());
  for (const char* mesh : {"1", "dp=3", "tp=4", "dp=2,tp=2"}) {
    SCOPED_TRACE(mesh);
    Setting first = setting(sums::Lattice()), second = setting(sums::Lattice());
    first.steps = kHalf, first.save_to = second.load_from = folder.run(mesh);
    first.file_names = second.file_names = names;
    train<models::Gpt>(first, gpt(), on(mesh));
    const Curve curve = train<models::Gpt>(second, gpt(), on("tp=2"));
    EXPECT_TRUE(std::equal(curve.losses.begin(), curve.losses.end(), expected.losses.begin() + kHalf));
    for (const auto& [name, value] : expected.parameters) {
      EXPECT_TRUE(at::equal(value, curve.parameters.at(name))) << name;
    }
    second.file_names.reset();
    try {
      train<models::Gpt>(second, gpt(), on("tp=2"));
      ADD_FAILURE() << "nothing was refused";
    } catch (const std::exception& error) {
      EXPECT_SAYS(base::message_of(error), "the job reads those of its own form");
    }
  }
}

TEST(Resume, RefusesWhatIsNotTheSame) {
  const Folder folder;
  Setting first = setting(sums::Lattice());
  first.steps = 2, first.save_to = folder.run("run");
  train<models::Gpt>(first, gpt(), on("dp=2"));
  const auto refusal = [&](Setting second, const models::GptConfig& config) -> std::string {
    second.load_from = first.save_to;
    try {
      train<models::Gpt>(second, config, on("tp=2"));
    } catch (const std::exception& error) {
      return base::message_of(error);
    }
    return "";
  };
  EXPECT_SAYS(refusal(setting(sums::Lattice{.batch = 4, .sequence = 1, .feature = 4}), gpt()), "numerics exact");
  EXPECT_SAYS(refusal(setting({}), gpt()), "the job is in fast");
  auto deeper = gpt();
  deeper.layers = 3;
  EXPECT_SAYS(refusal(setting(sums::Lattice()), deeper), "missing");
  Setting nowhere = setting(sums::Lattice());
  first.save_to = folder.run("nothing");
  std::filesystem::create_directories(first.save_to);
  EXPECT_SAYS(refusal(nowhere, gpt()), "no whole checkpoint");
}

}  // namespace
}  // namespace tessera::ranks::resume_test
