// Checksums, tables, documents and ranges of the files of a checkpoint, each against the plainest form of itself.
#include <iostream>
#include <numeric>
#include <random>

#include <ATen/ops/arange.h>
#include <ATen/ops/equal.h>
#include <ATen/ops/zeros.h>
#include <gtest/gtest.h>

#include "tessera/checkpoint/format/manifest.h"
#include "tessera/checkpoint/format/numbers.h"
#include "tessera/checkpoint/format/range_reader.h"
#include "tessera/checkpoint/format/safetensors.h"
#include "tessera/checkpoint/format/weight_index.h"
#include "tessera/checkpoint/store/memory_store.h"
#include "tests/unit/checkpoint/small_save.h"

namespace tessera::checkpoint::format_test {
namespace {

using small_save::error_of;

// Reference values of XXH3-64 with seed 0, from its specification's own test vectors.
TEST(BlockHashes, AreThoseOfXxh3) {
  EXPECT_EQ(checksum(""), 0x2d06800538d394c2ULL);
  EXPECT_EQ(hex(checksum("")), "2d06800538d394c2");
}

TEST(BlockHashes, DoNotDependOnHowTheBytesCame) {
  std::mt19937_64 random(7);
  std::string bytes(10'000, '\0');
  std::generate(bytes.begin(), bytes.end(), [&] { return static_cast<char>(random()); });
  for (const int64_t block : {1, 64, 4096, 5000, 10'000, 20'000}) {
    std::vector<uint64_t> expected;
    for (size_t at = 0; at < bytes.size(); at += static_cast<size_t>(block)) {
      expected.push_back(checksum(bytes.substr(at, static_cast<size_t>(block))));
    }
    BlockHasher hasher(block);
    for (size_t at = 0; at < bytes.size();) {
      const size_t count = std::min(bytes.size() - at, static_cast<size_t>(random() % 3000));
      hasher.add(bytes.data() + at, count);
      at += count;
    }
    EXPECT_EQ(hasher.size(), 10'000);
    EXPECT_EQ(hasher.finish(), expected) << block;
    EXPECT_EQ(static_cast<int64_t>(expected.size()), block_count(10'000, block));
  }
  EXPECT_EQ(BlockHasher(8).finish(), std::vector<uint64_t>{});
}

TEST(Numbers, ReadBackAndNothingElseReads) {
  std::mt19937_64 random(8);
  for (size_t count = 0; count < 9; ++count) {
    std::vector<uint64_t> values(count);
    std::generate(values.begin(), values.end(), [&] { return random(); });
    const auto text = base64(values);
    EXPECT_EQ(text.size(), (count * 64 + 5) / 6);
    EXPECT_EQ(try_parse_base64(text), values);
    EXPECT_EQ(try_parse_base64(text + "A"), std::nullopt);
    for (const auto value : values) {
      EXPECT_EQ(try_parse_hex(hex(value)), value);
    }
  }
  EXPECT_EQ(base64({0x0706050403020100ULL}), "AAECAwQFBgc");
  EXPECT_EQ(try_parse_base64("AAECAwQFBgd"), std::nullopt);  // a bit behind the last byte
  EXPECT_EQ(try_parse_base64("AAECAwQFBg*"), std::nullopt);
  EXPECT_EQ(try_parse_hex("00000000DEADBEEF"), std::nullopt);
  EXPECT_EQ(try_parse_hex("deadbeef"), std::nullopt);
}

// A part byte for byte: the format's length, a header of sorted names, wide elements first.
TEST(Parts, AreByteForByteWhatTheFormatSays) {
  MemoryStore store;
  const auto part = write_part(store, "", "p", small_save::save_of(7),
                               {{"b", {4, 2}, {{2, 4}, {0, 2}}, at::arange(4, at::kChar).reshape({2, 2})},
                                {"a", {1}, {{0, 1}}, at::zeros({1}, at::kFloat)}});
  std::string header = R"({"__metadata__":{"format":"pt","save_number":"000000000000123b"},)"
                       R"("a":{"dtype":"F32","shape":[1],"data_offsets":[0,4]},)"
                       R"("b[2:4, 0:2]":{"dtype":"I8","shape":[2,2],"data_offsets":[4,8]}})";
  header.resize((header.size() + 7) / 8 * 8, ' ');
  const auto length = static_cast<char>(header.size());
  ASSERT_LT(header.size(), 256u);
  EXPECT_EQ(read_all(store, "p"), length + std::string(7, '\0') + header + std::string("\0\0\0\0\0\1\2\3", 8));
  EXPECT_EQ(part.file.data_begin, static_cast<int64_t>(8 + header.size()));
  EXPECT_EQ(part.file.size, part.file.data_begin + 8);
  EXPECT_EQ(part.pieces[1].name, "b");
  EXPECT_EQ(part.pieces[1].begin, 4);
  EXPECT_THROW(write_part(store, "", "q", small_save::save_of(7), {{"b", {4}, {{0, 3}}, at::zeros({2})}}), c10::Error);
  EXPECT_THROW(write_part(store, "", "q", small_save::save_of(7), {{"b", {4}, {{3, 5}}, at::zeros({2})}}), c10::Error);
  EXPECT_EQ(store.try_size("q"), std::nullopt);
}

TEST(Parts, HoldEveryDtype) {
  MemoryStore store;
  for (const auto dtype :
       {at::kDouble, at::kFloat, at::kBFloat16, at::kHalf, at::kFloat8_e4m3fn, at::kFloat8_e5m2, at::kLong, at::kInt,
        at::kShort, at::kChar, at::kUInt64, at::kUInt32, at::kUInt16, at::kByte, at::kBool}) {
    const auto value = at::arange(6, at::kInt).to(dtype);
    const auto name = std::string(c10::toString(dtype));
    const auto part = write_part(store, "", name, small_save::save_of(1), {{name, {6}, {{0, 6}}, value}});
    std::string expected(static_cast<const char*>(value.data_ptr()), value.nbytes());
    EXPECT_TRUE(read_all(store, name).ends_with(expected)) << name;
    EXPECT_EQ(part.pieces[0].dtype, dtype);
  }
}

// Tensors of drawn sizes on drawn grids, in files in drawn order: every box comes back.
TEST(Ranges, AreThoseOfTheTensorWhateverItsSlices) {
  std::mt19937_64 random(11);
  const auto below = [&](int64_t bound) { return static_cast<int64_t>(random() % static_cast<uint64_t>(bound)); };
  for (int sample = 0; sample < 60; ++sample) {
    std::vector<int64_t> sizes;
    std::vector<Box> boxes{{}};
    for (int64_t d = below(4); d > 0; --d) {
      sizes.push_back(1 + below(7));
      std::vector<Box> finer;
      for (int64_t begin = 0, end = 0; begin < sizes.back(); begin = end) {
        end = std::min(sizes.back(), begin + 1 + below(4));
        for (auto box : boxes) {
          box.push_back({begin, end});
          finer.push_back(box);
        }
      }
      boxes = finer;
    }
    std::shuffle(boxes.begin(), boxes.end(), random);
    const auto value = at::arange(reshard::numel(everything(sizes)), at::kFloat).reshape(sizes);
    const auto cut = [&](const Box& box) {
      auto part = value;
      for (size_t d = 0; d < box.size(); ++d) {
        part = part.slice(static_cast<int64_t>(d), box[d].begin, box[d].end);
      }
      return part;
    };
    MemoryStore store;
    const SaveId save{.number = 1, .step = 2, .block_size = 1 + below(40)};
    ManifestMaker maker(save);
    for (int64_t rank = 0; rank < 3; ++rank) {
      std::vector<Piece> pieces{{"other", {3}, {{rank, rank + 1}}, at::zeros({1}, at::kDouble)}};
      for (size_t i = static_cast<size_t>(rank); i < boxes.size(); i += 3) {
        pieces.push_back({"x", sizes, boxes[i], cut(boxes[i]), 5});
      }
      const auto name = "part" + std::to_string(rank);
      const auto part = write_part(store, "", name, save, pieces);
      const auto text = write_receipt({save, rank, {part.file}, part.pieces});
      const auto receipt = read_receipt(text, "r");
      EXPECT_EQ(receipt, (Receipt{save, rank, {part.file}, part.pieces}));
      maker.add(receipt, "r");
    }
    const auto manifest = read_manifest(write_manifest(maker.make({{"any", 1}})), "m");
    EXPECT_EQ(manifest, maker.make({{"any", 1}}));
    const auto* table = manifest.find("x");
    ASSERT_NE(table, nullptr);
    EXPECT_EQ(table->slice_count(), static_cast<int64_t>(boxes.size()));
    EXPECT_EQ(table->value_hash, 5 * boxes.size());
    EXPECT_EQ(manifest.find("y"), nullptr);
    for (int box_sample = 0; box_sample < 8; ++box_sample) {
      Box wanted;
      for (const auto size : sizes) {
        const auto begin = below(size);
        wanted.push_back({begin, begin + 1 + below(size - begin)});
      }
      RangeReader reader(store, "", manifest);
      ASSERT_TRUE(at::equal(reader.read_box(*table, wanted), cut(wanted))) << entry_name("x", {}, wanted);
    }
  }
}

std::vector<PlacedPiece> pieces_like_a_model() {
  std::vector<PlacedPiece> pieces;
  for (const char* prefix : {"", "exp_avg/"}) {
    for (int64_t layer = 0; layer < 12; ++layer) {
      for (const char* name : {"weight", "bias", "w\u00e4rme", "w\u00f6rt"}) {
        const bool is_vector = name[0] == 'b';
        pieces.push_back({.name = prefix + std::to_string(layer) + "." + name,
                          .dtype = prefix[0] == 0 ? at::kBFloat16 : at::kFloat,
                          .sizes = is_vector ? std::vector<int64_t>{8} : std::vector<int64_t>{8, 4},
                          .box = is_vector ? Box{{2, 4}} : Box{{2, 4}, {0, 4}},
                          .value_hash = static_cast<uint64_t>(layer) << 60,
                          .file = layer % 2,
                          .begin = 16 * layer});
      }
    }
  }
  pieces.push_back({.name = "step", .dtype = at::kLong, .sizes = {}, .box = {}});
  return pieces;
}

TEST(Receipts, HaveOneColumnForEachMemberOfAPiece) {
  const SaveId save{.number = 1, .step = 2};
  const std::vector<FileRecord> files{{.name = "a", .size = 400, .data_begin = 100, .blocks = {5}},
                                      {.name = "b", .size = 400, .data_begin = 100, .blocks = {6}}};
  const Receipt receipt{save, 3, files, pieces_like_a_model()};
  const auto text = write_receipt(receipt);
  EXPECT_EQ(read_receipt(text, "r"), receipt);
  EXPECT_EQ(read_receipt(write_receipt({save, 3, files, {}}), "r"), (Receipt{save, 3, files, {}}));
  auto columns = nlohmann::json::parse(text).at("pieces");
  EXPECT_LE(columns.at("sizes").size(), 30u);
  const auto error_with = [&](const std::string& column, const nlohmann::json& content) {
    auto open = text.substr(0, text.find(",\n\"pieces\""));
    auto changed = columns;
    changed[column] = content;
    return error_of([&] { read_receipt(seal(open + ",\"pieces\":" + changed.dump()), "r"); });
  };
  for (const auto& [name, content] : columns.items()) {
    EXPECT_EQ(error_with(name, content), "no error");
    auto longer = content;
    if (longer.is_array()) {
      longer.insert(longer.end(), content.begin(), content.end());
    } else {
      longer = content.get<std::string>() + "AAAAAAAAAAA";
    }
    for (const auto& other : {longer, nlohmann::json::array(), nlohmann::json(7), nlohmann::json(nullptr)}) {
      EXPECT_NE(error_with(name, other).find("\"r\" has pieces that cannot be read"), std::string::npos)
          << name << " " << error_with(name, other);
    }
  }
  EXPECT_NE(error_with("more", 1), "no error");
  const std::vector<std::pair<std::string, nlohmann::json>> faults = {
      {"files", {2, 0, 97}},    {"files", {-1, 0, 97}}, {"begins", {301, 0, 97}},        {"begins", {-1, 0, 97}},
      {"begins", {290, 0, 97}}, {"dims", {-1, 0, 97}},  {"dims", {1'000'000'000, 0, 97}}};
  for (const auto& [name, content] : faults) {
    EXPECT_NE(error_with(name, content), "no error") << name << content;
  }
}

// A file that is read from front to back in pieces is read and checked once.
TEST(Ranges, EachBlockIsReadOnce) {
  MemoryStore store;
  const SaveId save{.number = 1, .step = 2, .block_size = 100};
  ManifestMaker maker(save);
  const auto part = write_part(store, "", "p", save,
                               {{"x", {50, 20}, {{0, 50}, {0, 20}}, at::arange(1000, at::kInt).reshape({50, 20})}});
  maker.add(Receipt{save, 0, {part.file}, part.pieces}, "r");
  const auto manifest = maker.make({});
  std::string whole(static_cast<size_t>(part.file.size), '\0');
  for (const int64_t piece : {1, 7, 99, 100, 101, 250, 5000}) {
    RangeReader reader(store, "", manifest);
    for (int64_t at = 0; at < part.file.size; at += piece) {
      reader.read(0, at, std::min(at + piece, part.file.size), whole.data() + at);
    }
    EXPECT_EQ(whole, read_all(store, "p"));
    EXPECT_EQ(reader.bytes_read(), part.file.size) << piece;
  }
  RangeReader columns(store, "", manifest);
  columns.read_box(manifest.tensors[0], {{0, 50}, {3, 5}});
  EXPECT_LE(columns.bytes_read(), part.file.size);
  EXPECT_THROW(columns.read(0, 0, part.file.size + 1, whole.data()), DataError);
}

TEST(Tables, SlicesThatAreNoTensorAreRefused) {
  const auto says = [](std::vector<Box> boxes, const std::string& part) {
    TableMaker maker;
    for (const auto& box : boxes) {
      maker.add({.name = "x", .dtype = at::kFloat, .sizes = {4, 6}, .box = box, .value_hash = 0, .file = 0, .begin = 0},
                0);
    }
    const auto said = error_of([&] { maker.make("x"); });
    EXPECT_NE(said.find(part), std::string::npos) << said;
  };
  says({{{0, 2}, {0, 6}}, {{2, 4}, {0, 6}}}, "no error");
  says({{{0, 2}, {0, 6}}, {{2, 4}, {0, 6}}, {{4, 4}, {0, 6}}}, "no error");  // a rank that has nothing
  says({{{0, 2}, {0, 6}}}, "x[2:4, 0:6] was written by no rank");
  says({{{0, 2}, {0, 3}}, {{2, 4}, {3, 6}}, {{0, 2}, {3, 6}}}, "x[2:4, 0:3] was written by no rank");
  says({{{0, 2}, {0, 6}}, {{2, 4}, {0, 6}}, {{0, 2}, {0, 6}}}, "x[0:2, 0:6] is there twice");
  says({{{0, 3}, {0, 6}}, {{2, 4}, {0, 6}}}, "overlaps others in part");
  says({{{0, 4}, {0, 3}}, {{0, 2}, {3, 6}}, {{2, 4}, {3, 6}}}, "overlaps others in part");
  TableMaker maker;
  maker.add({.name = "x", .dtype = at::kFloat, .sizes = {4}, .box = {{0, 2}}}, 0);
  EXPECT_NE(error_of([&] {
              maker.add({.name = "x", .dtype = at::kHalf, .sizes = {4}, .box = {{2, 4}}}, 0);
            }).find("disagree"),
            std::string::npos);
}

TEST(WeightIndex, NamesWhatLiesWholeInModelFiles) {
  MemoryStore store;
  store.make_folder("run");
  const auto manifest = small_save::save(store, "run", small_save::save_of(100));
  const auto index = nlohmann::json::parse(read_all(store, "run/step_000100/model.safetensors.index.json"));
  EXPECT_EQ(index, (nlohmann::json{{"metadata", {{"total_size", 4 * 24 + 2 * 5}}},
                                   {"weight_map",
                                    {{"h.weight", "model-00001-of-00002.safetensors"},
                                     {"h.bias", "model-00002-of-00002.safetensors"}}}}));
  EXPECT_EQ(write_weight_index({}, {}), "");
}

}  // namespace
}  // namespace tessera::checkpoint::format_test
