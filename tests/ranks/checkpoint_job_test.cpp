// A job that trains on while it is saved: what is saved is what it was, by the hash of every value, and so is what any
// mesh loads.
#include <filesystem>
#include <map>
#include <mutex>

#include <unistd.h>

#include "tessera/checkpoint/folder/steps.h"
#include "tessera/checkpoint/store/posix_store.h"
#include "tessera/watch/step_value.h"
#include "tests/ranks/support.h"
#include "tests/ranks/training_run.h"

namespace tessera::ranks::checkpoint_job_test {
namespace {

using Step = std::function<void()>;

// Runs `body` with a job on each rank of a mesh.
void with_job(const Mesh& mesh, int64_t seed, const std::function<void(parallel::Job&, const Step&)>& body) {
  models::GptConfig config;
  config.vocab_size = 64, config.dim = 32, config.layers = 2, config.heads = 4, config.max_seq = 8;
  config.dropout = 0.1, config.tie_embeddings = true;
  run_on(mesh, [&](int64_t) {
    dtensor::manual_seed(seed);
    auto model = parallel::deferred([&] { return models::Gpt(config); });
    torch::optim::AdamW optimizer(model->parameters(), torch::optim::AdamWOptions(1e-3));
    const auto plan = parallel::generate_plan(*model, {.mesh = mesh, .heads = 4, .kv_heads = 4});
    parallel::place(*model, plan, &optimizer);
    parallel::Job job(model.ptr(), plan,
                      [model](const std::vector<at::Tensor>& batch) mutable { return model->loss(batch[0], batch[1]); },
                      {.optimizer = &optimizer});
    const Setting setting{.batch = 12, .length = 8, .vocabulary = 64};
    body(job, [&] {
      const at::Tensor all = tokens_of(setting, job.step());
      job(all.slice(1, 0, setting.length).contiguous(), all.slice(1, 1, setting.length + 1).contiguous()).backward();
      optimizer.step();
      optimizer.zero_grad();
    });
  });
}

// Hashes of the values of all tensors that a checkpoint has, summed over the ranks.
class Hashes {
 public:
  void add(const parallel::Job& job) {
    for (const auto& kept : checkpoint::contents_of(job).tensors) {
      const uint64_t own = watch::hash_value(kept.tensor);
      const std::scoped_lock lock(mutex_);
      by_name_[kept.name] += own;
    }
  }
  const std::map<std::string, uint64_t>& by_name() const { return by_name_; }

 private:
  std::mutex mutex_;
  std::map<std::string, uint64_t> by_name_;
};

TEST(CheckpointOfAJob, StepsDuringASaveChangeNoSavedBitAndEveryMeshLoadsThem) {
  const std::string run = std::filesystem::temp_directory_path() / ("tessera_saved_job_" + std::to_string(::getpid()));
  checkpoint::PosixStore store;
  int64_t loads = 0;
  for (const char* from : {"1", "dp=2", "tp=2", "dp=3", "dp=2,tp=2", "tp=4"}) {
    for (const bool in_slices : {false, true}) {
      std::filesystem::remove_all(run);
      Hashes before, after_steps;
      with_job(Mesh::parse(from), 7, [&](parallel::Job& job, const Step& step) {
        step();
        step();
        before.add(job);
        const auto saving = checkpoint::start_save(run, job, {.in_slices = in_slices});
        step();
        step();
        after_steps.add(job);
        saving->finish();
      });
      const auto newest = checkpoint::newest_whole(store, run);
      ASSERT_TRUE(newest) << from;
      EXPECT_EQ(newest->step, 2);
      std::map<std::string, uint64_t> saved;
      for (const auto& table : checkpoint::open_checkpoint(store, newest->path).tensors) {
        saved[table.name] = table.value_hash;
      }
      EXPECT_EQ(saved, before.by_name()) << from;
      EXPECT_NE(saved, after_steps.by_name()) << from;
      EXPECT_TRUE(saved.contains("exp_avg_sq/transformer.h.1.mlp.c_fc.weight"));
      for (const char* to : {"1", "dp=2", "tp=2", "dp=3", "dp=2,tp=2", "tp=4"}) {
        Hashes loaded;
        with_job(Mesh::parse(to), 8, [&](parallel::Job& job, const Step&) {
          checkpoint::load(run, job);
          loaded.add(job);
        });
        EXPECT_EQ(loaded.by_name(), saved) << from << " -> " << to;
        ++loads;
      }
    }
  }
  EXPECT_EQ(loads, 72);
  std::filesystem::remove_all(run);
}

}  // namespace
}  // namespace tessera::ranks::checkpoint_job_test
