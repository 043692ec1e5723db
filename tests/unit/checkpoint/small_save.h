// A checkpoint of a few hundred bytes by three imagined ranks, one after the other, and what must come back of it.
#pragma once

#include <functional>
#include <string>
#include <vector>

#include "tessera/checkpoint/folder/commit.h"
#include "tessera/checkpoint/folder/steps.h"

namespace tessera::checkpoint::small_save {

constexpr int64_t kRanks = 3;

// Small blocks, so that small files have several.
SaveId save_of(int64_t step, uint64_t number = 0x1234);

// The tensors' names, and their values at a step, which no other step has.
std::vector<std::string> names();
at::Tensor value_of(const std::string& name, int64_t step);

// The files of one rank: two ranks have parameters, whole; all have slices of the rest, of which the last one is empty
// for one tensor; rank 0 has config.json.
void write_rank(Store& store, const std::string& folder, const SaveId& save, int64_t rank);

// A save from claim to manifest. `between` is called before each rank writes.
Manifest save(Store& store, const std::string& run, const SaveId& save,
              const std::function<void(int64_t)>& between = {});

// "" if all tensors of a checkpoint have the values of its step, read whole and by the boxes of another layout; else
// what is wrong.
std::string differences(Store& store, const std::string& folder);

// The message of the DataError that `attempt` throws; "no error" if it throws none.
std::string error_of(const std::function<void()>& attempt);

}  // namespace tessera::checkpoint::small_save
