// Names that people give the axes of a mesh, and what a plan's axis may be called.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

namespace tessera::support {

struct AxisName {
  std::string name;
  bool has_role = false;
};

// Of tessera, of other systems, and misspelled.
inline std::vector<AxisName> axis_names() {
  std::vector<AxisName> all = {{"dp", true},       {"dp_replicate", true}, {"fsdp", true},
                               {"dp_shard", true}, {"tp", true},           {"pp", true}};
  for (const char* name :
       {"cp",        "ep",    "sp",   "data",   "model", "tensor",  "pipe", "pipeline", "context", "expert",
        "replicate", "shard", "hsdp", "ddp",    "zero",  "mp",      "etp",  "edp",      "vpp",     "batch",
        "world",     "rank",  "host", "device", "node",  "dim_0",   "x",    "stage",    "DP",      "TP",
        "dpp",       "td",    "dp2",  "tp_",    "d_p",   "dp_repl", "FSDP", "sdp"}) {
    all.push_back({name});
  }
  return all;
}

// What every refusal says.
inline constexpr const char* kAcceptedAxes =
    "; accepted: dp (cuts the batch), dp_replicate (the same as dp), fsdp (cuts the batch and what is kept of each "
    "parameter), dp_shard (the same as fsdp), tp (cuts the model), pp (cuts the model into stages)";

}  // namespace tessera::support
