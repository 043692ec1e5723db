#include "tessera/checkpoint/offline/diff.h"

#include <algorithm>
#include <cmath>
#include <cstring>
#include <set>

#include <ATen/core/grad_mode.h>
#include <ATen/ops/empty.h>
#include <nlohmann/json.hpp>

#include "tessera/base/error.h"
#include "tessera/base/text.h"
#include "tessera/checkpoint/folder/names.h"
#include "tessera/checkpoint/folder/steps.h"
#include "tessera/checkpoint/format/range_reader.h"

namespace tessera::checkpoint {
namespace {

using Json = nlohmann::ordered_json;

int64_t different_elements(const at::Tensor& a, const at::Tensor& b) {
  const auto size = a.element_size();
  const auto* first = static_cast<const char*>(a.const_data_ptr());
  const auto* second = static_cast<const char*>(b.const_data_ptr());
  int64_t count = 0;
  for (int64_t i = 0; i < a.numel(); ++i) {
    count += std::memcmp(first + i * size, second + i * size, static_cast<size_t>(size)) == 0 ? 0 : 1;
  }
  return count;
}

double largest_distance(const at::Tensor& a, const at::Tensor& b) {
  const auto x = a.to(at::kDouble), y = b.to(at::kDouble);
  const auto distance = (x - y).abs();
  const auto finite = distance.masked_select(x.isfinite().logical_and(y.isfinite()));
  return finite.numel() == 0 ? 0 : finite.max().item<double>();
}

void read_values(const OpenCheckpoint& a, const OpenCheckpoint& b, const Progress& progress,
                 std::vector<TensorDifference>& tensors) {
  const at::NoGradGuard no_grad;
  RangeReader reader_a(*a.store, a.folder, a.manifest), reader_b(*b.store, b.folder, b.manifest);
  for (auto& tensor : tensors) {
    const auto& table = *a.manifest.find(tensor.name);
    const auto box = everything(table.sizes);
    const auto x = reader_a.read_box(table, box);
    const auto y = reader_b.read_box(*b.manifest.find(b.catalogue.find_match(a.catalogue.at(tensor.name))->name), box);
    tensor.elements = different_elements(x, y);
    tensor.largest = largest_distance(x, y);
    tell(progress, table.bytes_of(box));
  }
}

std::vector<std::string> different_values(const catalogue::Values& a, const catalogue::Values& b) {
  std::set<std::string> names;
  for (const auto* values : {&a, &b}) {
    for (const auto& [name, value] : *values) {
      names.insert(name);
    }
  }
  std::erase_if(names, [&](const std::string& name) {
    const auto in_a = a.find(name), in_b = b.find(name);
    return in_a != a.end() && in_b != b.end() && in_a->second == in_b->second;
  });
  return {names.begin(), names.end()};
}

std::vector<int64_t> whole_steps(Store& store, const std::string& run) {
  std::vector<int64_t> steps;
  for (const auto& step : list_steps(store, run)) {
    if (step.state == StepState::kWhole) {
      steps.push_back(step.step);
    }
  }
  return steps;
}

}  // namespace

CheckpointDifferences diff(const OpenCheckpoint& a, const OpenCheckpoint& b, const DiffOptions& options) {
  CheckpointDifferences result{.step_a = a.manifest.save.step,
                               .step_b = b.manifest.save.step,
                               .names = catalogue::differences_of(a.catalogue, b.catalogue),
                               .tensors = {},
                               .values = different_values(a.catalogue.values(), b.catalogue.values())};
  std::set<std::string> misshapen;
  for (const auto& pair : result.names.misshapen) {
    misshapen.insert(pair.wanted.name);
  }
  const bool has_hashes = a.manifest.version == b.manifest.version;  // that can be compared
  for (const auto& entry : a.catalogue.entries()) {
    const auto* match = b.catalogue.find_match(entry);
    if (match == nullptr || misshapen.contains(entry.name)) {
      continue;
    }
    if (has_hashes && a.manifest.find(entry.name)->value_hash == b.manifest.find(match->name)->value_hash) {
      ++result.same;
    } else {
      result.tensors.push_back({.name = entry.name, .numel = entry.spec->numel()});
    }
  }
  if (options.reads_values || !has_hashes) {
    read_values(a, b, options.progress, result.tensors);
    result.same += static_cast<int64_t>(
        std::erase_if(result.tensors, [&](const auto& tensor) { return !has_hashes && tensor.elements == 0; }));
  }
  return result;
}

RunDifference diff_runs(const std::shared_ptr<Store>& store, const std::string& a, const std::string& b,
                        const DiffOptions& options) {
  const auto run_a = steps_folder(*store, a), run_b = steps_folder(*store, b);
  const auto in_a = whole_steps(*store, run_a), in_b = whole_steps(*store, run_b);
  RunDifference result;
  std::set_intersection(in_a.begin(), in_a.end(), in_b.begin(), in_b.end(), std::back_inserter(result.steps));
  TESSERA_CHECK_AS(DataError, !result.steps.empty(), "[checkpoint] no step is whole in both \"", run_a, "\" (",
                   in_a.empty() ? "none" : base::join(in_a, ", "), ") and \"", run_b, "\" (",
                   in_b.empty() ? "none" : base::join(in_b, ", "), "); accepted: runs that have a step in common");
  for (const auto step : result.steps) {
    const auto first = open_for_reading(store, step_folder(run_a, step)),
               second = open_for_reading(store, step_folder(run_b, step));
    if (auto differences = diff(first, second, options); !differences.is_none()) {
      result.folder_a = first.folder;
      result.folder_b = second.folder;
      result.first = std::move(differences);
      return result;
    }
  }
  return result;
}

std::string text_of(const CheckpointDifferences& differences, const std::string& a, const std::string& b) {
  if (differences.is_none()) {
    return "the same: " + std::to_string(differences.same) + " tensors and all values\n";
  }
  std::string text = std::to_string(differences.tensors.size()) + " tensors differ, " +
                     std::to_string(differences.same) + " are the same\n";
  for (const auto& tensor : differences.tensors) {
    text += "  " + tensor.name;
    if (tensor.elements) {
      text += ": " + std::to_string(*tensor.elements) + " of " + std::to_string(tensor.numel) +
              " elements, largest distance " + base::exact_double(tensor.largest);
    }
    text += "\n";
  }
  const auto add = [&](const std::string& line, const std::string& name) { text += line + name + "\n"; };
  for (const auto& name : differences.names.missing) {
    add("only in " + a + ": ", name);
  }
  for (const auto& name : differences.names.extra) {
    add("only in " + b + ": ", name);
  }
  for (const auto& pair : differences.names.misshapen) {
    add("of other sizes or dtype: ",
        pair.wanted.name + " is " + pair.wanted.spec.str() + " in " + a + ", " + pair.found.spec.str() + " in " + b);
  }
  for (const auto& name : differences.values) {
    add("value that differs: ", name);
  }
  return text;
}

nlohmann::ordered_json json_of(const CheckpointDifferences& differences) {
  auto tensors = Json::array(), misshapen = Json::array();
  for (const auto& tensor : differences.tensors) {
    Json row{{"name", tensor.name}, {"numel", tensor.numel}};
    if (tensor.elements) {
      row["elements"] = *tensor.elements;
      row["largest"] = tensor.largest;
    }
    tensors.push_back(std::move(row));
  }
  for (const auto& pair : differences.names.misshapen) {
    misshapen.push_back({{"name", pair.wanted.name}, {"a", pair.wanted.spec.str()}, {"b", pair.found.spec.str()}});
  }
  return {{"same", differences.is_none()},        {"steps", {differences.step_a, differences.step_b}},
          {"tensors", std::move(tensors)},        {"only_in_a", differences.names.missing},
          {"only_in_b", differences.names.extra}, {"misshapen", std::move(misshapen)},
          {"values", differences.values}};
}

}  // namespace tessera::checkpoint
