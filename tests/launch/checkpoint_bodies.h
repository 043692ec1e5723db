// The program whose checkpoints these tests look at, as ranks that are processes and as rank threads.
#pragma once

#include <cstdint>
#include <string>

#include "tessera/checkpoint/ranks/contents.h"

namespace tessera::launch::checkpoint_test {

// Tensors of a step, cut in all ways: at step s every element is its place plus s.
checkpoint::Contents contents_on(const layout::Mesh& mesh, int64_t step);

layout::Mesh mesh_of(int64_t ranks);

// Loads a checkpoint on rank threads and expects that all tensors are those of one step; which.
int64_t loaded_step(const std::string& folder, int64_t ranks);

// What a rank that is a process does, by name; its exit code. The run's folder is TESSERA_TEST_RUN.
//   save               one save, of step 7
//   save until killed  a save a step while the program changes what was copied; kills itself as an Order says
//   (killing.h) memory             saves and loads 160 MiB; writes what the process held at most beside what it must
int run_body(const std::string& name);

}  // namespace tessera::launch::checkpoint_test
