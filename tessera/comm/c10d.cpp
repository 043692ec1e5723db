#include "tessera/comm/c10d.h"

#include <map>
#include <numeric>

#include <ATen/ops/empty.h>
#include <ATen/ops/empty_like.h>
#include <ATen/ops/zeros.h>

#include "tessera/base/error.h"
#include "tessera/base/hash.h"
#include "tessera/comm/context.h"
#include "tessera/comm/transfer.h"

namespace tessera::comm {
namespace {

// Up to this many bytes an all_reduce sends everything to everyone: one exchange instead of two.
constexpr size_t kSmallBytes = 64 << 10;

void copy_bytes(const at::Tensor& to, const at::Tensor& from) {
  if (from.nbytes() > 0 && to.const_data_ptr() != from.const_data_ptr()) {
    std::memcpy(to.mutable_data_ptr(), from.const_data_ptr(), from.nbytes());
  }
}

void verify_device(const Call& call) {
  const auto tensors = call.inputs.empty() ? call.outputs : call.inputs;
  TESSERA_CHECK(tensors.empty() || tensors.front().device().is_cpu(), "[", name_of(call.kind), "] a tensor on ",
                tensors.front().device(), " over ", call.group->name(), "; ranks as processes accept tensors on cpu");
}

// output = the combination of `values`, the first first; by the code that rank threads run.
void combine(const at::Tensor& output, const std::vector<at::Tensor>& values, ReduceOp op) {
  std::vector<Call> calls(values.size(), Call{.kind = Kind::kReduceScatter, .reduce = op});
  std::vector<const Call*> pointers;
  for (size_t i = 0; i < calls.size(); ++i) {
    calls[i].inputs = values[i];
    pointers.push_back(&calls[i]);
  }
  calls[0].outputs = output;
  transfer(pointers, 0);
}

// What two members must agree about before their messages of a call may meet.
uint64_t fingerprint(const Round& round) {
  const auto& call = round.call;
  auto hash = base::hash_combine(round.group, static_cast<uint64_t>(round.number));
  hash = base::hash_combine(hash, static_cast<uint64_t>(call.kind) * 256 + static_cast<uint64_t>(call.reduce));
  const bool is_broadcast = call.kind == Kind::kBroadcast;
  hash = base::hash_combine(hash, static_cast<uint64_t>(is_broadcast ? call.peer : 0));
  return call.program ? base::hash_combine(base::hash_combine(hash, call.program->hash), call.program->count) : hash;
}

int tag_of(uint64_t hash, const at::Tensor& tensor) {
  hash = base::hash_range(tensor.sizes(), base::hash_combine(hash, static_cast<uint64_t>(tensor.scalar_type())));
  return static_cast<int>(hash & 0x7fffffff);
}

// What travels for a tensor: itself, or a byte for an empty one.
at::Tensor body_of(const at::Tensor& tensor) {
  return tensor.numel() > 0 ? tensor.detach() : at::zeros({1}, at::TensorOptions().dtype(at::kByte));
}

// A message to come. Its number was drawn when it was issued, so that waits may come in any order.
class ReceiveWork : public Work {
 public:
  ReceiveWork(std::shared_ptr<Communicator> owner, Call call, at::Tensor output, std::function<void(Call&)> receive)
      : owner_(std::move(owner)), call_(call), output_(std::move(output)), receive_(std::move(receive)) {
    call_.outputs = output_;
  }

  void wait() override {
    if (!is_done_) {
      CallScope scope(call_);
      receive_(call_);
      is_done_ = true;
    }
  }

 private:
  std::shared_ptr<Communicator> owner_;
  Call call_;
  at::Tensor output_;
  std::function<void(Call&)> receive_;
  bool is_done_ = false;
};

class C10dCommunicator : public Communicator, public std::enable_shared_from_this<C10dCommunicator> {
 public:
  C10dCommunicator(std::shared_ptr<ProcessJob> job, c10::intrusive_ptr<c10d::Backend> backend, std::vector<int64_t> ranks, std::string name,
                   uint64_t key)
      : job_(std::move(job)), backend_(std::move(backend)), ranks_(std::move(ranks)), name_(std::move(name)), key_(key),
        member_(std::find(ranks_.begin(), ranks_.end(), job_->rank()) - ranks_.begin()) {}

  int64_t rank() const override { return member_; }
  int64_t size() const override { return static_cast<int64_t>(ranks_.size()); }
  const std::vector<int64_t>& ranks() const override { return ranks_; }
  const std::string& name() const override { return name_; }
  const c10::intrusive_ptr<c10d::Backend>& backend() const { return backend_; }

  WorkPtr all_reduce(at::Tensor tensor, ReduceOp op) override {
    return meet({.kind = Kind::kAllReduce, .inputs = tensor, .outputs = tensor, .reduce = op}, [&](const Round& round) {
      const bool is_small = tensor.nbytes() <= kSmallBytes || tensor.numel() < size();
      size() == 1 ? void() : is_small ? reduce_small(round, tensor, op) : reduce_large(round, tensor.view({-1}), op);
    });
  }

  WorkPtr all_gather(std::vector<at::Tensor> outputs, at::Tensor input) override {
    return meet({.kind = Kind::kAllGather, .inputs = input, .outputs = outputs}, [&](const Round& round) {
      copy_bytes(outputs[index()], input);
      exchange(round, outputs, std::vector<at::Tensor>(ranks_.size(), input));
    });
  }

  WorkPtr reduce_scatter(at::Tensor output, std::vector<at::Tensor> inputs, ReduceOp op) override {
    return meet({.kind = Kind::kReduceScatter, .inputs = inputs, .outputs = output, .reduce = op},
                [&](const Round& round) { combine(output, gathered(round, output, inputs), op); });
  }

  WorkPtr all_to_all(std::vector<at::Tensor> outputs, std::vector<at::Tensor> inputs) override {
    return meet({.kind = Kind::kAllToAll, .inputs = inputs, .outputs = outputs}, [&](const Round& round) {
      copy_bytes(outputs[index()], inputs[index()]);
      exchange(round, outputs, inputs);
    });
  }

  WorkPtr broadcast(at::Tensor tensor, int64_t root) override {
    return meet({.kind = Kind::kBroadcast, .inputs = tensor, .outputs = tensor, .peer = root}, [&](const Round& round) {
      const auto hash = fingerprint(round);
      job_->run(round, [&](Works& works) {
        for (int64_t k = 1; k < size() && root == member_; ++k) {
          works.push_back(post_send((member_ + k) % size(), tensor, hash));
        }
        if (root != member_) {
          works.push_back(post_receive(root, tensor, hash));
        }
      });
    });
  }

  WorkPtr send(at::Tensor tensor, int64_t to, int64_t tag) override {
    Call call{.kind = Kind::kSend, .group = this, .inputs = tensor, .peer = to, .tag = tag};
    CallScope scope(call);
    verify_device(call);
    const Round round{call, key_, sent_[{to, tag}]++};
    job_->throw_if_failed(&call, key_);
    auto message = at::empty_like(tensor);
    copy_bytes(message, tensor);
    c10::intrusive_ptr<c10d::Work> work;
    job_->run(round, [&](Works&) { work = post_send(to, message, message_hash(member_, to, tag, round.number)); });
    job_->keep(round, std::move(message), std::move(work));
    return finished_work();
  }

  WorkPtr receive(at::Tensor tensor, int64_t from, int64_t tag) override {
    Call call{.kind = Kind::kReceive, .group = this, .outputs = tensor, .peer = from, .tag = tag};
    verify_call(call);
    verify_device(call);
    const auto number = received_[{from, tag}]++;
    return std::make_unique<ReceiveWork>(shared_from_this(), call, tensor, [this, number](const Call& given) {
      job_->run({given, key_, number}, [&](Works& works) {
        works.push_back(post_receive(given.peer, given.outputs[0], message_hash(given.peer, member_, given.tag, number)));
      });
    });
  }

  void barrier() override {
    meet({.kind = Kind::kBarrier}, [&](const Round& round) {
      std::vector<at::Tensor> nothing(ranks_.size(), at::empty({0}));
      exchange(round, nothing, nothing);
    });
  }

  std::shared_ptr<Communicator> split(const std::vector<std::vector<int64_t>>& groups, std::string name) override {
    const auto& own = own_group(*this, groups, name);
    auto key = base::hash_range(own, base::hash_string(name, key_));
    key = base::hash_combine(key, static_cast<uint64_t>(splits_[key]++));
    return std::make_shared<C10dCommunicator>(job_, backend_, own, std::move(name), key);
  }

 private:
  size_t index() const { return static_cast<size_t>(member_); }

  template <typename Do>
  WorkPtr meet(Call call, Do run) {
    call.group = this;
    CallScope scope(call);
    verify_device(call);
    run(Round{call, key_, round_++});
    return finished_work();
  }

  c10::intrusive_ptr<c10d::Work> post_send(int64_t to, const at::Tensor& tensor, uint64_t hash) {
    std::vector<at::Tensor> body = {body_of(tensor)};
    return backend_->send(body, static_cast<int>(ranks_[static_cast<size_t>(to)]), tag_of(hash, tensor));
  }

  c10::intrusive_ptr<c10d::Work> post_receive(int64_t from, const at::Tensor& tensor, uint64_t hash) {
    std::vector<at::Tensor> body = {body_of(tensor)};
    return backend_->recv(body, static_cast<int>(ranks_[static_cast<size_t>(from)]), tag_of(hash, tensor));
  }

  // `taken[i]` becomes member i's `given[rank()]`, for all members but this one. `phase` tells exchanges of one call apart.
  void exchange(const Round& round, const std::vector<at::Tensor>& taken, const std::vector<at::Tensor>& given, uint64_t phase = 0) {
    const auto hash = base::hash_combine(fingerprint(round), phase);
    job_->run(round, [&](Works& works) {
      for (int64_t k = 1; k < size(); ++k) {
        const auto from = (member_ + size() - k) % size();
        works.push_back(post_receive(from, taken[static_cast<size_t>(from)], hash));
      }
      for (int64_t k = 1; k < size(); ++k) {
        const auto to = (member_ + k) % size();
        works.push_back(post_send(to, given[static_cast<size_t>(to)], hash));
      }
    });
  }

  // What all members have for this one, which has `given` for them.
  std::vector<at::Tensor> gathered(const Round& round, const at::Tensor& like, const std::vector<at::Tensor>& given) {
    std::vector<at::Tensor> values;
    for (size_t i = 0; i < ranks_.size(); ++i) {
      values.push_back(i == index() ? given[i] : at::empty_like(like));
    }
    exchange(round, values, given);
    return values;
  }

  void reduce_small(const Round& round, const at::Tensor& tensor, ReduceOp op) {
    combine(tensor, gathered(round, tensor, std::vector<at::Tensor>(ranks_.size(), tensor)), op);
  }

  // Each member combines one part and hands it to all.
  void reduce_large(const Round& round, const at::Tensor& tensor, ReduceOp op) {
    std::vector<at::Tensor> parts;
    for (int64_t i = 0; i < size(); ++i) {
      const auto begin = tensor.numel() * i / size();
      parts.push_back(tensor.narrow(0, begin, tensor.numel() * (i + 1) / size() - begin));
    }
    const auto& own = parts[index()];
    combine(own, gathered(round, own, parts), op);
    exchange(round, parts, std::vector<at::Tensor>(ranks_.size(), own), 1);
  }

  uint64_t message_hash(int64_t from, int64_t to, int64_t tag, int64_t number) const {
    return base::hash_range(std::vector<int64_t>{from, to, tag, number}, key_);
  }

  const std::shared_ptr<ProcessJob> job_;
  const c10::intrusive_ptr<c10d::Backend> backend_;
  const std::vector<int64_t> ranks_;
  const std::string name_;
  const uint64_t key_;  // of the group, equal on all members
  const int64_t member_;
  int64_t round_ = 0;
  std::map<std::pair<int64_t, int64_t>, int64_t> sent_, received_;  // messages so far, by peer and tag
  std::map<uint64_t, int64_t> splits_;                              // by name and ranks
};

}  // namespace

c10::intrusive_ptr<c10d::Backend> backend_of(const Communicator& communicator) {
  const auto* ours = dynamic_cast<const C10dCommunicator*>(&communicator);
  return ours ? ours->backend() : c10::intrusive_ptr<c10d::Backend>();
}

std::shared_ptr<Communicator> join_c10d(std::shared_ptr<ProcessJob> job, c10::intrusive_ptr<c10d::Backend> backend) {
  TESSERA_CHECK(backend->getSize() == job->size() && backend->getRank() == job->rank(), "[c10d] a backend of rank ", backend->getRank(), " of ",
                backend->getSize(), " for rank ", job->rank(), " of ", job->size(), "; accepted: the same ranks in the same order");
  std::vector<int64_t> ranks(static_cast<size_t>(job->size()));
  std::iota(ranks.begin(), ranks.end(), 0);
  return std::make_shared<C10dCommunicator>(std::move(job), std::move(backend), std::move(ranks), "world", 0);
}

}  // namespace tessera::comm
