// Gathered copies of tensors, shared by the operators that read them.
#pragma once

#include <cstdint>
#include <deque>

#include "tessera/dtensor/move/redistribute.h"
#include "tessera/dtensor/record/meta.h"

namespace tessera::dtensor {

// Gathered copies kept beside the tensors they were gathered from, in one of their slots; the oldest are dropped first
// when they exceed the budget. The newest always stays.
class GatherCache {
 public:
  explicit GatherCache(GatheredCopy Rare::* slot, int64_t budget = 0) : slot_(slot), budget_(budget) {}

  // In bytes, from the next copy on. Throws if negative.
  void set_budget(int64_t bytes);
  int64_t budget() const { return budget_; }
  // Runs the move on the tensor's part, unless its slot has what that gives.
  at::Tensor find_or_run(comm::RankContext& context, const MetaPtr& meta, const Move& move, const at::Tensor& part,
                         const char* op);
  void clear();

 private:
  struct Entry {
    const Meta* tensor;  // for comparing
    c10::weak_intrusive_ptr<Meta> meta;
    int64_t bytes = 0;
  };
  void add(const MetaPtr& meta, int64_t bytes);
  void drop_oldest();

  GatheredCopy Rare::* slot_;
  std::deque<Entry> entries_;
  int64_t budget_, bytes_ = 0;
};

}  // namespace tessera::dtensor
