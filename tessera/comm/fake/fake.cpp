#include "tessera/comm/fake/fake.h"

#include <numeric>

#include <ATen/ops/empty_like.h>

#include "tessera/base/error.h"
#include "tessera/comm/call/call.h"
#include "tessera/comm/call/call_scope.h"
#include "tessera/comm/merge/exact_merge.h"
#include "tessera/comm/sums/merge_sums.h"

namespace tessera::comm {
namespace {

// Programs look at whole numbers, such as the experts that tokens go to: the other ranks have those of this one.
void show_own(const std::vector<at::Tensor>& outputs, const at::Tensor& input) {
  const at::ScalarType dtype = input.scalar_type();
  if (dtype != at::kLong && dtype != at::kInt && dtype != at::kBool) {
    return;
  }
  for (const at::Tensor& output : outputs) {
    if (output.sizes() == input.sizes()) {
      output.copy_(input);
    }
  }
}

class FakeCommunicator : public Communicator {
 public:
  FakeCommunicator(std::vector<int64_t> ranks, int64_t member, std::string name)
      : ranks_(std::move(ranks)), member_(member), name_(std::move(name)) {}

  int64_t rank() const override { return member_; }
  int64_t size() const override { return static_cast<int64_t>(ranks_.size()); }
  const std::vector<int64_t>& ranks() const override { return ranks_; }
  const std::string& name() const override { return name_; }
  bool is_imagined() const override { return true; }

  WorkPtr all_reduce(at::Tensor tensor, ReduceOp op) override {
    return pretend({.kind = Kind::kAllReduce, .inputs = tensor, .outputs = tensor, .reduce = op});
  }

  WorkPtr all_gather(std::vector<at::Tensor> outputs, at::Tensor input) override {
    WorkPtr work = pretend({.kind = Kind::kAllGather, .inputs = input, .outputs = outputs});
    show_own(outputs, input);
    return work;
  }

  WorkPtr reduce_scatter(at::Tensor output, std::vector<at::Tensor> inputs, ReduceOp op) override {
    return pretend({.kind = Kind::kReduceScatter, .inputs = inputs, .outputs = output, .reduce = op});
  }

  WorkPtr all_to_all(std::vector<at::Tensor> outputs, std::vector<at::Tensor> inputs) override {
    return pretend({.kind = Kind::kAllToAll, .inputs = inputs, .outputs = outputs});
  }

  WorkPtr broadcast(at::Tensor tensor, int64_t root) override {
    return pretend({.kind = Kind::kBroadcast, .inputs = tensor, .outputs = tensor, .peer = root});
  }

  WorkPtr send(at::Tensor tensor, int64_t to, int64_t tag) override {
    const at::Tensor message = at::empty_like(tensor);  // which a sender has until it is taken
    return pretend({.kind = Kind::kSend, .inputs = tensor, .peer = to, .tag = tag});
  }

  WorkPtr receive(at::Tensor tensor, int64_t from, int64_t tag) override {
    return pretend({.kind = Kind::kReceive, .outputs = tensor, .peer = from, .tag = tag});
  }

  void barrier() override { pretend({.kind = Kind::kBarrier}); }

  std::vector<NodeSum> merge(const Merge& merge) override {
    verify_merge(*this, merge);
    const std::vector<at::Tensor> results = merge_results(merge, rank());
    pretend({.kind = Kind::kMerge, .inputs = merge.sums, .outputs = results, .merge = &merge});
    return with_nodes(merge.plan, results);
  }

  std::shared_ptr<Communicator> split(const std::vector<std::vector<int64_t>>& groups, std::string name) override {
    const auto& own = own_group(*this, groups, name);
    const auto member = std::find(own.begin(), own.end(), ranks_[static_cast<size_t>(member_)]) - own.begin();
    return std::make_shared<FakeCommunicator>(own, member, std::move(name));
  }

 private:
  WorkPtr pretend(Call call) {
    call.group = this;
    CallScope scope(call);
    return finished_work();
  }

  std::vector<int64_t> ranks_;
  int64_t member_;
  std::string name_;
};

}  // namespace

std::shared_ptr<Communicator> make_fake_world(int64_t size, int64_t rank) {
  TESSERA_CHECK(rank >= 0 && rank < size, "[fake] rank ", rank, " of ", size, "; 0 to ", size - 1, " is accepted");
  std::vector<int64_t> ranks(static_cast<size_t>(size));
  std::iota(ranks.begin(), ranks.end(), 0);
  return std::make_shared<FakeCommunicator>(std::move(ranks), rank, "world");
}

}  // namespace tessera::comm
