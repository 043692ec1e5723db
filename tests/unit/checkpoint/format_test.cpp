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

TEST(Runs, AreTheSequenceThatTheyWereMadeOf) {
  std::mt19937_64 random(9);
  for (int sample = 0; sample < 500; ++sample) {
    std::vector<int64_t> values;
    while (values.size() < 40) {
      const auto first = static_cast<int64_t>(random() % 50), step = static_cast<int64_t>(random() % 4) - 1;
      for (uint64_t i = random() % 12; i-- > 0;) {
        values.push_back(first + step * static_cast<int64_t>(i));
      }
    }
    const Runs runs(values);
    ASSERT_EQ(runs.size(), static_cast<int64_t>(values.size()));
    for (size_t i = 0; i < values.size(); ++i) {
      ASSERT_EQ(runs.at(static_cast<int64_t>(i)), values[i]);
    }
    EXPECT_EQ(Runs::from_flat(runs.flat()), runs);
    EXPECT_EQ(runs.least(), *std::min_element(values.begin(), values.end()));
    EXPECT_EQ(runs.greatest(), *std::max_element(values.begin(), values.end()));
    EXPECT_EQ(runs.ascends(), std::adjacent_find(values.begin(), values.end(), std::greater_equal<>()) == values.end());
    std::sort(values.begin(), values.end());
    values.erase(std::unique(values.begin(), values.end()), values.end());
    const Runs ascending(values);
    EXPECT_TRUE(ascending.ascends());
    for (int64_t wanted = -3; wanted < 60; ++wanted) {
      const auto behind = std::upper_bound(values.begin(), values.end(), wanted);
      ASSERT_EQ(ascending.last_at_most(wanted), behind - values.begin() - 1) << wanted;
    }
  }
  EXPECT_EQ(Runs({0, 4, 8, 12, 7, 7}).flat(), (std::vector<int64_t>{0, 4, 4, 7, 0, 2}));
  EXPECT_THROW(Runs::from_flat({1, 2}), c10::Error);
  EXPECT_THROW(Runs::from_flat({1, 2, 0}), c10::Error);
  EXPECT_THROW(Runs::from_flat({1, int64_t{1} << 62, 5}), c10::Error);
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

// The parameters and two moments of a model of 405 billion, cut over all ranks; and, as a second layout, each also over
// eight ranks along another dim.
struct Scale {
  int64_t ranks;
  int64_t columns;  // ranks that share a row of cuts
  size_t limit;     // bytes of the manifest
};

Manifest manifest_of_405b(const Scale& scale) {
  Manifest manifest{.save = {}, .ranks = scale.ranks, .catalogue = {}, .files = {}, .tensors = {}};
  std::vector<int64_t> end_of(static_cast<size_t>(scale.ranks), 0);
  const auto add = [&](const std::string& name, std::vector<int64_t> sizes, int64_t bytes) {
    const int64_t rows = scale.ranks / scale.columns, columns = sizes.size() > 1 ? scale.columns : 1;
    TensorTable table{.name = name, .dtype = bytes == 2 ? at::kBFloat16 : at::kFloat, .sizes = sizes, .value_hash = 1};
    const int64_t cuts[] = {rows, columns};
    std::vector<std::vector<int64_t>> begins;
    for (size_t d = 0; d < sizes.size(); ++d) {
      begins.emplace_back();
      const int64_t part = (sizes[d] + cuts[d] - 1) / cuts[d];
      for (int64_t at = 0; at < sizes[d]; at += part) {
        begins[d].push_back(at);
      }
      begins[d].push_back(sizes[d]);
      table.cuts.emplace_back(begins[d]);
    }
    for (size_t row = 0; row + 1 < begins[0].size(); ++row) {
      for (int64_t column = 0; column < columns; ++column) {
        const auto rank = static_cast<size_t>(static_cast<int64_t>(row) * scale.columns + column);
        table.files.push(static_cast<int64_t>(rank));
        table.begins.push(end_of[rank]);
        const auto c = static_cast<size_t>(column);
        end_of[rank] +=
            bytes * (begins[0][row + 1] - begins[0][row]) * (sizes.size() > 1 ? begins[1][c + 1] - begins[1][c] : 1);
      }
    }
    manifest.tensors.push_back(std::move(table));
  };
  for (const auto& [role, bytes] : {std::pair<std::string, int64_t>{"", 2}, {"exp_avg/", 4}, {"exp_avg_sq/", 4}}) {
    for (int64_t layer = 0; layer < 126; ++layer) {
      const auto prefix = role + "model.layers." + std::to_string(layer) + ".";
      add(prefix + "input_layernorm.weight", {16384}, bytes);
      add(prefix + "mlp.down_proj.weight", {16384, 53248}, bytes);
      add(prefix + "mlp.gate_proj.weight", {53248, 16384}, bytes);
      add(prefix + "mlp.up_proj.weight", {53248, 16384}, bytes);
      add(prefix + "post_attention_layernorm.weight", {16384}, bytes);
      add(prefix + "self_attn.k_proj.weight", {1024, 16384}, bytes);
      add(prefix + "self_attn.o_proj.weight", {16384, 16384}, bytes);
      add(prefix + "self_attn.q_proj.weight", {16384, 16384}, bytes);
      add(prefix + "self_attn.v_proj.weight", {1024, 16384}, bytes);
    }
    add(role + "lm_head.weight", {128256, 16384}, bytes);
    add(role + "model.embed_tokens.weight", {128256, 16384}, bytes);
    add(role + "model.norm.weight", {16384}, bytes);
  }
  std::mt19937_64 random(1);
  for (int64_t rank = 0; rank < scale.ranks; ++rank) {
    FileRecord file{.name = "state-" + std::to_string(rank),
                    .size = end_of[static_cast<size_t>(rank)] + 300'000,
                    .data_begin = 300'000};
    file.blocks.resize(static_cast<size_t>(block_count(file.size, kBlockSize)));
    std::generate(file.blocks.begin(), file.blocks.end(), [&] { return random(); });
    manifest.files.push_back(std::move(file));
  }
  std::sort(manifest.tensors.begin(), manifest.tensors.end(),
            [](const auto& a, const auto& b) { return a.name < b.name; });
  return manifest;
}

TEST(Tables, Of8192RanksTakeAFewMegabytes) {
  for (const Scale& scale : {Scale{8192, 1, 12'000'000}, Scale{8192, 8, 100'000'000}}) {
    auto manifest = manifest_of_405b(scale);
    const auto text = write_manifest(manifest);
    EXPECT_EQ(read_manifest(text, "m"), manifest);
    int64_t slices = 0, blocks = 0;
    for (const auto& table : manifest.tensors) {
      slices += table.slice_count();
    }
    for (const auto& file : manifest.files) {
      blocks += static_cast<int64_t>(file.blocks.size());
    }
    manifest.files.clear();
    const auto tables = write_manifest(manifest).size();
    std::cout << manifest.tensors.size() << " tensors in " << slices << " slices of " << scale.ranks << " ranks, "
              << blocks << " blocks: " << text.size() << " bytes, of which tables of tensors " << tables << "\n";
    EXPECT_LE(text.size(), scale.limit);
  }
}

}  // namespace
}  // namespace tessera::checkpoint::format_test
