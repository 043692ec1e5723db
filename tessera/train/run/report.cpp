#include "tessera/train/run/report.h"

#include <cmath>
#include <numbers>

#include <fmt/format.h>
#include <sys/resource.h>

#include "tessera/base/text.h"

namespace tessera::train {

std::string progress_line(const StepRecord& record, int64_t steps, const Speed& speed) {
  return fmt::format("step {}/{}  loss {:.4f}  grad_norm {:.2f}  mem {:.1f}GiB  tps {}  tflops {:.3g}  left {}",
                     record.step, steps, record.loss, record.grad_norm,
                     static_cast<double>(record.peak_bytes) / (1 << 30), with_commas(std::llround(speed.tps)),
                     speed.tps * speed.flops_per_token * 1e-12, short_duration(speed.seconds_left));
}

double training_flops_per_token(int64_t multiplied_parameters, int64_t layers, int64_t dim, int64_t sequence) {
  return 6.0 * static_cast<double>(multiplied_parameters) + 12.0 * static_cast<double>(layers * dim * sequence);
}

std::string eval_line(const EvalRecord& record) {
  const double below = record.unigram - record.loss;
  const double bits = record.loss / std::numbers::ln2;
  const auto bits_text = record.is_bytes ? fmt::format("bits/byte {:.3f}", bits)
                         : record.bytes_per_token > 0
                             ? fmt::format("bits/token {:.3f} ({:.3f} bits/byte)", bits, bits / record.bytes_per_token)
                             : fmt::format("bits/token {:.3f}", bits);
  return fmt::format("held out after {} steps  loss {:.4f}  {}  unigram {:.4f} ({:.3f} {})  over {} {}", record.step,
                     record.loss, bits_text, record.unigram, std::abs(below), below >= 0 ? "below" : "above",
                     with_commas(record.tokens), record.is_bytes ? "bytes" : "tokens");
}

std::string metrics_line(const StepRecord& record) {
  return fmt::format(
      R"({{"step": {}, "loss": {}, "grad_norm": {}, "lr": {}, "tokens": {}, "ms": {:.3f}, "tokens_per_s": {:.1f}, )"
      R"("peak_bytes": {}}})",
      record.step, base::exact_double(record.loss), base::exact_double(record.grad_norm), base::exact_double(record.lr),
      record.tokens, record.ms, record.tokens_per_s(), record.peak_bytes);
}

std::string with_commas(int64_t count) {
  auto digits = std::to_string(count);
  const size_t first = count < 0 ? 1 : 0;
  for (size_t at = digits.size(); at > first + 3;) {
    at -= 3;
    digits.insert(at, 1, ',');
  }
  return digits;
}

std::string short_duration(double seconds) {
  const auto whole = std::llround(std::max(seconds, 0.0));
  if (whole < 60) {
    return fmt::format("{}s", whole);
  }
  return whole < 3600 ? fmt::format("{}m{:02}s", whole / 60, whole % 60)
                      : fmt::format("{}h{:02}m", whole / 3600, whole / 60 % 60);
}

int64_t peak_resident_bytes() {
  rusage usage{};
  getrusage(RUSAGE_SELF, &usage);
  return static_cast<int64_t>(usage.ru_maxrss) * 1024;
}

}  // namespace tessera::train
