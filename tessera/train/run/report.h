// What a run says about itself: lines for people, and one JSON object a step for programs.
#pragma once

#include <cstdint>
#include <string>

namespace tessera::train {

// One training step.
struct StepRecord {
  int64_t step = 0;      // counted from 1
  double loss = 0;       // mean over the step's tokens, in nats
  double grad_norm = 0;  // before clipping
  double lr = 0;
  int64_t tokens = 0;  // of this step, over all ranks
  double ms = 0;
  int64_t peak_bytes = 0;  // resident memory of the process at its peak, all ranks together

  double tokens_per_s() const { return ms > 0 ? 1e3 * static_cast<double>(tokens) / ms : 0; }
};

// An evaluation on text that training never sees.
struct EvalRecord {
  int64_t step = 0;    // steps done before it
  double loss = 0;     // nats per token
  double unigram = 0;  // entropy of how often each token occurs there, in nats
  int64_t tokens = 0;
  bool is_bytes = true;        // whether tokens are bytes
  double bytes_per_token = 1;  // of the held-out text; 0: not known
};

// How fast a run is, over all ranks.
struct Speed {
  double tps = 0;              // tokens a second
  double flops_per_token = 0;  // training_flops_per_token
  double seconds_left = 0;
};

// `step 20/400  loss 3.1234  grad_norm 0.98  mem 0.2GiB  tps 1,234  tflops 0.0123  left 1m20s`.
std::string progress_line(const StepRecord& record, int64_t steps, const Speed& speed);

// The usual estimate of what forward and backward of one token take: six for each parameter that is multiplied (an
// embedding is only looked up), and the scores and sums of attention over the whole sequence. Recomputation does not
// count.
double training_flops_per_token(int64_t multiplied_parameters, int64_t layers, int64_t dim, int64_t sequence);

// `held out after 400 steps  loss 1.8312  bits/byte 2.642  unigram 3.0487 (1.217 below)  over 214,912 bytes`. With a
// tokenizer `bits/token 5.31 (1.42 bits/byte)` and `over 80,640 tokens`: bits/byte compare across tokenizers.
std::string eval_line(const EvalRecord& record);

// `{"step": 1, "loss": ..., "grad_norm": ..., "lr": ..., "tokens": ..., "ms": ..., "tokens_per_s": ..., "peak_bytes":
// ...}`; loss, grad_norm and lr have 17 significant digits.
std::string metrics_line(const StepRecord& record);

// 1,234,567.
std::string with_commas(int64_t count);

// 12s, 1m20s, 2h05m.
std::string short_duration(double seconds);

// The most memory that this process ever had, in bytes.
int64_t peak_resident_bytes();

}  // namespace tessera::train
