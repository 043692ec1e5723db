// Bits of a large checkpoint flipped where they are read: found by verify_checkpoint and by a load on ranks, which name
// the file and the tensors. TESSERA_FLIPS=500: of 264 MiB; else a few of 8 MiB.
#include <cstdlib>
#include <filesystem>
#include <iostream>
#include <random>

#include <ATen/ops/arange.h>
#include <ATen/ops/full.h>
#include <gtest/gtest.h>
#include <unistd.h>

#include "tessera/checkpoint/folder/names.h"
#include "tessera/checkpoint/folder/steps.h"
#include "tessera/checkpoint/folder/verify.h"
#include "tessera/checkpoint/format/range_reader.h"
#include "tessera/checkpoint/ranks/load.h"
#include "tessera/checkpoint/ranks/save.h"
#include "tessera/checkpoint/store/faulty_store.h"
#include "tessera/checkpoint/store/posix_store.h"
#include "tessera/comm/threads/run_ranks.h"
#include "tessera/dtensor/front/dtensor.h"

namespace tessera::checkpoint::flips_test {
namespace {

using layout::Mesh;

constexpr int64_t kTensors = 33;  // every third one a parameter

struct Scale {
  int64_t flips = 12, rows = 32;
  int64_t block_size = int64_t{64} << 10;
};

Scale scale_asked() {
  const char* asked = std::getenv("TESSERA_FLIPS");
  return asked == nullptr ? Scale() : Scale{std::stoll(asked), 1024, kBlockSize};
}

KeptTensor tensor_on(const Mesh& mesh, int64_t index, int64_t rows, bool has_value) {
  const auto numbers = has_value ? at::arange(rows * 2048, at::kFloat) * static_cast<double>(index + 1)
                                 : at::full({rows * 2048}, -1.0, at::kFloat);
  layout::Placements placements(mesh.ndim());
  placements[index % mesh.ndim()] = layout::Shard(index % 2);
  const bool is_parameter = index % 3 == 0;
  return {"tensor " + std::to_string(index), is_parameter ? catalogue::Role::kParameter : catalogue::Role::kMoment,
          dtensor::distribute(numbers.reshape({rows, 2048}), mesh, placements)};
}

class Flips : public testing::Test {
 protected:
  Flips() : run_(std::filesystem::temp_directory_path() / ("tessera_flips_" + std::to_string(::getpid()))) {
    std::filesystem::remove_all(run_);
    const Mesh mesh = Mesh::parse("dp=2,tp=2");
    comm::run_ranks(4, [&](int64_t rank) {
      Contents contents;
      for (int64_t i = 0; i < kTensors; ++i) {
        contents.tensors.push_back(tensor_on(mesh, i, scale_.rows, true));
      }
      auto folder = save(std::make_shared<PosixStore>(), run_, 1, contents,
                         {.block_size = scale_.block_size, .files = {{"config.json", "{\"kind\": \"none\"}\n"}}});
      if (rank == 0) {
        folder_ = std::move(folder);
      }
    });
    manifest_ = open_checkpoint(posix_, folder_);
  }
  ~Flips() override { std::filesystem::remove_all(run_); }

  // The tensors of which the block that has the byte holds elements.
  std::vector<int64_t> tensors_at(int64_t file, int64_t byte) {
    std::vector<int64_t> found;
    const int64_t begin = byte / scale_.block_size * scale_.block_size, end = begin + scale_.block_size;
    for (int64_t i = 0; i < kTensors; ++i) {
      const auto* table = manifest_.find("tensor " + std::to_string(i));
      for (int64_t cell = 0; cell < table->slice_count(); ++cell) {
        const auto slice = table->slice(cell);
        const int64_t from = manifest_.files[static_cast<size_t>(file)].data_begin + slice.begin;
        if (slice.file == file && from < end && from + table->bytes_of(slice.box) > begin) {
          found.push_back(i);
          break;
        }
      }
    }
    return found;
  }

  // What two ranks say that load these tensors; "" if they load them.
  std::string load_error(Store& store, const std::vector<int64_t>& tensors) {
    const std::shared_ptr<Store> shared(&store, [](Store*) {});
    const Mesh mesh = Mesh::parse("tp=2");
    std::atomic<int64_t> changed = 0;
    try {
      comm::run_ranks(2, [&](int64_t) {
        Contents contents;
        for (const auto index : tensors) {
          contents.tensors.push_back(tensor_on(mesh, index, scale_.rows, false));
        }
        try {
          load_tensors(open_for_ranks(shared, folder_), contents, {.allows_extra = true});
        } catch (...) {
          for (const auto& kept : contents.tensors) {
            changed += (dtensor::to_local(kept.tensor) == -1.0).all().item<bool>() ? 0 : 1;
          }
          throw;
        }
      });
    } catch (const std::exception& error) {
      EXPECT_EQ(changed.load(), 0);
      return base::message_of(error);
    }
    return "";
  }

  const Scale scale_ = scale_asked();
  const std::string run_;
  std::string folder_;
  PosixStore posix_;
  Manifest manifest_;
};

TEST_F(Flips, AreFoundAndNamedByVerifyAndByALoad) {
  const uint64_t seed = std::random_device()();
  std::cout << "seed " << seed << "\n";
  SCOPED_TRACE("seed " + std::to_string(seed));
  std::mt19937_64 random(seed);
  const auto below = [&](int64_t bound) { return static_cast<int64_t>(random() % static_cast<uint64_t>(bound)); };
  const auto names = posix_.list(folder_).files;
  int64_t bytes = 0, in_parts = 0, in_others = 0;
  for (const auto& name : names) {
    bytes += *posix_.try_size(path_in(folder_, name));
  }
  for (int64_t flip = 0; flip < scale_.flips; ++flip) {
    const bool is_of_any = flip % 5 == 0;  // also small files, which few bytes would otherwise fall into
    std::string name = names[static_cast<size_t>(below(static_cast<int64_t>(names.size())))];
    while (!is_of_any && !name.ends_with(".safetensors")) {
      name = names[static_cast<size_t>(below(static_cast<int64_t>(names.size())))];
    }
    const auto path = path_in(folder_, name);
    const int64_t bit = below(8 * *posix_.try_size(path)), file = manifest_.file_index(name);
    const auto where = path + " bit " + std::to_string(bit);
    FaultyStore faulty(posix_, {.flipped = {{path, bit}}});
    const auto found = find_damage(faulty, folder_);
    ASSERT_EQ(found.size(), 1u) << where;
    EXPECT_NE(found[0].find("\"" + path + "\""), std::string::npos) << where << ": " << found[0];
    const auto tensors = file >= 0 ? tensors_at(file, bit / 8) : std::vector<int64_t>();
    if (tensors.empty()) {
      const bool is_read = name == kManifest;  // a load needs no claim, receipt or index
      EXPECT_EQ(load_error(faulty, {0}).find(path) != std::string::npos, is_read) << where;
      ++in_others;
      continue;
    }
    const auto said = load_error(faulty, tensors);
    for (const auto& text : {found[0], said}) {
      EXPECT_NE(text.find("block " + std::to_string(bit / 8 / scale_.block_size) + " "), std::string::npos) << text;
      EXPECT_NE(text.find(path), std::string::npos) << where << ": " << text;
      EXPECT_NE(text.find("tensor " + std::to_string(tensors[0])), std::string::npos) << where << ": " << text;
    }
    ++in_parts;
  }
  std::cout << in_parts << " flips in tensors and " << in_others << " in other files of " << names.size() << " with "
            << bytes << " bytes\n";
  EXPECT_EQ(find_damage(posix_, folder_), std::vector<std::string>{});
  EXPECT_EQ(load_error(posix_, {0, 1, 2}), "");
}

}  // namespace
}  // namespace tessera::checkpoint::flips_test
