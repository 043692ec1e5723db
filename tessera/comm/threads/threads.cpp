#include "tessera/comm/threads/threads.h"

#include <map>
#include <numeric>

#include <ATen/ops/empty_like.h>

#include "tessera/base/error.h"
#include "tessera/comm/call/call_scope.h"
#include "tessera/comm/call/rank_scope.h"
#include "tessera/comm/call/receive_work.h"
#include "tessera/comm/core/context.h"
#include "tessera/comm/merge/exact_merge.h"
#include "tessera/comm/sums/merge_sums.h"
#include "tessera/comm/sums/transfer.h"

namespace tessera::comm {
namespace {

// Their memory is one.
class ThreadWindow : public Window {
 public:
  void get(int64_t, const std::vector<Get>& gets) override { copy_gets(gets); }
};

class ThreadCommunicator : public Communicator, public std::enable_shared_from_this<ThreadCommunicator> {
 public:
  ThreadCommunicator(std::shared_ptr<ThreadJob> job, std::shared_ptr<ThreadGroup> group, size_t member,
                     std::string name)
      : job_(std::move(job)), group_(std::move(group)), member_(member), name_(std::move(name)) {}

  int64_t rank() const override { return static_cast<int64_t>(member_); }
  int64_t size() const override { return static_cast<int64_t>(group_->ranks().size()); }
  const std::vector<int64_t>& ranks() const override { return group_->ranks(); }
  const std::string& name() const override { return name_; }

  WorkPtr all_reduce(at::Tensor tensor, ReduceOp op) override {
    return meet({.kind = Kind::kAllReduce, .inputs = tensor, .outputs = tensor, .reduce = op});
  }

  WorkPtr all_gather(std::vector<at::Tensor> outputs, at::Tensor input) override {
    return meet({.kind = Kind::kAllGather, .inputs = input, .outputs = outputs});
  }

  WorkPtr reduce_scatter(at::Tensor output, std::vector<at::Tensor> inputs, ReduceOp op) override {
    return meet({.kind = Kind::kReduceScatter, .inputs = inputs, .outputs = output, .reduce = op});
  }

  WorkPtr all_to_all(std::vector<at::Tensor> outputs, std::vector<at::Tensor> inputs) override {
    return meet({.kind = Kind::kAllToAll, .inputs = inputs, .outputs = outputs});
  }

  WorkPtr broadcast(at::Tensor tensor, int64_t root) override {
    return meet({.kind = Kind::kBroadcast, .inputs = tensor, .outputs = tensor, .peer = root});
  }

  WorkPtr send(at::Tensor tensor, int64_t to, int64_t tag) override {
    Call call{.kind = Kind::kSend, .group = this, .inputs = tensor, .peer = to, .tag = tag};
    CallScope scope(call);
    verify_device(call);
    auto message = at::empty_like(tensor);
    copy_bytes(message, tensor);
    settle_stream(call);
    group_->post(call, member_, sent_[{to, tag}]++, std::move(message));
    return finished_work();
  }

  WorkPtr receive(at::Tensor tensor, int64_t from, int64_t tag) override {
    Call call{.kind = Kind::kReceive, .group = this, .outputs = tensor, .peer = from, .tag = tag};
    verify_call(call);
    verify_device(call);
    const auto number = received_[{from, tag}]++;
    return std::make_unique<ReceiveWork>(shared_from_this(), call, tensor, [this, number](const Call& given) {
      const at::Tensor message = group_->take(given, member_, number, deadline_of_rank());
      settle_stream(given);
      copy_bytes(given.outputs[0], message);
    });
  }

  void barrier() override { meet({.kind = Kind::kBarrier}); }

  std::vector<NodeSum> merge(const Merge& merge) override {
    verify_merge(*this, merge);
    const std::vector<at::Tensor> results = merge_results(merge, rank());
    meet({.kind = Kind::kMerge, .inputs = merge.sums, .outputs = results, .merge = &merge});
    return with_nodes(merge.plan, results);
  }

  std::unique_ptr<Window> open_window() override { return std::make_unique<ThreadWindow>(); }

  std::shared_ptr<Communicator> split(const std::vector<std::vector<int64_t>>& groups, std::string name) override;

 private:
  WorkPtr meet(Call call) {
    call.group = this;
    CallScope scope(call);
    verify_device(call);
    settle_stream(call);
    group_->meet(member_, round_++, call, deadline_of_rank());
    settle_stream(call);
    return finished_work();
  }

  std::shared_ptr<ThreadJob> job_;  // before the group, which it must outlive
  std::shared_ptr<ThreadGroup> group_;
  size_t member_;
  std::string name_;
  uint64_t round_ = 0;
  std::map<std::pair<int64_t, int64_t>, int64_t> sent_, received_;  // messages so far, by peer and tag
};

std::shared_ptr<Communicator> join(const std::shared_ptr<ThreadJob>& job, const std::vector<int64_t>& ranks,
                                   int64_t rank, std::string name) {
  const auto member = std::find(ranks.begin(), ranks.end(), rank) - ranks.begin();
  auto group = job->open(name, ranks, rank);
  return std::make_shared<ThreadCommunicator>(job, std::move(group), static_cast<size_t>(member), std::move(name));
}

std::shared_ptr<Communicator> ThreadCommunicator::split(const std::vector<std::vector<int64_t>>& groups,
                                                        std::string name) {
  return join(job_, own_group(*this, groups, name), ranks()[member_], name);
}

}  // namespace

std::shared_ptr<Communicator> join_threads(const std::shared_ptr<ThreadJob>& job, int64_t rank) {
  std::vector<int64_t> ranks(static_cast<size_t>(job->size()));
  std::iota(ranks.begin(), ranks.end(), 0);
  return join(job, ranks, rank, "world");
}

}  // namespace tessera::comm
