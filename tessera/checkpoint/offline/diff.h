// In what two checkpoints, or two runs, differ.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include <nlohmann/json_fwd.hpp>

#include "tessera/catalogue/differences.h"
#include "tessera/checkpoint/folder/opened.h"
#include "tessera/checkpoint/offline/progress.h"

namespace tessera::checkpoint {

// A tensor of two values.
struct TensorDifference {
  std::string name;
  // Where values were read: elements that are not the same bits, of how many, and the largest |a - b| of the numbers
  // that are finite in both.
  std::optional<int64_t> elements = {};
  int64_t numel = 0;
  double largest = 0;
};

struct CheckpointDifferences {
  int64_t step_a = 0, step_b = 0;
  int64_t same = 0;              // tensors of the same value
  catalogue::Differences names;  // `wanted` is a, `found` is b
  std::vector<TensorDifference> tensors;
  std::vector<std::string> values;  // names of values that differ or that one of them lacks

  bool is_none() const { return names.is_none() && tensors.empty() && values.empty(); }
};

struct DiffOptions {
  bool reads_values = false;  // how far apart the tensors are; else the manifests tell which differ
  Progress progress = {};
};

// Layouts, files and how the tensors lie in them do not count: hashes of values do, or where manifests of two versions
// have different ones, the values, which are read. Throws DataError as open_for_reading
// and RangeReader do.
CheckpointDifferences diff(const OpenCheckpoint& a, const OpenCheckpoint& b, const DiffOptions& options = {});

// Of two runs the first step that is whole in both and differs.
struct RunDifference {
  std::vector<int64_t> steps;  // that are whole in both, ascending
  std::string folder_a, folder_b;
  std::optional<CheckpointDifferences> first;  // nothing: no step differs
};

// Folders as find_checkpoint takes them, of runs. Throws DataError if no step is whole in both.
RunDifference diff_runs(const std::shared_ptr<Store>& store, const std::string& a, const std::string& b,
                        const DiffOptions& options = {});

// As text for people, which calls them `a` and `b`; as JSON.
std::string text_of(const CheckpointDifferences& differences, const std::string& a, const std::string& b);
nlohmann::ordered_json json_of(const CheckpointDifferences& differences);

}  // namespace tessera::checkpoint
