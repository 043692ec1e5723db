#include "tessera/comm/devices/c10d_device.h"

#include <ATen/ops/cat.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/empty_like.h>
#include <ATen/ops/view_as_real.h>

#include "tessera/base/error.h"
#include "tessera/base/hash.h"
#include "tessera/comm/call/call_scope.h"
#include "tessera/comm/call/rank_scope.h"
#include "tessera/comm/devices/c10d_device_messages.h"
#include "tessera/comm/devices/c10d_device_watch.h"
#include "tessera/comm/merge/exact_merge.h"
#include "tessera/comm/processes/c10d.h"
#include "tessera/comm/sums/ordered_combine.h"
#include "tessera/comm/sums/reduction.h"
#include "tessera/comm/sums/tensor_views.h"

namespace tessera::comm {
namespace {

using Tensors = std::vector<at::Tensor>;

// A reduction that the library does as Communicator promises, but for its order.
struct LibraryReduction {
  c10d::ReduceOp::RedOpType op;
  bool divides = false;  // an average is its sum, divided here: the library would multiply before it adds
};

std::optional<LibraryReduction> library_reduction(at::ScalarType dtype, ReduceOp op) {
  const bool is_sum = op == ReduceOp::kSum || op == ReduceOp::kAvg, is_max = op == ReduceOp::kMax;
  switch (dtype) {
    case at::kBool: return LibraryReduction{is_sum || is_max ? c10d::ReduceOp::MAX : c10d::ReduceOp::MIN};
    case at::kChar:
    case at::kByte:
    case at::kInt:
    case at::kLong:
      if (op == ReduceOp::kMax || op == ReduceOp::kMin) {
        return LibraryReduction{is_max ? c10d::ReduceOp::MAX : c10d::ReduceOp::MIN};
      }
      return LibraryReduction{is_sum ? c10d::ReduceOp::SUM : c10d::ReduceOp::PRODUCT};
    case at::kFloat:
    case at::kDouble:
      if (op == ReduceOp::kProd) {
        return LibraryReduction{c10d::ReduceOp::PRODUCT};
      }
      [[fallthrough]];
    case at::kComplexFloat:
    case at::kComplexDouble:
      if (is_sum) {
        return LibraryReduction{c10d::ReduceOp::SUM, op == ReduceOp::kAvg};
      }
      return std::nullopt;
    default: return std::nullopt;
  }
}

// The tensor as the library reduces it.
at::Tensor library_view(const at::Tensor& tensor) {
  const at::Tensor plain = tensor.detach();
  return plain.is_complex() ? at::view_as_real(plain) : plain.scalar_type() == at::kBool ? bytes_of(plain) : plain;
}

// Whether every two members have something for each other alone, of a size of its own: an all_to_all.
bool has_pairs(const Call& call) {
  const auto& facts = facts_of(call.kind);
  return facts.gives_to_each && facts.takes_from_each;
}

// What the call demands of all members alike, beside its fingerprint: dtype, device and sizes.
uint64_t common_shapes(const Call& call) {
  const auto& any = call.inputs.empty() ? call.outputs[0] : call.inputs[0];
  auto hash =
      base::hash_combine(static_cast<uint64_t>(any.scalar_type()), static_cast<uint64_t>(any.device().type()) + 1);
  if (!has_pairs(call)) {
    for (const auto& tensor : facts_of(call.kind).gives_to_each ? call.inputs : call.outputs) {
      hash = base::hash_range(tensor.sizes(), hash);
    }
  }
  return hash;
}

// The sizes of what one member of an all_to_all has for another.
uint64_t pair_shape(uint64_t hash, const Call& call, at::TensorList tensors, int64_t member) {
  return has_pairs(call) ? base::hash_range(tensors[static_cast<size_t>(member)].sizes(), hash) : hash;
}

// Returns when the neighbours on a ring make the call of `round` too; else throws what a collective over `messages`
// would. That is enough where all members show the same: who differs, and who waits for it, do not come through, and
// the job finds them. The pairs of an all_to_all, which may have sizes of their own, agree one by one.
void agree(const C10dMessages& messages, const Round& round) {
  const auto hash = base::hash_combine(fingerprint_of(round), common_shapes(round.call));
  const auto size = messages.size(), member = messages.member();
  const auto distance = has_pairs(round.call) ? size - 1 : std::min<int64_t>(1, size - 1);
  const at::Tensor nothing = at::empty({0});
  messages.job().run(round, [&](Works& works) {
    for (int64_t k = 1; k <= distance; ++k) {
      const auto from = (member + size - k) % size, to = (member + k) % size;
      works.push_back(messages.receive(from, nothing, pair_shape(hash, round.call, round.call.outputs, from)));
      works.push_back(messages.send(to, nothing, pair_shape(hash, round.call, round.call.inputs, to)));
    }
  });
}

// A call that outlives its caller's lists.
struct OwnedCall {
  explicit OwnedCall(const Call& other)
      : inputs(other.inputs.vec()), outputs(other.outputs.vec()), op(other.op), call(other) {
    call.inputs = inputs;
    call.outputs = outputs;
    call.op = op.c_str();
    call.program = nullptr;
  }
  OwnedCall(const OwnedCall&) = delete;
  OwnedCall& operator=(const OwnedCall&) = delete;

  Tensors inputs, outputs;
  std::string op;
  Call call;
};

// A collective that the library runs, and what is left to do on the current stream once it has.
class DeviceWork : public Work {
 public:
  DeviceWork(std::shared_ptr<Communicator> owner, std::shared_ptr<DeviceWatch> watch, const Call& call, uint64_t key)
      : owner_(std::move(owner)), watch_(std::move(watch)), own_(call), key_(key) {}

  ~DeviceWork() override {
    if (is_done_) {
      return;
    }
    try {
      if (work_) {
        work_->wait();
      }
    } catch (const std::exception&) {
      // The watch tells.
    }
  }

  // Everything that the work reads and writes is in `tensors` or in the call.
  void run(DeviceWatch::WorkPtr work, Tensors tensors) {
    tensors.insert(tensors.end(), own_.inputs.begin(), own_.inputs.end());
    tensors.insert(tensors.end(), own_.outputs.begin(), own_.outputs.end());
    work_ = std::move(work);
    watch_->add(work_, std::move(tensors), own_.call.str(), deadline_of_rank());
  }

  void then(std::function<void()> finish) { finish_ = std::move(finish); }

  // Makes the current stream wait for what runs.
  void settle() {
    try {
      if (work_) {
        work_->wait();
      }
    } catch (const std::exception& error) {
      watch_->fail(own_.call.str(), base::message_of(error));
    }
    watch_->throw_if_failed(own_.call, key_);
  }

  void wait() override {
    if (is_done_) {
      return;
    }
    is_done_ = true;
    const WaitScope scope;
    settle();
    if (finish_) {
      finish_();
    }
    finish_ = {};
    work_ = {};
  }

 private:
  const std::shared_ptr<Communicator> owner_;
  const std::shared_ptr<DeviceWatch> watch_;
  const OwnedCall own_;
  const uint64_t key_;
  DeviceWatch::WorkPtr work_;
  std::function<void()> finish_;
  bool is_done_ = false;
};

class DeviceReceive : public Work {
 public:
  DeviceReceive(std::shared_ptr<Communicator> owner, std::shared_ptr<DeviceMessages> messages, const Call& call)
      : owner_(std::move(owner)),
        messages_(std::move(messages)),
        own_(call),
        name_(messages_->expect(call.peer, call.tag, call.outputs[0])) {}

  ~DeviceReceive() override {
    if (!is_done_) {
      messages_->give_up(name_);
    }
  }

  void wait() override {
    if (is_done_) {
      return;
    }
    Call call = own_.call;
    CallScope scope(call);
    is_done_ = true;
    messages_->take(call, name_);
  }

 private:
  const std::shared_ptr<Communicator> owner_;
  const std::shared_ptr<DeviceMessages> messages_;
  const OwnedCall own_;
  const DeviceMessages::Name name_;
  bool is_done_ = false;
};

class DeviceCommunicator : public Communicator, public std::enable_shared_from_this<DeviceCommunicator> {
 public:
  DeviceCommunicator(std::shared_ptr<Communicator> cpu, DeviceBackends backends, std::shared_ptr<DeviceWatch> watch)
      : cpu_(std::move(cpu)), group_(*group_of(*cpu_)), backends_(std::move(backends)), watch_(std::move(watch)) {}

  int64_t rank() const override { return cpu_->rank(); }
  int64_t size() const override { return cpu_->size(); }
  const std::vector<int64_t>& ranks() const override { return cpu_->ranks(); }
  const std::string& name() const override { return cpu_->name(); }

  WorkPtr all_reduce(at::Tensor tensor, ReduceOp op) override {
    if (!is_here(tensor)) {
      return cpu_->all_reduce(std::move(tensor), op);
    }
    const Call call{.kind = Kind::kAllReduce, .inputs = tensor, .outputs = tensor, .reduce = op};
    const auto library = library_reduction(tensor.scalar_type(), op);
    const bool is_small = static_cast<int64_t>(tensor.nbytes()) <= kSmallBytes;
    return meet(call,
                library    ? ""
                : is_small ? "all_gather"
                           : "all_to_all, all_gather",
                [&](DeviceWork& work) {
                  if (tensor.numel() == 0) {
                    return;
                  }
                  library    ? start_reduce(work, tensor, *library)
                  : is_small ? reduce_small(work, tensor, op)
                             : reduce_large(work, tensor, op);
                });
  }

  WorkPtr all_gather(Tensors outputs, at::Tensor input) override {
    if (!is_here(input)) {
      return cpu_->all_gather(std::move(outputs), std::move(input));
    }
    const bool is_uneven = !is_even(outputs);
    return meet({.kind = Kind::kAllGather, .inputs = input, .outputs = outputs}, is_uneven ? "all_to_all" : "",
                [&](DeviceWork& work) { start_gather(work, outputs, input); });
  }

  WorkPtr reduce_scatter(at::Tensor output, Tensors inputs, ReduceOp op) override {
    if (!is_here(output)) {
      return cpu_->reduce_scatter(std::move(output), std::move(inputs), op);
    }
    const auto library = is_even(inputs) ? library_reduction(output.scalar_type(), op) : std::nullopt;
    return meet({.kind = Kind::kReduceScatter, .inputs = inputs, .outputs = output, .reduce = op},
                library ? "" : "all_to_all", [&](DeviceWork& work) {
                  if (!library) {
                    return scatter_copies(work, output, inputs, op);
                  }
                  if (output.numel() == 0) {
                    return;
                  }
                  at::Tensor all = joined(inputs).value_or(at::Tensor());
                  if (!all.defined()) {
                    all = at::cat(flat(inputs));
                  }
                  auto to = library_view(output), from = library_view(all);
                  work.run(backend()->_reduce_scatter_base(to, from, {.reduceOp = library->op}), {all});
                  if (library->divides) {
                    work.then([output, count = size()] { divide(output, count); });
                  }
                });
  }

  WorkPtr all_to_all(Tensors outputs, Tensors inputs) override {
    if (outputs.empty() || !is_here(outputs[0])) {
      return cpu_->all_to_all(std::move(outputs), std::move(inputs));
    }
    return meet({.kind = Kind::kAllToAll, .inputs = inputs, .outputs = outputs}, "",
                [&](DeviceWork& work) { start_exchange(work, outputs, inputs); });
  }

  WorkPtr broadcast(at::Tensor tensor, int64_t root) override {
    if (!is_here(tensor)) {
      return cpu_->broadcast(std::move(tensor), root);
    }
    return meet({.kind = Kind::kBroadcast, .inputs = tensor, .outputs = tensor, .peer = root}, "",
                [&](DeviceWork& work) {
                  if (tensor.numel() == 0) {
                    return;
                  }
                  Tensors body = {bytes_of(tensor)};
                  work.run(backend()->broadcast(body, {.rootRank = root}), {});
                });
  }

  WorkPtr send(at::Tensor tensor, int64_t to, int64_t tag) override {
    if (!is_here(tensor)) {
      return cpu_->send(std::move(tensor), to, tag);
    }
    Call call{.kind = Kind::kSend, .group = this, .inputs = tensor, .peer = to, .tag = tag};
    CallScope scope(call);
    messages().send(call);
    return finished_work();
  }

  WorkPtr receive(at::Tensor tensor, int64_t from, int64_t tag) override {
    if (!is_here(tensor)) {
      return cpu_->receive(std::move(tensor), from, tag);
    }
    const Call call{.kind = Kind::kReceive, .group = this, .outputs = tensor, .peer = from, .tag = tag};
    verify_call(call);
    messages();
    return std::make_unique<DeviceReceive>(shared_from_this(), messages_, call);
  }

  void barrier() override { cpu_->barrier(); }

  std::vector<NodeSum> merge(const Merge& merge) override {
    return merge.options.device().type() == backends_.device ? merge_by_copies(*this, merge) : cpu_->merge(merge);
  }

  std::unique_ptr<Window> open_window() override { return cpu_->open_window(); }

  std::shared_ptr<Communicator> split(const std::vector<std::vector<int64_t>>& groups, std::string name) override {
    return std::make_shared<DeviceCommunicator>(cpu_->split(groups, std::move(name)), backends_, watch_);
  }

 private:
  bool is_here(const at::Tensor& tensor) const {
    return tensor.defined() && tensor.device().type() == backends_.device;
  }

  const DeviceWatch::BackendPtr& backend() {
    if (!backend_) {
      const bool is_world = group_.key == 0;
      backend_ =
          is_world && backends_.world ? backends_.world : backends_.make(std::to_string(group_.key), rank(), size());
      watch_->add(backend_);
    }
    return backend_;
  }

  DeviceMessages& messages() {
    if (!messages_) {
      messages_ = std::make_shared<DeviceMessages>(group_.messages, group_.key, watch_, backends_);
    }
    return *messages_;
  }

  // `composed` of what, if the backend has no such collective.
  template <typename Start>
  WorkPtr meet(Call call, const char* composed, Start start) {
    call.group = this;
    CallScope scope(call);
    watch_->throw_if_failed(call, group_.key);
    agree(group_.messages, {call, group_.key, group_.rounds++});
    if (*composed) {
      note_composed(call, composed);
    }
    auto work = std::make_unique<DeviceWork>(shared_from_this(), watch_, call, group_.key);
    try {
      size() == 1 ? give_to_itself(call) : start(*work);
    } catch (const base::CommError&) {
      throw;
    } catch (const std::exception& error) {
      watch_->fail(call.str(), base::message_of(error));
      watch_->throw_if_failed(call, group_.key);
    }
    return work;
  }

  static void give_to_itself(const Call& call) {
    if (!call.outputs[0].is_same(call.inputs[0])) {
      call.outputs[0].detach().copy_(call.inputs[0].detach());
    }
  }

  void start_reduce(DeviceWork& work, const at::Tensor& tensor, const LibraryReduction& library) {
    Tensors body = {library_view(tensor)};
    work.run(backend()->allreduce(body, {.reduceOp = library.op}), {});
    if (library.divides) {
      work.then([tensor, count = size()] { divide(tensor, count); });
    }
  }

  void start_gather(DeviceWork& work, const Tensors& outputs, const at::Tensor& input) {
    if (!is_even(outputs)) {
      return start_exchange(work, outputs, Tensors(outputs.size(), input));
    }
    if (input.numel() == 0) {
      return;
    }
    const auto together = joined(outputs);
    const at::Tensor all = together ? *together : at::empty({size(), input.numel()}, input.options());
    at::Tensor to = bytes_of(all), from = bytes_of(input);
    work.run(backend()->_allgather_base(to, from), {all});
    if (together) {
      return;
    }
    work.then([outputs, all] {
      for (size_t i = 0; i < outputs.size(); ++i) {
        outputs[i].detach().copy_(all[static_cast<int64_t>(i)].view_as(outputs[i]));
      }
    });
  }

  void start_exchange(DeviceWork& work, const Tensors& outputs, const Tensors& inputs) {
    Tensors to = bytes_of(outputs), from = bytes_of(inputs);
    Tensors kept = outputs;
    kept.insert(kept.end(), inputs.begin(), inputs.end());
    work.run(backend()->alltoall(to, from), std::move(kept));
  }

  Tensors like(const at::Tensor& tensor) const {
    Tensors result;
    for (int64_t i = 0; i < size(); ++i) {
      result.push_back(at::empty_like(tensor));
    }
    return result;
  }

  void scatter_copies(DeviceWork& work, const at::Tensor& output, const Tensors& inputs, ReduceOp op) {
    const Tensors received = like(output);
    start_exchange(work, received, inputs);
    work.then([output, received, op] { combine_in_order(output, received, op); });
  }

  void reduce_small(DeviceWork& work, const at::Tensor& tensor, ReduceOp op) {
    const Tensors received = at::empty({size(), tensor.numel()}, tensor.options()).unbind();
    start_gather(work, received, tensor);
    work.then([tensor, received, op] { combine_in_order(tensor.view({-1}), received, op); });
  }

  // Each member combines one part and hands it to all.
  void reduce_large(DeviceWork& work, const at::Tensor& tensor, ReduceOp op) {
    Tensors parts;
    for (int64_t i = 0; i < size(); ++i) {
      const auto part = layout::cut(tensor.numel(), size(), i);
      parts.push_back(tensor.detach().view({-1}).narrow(0, part.begin, part.size()));
    }
    const auto own = at::empty_like(parts[static_cast<size_t>(rank())]);
    const Tensors received = like(own);
    start_exchange(work, received, parts);
    work.settle();
    combine_in_order(own, received, op);
    start_gather(work, parts, own);
  }

  const std::shared_ptr<Communicator> cpu_;
  const C10dGroup group_;
  const DeviceBackends backends_;
  const std::shared_ptr<DeviceWatch> watch_;
  DeviceWatch::BackendPtr backend_;
  std::shared_ptr<DeviceMessages> messages_;
};

}  // namespace

std::shared_ptr<Communicator> join_devices(std::shared_ptr<ProcessJob> job, std::shared_ptr<Communicator> cpu,
                                           DeviceBackends backends) {
  const auto group = group_of(*cpu);
  TESSERA_CHECK(group, "[c10d] tensors on ", backends.device, " over ", cpu->name(),
                ", which is no communicator between processes; accepted: one of join_c10d");
  const auto& world = backends.world;
  TESSERA_CHECK(!world || (world->getSize() == cpu->size() && world->getRank() == cpu->rank()),
                "[c10d] a backend of rank ", world ? world->getRank() : 0, " of ", world ? world->getSize() : 0,
                " for rank ", cpu->rank(), " of ", cpu->size(), "; accepted: the same ranks in the same order");
  auto watch = std::make_shared<DeviceWatch>(std::move(job));
  return std::make_shared<DeviceCommunicator>(std::move(cpu), std::move(backends), std::move(watch));
}

}  // namespace tessera::comm
