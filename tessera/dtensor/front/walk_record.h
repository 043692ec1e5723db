// What the walk of a body of another stage did, and what stands for it in other micro-batches (pass_over.h).
#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <vector>

#include <ATen/core/Tensor.h>

#include "tessera/dtensor/front/walk_checks.h"
#include "tessera/dtensor/front/walk_sends.h"
#include "tessera/dtensor/plan/forward_plans.h"
#include "tessera/dtensor/record/node.h"
#include "tessera/dtensor/record/tensor_like.h"
#include "tessera/trace/ledger.h"

namespace tessera::dtensor {

// A tensor of no elements, of which others are made for other micro-batches.
class Absent {
 public:
  // `origin`: which tensor of those that it was computed from has its rows; kNone: it has none.
  Absent(const at::Tensor& tensor, size_t origin)
      : part_(meta_of(tensor)->local), spec_(meta_of(tensor)->spec), origin_(origin) {}

  // One that was computed from these.
  at::Tensor make(const std::vector<at::Tensor>& computed_from);

 private:
  at::Tensor part_;
  Spec spec_;
  size_t origin_;
  Prototype prototype_;
};

// Made before the walk. Nodes of the graph share it.
class WalkRecord : public std::enable_shared_from_this<WalkRecord> {
 public:
  using Tensors = std::vector<at::Tensor>;

  // Of a body that is given these. The walk sends this of them, and its backward pass that of its results' gradients.
  WalkRecord(RankState& state, const Tensors& inputs, WalkSends sends, WalkSends sends_back);

  // What the body is given in place of the inputs: they, behind marks in the graph.
  Tensors begin();
  // After the walk: the results, behind a mark.
  Tensors end(Tensors results);
  // The tensors of this walk are not needed any more, whether it came to its end or threw.
  void let_go();
  // Whether the walk was one that others can be like.
  bool is_usable() const { return is_usable_; }

  // Whether a backward pass has gone through it whole; and if so, whether it sent no more than it was said to.
  bool has_run_back() const { return has_run_back_; }
  bool is_clean_back() const { return is_clean_back_; }
  // What it sent besides; nothing if that is not of its results' gradients alone.
  const std::optional<WalkSends>& found_back() const { return found_back_; }

  // The results of another micro-batch, for such inputs: the program stands afterwards where a walk would leave it.
  Tensors go_past(const Tensors& inputs);

 private:
  // What ranks count of their programs.
  struct Counts {
    comm::Program::Stretch program;
    std::vector<trace::LedgerEntry> ledger;
  };
  struct Input {
    Spec merged;             // as it lay afterwards: a Partial that was read is merged
    std::vector<Spec> sent;  // where its values went
  };
  // Of the gradient of a result.
  struct Given {
    bool is_defined, is_absent;
  };
  struct Output {
    std::optional<size_t> input;   // it is this input
    std::optional<Absent> absent;  // or else it is new; neither: undefined
    bool wants_gradient = false;
  };
  // Of an input that wants one.
  struct Gradient {
    ForwardPlans::Slot name;       // in which it is given
    std::optional<Absent> absent;  // none: undefined
  };
  struct EntryBack;
  struct ExitBack;
  struct PassedOn;
  struct PassedBack;

  Counts counts() const;
  Counts counts_since(const Counts& then) const;
  void add(const Counts& counts);

  bool find_names(const at::Tensor& result);
  void note_input(const at::Tensor& input);
  void leave(Meta& meta, const Input& input) const;
  NodePtr node_for(Tensors inputs);
  void enter_back(const Tensors& grads);
  void leave_back(size_t input, const at::Tensor& grad);
  Tensors go_past_back(const Tensors& grads);
  void check_same(bool is_same, const char* what) const;

  RankState& state_;
  const WalkSends sends_, sends_back_;
  // Of the walk, until it lets go: their graph holds this record.
  Tensors given_, entered_;
  Untouched untouched_;
  Sites::Position position_;

  std::vector<Input> inputs_;
  std::vector<Output> outputs_;
  std::vector<Gradient> gradients_;
  Sites::Stretch sites_;
  Counts counts_, counts_back_;
  bool is_usable_ = false;
  // Of the backward pass.
  Tensors given_back_;  // until its end: gradients of the results
  std::vector<Given> results_back_;
  std::optional<WalkSends> found_back_;
  int64_t messages_back_ = 0;  // before it
  size_t sent_back_ = 0;
  size_t exits_ = 0;  // inputs whose gradients are still to come
  bool has_left_ = false, has_run_back_ = false, is_clean_back_ = false;
};

}  // namespace tessera::dtensor
