// Programs without arithmetic: tensors of any size that take no memory, counted as if they did.
#pragma once

#include <cstdint>
#include <memory>
#include <vector>

#include <ATen/core/Tensor.h>

namespace tessera::watch {

// While it lives, CPU tensors that this thread makes have sizes and a place, but hardly any memory and no values: loops
// over elements do not run, and of libtorch's operators the outer ones do, so that what they make by the way is made.
// Counted are the bytes that the tensors would take. Values that a program reads are those of memory that nobody wrote
// to, mostly zero; operators on few elements run as ever. What libtorch's own kernels allocate inside of one operator
// is found by running it once on zeros, for products, transposed copies and fused attention of up to 4 MiB.
//
// Note [Imagined]. libtorch's dispatch has a key below autograd for tensors that are pretended; a thread includes it
// while it imagines. There an operator that is made of others, or gives a view, goes on as ever; one that writes to its
// arguments leaves them alone; the results of any other have the sizes that its kernel for meta tensors says, on the
// CPU. So every decision of the layers above is the one that they take for real tensors.
//
// One per thread at a time; no other thread may work for the program. A tensor may outlive it.
class Imagined {
 public:
  Imagined();
  ~Imagined();
  Imagined(const Imagined&) = delete;
  Imagined& operator=(const Imagined&) = delete;

  // Bytes of tensors that live, and the most that lived at once since the last `reset_peak`.
  int64_t live() const;
  int64_t peak() const;
  void reset_peak();

 private:
  struct State;
  std::unique_ptr<State> state_;
};

// Bytes of the parts that this rank has of tensors; parts in the same memory count once.
int64_t bytes_of_parts(const std::vector<at::Tensor>& tensors);

}  // namespace tessera::watch
