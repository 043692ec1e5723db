// What a program keeps of a job and drops after it: nothing is written to memory that the job has freed.
#include <cstdint>
#include <memory>
#include <mutex>
#include <ostream>
#include <string>
#include <vector>

#include <gtest/gtest.h>
#include <torch/torch.h>

#include "tessera/dtensor/front/dtensor.h"
#include "tessera/parallel/deferred.h"
#include "tessera/parallel/generate_plan.h"
#include "tessera/parallel/job.h"
#include "tests/ranks/hooked_layers.h"
#include "tests/ranks/support.h"
#include "tests/support/freed_blocks.h"

namespace tessera::ranks::outliving_test {
namespace {

constexpr int64_t kWidth = 8;

struct Run {
  std::string mesh, schedule;
  dtensor::Numerics numerics;
  int64_t throws_at = 0;  // which backward pass of each rank; 0: none

  std::string str() const {
    return c10::str("mesh ", mesh, ", schedule `", schedule, "`, ",
                    numerics == dtensor::Numerics::kExact ? "exact" : "fast", ", throws in pass ", throws_at);
  }
};

void PrintTo(const Run& run, std::ostream* out) { *out << run.str(); }

// What the program has when the ranks have ended.
struct Kept {
  std::mutex lock;
  std::vector<std::shared_ptr<const void>> objects;
  std::vector<at::Tensor> tensors;
};

// Two steps.
void train(const Run& run, Kept& kept) {
  const auto mesh = Mesh::parse(run.mesh);
  const std::string said = failure_on(mesh.size(), [&](int64_t) {
    dtensor::set_numerics(run.numerics);
    auto passes = std::make_shared<int64_t>(0);
    auto model = parallel::deferred([&] {
      return HookedLayers(4, kWidth, nullptr, [passes, at = run.throws_at](const at::Tensor&) {
        TESSERA_CHECK(++*passes != at, "[test] the layer is broken");
      });
    });
    auto optimizer = std::make_shared<torch::optim::AdamW>(model->parameters());
    const auto plan = parallel::generate_plan(*model, {.mesh = mesh, .schedule = run.schedule});
    auto job = std::make_shared<parallel::Job>(parallel::parallelize(model, plan, *optimizer, {.accumulate = 4}));
    {
      const std::lock_guard lock(kept.lock);
      kept.objects.emplace_back(model.ptr());
      kept.objects.emplace_back(optimizer);
      kept.objects.emplace_back(job);
    }
    for (int step = 0; step < 2; ++step) {
      optimizer->zero_grad();
      const at::Tensor loss = (*job)(waves({8, kWidth}).to(at::kFloat));
      loss.backward({}, /*retain_graph=*/true);
      optimizer->step();
      const std::lock_guard lock(kept.lock);
      kept.tensors.push_back(loss);
      kept.tensors.push_back(model->layers[0]->parameters()[0].t());
    }
  });
  EXPECT_EQ(says(said, "[test] the layer is broken"), run.throws_at > 0) << said;
}

class Outliving : public testing::TestWithParam<Run> {};

TEST_P(Outliving, NothingIsWrittenToWhatTheJobFreed) {
  const support::FreedBlocks freed_blocks;
  {
    Kept kept;
    train(GetParam(), kept);
    EXPECT_EQ(freed_blocks.written(), 0) << "while the job ran";
  }
  EXPECT_EQ(freed_blocks.written(), 0) << "when all that was kept went";
}

std::vector<Run> runs() {
  std::vector<Run> all;
  for (const auto numerics : {dtensor::Numerics::kFast, dtensor::Numerics::kExact}) {
    for (const char* schedule : {"1f1b", "zb-h1", "zbv"}) {
      for (int64_t throws_at : {0, 1, 3}) {
        all.push_back({"pp=2", schedule, numerics, throws_at});
      }
    }
    for (const char* mesh : {"1", "dp=2", "fsdp=2", "tp=2"}) {
      all.push_back({mesh, "", numerics, 0});
      all.push_back({mesh, "", numerics, 3});
    }
  }
  return all;
}

INSTANTIATE_TEST_SUITE_P(Runs, Outliving, testing::ValuesIn(runs()));

TEST(FreedMemory, AWriteIsSeen) {
  const support::FreedBlocks freed_blocks;
  void* const memory = operator new(24);
  const volatile auto place = reinterpret_cast<uintptr_t>(memory);  // else the compiler refuses the write
  operator delete(memory);
  EXPECT_EQ(freed_blocks.written(), 0);
  *reinterpret_cast<volatile char*>(place) = 1;
  EXPECT_EQ(freed_blocks.written(), 1);
}

}  // namespace
}  // namespace tessera::ranks::outliving_test
