#include "tessera/comm/processes/shared_mail.h"

#include <algorithm>
#include <atomic>
#include <bit>
#include <cstring>
#include <mutex>
#include <utility>

#include <ATen/ops/empty.h>

#include "tessera/base/hash.h"
#include "tessera/comm/call/divergence.h"
#include "tessera/comm/processes/shared_number.h"

namespace tessera::comm {
namespace {

// What boxes are counted in: a letter, or as much of a tensor.
constexpr int64_t kUnit = 128;

// Of all boxes of a rank together, and of one at most.
constexpr int64_t kSegmentBytes = int64_t{64} << 20, kBoxBytes = int64_t{4} << 20;

uint32_t units_of(int64_t bytes) { return static_cast<uint32_t>((bytes + kUnit - 1) / kUnit); }

}  // namespace

// What one rank has for another: a ring of units. Numbers of units wrap, as their count is a power of two.
class SharedMail::Box {
 public:
  Box(std::byte* begin, SharedNumber& taken, uint32_t units)
      : written_(*reinterpret_cast<SharedNumber*>(begin)), taken_(taken), ring_(begin + kUnit), units_(units) {}

  static int64_t bytes(uint32_t units) { return kUnit + units * kUnit; }

  SharedNumber& written() const { return written_; }
  SharedNumber& taken() const { return taken_; }
  bool has_letters() const { return written_.get() != taken_.get(); }
  uint32_t room() const { return units_ - (written_.get() - taken_.get()); }
  // A quarter is for letters without their tensors.
  bool has_room_for(int64_t bytes) const {
    return bytes <= kUnit * units_ / 2 && room() > units_of(bytes) + units_ / 4;
  }

  // At a number of units.
  void write(uint32_t at, const void* from, int64_t bytes) const {
    in_runs(at, bytes, [&](std::byte* run, int64_t begin, size_t size) {
      std::memcpy(run, static_cast<const std::byte*>(from) + begin, size);
    });
  }
  void read(uint32_t at, void* to, int64_t bytes) const {
    in_runs(at, bytes, [&](const std::byte* run, int64_t begin, size_t size) {
      std::memcpy(static_cast<std::byte*>(to) + begin, run, size);
    });
  }

 private:
  template <typename Copy>
  void in_runs(uint32_t at, int64_t bytes, Copy copy) const {
    const int64_t begin = at % units_ * kUnit, first = std::min(bytes, units_ * kUnit - begin);
    if (first > 0) {
      copy(ring_ + begin, 0, static_cast<size_t>(first));
    }
    if (first < bytes) {
      copy(ring_, first, static_cast<size_t>(bytes - first));
    }
  }

  SharedNumber& written_;
  SharedNumber& taken_;
  std::byte* const ring_;
  const int64_t units_;
};

class SharedMail::Put : public Sending {
 public:
  Put(const Box& box, uint64_t message, at::Tensor tensor) : box_(box), tensor_(std::move(tensor)) {
    letter_.message = message;
    letter_.dtype = static_cast<int32_t>(tensor_.scalar_type());
    letter_.dims = static_cast<int32_t>(tensor_.dim());
    if (letter_.dims <= Letter::kMostDims) {
      std::copy(tensor_.sizes().begin(), tensor_.sizes().end(), letter_.sizes);
    }
  }

  bool wait(std::chrono::milliseconds) override {
    if (!box_.taken().wait_until([&] { return box_.room() > 0; }, is_aborted_)) {
      return false;
    }
    const auto bytes = static_cast<int64_t>(tensor_.nbytes());
    letter_.holds_tensor = letter_.dims <= Letter::kMostDims && box_.has_room_for(bytes);
    letter_.bytes = letter_.holds_tensor ? bytes : 0;
    const uint32_t at = box_.written().get();
    box_.write(at, &letter_, sizeof(letter_));
    box_.write(at + 1, tensor_.const_data_ptr(), letter_.bytes);
    box_.written().set(at + 1 + units_of(letter_.bytes));
    return true;
  }
  void abort() override { is_aborted_ = true; }
  bool holds_tensor() const override { return letter_.holds_tensor; }

 private:
  const Box box_;
  const at::Tensor tensor_;
  Letter letter_{};
  std::atomic<bool> is_aborted_{false};
};

class SharedMail::Take : public c10d::Work {
 public:
  Take(SharedMail& mail, const Round& round, int64_t from, uint64_t message, std::function<WorkPtr()> other_way)
      : mail_(mail),
        round_(round),
        box_(mail.box(from, mail.rank_)),
        message_(message),
        tensor_(round.call.outputs[0]),
        other_way_(std::move(other_way)) {}

  bool wait(std::chrono::milliseconds timeout) override {
    if (const auto kept = mail_.kept_.extract(message_); !kept.empty()) {
      return take(kept.mapped().letter, timeout, [&](void* to, int64_t bytes) {
        std::memcpy(to, kept.mapped().body.data(), static_cast<size_t>(bytes));
      });
    }
    while (box_.written().wait_until([&] { return box_.has_letters(); }, is_aborted_)) {
      Letter letter;
      const uint32_t at = box_.taken().get();
      box_.read(at, &letter, sizeof(letter));
      const auto body = [&](void* to, int64_t bytes) { box_.read(at + 1, to, bytes); };
      const bool is_it = letter.message == message_;
      bool is_taken = true;
      if (is_it) {
        is_taken = take(letter, timeout, body);
      } else {
        Kept& kept = mail_.kept_.emplace(letter.message, Kept{letter, {}}).first->second;
        kept.body.resize(static_cast<size_t>(letter.bytes));
        body(kept.body.data(), letter.bytes);
      }
      box_.taken().set(at + 1 + units_of(letter.bytes));
      if (is_it) {
        return is_taken;
      }
    }
    return false;
  }

  void abort() override {
    std::lock_guard lock(mutex_);
    is_aborted_ = true;
    if (other_) {
      other_->abort();
    }
  }

 private:
  template <typename Body>
  bool take(const Letter& letter, std::chrono::milliseconds timeout, Body body) {
    if (!is_as_expected(letter)) {
      const at::Tensor sent =
          at::empty({}, at::TensorOptions().dtype(static_cast<at::ScalarType>(letter.dtype))).expand(letter.shape());
      mail_.job_.diverge(divergence_of(round_.call, sent), round_.group);
      return false;
    }
    if (letter.holds_tensor) {
      body(tensor_.mutable_data_ptr(), letter.bytes);
      return true;
    }
    {
      std::lock_guard lock(mutex_);
      if (is_aborted_) {
        return false;
      }
      other_ = other_way_();
    }
    return other_->wait(timeout);
  }

  // Of a letter that does not say its tensor's sizes, what comes the other way will tell.
  bool is_as_expected(const Letter& letter) const {
    return letter.dims > Letter::kMostDims ||
           (letter.dtype == static_cast<int32_t>(tensor_.scalar_type()) && letter.shape() == tensor_.sizes());
  }

  SharedMail& mail_;
  const Round& round_;
  const Box box_;
  const uint64_t message_;
  const at::Tensor tensor_;
  const std::function<WorkPtr()> other_way_;
  std::mutex mutex_;
  std::atomic<bool> is_aborted_{false};
  WorkPtr other_;
};

std::shared_ptr<SharedMail> SharedMail::open(const C10dMessages& world, const Round& round) {
  const uint32_t units = std::bit_floor(units_of(std::min(kBoxBytes, kSegmentBytes / world.size())));
  const int64_t bytes = world.size() * (kUnit + Box::bytes(units));
  auto segments = SharedSegments::open(world, round, base::hash_string("mail"), bytes);
  return segments ? std::shared_ptr<SharedMail>(new SharedMail(world, std::move(segments), units)) : nullptr;
}

SharedMail::SharedMail(const C10dMessages& world, std::unique_ptr<SharedSegments> segments, uint32_t box_units)
    : job_(world.job()),
      rank_(world.member()),
      size_(world.size()),
      box_units_(box_units),
      segments_(std::move(segments)) {}

// A segment: how much its rank has taken from each other one, then its boxes.
SharedMail::Box SharedMail::box(int64_t from, int64_t to) const {
  std::byte* const boxes = segments_->memory(from) + size_ * kUnit;
  std::byte* const taken = segments_->memory(to) + from * kUnit;
  return {boxes + to * Box::bytes(box_units_), *reinterpret_cast<SharedNumber*>(taken), box_units_};
}

c10::intrusive_ptr<SharedMail::Sending> SharedMail::send(int64_t to, uint64_t message, const at::Tensor& tensor) {
  static_assert(sizeof(Letter) <= kUnit);
  return c10::make_intrusive<Put>(box(rank_, to), message, tensor);
}

SharedMail::WorkPtr SharedMail::receive(const Round& round, int64_t from, uint64_t message,
                                        std::function<WorkPtr()> other_way) {
  return c10::make_intrusive<Take>(*this, round, from, message, std::move(other_way));
}

}  // namespace tessera::comm
