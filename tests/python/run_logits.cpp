// The logits of a run's model for a test in Python.
//
//   run_logits RUN FILE      (a folder of `tessera train --out`; a safetensors file with `tokens` and `logits`)
#include <ATen/core/grad_mode.h>
#include <ATen/ops/arange.h>

#include "tessera/checkpoint/format/safetensors.h"
#include "tessera/train/run/run_folder.h"

int main(int, char** argv) {
  const at::NoGradGuard no_grad;
  const auto run = tessera::train::load_run(argv[1]);
  const auto tokens = (at::arange(2 * run.context, at::kLong) * 7 % run.vocabulary.size()).view({2, run.context});
  tessera::checkpoint::save_safetensors(argv[2],
                                        {{"tokens", tokens}, {"logits", run.model->forward(tokens).contiguous()}});
}
