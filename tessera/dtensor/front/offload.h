// What a part of a program saves for backward, outside of memory until backward asks for it.
#pragma once

#include <cstdint>
#include <functional>
#include <string>
#include <vector>

#include <ATen/core/Tensor.h>

namespace tessera::dtensor {

// Runs `body`, and moves what its graph saved to a file of the rank: the parts, of a page (4 KiB) or more, of what
// operators gave in it and of its inputs, where they are still there and only DTensors have their memory. Its results
// stay, and go with what the next such body saved; parameters, leaves that want a gradient and what the program has as
// plain tensors stay. The system takes what moved from the file when it is read, by backward or whoever else; nobody
// sees a difference but in speed. The room in the file is free again when the graph lets go of it.
//
// Values are the same to the bit. Tensors on the CPU only: throws for others. Throws DataError, and leaves what is not
// moved yet in memory, if the file's disk has no room. Without gradients it is body(inputs). No communication.
std::vector<at::Tensor> offload(const std::function<std::vector<at::Tensor>(const std::vector<at::Tensor>&)>& body,
                                const std::vector<at::Tensor>& inputs);

// Where this rank's file is from now on: a folder on a disk of this machine. Until it is said: that for temporary files
// (TMPDIR). The file has no name, and is gone with the process. Throws DataError if none can be made there.
void set_offload_folder(const std::string& folder);

// Of this rank that are there now.
int64_t offloaded_bytes();

}  // namespace tessera::dtensor
