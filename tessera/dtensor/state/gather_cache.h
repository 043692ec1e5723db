// Gathered copies of tensors, shared by the operators that read them.
#pragma once

#include <cstdint>
#include <deque>

#include "tessera/dtensor/record/meta.h"

namespace tessera::dtensor {

// Gathered copies kept beside the tensors they were gathered from, oldest dropped first when they exceed the budget.
// The newest always stays.
class GatherCache {
 public:
  // In bytes, from the next copy on. Throws if negative.
  void set_budget(int64_t bytes);
  int64_t budget() const { return budget_; }
  void add(const MetaPtr& meta, int64_t bytes);
  void clear();

 private:
  struct Entry {
    const Meta* tensor;  // for comparing
    c10::weak_intrusive_ptr<Meta> meta;
    int64_t bytes = 0;
  };
  void drop_oldest();
  std::deque<Entry> entries_;
  int64_t budget_ = 0, bytes_ = 0;
};

}  // namespace tessera::dtensor
