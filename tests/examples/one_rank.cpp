// examples/01_one_device.cpp, unchanged, as the only rank of a job: plain tensors and libtorch's own kernels, but the
// random numbers of initialisation are the generator `counter`'s, as on many ranks.
#include "tessera/comm/threads/run_ranks.h"

int one_device_main(int argc, char** argv);

int main(int argc, char** argv) {
  return tessera::comm::run_ranks(1, [&] { return one_device_main(argc, argv); });
}
