#include "tessera/comm/devices/c10d_device_messages.h"

#include <condition_variable>
#include <deque>
#include <mutex>
#include <thread>

#include <ATen/ops/empty.h>
#include <ATen/ops/empty_like.h>
#include <ATen/ops/zeros.h>
#include <c10/core/DeviceGuard.h>
#include <c10/core/Event.h>
#include <c10/core/StreamGuard.h>
#include <c10/core/impl/VirtualGuardImpl.h>

#include "tessera/base/error.h"
#include "tessera/base/hash.h"
#include "tessera/comm/call/divergence.h"
#include "tessera/comm/call/rank_scope.h"
#include "tessera/comm/core/context.h"
#include "tessera/comm/sums/tensor_views.h"

namespace tessera::comm {
namespace {

// An announcement: tag, number, dtype, dims, sizes.
constexpr int64_t kHead = 4, kMostDims = 12;

at::Tensor announcement_of(const at::Tensor& message, int64_t tag, int64_t number) {
  TESSERA_CHECK(message.dim() <= kMostDims, "[send] a tensor of ", message.dim(), " dims; at most ", kMostDims,
                " are accepted between devices");
  const at::Tensor announcement = at::zeros({kHead + kMostDims}, at::TensorOptions().dtype(at::kLong));
  auto* numbers = announcement.mutable_data_ptr<int64_t>();
  numbers[0] = tag, numbers[1] = number, numbers[2] = static_cast<int64_t>(message.scalar_type()),
  numbers[3] = message.dim();
  std::copy(message.sizes().begin(), message.sizes().end(), numbers + kHead);
  return announcement;
}

// That the work of one thread's current stream is done, for another thread. The CPU has no streams.
class Ready {
 public:
  explicit Ready(at::Device device) {
    if (device.is_cpu()) {
      return;
    }
    event_.emplace(device.type());
    event_->record(c10::impl::VirtualGuardImpl(device.type()).getStream(device));
  }
  void block(const c10::Stream& stream) {
    if (event_) {
      event_->block(stream);
    }
  }

 private:
  std::optional<c10::Event> event_;
};

}  // namespace

// A queue and the thread that empties it. The thread is left to itself at the end: it may wait in the library for a
// receiver that never comes.
class DeviceMessages::Sender : public std::enable_shared_from_this<Sender> {
 public:
  struct Item {
    at::Tensor message;
    std::shared_ptr<Ready> ready;
    std::string what;
    std::chrono::milliseconds deadline;
  };

  Sender(std::shared_ptr<DeviceWatch> watch, std::function<DeviceWatch::BackendPtr()> make)
      : watch_(std::move(watch)), make_(std::move(make)) {}

  void start() {
    std::thread([self = shared_from_this()] { self->run(); }).detach();
  }

  void add(Item item) {
    {
      std::lock_guard lock(mutex_);
      items_.push_back(std::move(item));
    }
    changed_.notify_all();
  }

  void end() {
    {
      std::lock_guard lock(mutex_);
      ends_ = true;
    }
    changed_.notify_all();
  }

 private:
  void run() {
    while (true) {
      std::unique_lock lock(mutex_);
      changed_.wait(lock, [&] { return ends_ || !items_.empty(); });
      if (items_.empty()) {
        return;
      }
      Item item = std::move(items_.front());
      items_.pop_front();
      lock.unlock();
      try {
        post(item);
      } catch (const std::exception& error) {
        return watch_->fail(item.what, base::message_of(error));
      }
    }
  }

  void post(const Item& item) {
    const auto device = item.message.device();
    const c10::DeviceGuard on_device(device);
    c10::OptionalStreamGuard on_stream;
    if (!device.is_cpu()) {
      on_stream.reset_stream(c10::impl::VirtualGuardImpl(device.type()).getStreamFromGlobalPool(device));
    }
    if (!device.is_cpu()) {
      item.ready->block(*on_stream.current_stream());
    }
    if (!backend_) {
      backend_ = make_();
    }
    std::vector<at::Tensor> body = {bytes_of(item.message)};
    watch_->add(backend_->send(body, 1, 0), {item.message}, item.what, item.deadline);
  }

  const std::shared_ptr<DeviceWatch> watch_;
  const std::function<DeviceWatch::BackendPtr()> make_;
  DeviceWatch::BackendPtr backend_;
  std::mutex mutex_;
  std::condition_variable changed_;
  std::deque<Item> items_;
  bool ends_ = false;
};

DeviceMessages::DeviceMessages(C10dMessages messages, uint64_t key, std::shared_ptr<DeviceWatch> watch,
                               DeviceBackends backends)
    : messages_(std::move(messages)),
      key_(base::hash_combine(base::hash_string("devices"), key)),
      watch_(std::move(watch)),
      backends_(std::move(backends)) {}

DeviceMessages::~DeviceMessages() {
  for (const auto& [to, sender] : senders_) {
    sender->end();
  }
}

std::function<DeviceWatch::BackendPtr()> DeviceMessages::maker_of(int64_t from, int64_t to) const {
  const int64_t rank = messages_.member() == from ? 0 : 1;
  return [make = backends_.make, watch = watch_, key = c10::str(key_, "/", from, ">", to), rank] {
    auto backend = make(key, rank, 2);
    watch->add(backend);
    return backend;
  };
}

uint64_t DeviceMessages::announcement_hash(int64_t from, int64_t to, int64_t number) const {
  return base::hash_range(std::vector<int64_t>{from, to, number}, key_);
}

void DeviceMessages::send(const Call& call) {
  const auto number = sent_[{call.peer, call.tag}]++;
  const Round round{call, key_, number};
  watch_->throw_if_failed(call, key_);
  const at::Tensor message = at::empty_like(call.inputs[0]);
  message.copy_(call.inputs[0].detach());
  const at::Tensor announcement = announcement_of(message, call.tag, number);
  const auto hash = announcement_hash(messages_.member(), call.peer, announced_[call.peer]++);
  C10dMessages::WorkPtr work;
  watch_->job().run(round, [&](Works&) { work = messages_.send(call.peer, announcement, hash); });
  watch_->job().keep(round, message, std::move(work));
  if (message.numel() == 0) {
    return;
  }
  auto& sender = senders_[call.peer];
  if (!sender) {
    sender = std::make_shared<Sender>(watch_, maker_of(messages_.member(), call.peer));
    sender->start();
  }
  sender->add({message, std::make_shared<Ready>(message.device()), call.str(), deadline_of_rank()});
}

DeviceMessages::Name DeviceMessages::expect(int64_t from, int64_t tag, at::Tensor output) {
  const Name name{from, tag, received_[{from, tag}]++};
  expected_[name] = std::move(output);
  return name;
}

void DeviceMessages::give_up(const Name& name) noexcept {
  const auto arrival = arrived_.find(name);
  if (arrival == arrived_.end()) {
    expected_[name] = at::Tensor();
    return;
  }
  try {
    if (arrival->second.work) {
      arrival->second.work->wait();
    }
  } catch (const std::exception&) {
    // The watch tells.
  }
  arrived_.erase(arrival);
}

void DeviceMessages::take(const Call& call, const Name& name) {
  const at::Tensor& output = call.outputs[0];
  watch_->throw_if_failed(call, key_);
  while (!arrived_.count(name)) {
    hear(call, std::get<2>(name));
  }
  const Arrival arrival = std::move(arrived_.extract(name).mapped());
  const std::string divergence = divergence_of(call, arrival.tensor);
  if (!divergence.empty()) {
    watch_->job().diverge(divergence, key_);
    watch_->throw_if_failed(call, key_);
  }
  if (!arrival.work) {
    return;
  }
  try {
    arrival.work->wait();
  } catch (const std::exception& error) {
    watch_->fail(call.str(), base::message_of(error));
  }
  watch_->throw_if_failed(call, key_);
  if (!arrival.tensor.is_same(output)) {
    output.detach().copy_(arrival.tensor);
  }
}

// Waits for the next announcement of call.peer, as `number` of its messages with this tag.
void DeviceMessages::hear(const Call& call, int64_t number) {
  const at::Tensor announcement = at::empty({kHead + kMostDims}, at::TensorOptions().dtype(at::kLong));
  const auto hash = announcement_hash(call.peer, messages_.member(), heard_[call.peer]);
  watch_->job().run({call, key_, number},
                    [&](Works& works) { works.push_back(messages_.receive(call.peer, announcement, hash)); });
  ++heard_[call.peer];
  const auto* numbers = announcement.const_data_ptr<int64_t>();
  const Name name{call.peer, numbers[0], numbers[1]};
  const at::IntArrayRef sizes(numbers + kHead, static_cast<size_t>(numbers[3]));
  const auto dtype = static_cast<at::ScalarType>(numbers[2]);

  auto expected = expected_.extract(name);
  const bool is_given_up = expected && !expected.mapped().defined();
  Arrival arrival;
  if (expected && !is_given_up && expected.mapped().sizes() == sizes && expected.mapped().scalar_type() == dtype) {
    arrival.tensor = expected.mapped();
  } else {
    arrival.tensor = at::empty(sizes, call.outputs[0].options().dtype(dtype));
  }
  if (arrival.tensor.numel() > 0) {
    arrival.work = post(call, arrival.tensor);
  }
  if (!is_given_up) {
    arrived_.emplace(name, std::move(arrival));
  }
}

DeviceWatch::WorkPtr DeviceMessages::post(const Call& call, const at::Tensor& tensor) {
  try {
    auto& backend = receivers_[call.peer];
    if (!backend) {
      backend = maker_of(call.peer, messages_.member())();
    }
    std::vector<at::Tensor> body = {bytes_of(tensor)};
    auto work = backend->recv(body, 0, 0);
    watch_->add(work, {tensor}, call.str(), deadline_of_rank());
    return work;
  } catch (const std::exception& error) {
    watch_->fail(call.str(), base::message_of(error));
    watch_->throw_if_failed(call, key_);
    throw;
  }
}

}  // namespace tessera::comm
