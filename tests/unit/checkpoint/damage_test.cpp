// Every bit of a checkpoint flipped, every file missing, cut, grown or exchanged: all of it is found, and named.
#include <iostream>

#include <ATen/ops/equal.h>
#include <gtest/gtest.h>

#include "tessera/checkpoint/folder/names.h"
#include "tessera/checkpoint/folder/verify.h"
#include "tessera/checkpoint/format/range_reader.h"
#include "tessera/checkpoint/store/faulty_store.h"
#include "tessera/checkpoint/store/memory_store.h"
#include "tests/unit/checkpoint/small_save.h"

namespace tessera::checkpoint::damage_test {
namespace {

using small_save::error_of;
using small_save::save_of;

constexpr const char* kFolder = "run/step_000100";

class Damage : public testing::Test {
 protected:
  void SetUp() override {
    store_.make_folder("run");
    manifest_ = small_save::save(store_, "run", save_of(100));
    ASSERT_EQ(find_damage(store_, kFolder), std::vector<std::string>{});
  }

  // Whether some sentence names the file.
  static bool names(const std::vector<std::string>& damage, const std::string& path) {
    return std::any_of(damage.begin(), damage.end(), [&](const std::string& each) {
      return each.find("\"" + path + "\"") != std::string::npos && each.find("; accepted: ") != std::string::npos;
    });
  }

  // What is found while a file has other content.
  std::vector<std::string> damage_with(const std::string& path, const std::string& content) {
    const auto before = read_all(store_, path);
    store_.damage(path, content);
    auto damage = find_damage(store_, kFolder);
    store_.damage(path, before);
    return damage;
  }

  MemoryStore store_;
  Manifest manifest_;
};

TEST_F(Damage, OfEveryBitIsFound) {
  int64_t flips = 0;
  for (const auto& path : store_.paths()) {
    const auto content = read_all(store_, path);
    for (size_t bit = 0; bit < 8 * content.size(); ++bit) {
      FaultyStore faulty(store_, {.flipped = {{path, static_cast<int64_t>(bit)}}});
      ASSERT_TRUE(names(find_damage(faulty, kFolder), path)) << path << " bit " << bit;
      ++flips;
    }
  }
  std::cout << flips << " bits of " << store_.paths().size() << " files\n";
}

// Reading notices what lies in the blocks that it needs, and needs no others.
TEST_F(Damage, OfEveryBitIsNoticedByWhoReadsIt) {
  int64_t noticed = 0, unconcerned = 0;
  for (size_t file = 0; file < manifest_.files.size(); ++file) {
    const auto& record = manifest_.files[file];
    const auto path = path_in(kFolder, record.name);
    for (int64_t bit = 0; bit < 8 * record.size; ++bit) {
      FaultyStore faulty(store_, {.flipped = {{path, bit}}});
      RangeReader reader(faulty, kFolder, manifest_);
      const int64_t block = bit / 8 / manifest_.save.block_size;
      const auto in_block = tensors_in(manifest_, static_cast<int64_t>(file), block * manifest_.save.block_size,
                                       std::min(record.size, (block + 1) * manifest_.save.block_size));
      for (const auto& table : manifest_.tensors) {
        const auto said = error_of([&] { reader.read_box(table, everything(table.sizes)); });
        const bool is_concerned = (", " + in_block).find(", " + table.name) != std::string::npos;
        ASSERT_EQ(said != "no error", is_concerned) << path << " bit " << bit << ": " << said;
        if (is_concerned) {
          ASSERT_NE(said.find("block " + std::to_string(block) + " "), std::string::npos) << said;
          ASSERT_NE(said.find(path), std::string::npos) << said;
          ASSERT_NE(said.find(table.name), std::string::npos) << said;
        }
        ++(is_concerned ? noticed : unconcerned);
      }
    }
  }
  EXPECT_GT(noticed, 0);
  EXPECT_GT(unconcerned, 0);
}

TEST_F(Damage, OfMissingCutAndGrownFilesIsFound) {
  for (const auto& path : store_.paths()) {
    const auto content = read_all(store_, path);
    const bool is_listed = manifest_.file_index(name_of(path)) >= 0;
    for (size_t size = 0; size < content.size(); ++size) {
      ASSERT_TRUE(names(damage_with(path, content.substr(0, size)), path)) << path << " cut to " << size;
    }
    for (const auto& more : {std::string(1, '\0'), std::string("\n"), content}) {
      ASSERT_TRUE(names(damage_with(path, content + more), path)) << path;
    }
    store_.remove(path);
    EXPECT_TRUE(names(find_damage(store_, kFolder), path)) << path;
    const auto state = list_steps(store_, "run").at(0).state;
    EXPECT_EQ(state, is_listed                    ? StepState::kDamaged
                     : name_of(path) == kManifest ? StepState::kUnfinished
                                                  : StepState::kWhole)
        << path;
    store_.damage(path, content);
  }
  store_.damage(path_in(kFolder, "stray"), "");
  EXPECT_TRUE(names(find_damage(store_, kFolder), path_in(kFolder, "stray")));
}

TEST_F(Damage, OfFilesOfAnotherSaveIsFound) {
  store_.make_folder("other");
  small_save::save(store_, "other", save_of(100, 0x9999));
  int64_t exchanged = 0;
  for (const auto& name : store_.list(kFolder).files) {
    const auto path = path_in(kFolder, name);
    const auto content = read_all(store_, path_in("other/step_000100", name));
    if (content == read_all(store_, path)) {
      EXPECT_TRUE(name == "config.json" || name == "model.safetensors.index.json") << name;
      continue;
    }
    ASSERT_FALSE(damage_with(path, content).empty()) << path;
    ++exchanged;
  }
  EXPECT_EQ(exchanged, 10);  // five parts, three receipts, claim, manifest
  const auto manifest = read_all(store_, path_in(kFolder, kManifest));
  store_.make_folder("run/step_000200");
  write_new(store_, "run/step_000200/manifest.json", manifest);
  EXPECT_EQ(list_steps(store_, "run").at(1).state, StepState::kDamaged);
  EXPECT_NE(list_steps(store_, "run").at(1).reason.find("of step 100, its folder of step 200"), std::string::npos);
}

TEST_F(Damage, OfWhatIsNewerOrUnknownIsRefused) {
  const auto text = read_all(store_, path_in(kFolder, kManifest));
  const auto with = [&](const std::string& from, const std::string& to) {
    auto open = text.substr(0, text.rfind(",\n\"checksum\""));
    open.replace(open.find(from), from.size(), to);
    return error_of([&] { read_manifest(seal(open), "m.json"); });
  };
  EXPECT_EQ(with("\"ranks\":3", "\"ranks\":3"), "no error");
  EXPECT_EQ(with("\"version\":2", "\"version\":1"), "no error");
  EXPECT_NE(with("\"version\":2", "\"version\":3").find("\"m.json\" has version 3"), std::string::npos);
  EXPECT_NE(with("\"ranks\":3", "\"ranks\":3,\"more\":1").find("has a \"more\""), std::string::npos);
  EXPECT_NE(with("\"ranks\":3", "\"rank\":3").find("lacks \"ranks\""), std::string::npos);
  EXPECT_NE(with("\"ranks\":3", "\"ranks\":\"3\"").find("\"ranks\" that cannot be read"), std::string::npos);
  EXPECT_NE(with("tessera manifest", "tessera receipt").find("is a \"tessera receipt\""), std::string::npos);
  EXPECT_NE(with("\"BF16\"", "\"BF17\"").find("has a tensor that cannot be"), std::string::npos);
  EXPECT_NE(with("\"block_size\":256", "\"block_size\":64").find("has a file that cannot be"), std::string::npos);
}

}  // namespace
}  // namespace tessera::checkpoint::damage_test
