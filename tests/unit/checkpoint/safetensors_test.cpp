// safetensors files: what is written comes back bit for bit, damage is named, a failed write leaves the earlier file.
#include <filesystem>
#include <fstream>
#include <sstream>

#include <ATen/ops/arange.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/equal.h>
#include <ATen/ops/rand.h>
#include <ATen/ops/zeros.h>
#include <gtest/gtest.h>
#include <nlohmann/json.hpp>
#include <unistd.h>

#include "tessera/base/error.h"
#include "tessera/checkpoint/format/safetensors.h"
#include "tessera/checkpoint/format/safetensors_file.h"

namespace tessera::checkpoint::safetensors_test {

using tessera::DataError;

namespace {

class Safetensors : public testing::Test {
 protected:
  void SetUp() override {
    folder_ = std::filesystem::temp_directory_path() / ("tessera_safetensors_" + std::to_string(::getpid()));
    std::filesystem::create_directories(folder_);
  }
  void TearDown() override { std::filesystem::remove_all(folder_); }

  std::string path(const std::string& name = "a.safetensors") const { return (folder_ / name).string(); }

  std::string content(const std::string& name = "a.safetensors") const {
    std::ifstream file(path(name), std::ios::binary);
    std::ostringstream text;
    text << file.rdbuf();
    return text.str();
  }

  // A file with this header and this many bytes of data.
  void write(const std::string& header, size_t data) const {
    const uint64_t length = header.size();
    std::ofstream(path(), std::ios::binary)
        << std::string(reinterpret_cast<const char*>(&length), 8) << header << std::string(data, '\1');
  }

  std::string error_of(const std::string& header, size_t data) const {
    write(header, data);
    try {
      load_safetensors(path());
    } catch (const DataError& error) {
      return tessera::base::message_of(error);
    }
    return "no error";
  }

  size_t files() const {
    return static_cast<size_t>(
        std::distance(std::filesystem::directory_iterator(folder_), std::filesystem::directory_iterator()));
  }

  std::filesystem::path folder_;
};

std::vector<NamedTensor> some_tensors() {
  const auto wide = at::rand({3, 5}, at::kDouble);
  return {{"b.double", wide},
          {"a.float", wide.to(at::kFloat)},
          {"c.bfloat16", wide.to(at::kBFloat16)},
          {"d.half", wide.to(at::kHalf).t()},
          {"e.long", at::arange(7, at::kLong).slice(0, 0, 7, 2)},
          {"f.int", at::arange(4, at::kInt)},
          {"g.byte", at::arange(3, at::kByte)},
          {"h.bool", at::arange(3, at::kLong).to(at::kBool)},
          {"i.scalar", at::zeros({}, at::kFloat)},
          {"j.empty", at::empty({0, 4}, at::kFloat)},
          {"k \"quoted\" \u00e9", at::arange(2, at::kFloat)}};
}

TEST_F(Safetensors, ComeBackBitForBit) {
  const auto tensors = some_tensors();
  save_safetensors(path(), tensors, {{"format", "pt"}});
  const auto back = load_safetensors(path());
  EXPECT_EQ(back.metadata, (Metadata{{"format", "pt"}}));
  ASSERT_EQ(back.tensors.size(), tensors.size());
  for (const auto& [name, tensor] : back.tensors) {
    const auto known =
        std::find_if(tensors.begin(), tensors.end(), [&, &name = name](const auto& each) { return each.name == name; });
    ASSERT_NE(known, tensors.end()) << name;
    EXPECT_EQ(tensor.scalar_type(), known->tensor.scalar_type()) << name;
    EXPECT_TRUE(at::equal(tensor, known->tensor)) << name;
  }
  EXPECT_EQ(files(), 1u);
}

TEST_F(Safetensors, AreReadOneByOneInAnyOrder) {
  auto tensors = some_tensors();
  save_safetensors(path(), tensors);
  SafetensorsFile file(path());
  EXPECT_EQ(file.header().entries.size(), tensors.size());
  for (const bool is_second : {false, true}) {
    for (const auto& [name, tensor] : tensors) {
      EXPECT_TRUE(at::equal(file.read(name), tensor)) << name << is_second;
    }
    std::reverse(tensors.begin(), tensors.end());
  }
  EXPECT_THROW(file.read("none"), c10::Error);
}

// The format, read by hand: a length, JSON, then every tensor aligned to its elements.
TEST_F(Safetensors, AreLaidOutAsTheFormatSays) {
  save_safetensors(path(), some_tensors());
  const auto bytes = content();
  uint64_t length = 0;
  std::memcpy(&length, bytes.data(), 8);
  EXPECT_EQ(length % 8, 0u);
  const auto header = nlohmann::json::parse(bytes.substr(8, length));
  EXPECT_EQ(header["c.bfloat16"]["dtype"], "BF16");
  EXPECT_EQ(header["d.half"]["shape"], (std::vector<int64_t>{5, 3}));
  EXPECT_EQ(header["i.scalar"]["shape"], std::vector<int64_t>{});
  EXPECT_EQ(header["e.long"]["data_offsets"][0].get<int64_t>() % 8, 0);
  const auto at = 8 + length + header["e.long"]["data_offsets"][0].get<size_t>();
  int64_t second = 0;
  std::memcpy(&second, bytes.data() + at + 8, 8);
  EXPECT_EQ(second, 2);
}

TEST_F(Safetensors, DamageIsNamed) {
  const auto says = [&](const std::string& header, size_t data, const std::string& part) {
    const auto said = error_of(header, data);
    EXPECT_NE(said.find(part), std::string::npos) << said;
    EXPECT_NE(said.find("; accepted: "), std::string::npos) << said;
  };
  const std::string a = R"("a":{"dtype":"F32","shape":[2],"data_offsets":[0,8]})";
  EXPECT_EQ(error_of("{" + a + "}", 8), "no error");
  says("{" + a + "}", 7, "has 7 bytes of data, its tensors need 8: it is cut short");
  says("{" + a + "}", 9, "longer than its header says");
  says("{" + a + R"(,"b":{"dtype":"F32","shape":[1],"data_offsets":[4,8]}})", 8,
       "b begins at byte 4, the tensor before it ends at 8: they overlap");
  says("{" + a + R"(,"b":{"dtype":"F32","shape":[1],"data_offsets":[12,16]}})", 16, "they leave a hole");
  says(R"({"a":{"dtype":"F32","shape":[3],"data_offsets":[0,8]}})", 8, "a of dtype F32 and sizes [3] in bytes 0 to 8");
  says(R"({"a":{"dtype":"F32","shape":[-2],"data_offsets":[0,8]}})", 8, "sizes [-2]");
  says(R"({"a":{"dtype":"F32","shape":[4611686018427387904,4],"data_offsets":[0,0]}})", 0,
       "sizes [4611686018427387904, 4]");
  says(R"({"a":{"dtype":"F4","shape":[2],"data_offsets":[0,8]}})", 8, "a of dtype F4");
  says(R"({"a":{"dtype":"F32","shape":[2]}})", 8, "the header of");
  says("{", 8, "the header of");
  says("[1]", 8, "the header of");
  std::ofstream(path(), std::ios::binary) << "1234";
  EXPECT_THROW(load_safetensors(path()), DataError);
  std::ofstream(path(), std::ios::binary) << std::string(100, '\xff');
  EXPECT_THROW(load_safetensors(path()), DataError);
  EXPECT_THROW(load_safetensors(path("none")), DataError);
  EXPECT_THROW(load_safetensors(folder_.string()), DataError);
}

// Every file that is cut somewhere is refused, whatever it still holds.
TEST_F(Safetensors, NoPrefixIsAFile) {
  save_safetensors(path("whole"), {{"a", at::rand({2})}, {"b", at::rand({1})}});
  const auto bytes = content("whole");
  for (size_t size = 0; size < bytes.size(); ++size) {
    std::ofstream(path(), std::ios::binary) << bytes.substr(0, size);
    EXPECT_THROW(load_safetensors(path()), DataError) << size;
  }
}

TEST_F(Safetensors, LoadIntoFitsOrChangesNothing) {
  const auto a = at::rand({2, 3}), b = at::rand({4}, at::kDouble);
  save_safetensors(path(), {{"a", a}, {"b", b}});
  auto x = at::zeros({2, 3}), y = at::zeros({4}, at::kDouble);
  const auto says = [&](const std::vector<NamedTensor>& targets, const std::string& part) {
    try {
      load_into(path(), targets);
      ADD_FAILURE() << "no error: " << part;
    } catch (const DataError& error) {
      const auto said = tessera::base::message_of(error);
      EXPECT_NE(said.find(part), std::string::npos) << said;
    }
    EXPECT_TRUE(at::equal(x, at::zeros({2, 3})));
  };
  says({{"a", x}}, "has b, which the model lacks");
  says({{"a", x}, {"b", y}, {"c", y}}, "lacks c of the model");
  says({{"a", x}, {"b", at::zeros({4})}}, "has b of F64 and sizes [4], the model has F32 and sizes [4]");
  says({{"a", x}, {"b", at::zeros({2, 2}, at::kDouble)}}, "the model has F64 and sizes [2, 2]");
  load_into(path(), {{"b", y}, {"a", x}});
  EXPECT_TRUE(at::equal(x, a));
  EXPECT_TRUE(at::equal(y, b));
}

TEST_F(Safetensors, WhatCannotBeSavedIsNamed) {
  EXPECT_THROW(save_safetensors(path(), {{"a", at::zeros({1})}, {"a", at::zeros({1})}}), c10::Error);
  EXPECT_THROW(save_safetensors(path(), {{"a", at::zeros({1}, at::kComplexFloat)}}), c10::Error);
  EXPECT_THROW(save_safetensors(path(), {{"a", at::zeros({1}, at::TensorOptions().device(at::kMeta))}}), c10::Error);
  EXPECT_THROW(save_safetensors(path("no/folder"), {{"a", at::zeros({1})}}), DataError);
  EXPECT_EQ(files(), 0u);
}

}  // namespace

}  // namespace tessera::checkpoint::safetensors_test
