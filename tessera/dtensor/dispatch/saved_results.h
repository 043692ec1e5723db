// Which results a body leaves alive: those that autograd saved, or the program holds.
#pragma once

#include <vector>

#include "tessera/dtensor/record/meta.h"
#include "tessera/dtensor/state/state.h"

namespace tessera::dtensor {

// Records of DTensors, none of which it keeps alive. On one thread.
class SavedResults {
 public:
  SavedResults() = default;
  SavedResults(const SavedResults&) = delete;
  SavedResults& operator=(const SavedResults&) = delete;

  // While it lives, what operators of the rank give is noted here. Of nested ones, the innermost.
  class Run {
   public:
    Run(RankState& state, SavedResults& results) : state_(state), before_(state.bodies.set_saving(&results)) {}
    ~Run() { state_.bodies.set_saving(before_); }
    Run(const Run&) = delete;
    Run& operator=(const Run&) = delete;

   private:
    RankState& state_;
    SavedResults* before_;
  };

  void note(c10::ArrayRef<c10::IValue> values);
  void note(const at::Tensor& tensor);

  // Those that are alive and have a part; the others are forgotten.
  std::vector<MetaPtr> alive();

 private:
  std::vector<c10::weak_intrusive_ptr<Meta>> noted_;
};

}  // namespace tessera::dtensor
