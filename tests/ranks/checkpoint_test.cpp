// What ranks hold, saved and loaded: any layout to any other, each byte once, and nothing changed by what is damaged.
#include <atomic>
#include <random>

#include "tessera/base/value_hash.h"
#include "tessera/checkpoint/folder/steps.h"
#include "tessera/checkpoint/format/box_runs.h"
#include "tessera/checkpoint/format/value_hash.h"
#include "tessera/checkpoint/offline/reshard.h"
#include "tessera/checkpoint/ranks/agree.h"
#include "tessera/checkpoint/ranks/block_plan.h"
#include "tessera/checkpoint/ranks/by_one.h"
#include "tessera/checkpoint/ranks/load.h"
#include "tessera/checkpoint/ranks/save.h"
#include "tessera/checkpoint/store/faulty_store.h"
#include "tessera/checkpoint/store/memory_store.h"
#include "tessera/dtensor/ops/layout_ops.h"
#include "tessera/watch/step_value.h"
#include "tests/ranks/support.h"
#include "tests/support/no_windows.h"

namespace tessera::ranks::checkpoint_test {
namespace {

using catalogue::Role;
using checkpoint::Contents;
using checkpoint::FaultyStore;
using checkpoint::load_tensors;
using checkpoint::MemoryStore;
using checkpoint::open_for_ranks;
using checkpoint::SaveOptions;
using checkpoint::Store;

constexpr const char* kRun = "run";
constexpr const char* kFolder = "run/step_000007";

struct Example {
  std::string name;
  Role role;
  at::Tensor value;
};

std::vector<Example> examples() {
  const auto half = waves({4, 6}).to(at::kBFloat16);
  return {{"bias", Role::kParameter, waves({7}).to(at::kFloat)},
          {"counts", Role::kBuffer, integers({5, 2}, at::kLong)},
          {"empty", Role::kParameter, at::empty({0, 3}, at::kFloat)},
          {"exp_avg/bias", Role::kMoment, waves({7}, 0.9).to(at::kDouble)},
          {"exp_avg/experts", Role::kMoment, waves({3, 5, 12}, 0.17).to(at::kFloat)},
          {"exp_avg/weight", Role::kMoment, waves({12, 10}, 0.11).to(at::kFloat)},
          {"experts", Role::kParameter, waves({3, 5, 12}).to(at::kFloat)},
          {"half", Role::kParameter, half},
          {"mask", Role::kBuffer, integers({6}).gt(0)},
          {"scale", Role::kParameter, at::full({}, 1.25, at::kDouble)},
          {"weight", Role::kParameter, waves({12, 10}).to(at::kFloat)}};
}

// So many elements in two parts, the others empty.
std::vector<int64_t> in_two(int64_t elements, int64_t parts, std::mt19937_64& random) {
  std::vector<int64_t> sizes(static_cast<size_t>(parts));
  const int64_t first = std::min<int64_t>(elements, 1);
  sizes[random() % sizes.size()] += first;
  sizes[random() % sizes.size()] += elements - first;
  return sizes;
}

// Of a tensor of these dims, drawn: cuts, cuts in units, in blocks and at given places, of two dims together, copies,
// one coordinate alone.
Placements drawn_layout(const Mesh& mesh, const at::Tensor& value, std::mt19937_64& random) {
  Placements placements;
  for (int64_t axis = 0; axis < mesh.ndim(); ++axis) {
    const auto dim = value.dim() > 0 ? static_cast<int64_t>(random() % static_cast<uint64_t>(value.dim())) : 0;
    switch (value.dim() == 0 ? random() % 2 : random() % 8) {
      case 0: placements.push_back(layout::Replicate()); break;
      case 1:
        placements.push_back(layout::On(static_cast<int64_t>(random() % static_cast<uint64_t>(mesh.axis(axis).size))));
        break;
      case 2: placements.push_back(layout::Shard(dim, {.unit = 2})); break;
      case 3:
        placements.push_back(value.size(dim) == 12 ? layout::InterleavedShard(dim, 3) : layout::Shard(dim));
        break;
      case 4:
        placements.push_back(layout::RaggedShard({dim}, in_two(value.size(dim), mesh.axis(axis).size, random)));
        break;
      case 5:
        placements.push_back(value.dim() == 1 ? layout::Shard(0)
                                              : layout::RaggedShard({0, 1}, in_two(value.size(0) * value.size(1),
                                                                                   mesh.axis(axis).size, random)));
        break;
      default: placements.push_back(layout::Shard(dim)); break;
    }
  }
  return layout::is_layout_of(mesh, placements, value.sizes()) ? placements : Placements(mesh.ndim());
}

// The examples as DTensors at layouts drawn by the seed, and a plain tensor; zeros where values are to be loaded.
Contents contents_on(const Mesh& mesh, uint64_t seed, bool with_values) {
  std::mt19937_64 random(seed);
  Contents contents;
  for (const auto& example : examples()) {
    const auto placements = drawn_layout(mesh, example.value, random);
    const auto value = with_values ? example.value : at::zeros_like(example.value);
    contents.tensors.push_back({example.name, example.role, distribute(value, mesh, placements)});
  }
  contents.tensors.push_back(
      {"plain", Role::kOther, with_values ? integers({3}, at::kByte) : at::zeros({3}, at::kByte)});
  contents.values = {{"step", "7"}, {"note", "\"said\""}};
  return contents;
}

void expect_values(const Contents& contents, const std::string& where) {
  const auto all = examples();
  for (size_t i = 0; i < all.size(); ++i) {
    const auto& kept = contents.tensors[i];
    EXPECT_TRUE(at::equal(full_tensor(kept.tensor), all[i].value))
        << kept.name << " " << spec_of(kept.tensor).str() << " " << where;
  }
  EXPECT_TRUE(at::equal(contents.tensors.back().tensor, integers({3}, at::kByte))) << where;
}

// Out of each other's memory or by messages.
class CheckpointTransport : public testing::TestWithParam<bool> {
 protected:
  static void run_with(const Mesh& mesh, const std::function<void()>& body) {
    run_on(mesh, [&](int64_t) {
      if (!GetParam()) {
        support::close_windows();
      }
      body();
    });
  }
};

INSTANTIATE_TEST_SUITE_P(All, CheckpointTransport, testing::Bool(),
                         [](const auto& info) { return info.param ? "ByWindows" : "ByMessages"; });

TEST_P(CheckpointTransport, AnyLayoutBecomesAnyOther) {
  const std::vector<std::string> meshes = {"1", "dp=2", "dp=3", "tp=4", "dp=2,tp=2"};
  for (size_t i = 0; i < meshes.size(); ++i) {
    for (const auto& to : meshes) {
      for (const bool in_slices : {false, true}) {
        const auto store = std::make_shared<MemoryStore>();
        const uint64_t seed = i * 100 + static_cast<uint64_t>(in_slices);
        const std::string where =
            meshes[i] + " -> " + to + (in_slices ? " in slices, seed " : ", seed ") + std::to_string(seed);
        const Mesh mesh = Mesh::parse(meshes[i]);
        run_with(mesh, [&] {
          const auto folder = checkpoint::save(store, kRun, 7, contents_on(mesh, seed, true),
                                               {.in_slices = in_slices, .block_size = 64});
          EXPECT_EQ(folder, kFolder);
        });
        const Mesh other = Mesh::parse(to);
        run_with(other, [&] {
          const Contents contents = contents_on(other, seed + 7, false);
          const auto found = open_for_ranks(store, kFolder);
          load_tensors(found, contents);
          expect_values(contents, where);
          EXPECT_EQ(found.catalogue.values().at("note"), "\"said\"");
        });
      }
    }
  }
}

// Tensors whose memory is no copy of what a file has: in another order, or of numbers that are read as their negatives.
TEST_P(CheckpointTransport, TensorsMayLieInMemoryAsTheyLike) {
  const auto value = waves({12, 10}).to(at::kFloat);
  const auto contents_of = [](const at::Tensor& turned, const at::Tensor& negated) {
    return Contents{.tensors = {{"negated", Role::kOther, negated}, {"turned", Role::kOther, turned}}, .values = {}};
  };
  const auto store = std::make_shared<MemoryStore>();
  run_with(Mesh::parse("tp=2"), [&] {
    checkpoint::save(store, kRun, 7, contents_of(value.t().contiguous().t(), at::_neg_view(-value)),
                     {.block_size = 64});
  });
  run_with(Mesh::parse("tp=3"), [&] {
    const auto plain = contents_of(at::zeros_like(value), at::zeros_like(value));
    const auto other = contents_of(at::zeros({10, 12}, at::kFloat).t(), at::_neg_view(at::zeros_like(value)));
    for (const auto& contents : {plain, other}) {
      for (const auto& kept : contents.tensors) {
        const auto version = kept.tensor._version();
        load_tensors(open_for_ranks(store, kFolder), {.tensors = {kept}, .values = {}}, {.allows_extra = true});
        EXPECT_TRUE(at::equal(kept.tensor, value)) << kept.name;
        EXPECT_GT(kept.tensor._version(), version) << "autograd does not see the write";
      }
    }
  });
}

TEST(CheckpointRanks, OnAnotherMeshPlacesThatDoNotFitAreEven) {
  const Mesh mesh = Mesh::parse("fsdp=3,tp=2");
  const auto entry = [&](const std::string& name, const std::string& layout) {
    return catalogue::Entry{
        name, {}, Role::kParameter, Spec::contiguous(mesh, layout::parse_placements(mesh, layout), {8, 4}, at::kFloat)};
  };
  const catalogue::Catalogue saved(
      {entry("both", "{fsdp: S(0|3,0,1@1), tp: S(0@0)}"), entry("rows", "{fsdp: S(0|3,0,5)}")});
  const auto layouts_on = [&](const char* text) {
    std::vector<std::string> layouts;
    const catalogue::Catalogue found = checkpoint::on_mesh(saved, Mesh::parse(text));
    for (const catalogue::Entry& entry : found.entries()) {
      layouts.push_back(entry.spec.layout_str());
    }
    return layouts;
  };
  using Layouts = std::vector<std::string>;
  EXPECT_EQ(layouts_on("fsdp=3,tp=2"), (Layouts{"{fsdp: S(0|3,0,1@1), tp: S(0@0)}", "{fsdp: S(0|3,0,5), tp: R}"}));
  EXPECT_EQ(layouts_on("fsdp=2,tp=2"), (Layouts{"{fsdp: S(0@1), tp: S(0@0)}", "{fsdp: S(0), tp: R}"}));
  EXPECT_EQ(layouts_on("dp=2,fsdp=3"), (Layouts{"{dp: R, fsdp: S(0)}", "{dp: R, fsdp: S(0|3,0,5)}"}));
}

TEST(CheckpointRanks, HashesOfValuesAreThoseOfTheRanks) {
  const Mesh mesh = Mesh::parse("dp=2,tp=2");
  const auto store = std::make_shared<MemoryStore>();
  std::map<std::string, std::atomic<uint64_t>> before, after;
  for (const auto& example : examples()) {
    before[example.name] = 0, after[example.name] = 0;
  }
  const auto add = [](const Contents& contents, auto& sums) {
    for (const auto& kept : contents.tensors) {
      if (dtensor::is_dtensor(kept.tensor)) {
        sums[kept.name] += watch::hash_value(kept.tensor);
      }
    }
  };
  run_on(mesh, [&](int64_t) {
    const Contents contents = contents_on(mesh, 3, true);
    add(contents, before);
    checkpoint::save(store, kRun, 7, contents);
  });
  const auto manifest = checkpoint::open_checkpoint(*store, kFolder);
  run_on(Mesh::parse("tp=3"), [&](int64_t) {
    const Contents contents = contents_on(Mesh::parse("tp=3"), 4, false);
    load_tensors(open_for_ranks(store, kFolder), contents);
    add(contents, after);
  });
  for (const auto& example : examples()) {
    if (example.value.numel() > 0) {
      ASSERT_NE(manifest.find(example.name), nullptr) << example.name;
      EXPECT_EQ(manifest.find(example.name)->value_hash, before[example.name].load()) << example.name;
    }
    EXPECT_EQ(before[example.name].load(), after[example.name].load()) << example.name;
  }
}

TEST(CheckpointRanks, NaNsAreOneValue) {
  const auto quiet = at::full({2}, std::numeric_limits<float>::quiet_NaN(), at::kFloat);
  const auto with_payload = at::full({2}, 0x7fc12345, at::kInt).view(at::kFloat),
             infinite = quiet.new_full({2}, INFINITY);
  const checkpoint::Box box = {{0, 2}};
  EXPECT_EQ(checkpoint::hash_slice(quiet, box, {2}), checkpoint::hash_slice(with_payload, box, {2}));
  EXPECT_EQ(checkpoint::hash_slice(quiet, box, {2}), checkpoint::hash_slice(-quiet, box, {2}));
  EXPECT_NE(checkpoint::hash_slice(quiet, box, {2}), checkpoint::hash_slice(infinite, box, {2}));
  EXPECT_EQ(checkpoint::hash_slice(infinite, box, {2}),
            base::hash_element(0, 0x7f800000) + base::hash_element(1, 0x7f800000));
}

// What a program does after the copies were made changes no bit of what is saved.
TEST(CheckpointRanks, StepsDuringASaveChangeNothing) {
  const Mesh mesh = Mesh::parse("dp=2,tp=2");
  for (const bool in_slices : {false, true}) {
    const auto store = std::make_shared<MemoryStore>();
    run_on(mesh, [&](int64_t) {
      const Contents contents = contents_on(mesh, 11, true);
      const auto saving = checkpoint::start_save(store, kRun, 7, contents, {.in_slices = in_slices});
      for (const auto& kept : contents.tensors) {
        kept.tensor.zero_();
      }
      saving->finish();
      load_tensors(open_for_ranks(store, kFolder), contents);
      expect_values(contents, "after the save");
    });
  }
}

// Each rank reads the blocks that are its own, and each block is some rank's.
TEST(CheckpointRanks, AFolderIsReadOnce) {
  const Mesh mesh = Mesh::parse("dp=2,tp=2");
  const auto store = std::make_shared<MemoryStore>();
  run_on(mesh, [&](int64_t) { checkpoint::save(store, kRun, 7, contents_on(mesh, 5, true), {.block_size = 64}); });
  const auto manifest = checkpoint::open_checkpoint(*store, kFolder);
  for (const char* text : {"1", "dp=3", "dp=2,tp=2"}) {
    std::atomic<int64_t> read = 0;
    int64_t planned = 0;
    run_on(Mesh::parse(text), [&](int64_t rank) {
      const Contents contents = contents_on(Mesh::parse(text), 6, false);
      const auto found = open_for_ranks(store, kFolder);
      read += load_tensors(found, contents);
      if (rank == 0) {
        for (const auto& block :
             checkpoint::plan_blocks(manifest, found.catalogue, checkpoint::catalogue_of(contents))) {
          planned += block.end - block.begin;
        }
      }
    });
    EXPECT_EQ(read.load(), planned) << text;
    int64_t data = 0, files = 0;
    for (const auto& tensor : manifest.tensors) {
      data += tensor.bytes_of(checkpoint::everything(tensor.sizes));
    }
    for (const auto& file : manifest.files) {
      files += file.size;
    }
    EXPECT_GE(planned, data);
    EXPECT_LE(planned, files);
  }
}

TEST(CheckpointRanks, ATiedTensorIsLoadedUnderAnyOfItsNames) {
  const Mesh mesh = Mesh::parse("tp=2");
  const auto store = std::make_shared<MemoryStore>();
  const auto value = waves({6, 4});
  run_on(mesh, [&](int64_t) {
    const auto saved = distribute(value, mesh, {layout::Shard(0)});
    checkpoint::save(store, kRun, 7, {.tensors = {{"table", Role::kParameter, saved, {"head"}}}, .values = {}});
    for (const char* name : {"table", "head"}) {
      const auto wanted = distribute(at::zeros_like(value), mesh, {layout::Shard(1)});
      load_tensors(open_for_ranks(store, kFolder), {.tensors = {{name, Role::kParameter, wanted}}, .values = {}});
      EXPECT_TRUE(at::equal(full_tensor(wanted), value)) << name;
    }
  });
}

TEST(CheckpointRanks, WhatDoesNotFitIsNamedBeforeAnythingChanges) {
  const Mesh mesh = Mesh::parse("tp=2");
  const auto store = std::make_shared<MemoryStore>();
  run_on(mesh, [&](int64_t) { checkpoint::save(store, kRun, 7, contents_on(mesh, 5, true)); });
  run_on(mesh, [&](int64_t) {
    Contents contents = contents_on(mesh, 5, false);
    contents.tensors[0].name = "renamed";
    contents.tensors.back().tensor = at::zeros({4}, at::kByte);
    const auto found = open_for_ranks(store, kFolder);
    try {
      load_tensors(found, contents);
      ADD_FAILURE() << "loaded";
    } catch (const DataError& error) {
      const auto text = base::message_of(error);
      EXPECT_SAYS(text, "renamed");
      EXPECT_SAYS(text, "bias");
      EXPECT_SAYS(text, "plain");
    }
    EXPECT_TRUE(at::equal(full_tensor(contents.tensors[10].tensor), at::zeros({12, 10}, at::kFloat)));
  });
}

TEST_P(CheckpointTransport, ADamagedBlockFailsAllRanksAndChangesNothing) {
  const Mesh mesh = Mesh::parse("dp=2,tp=2");
  const auto store = std::make_shared<MemoryStore>();
  run_on(mesh, [&](int64_t) { checkpoint::save(store, kRun, 7, contents_on(mesh, 5, true), {.block_size = 64}); });
  const auto manifest = checkpoint::open_checkpoint(*store, kFolder);
  std::mt19937_64 random(1);
  for (const auto& file : manifest.files) {
    if (file.data_begin == 0) {
      continue;
    }
    const auto bit =
        file.data_begin * 8 + static_cast<int64_t>(random() % static_cast<uint64_t>((file.size - file.data_begin) * 8));
    const auto path = std::string(kFolder) + "/" + file.name;
    const auto damaged = std::make_shared<FaultyStore>(*store, checkpoint::Faults{.flipped = {{path, bit}}});
    std::atomic<int64_t> failed = 0;
    run_with(mesh, [&] {
      const Contents contents = contents_on(mesh, 6, false);
      const auto has_values = [](const checkpoint::KeptTensor& kept) {
        const at::Tensor part =
            dtensor::is_dtensor(kept.tensor) ? dtensor::part_outside_program(kept.tensor) : kept.tensor;
        return part.count_nonzero().item<int64_t>() > 0;
      };
      try {
        load_tensors(open_for_ranks(damaged, kFolder), contents);
      } catch (const checkpoint::Damaged& error) {
        EXPECT_SAYS(base::message_of(error), "is damaged");
        EXPECT_SAYS(base::message_of(error), file.name);
        EXPECT_TRUE(std::none_of(contents.tensors.begin(), contents.tensors.end(), has_values));
        ++failed;
      }
      load_tensors(open_for_ranks(store, kFolder), contents);  // the job goes on
      EXPECT_TRUE(std::any_of(contents.tensors.begin(), contents.tensors.end(), has_values));
    });
    EXPECT_EQ(failed.load(), 4) << file.name << " bit " << bit;
  }
}

TEST(CheckpointRanks, AFullDiskIsAnErrorOnEveryRank) {
  const Mesh mesh = Mesh::parse("tp=2");
  const auto store = std::make_shared<MemoryStore>();
  run_on(mesh, [&](int64_t) { checkpoint::save(store, kRun, 6, contents_on(mesh, 5, true)); });
  const auto full = std::make_shared<FaultyStore>(*store, checkpoint::Faults{.room = 2000});
  std::atomic<int64_t> failed = 0;
  const auto failure = failure_on(2, [&](int64_t) {
    try {
      checkpoint::save(full, kRun, 7, contents_on(mesh, 6, true));  // the one that waits for receipts hears of it
    } catch (...) {
      ++failed;
      throw;
    }
  });
  EXPECT_EQ(failed.load(), 2);
  EXPECT_SAYS(failure, "step_000007");
  EXPECT_EQ(checkpoint::newest_whole(*store, kRun)->step, 6);
}

TEST(CheckpointRanks, TheLastOnesAreKeptAndAStepIsSavedOnce) {
  const Mesh mesh = Mesh::parse("tp=2");
  const auto store = std::make_shared<MemoryStore>();
  run_on(mesh, [&](int64_t) {
    for (int64_t step = 1; step <= 4; ++step) {
      checkpoint::save(store, kRun, step, contents_on(mesh, 5, true), {.keep = 2});
    }
  });
  const auto steps = checkpoint::list_steps(*store, kRun);
  ASSERT_EQ(steps.size(), 2u);
  EXPECT_EQ(steps[0].step, 3);
  EXPECT_EQ(steps[1].step, 4);
  const auto failure = failure_on(2, [&](int64_t) { checkpoint::save(store, kRun, 4, contents_on(mesh, 5, true)); });
  EXPECT_SAYS(failure, "that step is saved there already");
}

// What an example is read as from another program's file: numbers with a point in another dtype, all in memory of their
// own.
at::Tensor as_of_others(const at::Tensor& value) {
  return (value.scalar_type() == at::kFloat ? value.to(at::kDouble) : value).clone();
}

TEST(FilesOfOthers, GoToAnyLayoutTensorByTensor) {
  const auto all = examples();
  for (const auto& text : {"1", "dp=2", "tp=3", "dp=2,tp=2"}) {
    for (uint64_t seed = 0; seed < 6; ++seed) {
      const Mesh mesh = Mesh::parse(text);
      std::vector<std::atomic<int64_t>> reads(all.size() + 1);
      run_on(mesh, [&](int64_t) {
        const Contents contents = contents_on(mesh, seed, false);
        std::vector<at::Tensor> targets;
        for (const auto& kept : contents.tensors) {
          targets.push_back(kept.tensor);
        }
        checkpoint::load_by_one(targets, [&](size_t index) {
          ++reads[index];
          return index < all.size() ? as_of_others(all[index].value) : integers({3}, at::kByte);
        });
        expect_values(contents, std::string(text) + " seed " + std::to_string(seed));
      });
      for (size_t index = 0; index < reads.size(); ++index) {
        EXPECT_EQ(reads[index], 1) << index;
      }
    }
  }
}

TEST(FilesOfOthers, ThatFailAtAnyTensorChangeNothing) {
  const auto all = examples();
  const Mesh mesh = Mesh::parse("dp=2,tp=2");
  for (size_t bad = 0; bad < all.size(); ++bad) {
    for (const bool is_misshapen : {false, true}) {
      std::atomic<int64_t> unchanged = 0;
      const auto failure = failure_on(mesh.size(), [&](int64_t) {
        std::vector<at::Tensor> targets, parts;
        for (const auto& example : all) {
          targets.push_back(distribute(example.value, mesh, Placements(2)));
          parts.push_back(to_local(targets.back()).clone());
        }
        try {
          checkpoint::load_by_one(targets, [&](size_t index) -> at::Tensor {
            TESSERA_CHECK_AS(DataError, index != bad || is_misshapen, "[test] the file ends here");
            return index == bad ? at::zeros({1, 2, 3}) : at::zeros_like(all[index].value);
          });
        } catch (...) {
          for (size_t i = 0; i < targets.size(); ++i) {
            unchanged += at::equal(to_local(targets[i]), parts[i]) ? 1 : 0;
          }
          throw;
        }
      });
      EXPECT_SAYS(failure, is_misshapen ? "a tensor of sizes [1, 2, 3] was read for" : "the file ends here");
      EXPECT_EQ(unchanged, mesh.size() * static_cast<int64_t>(all.size())) << bad;
    }
  }
}

TEST(BoxRuns, ARangeOfElementsIsItsBoxes) {
  std::mt19937_64 random(2);
  for (const auto& box :
       std::vector<checkpoint::Box>{{}, {{2, 7}}, {{1, 4}, {3, 8}}, {{0, 2}, {1, 4}, {2, 5}}, {{3, 3}, {0, 2}}}) {
    const int64_t count = reshard::numel(box);
    for (int64_t begin = 0; begin <= count; ++begin) {
      for (int64_t end = begin; end <= count; ++end) {
        std::vector<int64_t> places;  // of the boxes' elements in `box`
        const auto boxes = reshard::boxes_of_range(box, begin, end);
        for (const auto& each : boxes) {
          checkpoint::for_each_run(each, box, each, [&](int64_t at, int64_t, int64_t elements) {
            for (int64_t i = 0; i < elements; ++i) {
              places.push_back(at + i);
            }
          });
        }
        ASSERT_LE(boxes.size(), 2 * box.size() + 1);
        ASSERT_EQ(static_cast<int64_t>(places.size()), end - begin) << begin << " " << end;
        for (int64_t i = 0; i < end - begin; ++i) {
          ASSERT_EQ(places[static_cast<size_t>(i)], begin + i);
        }
      }
    }
  }
}

}  // namespace
}  // namespace tessera::ranks::checkpoint_test
