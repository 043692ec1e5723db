// Messages between processes of one machine, through memory that they share.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <unordered_map>
#include <vector>

#include "tessera/comm/processes/shared_segments.h"

namespace tessera::comm {

// Boxes for letters, one from each rank to each: a letter lies there from when it is sent, whether or not its receiver
// asks for it. Letters for which a box has no room say so, and their tensors go another way.
//
// Each rank writes to its own memory alone: what it sends, and how much it has taken of what others sent.
class SharedMail {
 public:
  using WorkPtr = c10::intrusive_ptr<c10d::Work>;

  // A letter under way. Its wait puts it into the box: at once, but where the receiver is thousands of letters behind.
  class Sending : public c10d::Work {
   public:
    // After the wait: whether the tensor is in the letter.
    virtual bool holds_tensor() const = 0;
  };

  // Null on all ranks if one of them cannot see another's memory (SharedSegments::open). `round` is the call that needs
  // it. Collective over `world`.
  static std::shared_ptr<SharedMail> open(const C10dMessages& world, const Round& round);

  // `to` and `from` are positions in the world; `message` is a number that only these two messages of the job have.
  // Tensors stay with the caller until the work is waited for.
  c10::intrusive_ptr<Sending> send(int64_t to, uint64_t message, const at::Tensor& tensor);

  // For `round`, which outlives the work: a letter whose dtype or sizes are others is a divergence of its job.
  // `other_way` receives what was no part of its letter.
  WorkPtr receive(const Round& round, int64_t from, uint64_t message, std::function<WorkPtr()> other_way);

 private:
  struct Letter {
    static constexpr int32_t kMostDims = 11;

    uint64_t message;
    int64_t bytes;  // behind it
    int32_t dtype, dims;
    int64_t sizes[kMostDims];
    bool holds_tensor;  // a tensor of more dims or bytes goes another way

    at::IntArrayRef shape() const { return {sizes, static_cast<size_t>(dims)}; }
  };
  struct Kept {
    Letter letter;
    std::vector<std::byte> body;
  };
  class Box;
  class Put;
  class Take;

  SharedMail(const C10dMessages& world, std::unique_ptr<SharedSegments> segments, uint32_t box_units);

  Box box(int64_t from, int64_t to) const;

  ProcessJob& job_;
  const int64_t rank_, size_;
  const uint32_t box_units_;
  const std::unique_ptr<SharedSegments> segments_;
  std::unordered_map<uint64_t, Kept> kept_;  // letters that were found while another was looked for, by message
};

}  // namespace tessera::comm
