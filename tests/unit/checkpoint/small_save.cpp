#include "tests/unit/checkpoint/small_save.h"

#include <ATen/ops/arange.h>
#include <ATen/ops/equal.h>

#include "tessera/base/hash.h"
#include "tessera/checkpoint/folder/claim.h"
#include "tessera/checkpoint/folder/names.h"
#include "tessera/checkpoint/folder/rank_files.h"
#include "tessera/checkpoint/format/range_reader.h"
#include "tessera/layout/cut.h"

namespace tessera::checkpoint::small_save {
namespace {

// A tensor, and how it is saved: whole by a rank, or cut along a dim.
struct Plan {
  std::string name;
  std::vector<int64_t> sizes;
  at::ScalarType dtype;
  int64_t owner;  // -1: cut
  int64_t dim;
};

const std::vector<Plan>& plans() {
  static const std::vector<Plan> all{{"h.weight", {4, 6}, at::kFloat, 0, 0},
                                     {"h.bias", {5}, at::kBFloat16, 1, 0},
                                     {"exp_avg/h.weight", {4, 6}, at::kFloat, -1, 1},
                                     {"exp_avg/h.bias", {4}, at::kFloat, -1, 0},
                                     {"step", {}, at::kLong, 2, 0},
                                     {"random", {0, 3}, at::kByte, 2, 0}};
  return all;
}

const Plan& plan_of(const std::string& name) {
  return *std::find_if(plans().begin(), plans().end(), [&](const Plan& plan) { return plan.name == name; });
}

Piece piece_of(const Plan& plan, const SaveId& save, const Box& box) {
  auto value = value_of(plan.name, save.step);
  for (size_t d = 0; d < box.size(); ++d) {
    value = value.slice(static_cast<int64_t>(d), box[d].begin, box[d].end);
  }
  return {plan.name, plan.sizes, box, value, static_cast<uint64_t>(reshard::numel(box))};
}

std::vector<Piece> pieces_of(const SaveId& save, int64_t rank, bool is_model) {
  std::vector<Piece> pieces;
  for (const auto& plan : plans()) {
    if (plan.name.starts_with("h.") != is_model || (plan.owner >= 0 && plan.owner != rank)) {
      continue;
    }
    auto box = everything(plan.sizes);
    if (plan.owner < 0) {
      const auto dim = static_cast<size_t>(plan.dim);
      const int64_t part = (plan.sizes[dim] + kRanks - 1) / kRanks;
      box[dim] = {std::min(plan.sizes[dim], rank * part), std::min(plan.sizes[dim], (rank + 1) * part)};
    }
    if (plan.owner >= 0 || reshard::numel(box) > 0) {
      pieces.push_back(piece_of(plan, save, box));
    }
  }
  return pieces;
}

// Halves along the first dim, which is no layout that was saved.
std::vector<Box> other_boxes(const std::vector<int64_t>& sizes) {
  auto low = everything(sizes), high = low;
  if (sizes.empty()) {
    return {low};
  }
  low[0].end = high[0].begin = sizes[0] / 2;
  return {everything(sizes), low, high};
}

}  // namespace

SaveId save_of(int64_t step, uint64_t number) {
  return {.number = number + static_cast<uint64_t>(step), .step = step, .block_size = 256};
}

std::vector<std::string> names() {
  std::vector<std::string> all;
  for (const auto& plan : plans()) {
    all.push_back(plan.name);
  }
  return all;
}

at::Tensor value_of(const std::string& name, int64_t step) {
  const auto& plan = plan_of(name);
  const auto first = static_cast<int64_t>(base::hash_string(name) % 50) + step % 100;
  return at::arange(first, first + reshard::numel(everything(plan.sizes)), at::kLong)
      .reshape(plan.sizes)
      .to(plan.dtype);
}

void write_rank(Store& store, const std::string& folder, const SaveId& save, int64_t rank) {
  RankFiles files(store, folder, save, rank);
  if (rank == 0) {
    files.write_file("config.json", "{\"step\": " + std::to_string(save.step) + "}\n");
  }
  if (const auto model = pieces_of(save, rank, true); !model.empty()) {
    // At step 200 there is no part that others read, and so no index, whose making would synchronise all names again.
    const auto own_name = "whole-" + std::to_string(rank) + ".safetensors";
    files.write_part(save.step == 200 ? own_name : model_part_name(rank, 2), model);
  }
  files.write_part(state_part_name(rank), pieces_of(save, rank, false));
  files.leave_receipt();
}

Manifest save(Store& store, const std::string& run, const SaveId& save, const std::function<void(int64_t)>& between) {
  const auto folder = claim_step(store, run, {save, "a test"});
  for (int64_t rank = 0; rank < kRanks; ++rank) {
    if (between) {
      between(rank);
    }
    write_rank(store, folder, save, rank);
  }
  return commit(store, folder, save, kRanks, {{"model", "small"}}, {.deadline = 0});
}

std::string differences(Store& store, const std::string& folder) {
  const auto manifest = open_checkpoint(store, folder);
  if (manifest.tensors.size() != plans().size() || manifest.catalogue != nlohmann::json{{"model", "small"}}) {
    return "other tensors or another catalogue";
  }
  RangeReader reader(store, folder, manifest);
  for (const auto& name : names()) {
    const auto* table = manifest.find(name);
    if (table == nullptr) {
      return "no " + name;
    }
    for (const auto& box : other_boxes(table->sizes)) {
      auto expected = value_of(name, manifest.save.step);
      for (size_t d = 0; d < box.size(); ++d) {
        expected = expected.slice(static_cast<int64_t>(d), box[d].begin, box[d].end);
      }
      const auto found = reader.read_box(*table, box);
      if (found.scalar_type() != expected.scalar_type() || !at::equal(found, expected)) {
        return "other values of " + name;
      }
    }
    if (table->value_hash != static_cast<uint64_t>(reshard::numel(everything(table->sizes)))) {
      return "another hash of " + name;
    }
  }
  return "";
}

std::string error_of(const std::function<void()>& attempt) {
  try {
    attempt();
  } catch (const DataError& error) {
    return base::message_of(error);
  }
  return "no error";
}

}  // namespace tessera::checkpoint::small_save
