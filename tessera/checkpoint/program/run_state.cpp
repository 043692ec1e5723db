#include "tessera/checkpoint/program/run_state.h"

#include <nlohmann/json.hpp>

#include "tessera/base/error.h"
#include "tessera/catalogue/differences.h"
#include "tessera/checkpoint/folder/steps.h"
#include "tessera/checkpoint/ranks/agree.h"
#include "tessera/dtensor/front/dtensor.h"
#include "tessera/dtensor/state/state.h"

namespace tessera::checkpoint {
namespace {

using dtensor::RankState;

constexpr const char* kStream = "random stream";  // of the generator `stock`

// `fast`, or `exact` and the lattice.
std::string numerics_of_rank() {
  const auto& lattice = RankState::require().exact.lattice();
  return lattice ? "exact " + lattice->str() : "fast";
}

bool has_stream() { return static_cast<bool>(RankState::require().random.stock()); }

bool has_stream(const OpenCheckpoint& checkpoint) { return checkpoint.catalogue.find(kStream) != nullptr; }

const char* generator_name(bool has_stream) { return has_stream ? "stock" : "counter"; }

nlohmann::json run_value_of(const OpenCheckpoint& checkpoint) {
  return nlohmann::json::parse(checkpoint.catalogue.values().at(kJob));
}

}  // namespace

void add_model(const std::vector<plan::NamedTensor>& tensors, Contents& contents) {
  for (const auto& named : tensors) {
    const auto role = named.is_parameter ? catalogue::Role::kParameter : catalogue::Role::kBuffer;
    contents.tensors.push_back({named.name, role, named.tensor, named.aliases});
  }
}

void add_values(const catalogue::Values& values, Contents& contents) {
  for (const auto& [name, value] : values) {
    TESSERA_CHECK(contents.values.emplace(name, value).second, "[checkpoint] an extra value called ", name,
                  "; accepted: names but ", kJob, ", ", kLossScaler, " and optimizer");
  }
}

void add_run_state(int64_t step, Contents& contents) {
  const auto& random = RankState::require().random;
  const nlohmann::json value = {{"step", step}, {"seed", random.seed()}, {"numerics", numerics_of_rank()}};
  contents.values[kJob] = value.dump();
  // Which numbers come next: those of `counter` follow from seed and step, `stock` is a stream.
  if (has_stream()) {
    contents.tensors.push_back({kStream, catalogue::Role::kOther, dtensor::stock_generator().get_state()});
  }
}

OpenCheckpoint open_newest(std::shared_ptr<Store> store, const std::string& folder) {
  const auto chosen = read_on_one([&] { return find_checkpoint(*store, folder); });
  return open_for_ranks(std::move(store), chosen);
}

OpenCheckpoint open_run(std::shared_ptr<Store> store, const std::string& folder) {
  auto checkpoint = open_newest(std::move(store), folder);
  const bool has_job = checkpoint.catalogue.values().contains(kJob);
  TESSERA_CHECK_AS(DataError, has_job, "[checkpoint] \"", checkpoint.folder,
                   "\" was not saved of a job; accepted: one that save(run, job) wrote");
  return checkpoint;
}

bool has_same_generator(const OpenCheckpoint& checkpoint) { return has_stream() == has_stream(checkpoint); }

void verify_numerics(const OpenCheckpoint& checkpoint) {
  const auto now = numerics_of_rank(), then = run_value_of(checkpoint).at("numerics").get<std::string>();
  TESSERA_CHECK_AS(DataError, now == then, "[checkpoint] \"", checkpoint.folder, "\" was saved in numerics ", then,
                   ", the job is in ", now,
                   "; accepted: the same, or allows_other_sums, with which other bits follow; nothing was changed");
}

void verify_generator(const OpenCheckpoint& checkpoint) {
  TESSERA_CHECK_AS(DataError, has_same_generator(checkpoint), "[checkpoint] \"", checkpoint.folder,
                   "\" was saved with the generator ", generator_name(has_stream(checkpoint)), ", the job has ",
                   generator_name(has_stream()),
                   "; accepted: the same (set_generator), or allows_other_sums, with which other random numbers "
                   "follow; nothing was changed");
}

void add_stream(const OpenCheckpoint& checkpoint, Contents& contents) {
  if (has_stream() && has_stream(checkpoint)) {
    contents.tensors.push_back({kStream, catalogue::Role::kOther, dtensor::stock_generator().get_state()});
  }
}

void verify_program(const OpenCheckpoint& checkpoint, const Contents& contents, bool with_moments) {
  const auto counts = [&](const catalogue::Entry& entry) {
    return entry.name != kStream && (with_moments || entry.role != catalogue::Role::kMoment);
  };
  catalogue::verify_fits(catalogue_of(contents).subset(counts), checkpoint.catalogue.subset(counts), checkpoint.folder);
}

void add_loss_scaler(const parallel::LossScaler& scaler, Contents& contents) {
  const auto& state = scaler.state();
  contents.values[kLossScaler] = nlohmann::json{{"scale", state.scale}, {"good_steps", state.good_steps}}.dump();
}

void restore_loss_scaler(const OpenCheckpoint& checkpoint, parallel::LossScaler& scaler) {
  const auto found = checkpoint.catalogue.values().find(kLossScaler);
  if (found != checkpoint.catalogue.values().end()) {
    const auto value = nlohmann::json::parse(found->second);
    scaler.set_state({.scale = value.at("scale").get<double>(), .good_steps = value.at("good_steps").get<int64_t>()});
  }
}

int64_t restore_run_state(const OpenCheckpoint& checkpoint, const Contents& contents) {
  const auto value = run_value_of(checkpoint);
  dtensor::manual_seed(value.at("seed").get<uint64_t>());
  for (const auto& kept : contents.tensors) {
    if (kept.name == kStream) {
      dtensor::stock_generator().set_state(kept.tensor);
    }
  }
  return value.at("step").get<int64_t>();
}

}  // namespace tessera::checkpoint
