// Records the training steps of a program that `tessera compare` runs.
#pragma once

#include <string>
#include <utility>
#include <vector>

#include <ATen/core/Tensor.h>

namespace tessera::watch {

using NamedTensors = std::vector<std::pair<std::string, at::Tensor>>;

// Does nothing unless this process is a compared run (comm::ComparedRun). Then the calling rank's operators are watched
// from here on, and these placed parameters belong to its steps: of each step what every operator gave, the gradients
// as backward left them and the parameters after the update are written to the run's folder, as one-device values. A
// step begins with its first forward pass with gradients; passes without are left out. After the run's last step all
// ranks write, meet, and the process ends with exit code 0. Called by whatever places a model, on every rank.
void record_steps(const NamedTensors& parameters);

}  // namespace tessera::watch
