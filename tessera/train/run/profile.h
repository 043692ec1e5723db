// Where the time of some steps goes: a trace of every rank for Perfetto and chrome://tracing.
#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <string_view>

#include "tessera/train/run/loop.h"

namespace tessera::train {

// The steps from first to last, counted from 1.
struct ProfiledSteps {
  int64_t first = 0;
  int64_t last = 0;
  bool has(int64_t step) const { return step >= first && step <= last; }
  std::string str() const;  // 3-5
};

// `3-5` or `3`. Throws ConfigError.
ProfiledSteps parse_profiled_steps(std::string_view text);

// Records these steps on one rank, and passes everything on to `inner`. After the last of them rank 0 writes the file:
// a lane for each rank with its steps, the passes of their micro-batches (category pass: `2F0` is the forward pass of
// micro-batch 0 through stage 2), their phases (forward, backward, update), libtorch's operators inside of them as deep
// as they call each other and autograd's nodes (category compute), and collectives with their bytes (communication).
// Every rank must have one, and the run as many steps. The numbers of the run stay the same; profiled
// steps are slower. Throws DataError on a disk that fails.
class Profiler : public Observer {
 public:
  Profiler(ProfiledSteps steps, std::string path, Observer& inner);
  ~Profiler() override;

  void on_start(const Training& training) override { inner_.on_start(training); }
  void on_begin(int64_t step) override;
  void on_update() override;
  void on_step(const StepRecord& record, const Training& training) override;
  void on_eval(const EvalRecord& record) override { inner_.on_eval(record); }
  void on_finish(int64_t step) override { inner_.on_finish(step); }
  void on_parameter(const std::string& name, const at::Tensor& parameter) override {
    inner_.on_parameter(name, parameter);
  }

  class Recording;

 private:
  void write() const;

  const ProfiledSteps steps_;
  const std::string path_;
  Observer& inner_;
  std::shared_ptr<Recording> recording_;
};

}  // namespace tessera::train
