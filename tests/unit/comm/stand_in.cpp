#include "tests/unit/comm/stand_in.h"

#include <algorithm>
#include <chrono>

#include <ATen/ops/empty_like.h>
#include <ATen/ops/where.h>

#include "tessera/base/error.h"

namespace tessera::comm {
namespace {

using Tensors = std::vector<at::Tensor>;

class StandInWork : public c10d::Work {
 public:
  explicit StandInWork(c10d::OpType type) : Work(-1, type) {}
  void end(std::exception_ptr error = nullptr) { finish(std::move(error)); }
};

std::exception_ptr error_of(const std::string& message) { return std::make_exception_ptr(std::runtime_error(message)); }

// Another order than ours, and without NaN.
at::Tensor reduced(const Tensors& values, c10d::ReduceOp::RedOpType op) {
  at::Tensor total = values.back().clone();
  for (size_t i = values.size() - 1; i-- > 0;) {
    const auto& next = values[i];
    switch (op) {
      case c10d::ReduceOp::SUM: total += next; break;
      case c10d::ReduceOp::PRODUCT: total *= next; break;
      case c10d::ReduceOp::MAX: total = at::where(next > total, next, total); break;
      case c10d::ReduceOp::MIN: total = at::where(next < total, next, total); break;
      default: throw std::runtime_error("this reduction is not ours");
    }
  }
  return total;
}

void verify_reducible(const at::Tensor& tensor) {
  const auto dtype = tensor.scalar_type();
  TORCH_CHECK(dtype != at::kBool && dtype != at::kShort && !tensor.is_complex(), "the stand-in has no ", dtype);
}

}  // namespace

// One member's part of a collective.
struct StandInHub::Operation {
  c10d::OpType type = c10d::OpType::UNKNOWN;
  Tensors inputs = {}, outputs = {};
  c10d::ReduceOp::RedOpType reduce = c10d::ReduceOp::SUM;
  int64_t root = 0;
  c10::intrusive_ptr<StandInWork> work = {};

  // What must be equal on all members. Lists of an all_to_all are compared pair by pair when they are copied.
  std::string signature() const {
    const bool is_list = type == c10d::OpType::ALLTOALL,
               is_message = type == c10d::OpType::SEND || type == c10d::OpType::RECV;
    const auto& any = inputs.empty() ? outputs[0] : inputs[0];
    const auto numel = is_list ? -1 : any.numel();
    return c10::str(is_message ? "message" : c10d::opTypeToString(type), any.scalar_type(), numel, "/",
                    static_cast<int>(reduce), "/", root);
  }
};

struct StandInHub::Group {
  explicit Group(int64_t size) : queues(static_cast<size_t>(size)) {}
  std::vector<std::deque<Operation>> queues;  // by member: calls that have not run
  bool is_aborted = false, hangs = false;

  bool is_ready() const {
    return !is_aborted && !hangs &&
           std::none_of(queues.begin(), queues.end(), [](const auto& queue) { return queue.empty(); });
  }
};

class StandIn : public c10d::Backend {
 public:
  StandIn(StandInHub& hub, std::shared_ptr<StandInHub::Group> group, int rank, int size)
      : Backend(rank, size), hub_(hub), group_(std::move(group)) {}

  using WorkPtr = c10::intrusive_ptr<c10d::Work>;
  const std::string getBackendName() const override { return "stand-in"; }

  WorkPtr allreduce(Tensors& tensors, const c10d::AllreduceOptions& options) override {
    verify_reducible(tensors[0]);
    return post({.type = c10d::OpType::ALLREDUCE, .inputs = tensors, .outputs = tensors, .reduce = options.reduceOp});
  }
  WorkPtr _allgather_base(at::Tensor& output, at::Tensor& input, const c10d::AllgatherOptions&) override {
    TORCH_CHECK(output.numel() == input.numel() * getSize(), "sizes of an all_gather");
    return post({.type = c10d::OpType::_ALLGATHER_BASE, .inputs = {input}, .outputs = {output}});
  }
  WorkPtr _reduce_scatter_base(at::Tensor& output, at::Tensor& input,
                               const c10d::ReduceScatterOptions& options) override {
    verify_reducible(input);
    TORCH_CHECK(input.numel() == output.numel() * getSize(), "sizes of a reduce_scatter");
    return post({.type = c10d::OpType::_REDUCE_SCATTER_BASE,
                 .inputs = {input},
                 .outputs = {output},
                 .reduce = options.reduceOp});
  }
  WorkPtr alltoall(Tensors& outputs, Tensors& inputs, const c10d::AllToAllOptions&) override {
    TORCH_CHECK(static_cast<int>(inputs.size()) == getSize() && static_cast<int>(outputs.size()) == getSize(),
                "lists of an all_to_all");
    return post({.type = c10d::OpType::ALLTOALL, .inputs = inputs, .outputs = outputs});
  }
  WorkPtr broadcast(Tensors& tensors, const c10d::BroadcastOptions& options) override {
    return post({.type = c10d::OpType::BROADCAST, .inputs = tensors, .outputs = tensors, .root = options.rootRank});
  }
  WorkPtr send(Tensors& tensors, int to, int tag) override {
    TORCH_CHECK(to == 1 - getRank() && getSize() == 2 && tag == 0, "only pairs, and no tags");
    return post({.type = c10d::OpType::SEND, .inputs = tensors});
  }
  WorkPtr recv(Tensors& tensors, int from, int tag) override {
    TORCH_CHECK(from == 1 - getRank() && getSize() == 2 && tag == 0, "only pairs, and no tags");
    return post({.type = c10d::OpType::RECV, .outputs = tensors});
  }
  void abort() override { hub_.abort(*group_); }

 private:
  WorkPtr post(StandInHub::Operation operation) { return hub_.post(*group_, getRank(), std::move(operation)); }

  StandInHub& hub_;
  const std::shared_ptr<StandInHub::Group> group_;
};

StandInHub::StandInHub(at::DeviceType device, uint64_t seed)
    : device_(device), random_(seed), device_thread_([this] { run(); }) {}

StandInHub::~StandInHub() {
  {
    std::lock_guard lock(mutex_);
    ends_ = true;
  }
  changed_.notify_all();
  device_thread_.join();
}

DeviceBackends StandInHub::backends() {
  return {.device = device_,
          .make = [this](const std::string& key, int64_t rank, int64_t size) -> c10::intrusive_ptr<c10d::Backend> {
            return c10::make_intrusive<StandIn>(*this, open(key, size), static_cast<int>(rank), static_cast<int>(size));
          }};
}

void StandInHub::fail_later(int64_t number, std::string message) {
  std::lock_guard lock(mutex_);
  fails_in_ = number;
  failure_ = std::move(message);
}

void StandInHub::hang_later(int64_t number) {
  std::lock_guard lock(mutex_);
  hangs_in_ = number;
}

void StandInHub::refuse(int64_t rank, std::string message) {
  std::lock_guard lock(mutex_);
  refuses_ = rank;
  failure_ = std::move(message);
}

int64_t StandInHub::calls() const {
  std::lock_guard lock(mutex_);
  return calls_;
}

int64_t StandInHub::mismatches() const {
  std::lock_guard lock(mutex_);
  return mismatches_;
}

std::shared_ptr<StandInHub::Group> StandInHub::open(const std::string& key, int64_t size) {
  std::lock_guard lock(mutex_);
  auto& group = groups_[key];
  if (!group) {
    group = std::make_shared<Group>(size);
  }
  TORCH_CHECK(static_cast<int64_t>(group->queues.size()) == size, "two groups of one key");
  return group;
}

c10::intrusive_ptr<c10d::Work> StandInHub::post(Group& group, int64_t rank, Operation operation) {
  for (const auto* tensors : {&operation.inputs, &operation.outputs}) {
    for (const auto& tensor : *tensors) {
      TORCH_CHECK(tensor.is_contiguous() && tensor.device().type() == device_, "a tensor for another library");
    }
  }
  std::lock_guard lock(mutex_);
  TORCH_CHECK(!group.is_aborted, "the stand-in was aborted");
  TORCH_CHECK(refuses_ != rank, failure_);
  auto work = c10::make_intrusive<StandInWork>(operation.type);
  operation.work = work;
  group.queues[static_cast<size_t>(rank)].push_back(std::move(operation));
  changed_.notify_all();
  return work;
}

void StandInHub::abort(Group& group) {
  std::lock_guard lock(mutex_);
  group.is_aborted = true;
  for (auto& queue : group.queues) {
    for (auto& each : queue) {
      each.work->end(error_of("the stand-in was aborted"));
    }
    queue.clear();
  }
}

void StandInHub::run() {
  std::unique_lock lock(mutex_);
  const auto is_any_ready = [&] {
    return std::any_of(groups_.begin(), groups_.end(), [](const auto& each) { return each.second->is_ready(); });
  };
  while (true) {
    changed_.wait(lock, [&] { return ends_ || is_any_ready(); });
    if (ends_) {
      return;
    }
    run_next(lock);
  }
}

namespace {

void copy_pair(const at::Tensor& to, const at::Tensor& from) {
  TORCH_CHECK(to.sizes() == from.sizes() && to.scalar_type() == from.scalar_type(), "a pair of an all_to_all");
  if (!to.is_same(from)) {
    to.copy_(from);
  }
}

void run_all(std::vector<StandInHub::Operation>& all);

}  // namespace

// The next collective of a group chosen by chance. Its tensors are not touched before a while has passed.
void StandInHub::run_next(std::unique_lock<std::mutex>& lock) {
  std::vector<std::shared_ptr<Group>> ready;
  for (const auto& [key, group] : groups_) {
    if (group->is_ready()) {
      ready.push_back(group);
    }
  }
  const auto group = ready[random_() % ready.size()];
  if (hangs_in_ && (*hangs_in_)-- == 0) {
    hangs_in_.reset();
    group->hangs = true;
    return;
  }
  std::vector<Operation> all;
  for (auto& queue : group->queues) {
    all.push_back(std::move(queue.front()));
    queue.pop_front();
  }
  const bool fails = fails_in_ && (*fails_in_)-- == 0;
  if (fails) {
    fails_in_.reset();
  }
  const auto reason = failure_;
  const auto pause = std::chrono::microseconds(random_() % 3 == 0 ? random_() % 2000 : 0);
  lock.unlock();
  std::this_thread::sleep_for(pause);
  std::exception_ptr error = fails ? error_of(reason) : nullptr;
  bool is_mismatch = false;
  for (const auto& each : all) {
    is_mismatch |= each.signature() != all[0].signature();
  }
  try {
    if (is_mismatch) {
      throw std::runtime_error("calls that do not match: " + all[0].signature() + " and " + all[1].signature());
    }
    if (!error) {
      run_all(all);
    }
  } catch (const std::exception&) {
    error = std::current_exception();
    is_mismatch = true;
  }
  lock.lock();
  ++calls_;
  mismatches_ += is_mismatch;
  lock.unlock();
  for (auto& each : all) {
    each.work->end(error);
  }
  lock.lock();
}

namespace {

void run_all(std::vector<StandInHub::Operation>& all) {
  const auto count = static_cast<int64_t>(all.size());
  Tensors inputs;
  for (const auto& each : all) {
    inputs.push_back(each.inputs.empty() ? at::Tensor() : each.inputs[0]);
  }
  at::Tensor total;
  switch (all[0].type) {
    case c10d::OpType::ALLREDUCE:
      total = reduced(inputs, all[0].reduce);
      for (auto& each : all) {
        each.outputs[0].copy_(total);
      }
      return;
    case c10d::OpType::_ALLGATHER_BASE:
      for (auto& each : all) {
        for (int64_t i = 0; i < count; ++i) {
          each.outputs[0].view({count, -1})[i].copy_(inputs[static_cast<size_t>(i)].view({-1}));
        }
      }
      return;
    case c10d::OpType::_REDUCE_SCATTER_BASE:
      total = reduced(inputs, all[0].reduce).view({count, -1});
      for (int64_t i = 0; i < count; ++i) {
        all[static_cast<size_t>(i)].outputs[0].view({-1}).copy_(total[i]);
      }
      return;
    case c10d::OpType::ALLTOALL:
      for (size_t to = 0; to < all.size(); ++to) {
        for (size_t from = 0; from < all.size(); ++from) {
          copy_pair(all[to].outputs[from], all[from].inputs[to]);
        }
      }
      return;
    case c10d::OpType::BROADCAST:
      for (auto& each : all) {
        copy_pair(each.outputs[0], inputs[static_cast<size_t>(all[0].root)]);
      }
      return;
    default: {
      TORCH_CHECK(all[0].type != all[1].type, "two sends, or two receives");
      const bool is_first = all[0].type == c10d::OpType::SEND;
      return copy_pair(all[is_first ? 1 : 0].outputs[0], all[is_first ? 0 : 1].inputs[0]);
    }
  }
}

}  // namespace

}  // namespace tessera::comm
