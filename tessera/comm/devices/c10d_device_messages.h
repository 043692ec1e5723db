// Messages between the devices of two members, with tags and waits in any order, over backends that have neither.
#pragma once

#include <functional>
#include <map>
#include <memory>
#include <tuple>
#include <utility>
#include <vector>

#include "tessera/comm/devices/c10d_device_watch.h"
#include "tessera/comm/devices/device_backends.h"
#include "tessera/comm/processes/c10d_messages.h"

namespace tessera::comm {

// One member's messages. Each direction of each pair has a backend of two, so that no send waits for one that goes the
// other way; what a pair sends over it is announced over the CPU in the same order, with tag, number, dtype and sizes.
// A receiver takes what is announced until its own message is there, into the tensors that expect it or else into new
// ones. Sends are handed to the backend by a thread for each receiver, because a library may wait for the receiver when
// the two first meet.
class DeviceMessages {
 public:
  // A message: its sender's position, its tag and its number among those of this tag.
  using Name = std::tuple<int64_t, int64_t, int64_t>;

  // `key` is the group's.
  DeviceMessages(C10dMessages messages, uint64_t key, std::shared_ptr<DeviceWatch> watch, DeviceBackends backends);
  // What was not received by then never will be.
  ~DeviceMessages();
  DeviceMessages(const DeviceMessages&) = delete;
  DeviceMessages& operator=(const DeviceMessages&) = delete;

  // Takes a copy of call.inputs[0] on its way.
  void send(const Call& call);

  // The next message of `from` with this tag shall come into `output`, until it is taken or given up.
  Name expect(int64_t from, int64_t tag, at::Tensor output);
  void give_up(const Name& name) noexcept;

  // Waits until the message has been sent, and makes the current stream wait until it is in call.outputs[0].
  void take(const Call& call, const Name& name);

 private:
  class Sender;
  struct Arrival {
    at::Tensor tensor;
    DeviceWatch::WorkPtr work;  // null: nothing travels for an empty tensor
  };

  std::function<DeviceWatch::BackendPtr()> maker_of(int64_t from, int64_t to) const;
  uint64_t announcement_hash(int64_t from, int64_t to, int64_t number) const;
  void hear(const Call& call, int64_t number);
  DeviceWatch::WorkPtr post(const Call& call, const at::Tensor& tensor);

  const C10dMessages messages_;
  const uint64_t key_;  // of the group's messages between devices
  const std::shared_ptr<DeviceWatch> watch_;
  const DeviceBackends backends_;
  std::map<std::pair<int64_t, int64_t>, int64_t> sent_, received_;  // messages so far, by peer and tag
  std::map<int64_t, int64_t> announced_, heard_;                    // announcements so far, by peer
  std::map<int64_t, std::shared_ptr<Sender>> senders_;
  std::map<int64_t, DeviceWatch::BackendPtr> receivers_;
  std::map<Name, at::Tensor> expected_;  // undefined: given up
  std::map<Name, Arrival> arrived_;
};

}  // namespace tessera::comm
