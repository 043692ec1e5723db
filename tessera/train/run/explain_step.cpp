#include "tessera/train/run/explain_step.h"

#include "tessera/base/error.h"
#include "tessera/comm/threads/run_ranks.h"
#include "tessera/watch/explain.h"
#include "tessera/train/run/loop.h"
#include "tessera/train/run/setup.h"

namespace tessera::train {
namespace {

// Explains one step on one rank.
class Explainer : public Observer {
 public:
  explicit Explainer(int64_t step) : step_(step) {}

  void on_begin(int64_t step) override {
    if (step == step_) {
      explain_.emplace();
    }
  }
  void on_step(const StepRecord& record, const Training&) override {
    if (record.step == step_) {
      explain_->stop();
    }
  }

  watch::ExplainReport report() const { return explain_->report(); }

 private:
  int64_t step_;
  std::optional<watch::Explain> explain_;
};

}  // namespace

watch::ExplainReport explain_step(const Config& config, int64_t step, int64_t rank) {
  verify_run(config);
  TESSERA_CHECK_AS(ConfigError, step >= 1 && step <= config.train.steps, "[explain] step ", step, " of a run of ",
                   config.train.steps, " steps; accepted: steps 1 to ", config.train.steps);
  TESSERA_CHECK_AS(ConfigError, rank >= 0 && rank < config.ranks(), "[explain] rank ", rank, " of ", config.ranks(),
                   " ranks; accepted: ranks 0 to ", config.ranks() - 1);
  const auto sampler = make_sampler(config);
  watch::ExplainReport report;
  comm::run_ranks(config.ranks(), [&](int64_t own) {
    Explainer explainer(step);
    run_loop(config, sampler, {.steps = step, .evaluate = false}, explainer);
    if (own == rank) {
      report = explainer.report();
    }
  });
  return report;
}

}  // namespace tessera::train
