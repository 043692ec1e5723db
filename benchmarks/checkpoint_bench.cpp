// What a save and a load of ranks that are processes cost, beside writing and reading as many bytes, in seconds of the
// slowest rank; benchmarks/python/checkpoint_bench.py compares them with PyTorch's. Reads come from the disk.
//
// Usage: bench_checkpoint                                             measures 256 MiB on 1, 2 and 4 ranks in /tmp
//        bench_checkpoint measure|save|load FOLDER MEBIBYTES RANKS    starts itself as so many processes:
//            measure   everything once, in a folder that is there
//            save      the step after the newest of the run FOLDER
//            load      the checkpoint FOLDER at another layout, and compares the values
//        bench_checkpoint verify FOLDER                               reads every byte of a checkpoint
#include <cstdlib>
#include <filesystem>
#include <functional>
#include <iostream>
#include <string>
#include <thread>

#include <ATen/TensorOperators.h>
#include <ATen/ops/full.h>
#include <ATen/ops/zeros.h>
#include <fcntl.h>
#include <unistd.h>

#include "benchmarks/measure.h"
#include "tessera/base/error.h"
#include "tessera/checkpoint/folder/names.h"
#include "tessera/checkpoint/folder/steps.h"
#include "tessera/checkpoint/folder/verify.h"
#include "tessera/checkpoint/ranks/load.h"
#include "tessera/checkpoint/ranks/save.h"
#include "tessera/checkpoint/store/posix_store.h"
#include "tessera/comm/core/context.h"
#include "tessera/dtensor/front/dtensor.h"
#include "tessera/launch/environment.h"
#include "tessera/launch/local.h"
#include "tessera/launch/run.h"

namespace tessera::benchmarks {
namespace {

using checkpoint::Contents;
using checkpoint::PosixStore;
using checkpoint::SaveOptions;
using layout::Mesh;

constexpr int64_t kTensors = 64;  // every third one a parameter, the others its moments
constexpr int64_t kColumns = 1024;
constexpr size_t kChunk = size_t{1} << 20;

// The layout that is saved, and another one.
Contents contents_of(int64_t mebibytes, bool is_other, double plus) {
  const int64_t ranks = comm::RankContext::require().world_size;
  const Mesh mesh = Mesh::parse(!is_other    ? "tp=" + std::to_string(ranks)
                                : ranks == 4 ? "dp=2,tp=2"
                                             : "dp=" + std::to_string(ranks));
  const int64_t rows = (mebibytes << 20) / kTensors / kColumns / 4;
  Contents contents;
  for (int64_t i = 0; i < kTensors; ++i) {
    layout::Placements placements(mesh.ndim());
    placements[mesh.ndim() - 1] = layout::Shard((i + is_other) % 2);
    const auto role = i % 3 == 0 ? catalogue::Role::kParameter : catalogue::Role::kMoment;
    contents.tensors.push_back(
        {"tensor " + std::to_string(i), role,
         dtensor::distribute(at::full({rows, kColumns}, static_cast<double>(i) + plus, at::kFloat), mesh, placements)});
  }
  return contents;
}

// What was written and removed is no longer the disk's to do.
void settle() {
  const auto& context = comm::RankContext::require();
  context.world->barrier();
  if (context.rank == 0) {
    ::sync();
    std::this_thread::sleep_for(std::chrono::milliseconds(500));
  }
  context.world->barrier();
}

double slowest(double own) {
  const auto most = at::full({1}, own, at::kDouble);
  comm::RankContext::require().world->all_reduce(most, layout::ReduceOp::kMax)->wait();
  return most.item<double>();
}

// The seconds of the slowest rank, on a disk at rest.
double seconds_of(const std::function<void()>& body) {
  settle();
  return slowest(microseconds(1, body) / 1e6);
}

// The next reads come from the disk, into memory that is there: of a virtual machine the host takes back what was free
// for some seconds, and then what is measured is how it gives that again. So the files are read once before.
void forget(const std::string& folder) {
  if (comm::RankContext::require().rank != 0) {
    return;
  }
  std::vector<char> read(size_t{4} << 20);
  for (const auto& entry : std::filesystem::directory_iterator(folder)) {
    const int file = ::open(entry.path().c_str(), O_RDONLY);
    while (::read(file, read.data(), read.size()) > 0) {
    }
    ::posix_fadvise(file, 0, 0, POSIX_FADV_DONTNEED);
    ::close(file);
  }
}

// Prints `name seconds` on rank 0.
void say(const std::string& name, double seconds) {
  if (comm::RankContext::require().rank == 0) {
    std::cout << name << " " << seconds << std::endl;
  }
}

// This rank's share of the bytes, written and made to last, and read.
void measure_raw(const std::string& folder, int64_t mebibytes) {
  const auto& context = comm::RankContext::require();
  const auto path = folder + "/raw-" + std::to_string(context.rank);
  const int64_t bytes = (mebibytes << 20) / context.world_size;
  const std::string chunk(kChunk, 'x');
  PosixStore store;
  say("raw_write", seconds_of([&] {
        const auto file = store.create(path);
        for (int64_t at = 0; at < bytes; at += static_cast<int64_t>(kChunk)) {
          file->append(chunk.data(), std::min(kChunk, static_cast<size_t>(bytes - at)));
        }
        file->close();
      }));
  forget(folder);
  std::string read(size_t{4} << 20, '\0');
  say("raw_read", seconds_of([&] {
        for (int64_t at = 0; at < bytes; at += static_cast<int64_t>(read.size())) {
          store.read(path, at, read.data(), std::min(read.size(), static_cast<size_t>(bytes - at)));
        }
      }));
  std::filesystem::remove(path);
}

// The step's files leave the memory that they are cached in too.
void remove(const std::string& run, int64_t step) {
  const auto& context = comm::RankContext::require();
  context.world->barrier();
  if (context.rank == 0) {
    std::filesystem::remove_all(checkpoint::step_folder(run, step));
  }
}

std::string kind_of(const SaveOptions& options) { return options.in_slices ? "slices" : "whole"; }

// A save that is waited for; leaves nothing. What memory it needs is new in the `first`.
void measure_save(const std::string& run, const Contents& contents, int64_t step, const SaveOptions& options,
                  const std::string& first = "") {
  say("save_" + first + kind_of(options),
      seconds_of([&] { checkpoint::save(std::make_shared<PosixStore>(), run, step, contents, options); }));
  remove(run, step);
}

// A save beside which the program goes on: how long it waits for copies.
void measure_blocked(const std::string& run, const Contents& contents, int64_t step, const SaveOptions& options,
                     const std::string& first = "") {
  double blocked = 0;
  const double all = seconds_of([&] {
    std::unique_ptr<checkpoint::Saving> saving;
    blocked =
        microseconds(
            1, [&] { saving = checkpoint::start_save(std::make_shared<PosixStore>(), run, step, contents, options); }) /
        1e6;
    saving->finish();
  });
  say("blocked_" + first + kind_of(options), slowest(blocked));
  say("async_" + first + kind_of(options), all);
}

void verify_loaded(const Contents& contents, double plus) {
  for (size_t i = 0; i < contents.tensors.size(); ++i) {
    const auto part = dtensor::to_local(contents.tensors[i].tensor);
    TESSERA_CHECK((part == static_cast<double>(i) + plus).all().item<bool>(), "[bench] other values of tensor ", i);
  }
}

void measure_load(const std::string& folder, int64_t mebibytes, bool is_other, const std::string& kind,
                  double plus = 0) {
  const Contents contents = contents_of(mebibytes, is_other, -1000);
  forget(folder);
  say((is_other ? "load_other" : "load_same") + kind, seconds_of([&] {
        checkpoint::load_tensors(checkpoint::open_for_ranks(std::make_shared<PosixStore>(), folder), contents);
      }));
  verify_loaded(contents, plus);
}

// One round: what is compared takes turns, so that other work on the machine disturbs all alike.
void measure(const std::string& folder, int64_t mebibytes) {
  const auto run = folder + "/run";
  const Contents contents = contents_of(mebibytes, false, 0);
  measure_raw(folder, mebibytes);
  measure_save(run, contents, 1, {}, "first_");
  measure_save(run, contents, 1, {});
  measure_save(run, contents, 2, {.in_slices = true});
  measure_blocked(run, contents, 3, {}, "first_");
  remove(run, 3);
  measure_blocked(run, contents, 4, {});
  measure_blocked(run, contents, 5, {.in_slices = true});
  for (const int64_t step : {4, 5}) {
    for (const bool is_other : {false, true}) {
      measure_load(checkpoint::step_folder(run, step), mebibytes, is_other, step == 4 ? "_of_whole" : "_of_slices");
    }
  }
}

// Every element is its tensor's number plus the step.
void save_next(const std::string& run, int64_t mebibytes) {
  const auto store = std::make_shared<PosixStore>();
  const auto newest = std::filesystem::exists(run) ? checkpoint::newest_whole(*store, run) : std::nullopt;
  const int64_t step = newest ? newest->step + 1 : 1;
  const Contents contents = contents_of(mebibytes, false, static_cast<double>(step));
  comm::RankContext::require().world->barrier();  // all have looked
  checkpoint::save(store, run, step, contents);
}

int run_rank(const std::string& what, const std::string& folder, int64_t mebibytes) {
  launch::run_job(launch::find_place()->size,
                  [&](int64_t) {
                    if (what == "measure") {
                      measure(folder, mebibytes);
                    } else if (what == "save") {
                      save_next(folder, mebibytes);
                    } else {
                      const auto step = checkpoint::try_step_of(checkpoint::name_of(folder));
                      measure_load(folder, mebibytes, true, "", static_cast<double>(step.value_or(0)));
                    }
                  },
                  {.intra_op_threads = 1});
  return 0;
}

int verify(const std::string& folder) {
  PosixStore store;
  const auto damage = checkpoint::find_damage(store, folder);
  for (const auto& each : damage) {
    std::cout << each << "\n";
  }
  return damage.empty() ? 0 : 1;
}

int start(const std::string& what, const std::string& folder, int64_t mebibytes, int64_t ranks) {
  return launch::run_local(
      {.ranks = ranks, .command = {"/proc/self/exe", what, folder, std::to_string(mebibytes), std::to_string(ranks)}});
}

int measure_all() {
  auto pattern = (std::filesystem::temp_directory_path() / "tessera_bench_XXXXXX").string();
  const std::string folder = ::mkdtemp(pattern.data());
  int code = 0;
  for (const int64_t ranks : {1, 2, 4}) {
    std::cout << ranks << " processes, 256 MiB" << std::endl;
    code = std::max(code, start("measure", folder, 256, ranks));
    std::filesystem::remove_all(folder + "/run");
  }
  std::filesystem::remove_all(folder);
  return code;
}

}  // namespace
}  // namespace tessera::benchmarks

int main(int argc, char** argv) {
  using namespace tessera;
  const std::vector<std::string> given(argv + 1, argv + argc);
  try {
    if (given.size() == 2 && given[0] == "verify") {
      return benchmarks::verify(given[1]);
    }
    if (given.size() != 4) {
      return benchmarks::measure_all();
    }
    const auto mebibytes = std::stoll(given[2]);
    return launch::is_launched() ? benchmarks::run_rank(given[0], given[1], mebibytes)
                                 : benchmarks::start(given[0], given[1], mebibytes, std::stoll(given[3]));
  } catch (const std::exception& error) {
    std::cerr << base::message_of(error) << std::endl;
    return 1;
  }
}
