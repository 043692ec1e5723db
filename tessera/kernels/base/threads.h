// How many threads the loops of a thread may use: libtorch's, and our own.
#pragma once

#include <cstdint>

namespace tessera::kernels {

// Note [Threads]. Many of libtorch's kernels cut a sum, a product, a factorisation or a vector where the part of a
// thread ends, so that their bits depend on how many threads there are, and thereby on how many ranks share the cores.
// Our own loops (parallel.h) do not. A thread therefore has two counts: its share of the cores, and what libtorch may
// use of it. libtorch's loops run on one thread
//   - in `exact`, inside a rank, whatever they compute (set_numerics), but for operators that are in the table of exact
//   rules and do not run
//     for each sample alone: tests/python/threads_test.py shows that those have the same bits on any number of threads;
//   - in linear algebra inside a rank (dtensor/front/plain.cpp), and while the recordings of `deferred` are replayed:
//   what an initialiser computes
//     must not depend on the layout in `fast` either.

// While it lives, libtorch's loops of this thread run on one thread, and ours on as many as before. It must end on its
// thread. Nests.
class OneThread {
 public:
  OneThread();
  ~OneThread();
  OneThread(const OneThread&) = delete;
  OneThread& operator=(const OneThread&) = delete;

 private:
  const int share_before_, libtorch_before_;
};

// While it lives, libtorch's loops of this thread run on its whole share again. Without a OneThread around it nothing
// changes.
class AllThreads {
 public:
  AllThreads();
  ~AllThreads();
  AllThreads(const AllThreads&) = delete;
  AllThreads& operator=(const AllThreads&) = delete;

 private:
  const int libtorch_before_;
};

// Threads that a loop of ours may use now: the share, or 1 inside another parallel loop.
int64_t thread_count();

}  // namespace tessera::kernels
