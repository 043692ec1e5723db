// Ranks that cannot read each other's memory, as those of several machines.
#pragma once

#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "tessera/comm/core/context.h"
#include "tessera/comm/merge/exact_merge.h"

namespace tessera::support {

// Another communicator, but for its windows.
class NoWindows : public comm::Communicator {
 public:
  using Tensors = std::vector<at::Tensor>;

  explicit NoWindows(std::shared_ptr<comm::Communicator> group) : group_(std::move(group)) {}

  int64_t rank() const override { return group_->rank(); }
  int64_t size() const override { return group_->size(); }
  const std::vector<int64_t>& ranks() const override { return group_->ranks(); }
  const std::string& name() const override { return group_->name(); }
  comm::WorkPtr all_reduce(at::Tensor tensor, comm::ReduceOp op) override { return group_->all_reduce(tensor, op); }
  comm::WorkPtr all_gather(Tensors outputs, at::Tensor input) override { return group_->all_gather(outputs, input); }
  comm::WorkPtr reduce_scatter(at::Tensor output, Tensors inputs, comm::ReduceOp op) override {
    return group_->reduce_scatter(output, inputs, op);
  }
  comm::WorkPtr all_to_all(Tensors outputs, Tensors inputs) override { return group_->all_to_all(outputs, inputs); }
  comm::WorkPtr broadcast(at::Tensor tensor, int64_t root) override { return group_->broadcast(tensor, root); }
  comm::WorkPtr send(at::Tensor tensor, int64_t to, int64_t tag) override { return group_->send(tensor, to, tag); }
  comm::WorkPtr receive(at::Tensor tensor, int64_t from, int64_t tag) override {
    return group_->receive(tensor, from, tag);
  }
  void barrier() override { group_->barrier(); }
  std::vector<comm::NodeSum> merge(const comm::Merge& merge) override { return group_->merge(merge); }
  std::shared_ptr<comm::Communicator> split(const std::vector<std::vector<int64_t>>& groups,
                                            std::string name) override {
    return group_->split(groups, std::move(name));
  }

 private:
  const std::shared_ptr<comm::Communicator> group_;
};

// From here on the calling rank's world has none; all ranks do so.
inline void close_windows() {
  auto& world = comm::RankContext::require().world;
  world = std::make_shared<NoWindows>(world);
}

}  // namespace tessera::support
