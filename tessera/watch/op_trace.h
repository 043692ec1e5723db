// What every operator of one training step gave, the same on every layout.
#pragma once

#include <cstdint>
#include <string>
#include <unordered_map>
#include <vector>

#include <ATen/core/Tensor.h>

#include "tessera/dtensor/state/observer.h"
#include "tessera/watch/places.h"
#include "tessera/watch/step_value.h"

namespace tessera::watch {

// One result of an operator. Micro-batches run the same operators: their results are one record.
struct OpRecord {
  std::string op;  // aten::add.Tensor
  OpPhase phase = OpPhase::kForward;
  std::string site;    // the parameter read last; in backward, by the forward operator; empty before the first
  int64_t number = 0;  // of the operator in the step, from 1
  size_t output = 0;
  bool is_inside = false;
  std::string key;  // equal on every layout
  layout::Spec spec;
  std::vector<int64_t> sizes;  // of the step's value
  uint64_t hash = 0;           // of the step's value; of one rank: its part
  Digest digest = {};          // the same, if the trace makes them
};

// What a trace keeps of each value.
enum class Keep : uint8_t {
  kHash,    // of values whose bits no layout changes (numerics exact)
  kDigest,  // of those of any numerics: terms of sums as well; what holds no samples is added up over micro-batches
            // where numerics are fast
};

// Records the operators of one step on one rank. Results that hold samples are gathered over the micro-batches; sums
// over samples are merged when backward is over; what depends on neither is taken from the first micro-batch. Every
// rank must have one. Costs a pass over every result, and keeps a gradient for each use of a parameter.
class OpTrace : public dtensor::OpObserver {
 public:
  // `value`, if given, takes the value of the record whose key is `wanted`.
  explicit OpTrace(std::string wanted = {}, StepValue* value = nullptr, Keep keep = Keep::kHash)
      : wanted_(std::move(wanted)), value_(value), keep_(keep) {}

  void on_results(dtensor::RankState& state, const dtensor::OpInfo& info, c10::ArrayRef<c10::IValue> results) override;

  // What the program gave, under the name `batch` or `from_local`.
  void on_given(dtensor::RankState& state, const char* how, const at::Tensor& given) override;

  // The operators that come next are (or are not) inside of another one, which some layouts run as a whole: their keys
  // are apart.
  void set_inside(bool on) { is_inside_ = on; }

  // The step is over. Collective.
  void finish();

  const std::vector<OpRecord>& records() const { return records_; }
  // Backward has run in the pass that is open.
  bool is_after_backward() const { return after_backward_; }

 private:
  struct Where {
    OpPhase phase;
    std::string site;
  };
  Where where_is(dtensor::RankState& state);
  void add(dtensor::RankState& state, const Where& where, const std::string& op, const at::Tensor& result,
           size_t output);
  bool is_traced(const at::Tensor& result) const;
  void keep(OpRecord& record, const at::Tensor& value);
  void wait_for(dtensor::RankState& state, size_t record, const at::Tensor& handle);
  void merge_waiting(dtensor::RankState& state);

  std::string wanted_;
  StepValue* value_;
  Keep keep_;
  std::vector<OpRecord> records_;
  std::vector<at::Tensor> waiting_;  // for each record: the sum so far, or nothing
  std::unordered_map<std::string, size_t> by_key_;
  std::unordered_map<std::string, int64_t> occurrences_;    // in this pass
  std::unordered_map<uint64_t, std::string> site_of_node_;  // by sequence number
  uint64_t pass_ = 0;
  bool is_new_ = false, after_backward_ = false, is_merged_ = false, is_inside_ = false;
  bool is_scheduled_ = false;  // backward has run in a pipeline's schedule
  int64_t operators_ = 0;
};

}  // namespace tessera::watch
