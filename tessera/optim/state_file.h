// What optimizers keep, in a file instead of memory.
#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include <ATen/core/Tensor.h>

#include "tessera/base/page_file.h"

namespace tessera::optim {

// A file of one rank in which tensors lie that are read and written once a step. The system maps it: a step takes what
// it reads from the disk, or from the system's cache of it, and between steps nothing of it counts as the rank's
// memory. Values are the same to the bit.
//
//     optim::StateFile file("/scratch");
//     ... optimizer.step(); file.keep(parallel::state_of(optimizer));
//
// The file has no name: it is gone with the process, however that ends. What moved to it stays there for as long as the
// tensor lives, if need be beyond this object. On the tensors' thread.
class StateFile {
 public:
  // `folder` is there, on a disk of this machine. Throws DataError with the system's reason.
  explicit StateFile(const std::string& folder);

  // After each step of the optimizer. Those of a page (4 KiB) or more that are not in the file yet move there: plain
  // tensors on the CPU, and the rank's parts of DTensors, that share their memory with no other tensor. Then the memory
  // of all that are there goes. Throws DataError, and leaves the tensor as it was, if the disk has no room. No
  // communication.
  void keep(const std::vector<at::Tensor>& state);

  // Of the tensors that are in it.
  int64_t bytes() const;

 private:
  std::shared_ptr<base::PageFile> file_;
};

}  // namespace tessera::optim
