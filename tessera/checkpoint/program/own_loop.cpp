#include "tessera/checkpoint/program/own_loop.h"

#include <cstring>

#include <ATen/ops/empty.h>
#include <nlohmann/json.hpp>

#include "tessera/base/error.h"
#include "tessera/checkpoint/format/numbers.h"
#include "tessera/checkpoint/program/file_names.h"
#include "tessera/checkpoint/program/run_state.h"
#include "tessera/checkpoint/store/posix_store.h"
#include "tessera/dtensor/random/rng_state.h"
#include "tessera/dtensor/record/interception.h"

namespace tessera::checkpoint {
namespace {

constexpr const char* kPlace = "place";  // rng_state(), in base 64

Contents contents_of(const OwnLoop& loop) {
  Contents contents;
  add_model(loop.model, contents);
  for (const auto& [name, tensor] : loop.moments) {
    contents.tensors.push_back({name, catalogue::Role::kMoment, tensor});
  }
  return contents;
}

std::string place_in_program() {
  const at::Tensor bytes = dtensor::rng_state();
  std::vector<uint64_t> words((bytes.numel() + 7) / 8);
  std::memcpy(words.data(), bytes.const_data_ptr(), bytes.nbytes());
  return nlohmann::json(base64(words)).dump();
}

void go_to_place(const OpenCheckpoint& checkpoint, const std::string& value) {
  const auto words = try_parse_base64(nlohmann::json::parse(value).get<std::string>());
  TESSERA_CHECK_AS(DataError, words, "[checkpoint] \"", checkpoint.folder, "\": the value `", kPlace,
                   "` cannot be read; accepted: what save wrote");
  const dtensor::LocalScope scope;
  const at::Tensor bytes =
      at::empty({static_cast<int64_t>(words->size() * sizeof(uint64_t))}, at::TensorOptions().dtype(at::kByte));
  std::memcpy(bytes.mutable_data_ptr(), words->data(), bytes.nbytes());
  dtensor::set_rng_state(bytes);
}

}  // namespace

std::unique_ptr<Saving> start_save(const std::string& run, int64_t step, const OwnLoop& loop,
                                   const SaveOptions& options) {
  auto contents = contents_of(loop);
  add_run_state(step, contents);
  contents.values[kPlace] = place_in_program();
  add_values(loop.values, contents);
  return start_save(std::make_shared<PosixStore>(), run, step, contents, options);
}

OpenCheckpoint open_own_loop(const std::string& folder, OpenOptions options) {
  auto checkpoint = open_run(std::make_shared<PosixStore>(), folder);
  if (!options.allows_other_sums) {
    verify_numerics(checkpoint);
  }
  if (!options.allows_other_numbers) {
    verify_generator(checkpoint);
  }
  return checkpoint;
}

void verify_fits(const OpenCheckpoint& checkpoint, const OwnLoop& loop, bool with_moments) {
  TESSERA_CHECK_AS(DataError, !with_moments || !checkpoint.catalogue.values().contains(kForm), "[checkpoint] \"",
                   checkpoint.folder,
                   "\" has parameters as other libraries lay them out, and moments as the program that saved it did; "
                   "accepted: to load it without an optimizer");
  verify_program(checkpoint, contents_of(loop), with_moments);
}

int64_t load(const OpenCheckpoint& checkpoint, const OwnLoop& loop, bool with_moments) {
  verify_fits(checkpoint, loop, with_moments);
  auto contents = contents_of(loop);
  add_stream(checkpoint, contents);
  load_tensors(checkpoint, contents, {.allows_extra = true});  // moments that nobody wants
  const int64_t step = restore_run_state(checkpoint, contents);
  const auto& values = checkpoint.catalogue.values();
  if (const auto place = values.find(kPlace); place != values.end() && has_same_generator(checkpoint)) {
    go_to_place(checkpoint, place->second);
  }
  return step;
}

}  // namespace tessera::checkpoint
