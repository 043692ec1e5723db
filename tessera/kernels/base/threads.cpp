#include "tessera/kernels/base/threads.h"

#include <ATen/Parallel.h>

namespace tessera::kernels {

namespace {

thread_local int the_share = 0;  // 0: all that libtorch may use

void set_libtorch(int count) {
  if (at::get_num_threads() != count) {
    at::set_num_threads(count);
  }
}

}  // namespace

OneThread::OneThread() : share_before_(the_share), libtorch_before_(at::get_num_threads()) {
  if (the_share == 0) {
    the_share = libtorch_before_;
  }
  set_libtorch(1);
}

OneThread::~OneThread() {
  set_libtorch(libtorch_before_);
  the_share = share_before_;
}

AllThreads::AllThreads() : libtorch_before_(at::get_num_threads()) {
  if (the_share != 0) {
    set_libtorch(the_share);
  }
}

AllThreads::~AllThreads() { set_libtorch(libtorch_before_); }

int64_t thread_count() {
  if (at::in_parallel_region()) {
    return 1;
  }
  return the_share != 0 ? the_share : at::get_num_threads();
}

}  // namespace tessera::kernels
