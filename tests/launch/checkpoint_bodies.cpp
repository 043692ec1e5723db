#include "tests/launch/checkpoint_bodies.h"

#include <atomic>
#include <cstdlib>
#include <fstream>
#include <iostream>

#include <ATen/TensorOperators.h>
#include <ATen/ops/arange.h>
#include <ATen/ops/full.h>
#include <gtest/gtest.h>

#include "tessera/base/error.h"
#include "tessera/checkpoint/folder/names.h"
#include "tessera/checkpoint/ranks/load.h"
#include "tessera/checkpoint/ranks/save.h"
#include "tessera/checkpoint/store/posix_store.h"
#include "tessera/comm/threads/run_ranks.h"
#include "tessera/dtensor/front/dtensor.h"
#include "tessera/launch/environment.h"
#include "tessera/launch/run.h"
#include "tests/launch/killing.h"
#include "tests/support/resident_memory.h"

namespace tessera::launch::checkpoint_test {
namespace {

using checkpoint::Contents;
using checkpoint::PosixStore;
using std::chrono::milliseconds;

constexpr int64_t kTensors = 6;

at::Tensor value_of(int64_t tensor, int64_t step) {
  return at::arange(64 * (tensor + 1) * 32, at::kFloat).view({64 * (tensor + 1), 32}) + static_cast<double>(step);
}

void save_until_killed(const layout::Mesh& mesh, const std::string& run, int64_t rank, std::ostream& out) {
  Killer killer(std::make_shared<PosixStore>(), run, rank, order_of_environment(rank));
  for (int64_t step = 1;; ++step) {
    const Contents contents = contents_on(mesh, step);
    killer.begin_save(step);
    const auto saving = checkpoint::start_save(killer.store(), run, step, contents, {.keep = 2, .block_size = 4096});
    for (const auto& kept : contents.tensors) {
      kept.tensor.add_(0.5);
    }
    out << "step " << step << std::endl;
    saving->finish();
  }
}

constexpr int64_t kLarge = 2048;  // 16 MiB a tensor

Contents large_contents(const layout::Mesh& mesh) {
  Contents contents;
  for (int64_t i = 0; i < 10; ++i) {
    layout::Placements placements(mesh.ndim());
    placements[mesh.ndim() - 1] = layout::Shard(i % 2);
    const auto role = i < 5 ? catalogue::Role::kParameter : catalogue::Role::kMoment;
    contents.tensors.push_back(
        {"tensor " + std::to_string(i), role,
         dtensor::distribute(at::full({kLarge, kLarge}, static_cast<double>(i), at::kFloat), mesh, placements)});
  }
  return contents;
}

int64_t held_bytes(const Contents& contents) {
  int64_t bytes = 0;
  for (const auto& kept : contents.tensors) {
    bytes += static_cast<int64_t>(dtensor::to_local(kept.tensor).nbytes());
  }
  return bytes;
}

// Bytes that a rank's save copies if it is to: those of the files with tensors that it writes, but for their headers.
int64_t staged_bytes(const std::string& folder, int64_t rank) {
  PosixStore store;
  const auto path = checkpoint::path_in(folder, checkpoint::receipt_name(rank));
  int64_t bytes = 0;
  for (const auto& file : checkpoint::read_receipt(checkpoint::read_all(store, path), path).files) {
    bytes += file.size - file.data_begin;
  }
  return bytes;
}

void measure_memory(const layout::Mesh& mesh, const std::string& run, int64_t rank, std::ostream& out) {
  const auto store = std::make_shared<PosixStore>();
  checkpoint::save(store, run, 1, contents_on(mesh, 1));  // what a first save takes for good
  const Contents contents = large_contents(mesh);
  // The first copies lie in new memory, which the next save has again.
  int64_t step = 2;
  for (const auto& [name, options] : std::initializer_list<std::pair<std::string, checkpoint::SaveOptions>>{
           {"copied-slices", {.in_slices = true}}, {"copied-whole", {}}, {"whole", {.copies = false}}}) {
    const support::PeakOfMemory peak;
    const auto saving = checkpoint::start_save(store, run, step++, contents, options);
    saving->finish();
    const int64_t most = peak.bytes(), staged = options.copies ? staged_bytes(saving->folder(), rank) : 0;
    out << name << " " << staged << " " << most - staged << std::endl;
  }
  const auto found = checkpoint::open_for_ranks(store, checkpoint::step_folder(run, 2));
  const support::PeakOfMemory peak;
  checkpoint::load_tensors(found, contents);
  const int64_t most = peak.bytes(), held = held_bytes(contents);
  out << "load " << held << " " << most - held << std::endl;
}

}  // namespace

Contents contents_on(const layout::Mesh& mesh, int64_t step) {
  Contents contents;
  for (int64_t i = 0; i < kTensors; ++i) {
    layout::Placements placements(mesh.ndim());
    placements[i % mesh.ndim()] = layout::Shard(i % 2);
    const auto role = i < 3 ? catalogue::Role::kParameter : catalogue::Role::kMoment;
    contents.tensors.push_back(
        {"tensor " + std::to_string(i), role, dtensor::distribute(value_of(i, step), mesh, placements)});
  }
  return contents;
}

layout::Mesh mesh_of(int64_t ranks) {
  return layout::Mesh::parse(ranks == 4 ? "dp=2,tp=2" : "tp=" + std::to_string(ranks));
}

int64_t loaded_step(const std::string& folder, int64_t ranks) {
  std::atomic<int64_t> step = -1;
  comm::run_ranks(ranks, [&](int64_t rank) {
    const Contents contents = contents_on(mesh_of(ranks), -1000);
    checkpoint::load_tensors(checkpoint::open_for_ranks(std::make_shared<PosixStore>(), folder), contents);
    for (int64_t i = 0; i < kTensors; ++i) {
      const auto whole = dtensor::full_tensor(contents.tensors[static_cast<size_t>(i)].tensor);
      const auto own = static_cast<int64_t>(whole[0][0].item<float>());
      EXPECT_TRUE(at::equal(whole, value_of(i, own))) << "tensor " << i << " of " << folder;
      if (rank == 0) {
        EXPECT_TRUE(i == 0 || step == own) << "tensors of two steps in " << folder;
        step = own;
      }
    }
  });
  return step;
}

int run_body(const std::string& name) {
  const auto place = find_place();
  const std::string run = std::getenv("TESSERA_TEST_RUN");
  std::ofstream out(std::string(std::getenv("TESSERA_TEST_OUT")) + "/out_" + std::to_string(place->rank));
  const auto body = [&](int64_t rank) {
    const auto mesh = mesh_of(place->size);
    if (name == "save") {
      checkpoint::save(std::make_shared<PosixStore>(), run, 7, contents_on(mesh, 7));
    } else if (name == "memory") {
      measure_memory(mesh, run, rank, out);
    } else {
      save_until_killed(mesh, run, rank, out);
    }
  };
  try {
    run_job(place->size, body, {.deadline = milliseconds(20000), .intra_op_threads = 1});
  } catch (const std::exception& error) {
    std::cerr << "body: " << base::message_of(error) << std::endl;
    return 1;
  }
  return 0;
}

}  // namespace tessera::launch::checkpoint_test
