#include "tessera/train/run/trainer.h"

#include <chrono>
#include <cmath>
#include <fstream>

#include <fmt/format.h>

#include "tessera/base/error.h"
#include "tessera/base/text.h"
#include "tessera/checkpoint/folder/steps.h"
#include "tessera/checkpoint/store/posix_store.h"
#include "tessera/comm/call/flight.h"
#include "tessera/comm/core/errors.h"
#include "tessera/comm/core/gather_texts.h"
#include "tessera/comm/threads/run_ranks.h"
#include "tessera/data/utf8.h"
#include "tessera/launch/environment.h"
#include "tessera/launch/run.h"
#include "tessera/trace/event_file.h"
#include "tessera/train/run/hugging_face.h"
#include "tessera/train/run/loop.h"
#include "tessera/train/run/profile.h"
#include "tessera/train/run/run_folder.h"
#include "tessera/train/run/setup.h"

namespace tessera::train {
namespace {

using Clock = std::chrono::steady_clock;

std::ofstream open_for_writing(const std::string& path, const char* option, std::ios::openmode mode = std::ios::out) {
  std::ofstream file;
  if (!path.empty()) {
    file.open(path, mode);
    TESSERA_CHECK_AS(ConfigError, file, "[train] cannot write ", option, " \"", path,
                     "\"; accepted: a path in a folder that exists and may be written to");
  }
  return file;
}

// A full disk must not pass for a finished run.
void check_written(const std::ofstream& file, const char* option) {
  TESSERA_CHECK_AS(DataError, file, "[train] writing ", option, " failed; accepted: a path on a disk with room");
}

// Parameters that are looked up, and multiplied by nothing.
int64_t looked_up(const Config& config) {
  const auto& model = config.model;
  return model.dim * ((model.tie_embeddings ? 0 : model.vocab_size) + (model.kind == "gpt" ? config.data.sequence : 0));
}

// What rank 0 shows and keeps.
class Console : public Observer {
 public:
  // `first`: steps that were done before.
  Console(const Config& config, const data::Sampler& sampler, const TrainOptions& options, int64_t first,
          TrainResult& result)
      : config_(config),
        options_(options),
        first_(first),
        sampler_(sampler),
        out_(options.out),
        metrics_(open_for_writing(options.metrics, "--metrics", first > 0 ? std::ios::app : std::ios::out)),
        result_(result),
        keeps_model_(!options.folder.empty() || options.out != nullptr) {
    if (!options.folder.empty()) {
      curves_.emplace(curves_folder(options.folder));
    }
  }

  void print(const std::string& line) {
    if (out_ != nullptr) {
      *out_ << line << std::endl;
    }
  }

  void on_damage(const std::string& what, const ResumePoint& next) override {
    print(what + "; goes on from " + next.folder);
    first_ = next.step;
    metrics_.close();
    cut_metrics(options_.metrics, first_);
    metrics_ = open_for_writing(options_.metrics, "--metrics", std::ios::app);
  }

  void on_start(const Training& training) override {
    const auto ranks = config_.ranks();
    mesh_ = training.plan.mesh.str();
    const auto parameters = models::parameter_count(training.model);
    flops_per_token_ = training_flops_per_token(parameters - looked_up(config_), config_.model.layers,
                                                config_.model.dim, config_.data.sequence);
    print(fmt::format("{} of {} parameters in {}{} on {} rank{} ({}), {} intra-op thread{} each", config_.model.kind,
                      base::human_count(parameters), config_.train.dtype,
                      config_.is_exact() ? " (numerics exact, " + config_.train.lattice.str() + ")" : "", ranks,
                      ranks == 1 ? "" : "s", mesh_, comm::threads_per_rank(ranks),
                      comm::threads_per_rank(ranks) == 1 ? "" : "s"));
    const auto& corpus = sampler_.corpus();
    print(fmt::format("{}: {} {} to train on, {} held out; {} tokens a step", corpus.path(),
                      with_commas(corpus.train().size()), corpus.unit(), with_commas(corpus.held_out().size()),
                      with_commas(config_.train.batch * config_.data.sequence)));
    for (const auto& note : training.plan.notes) {
      print("plan: " + note);
    }
    if (first_ > 0) {
      const auto steps = config_.train.steps;
      print(fmt::format("goes on after step {}", first_) +
            (first_ >= steps ? fmt::format(": nothing is left of {} steps", steps) : ""));
    }
    start_ = last_line_ = Clock::now();
  }

  void on_step(const StepRecord& record, const Training&) override {
    result_.steps.push_back(record);
    if (metrics_.is_open()) {
      metrics_ << metrics_line(record) << std::endl;
      check_written(metrics_, "--metrics");
    }
    if (curves_) {
      curves_->add(record.step, {{"loss", record.loss},
                                 {"grad_norm", record.grad_norm},
                                 {"lr", record.lr},
                                 {"tokens_per_s", record.tokens_per_s()}});
    }
    tokens_ += record.tokens;
    const auto steps = config_.train.steps;
    if (record.step == first_ + 1 || record.step % config_.train.log_every == 0 || record.step == steps) {
      const auto now = Clock::now();
      const auto left =
          seconds(start_, now) / static_cast<double>(record.step - first_) * static_cast<double>(steps - record.step);
      const Speed speed{.tps = static_cast<double>(tokens_) / seconds(last_line_, now),
                        .flops_per_token = flops_per_token_,
                        .seconds_left = left};
      print(progress_line(record, steps, speed));
      last_line_ = now;
      tokens_ = 0;
    }
  }

  void on_parameter(const std::string& name, const at::Tensor& parameter) override {
    if (keeps_model_) {
      parameters_.push_back({name, parameter.clone()});
    }
  }

  const std::string& mesh() const { return mesh_; }
  // The step after which the run was asked to end.
  std::optional<int64_t> finished() const { return finished_; }
  const std::vector<checkpoint::NamedTensor>& parameters() const { return parameters_; }

  void on_finish(int64_t step) override {
    finished_ = step;
    print(fmt::format("step {} is saved; --resume auto goes on there", step));
  }

  void on_eval(const EvalRecord& record) override {
    result_.held_out = record;
    if (curves_) {
      curves_->add(record.step, {{"held_out/loss", record.loss}});
    }
    print(eval_line(record));
    last_line_ = Clock::now();
  }

 private:
  static double seconds(Clock::time_point from, Clock::time_point to) {
    return std::chrono::duration<double>(to - from).count();
  }

  const Config& config_;
  const TrainOptions& options_;
  int64_t first_;
  const data::Sampler& sampler_;
  std::ostream* out_;
  std::ofstream metrics_;
  std::optional<trace::EventFile> curves_;
  TrainResult& result_;
  Clock::time_point start_, last_line_;
  int64_t tokens_ = 0;
  double flops_per_token_ = 0;
  std::string mesh_;
  std::optional<int64_t> finished_;
  bool keeps_model_;
  std::vector<checkpoint::NamedTensor> parameters_;  // at the end
};

// Keeps the losses, says nothing.
class Losses : public Observer {
 public:
  void on_step(const StepRecord& record, const Training&) override { losses.push_back(record.loss); }
  std::vector<double> losses;
};

// The same training on one rank.
Config on_one_rank(Config config) {
  config.parallel = {};
  return config;
}

Proof prove(const Config& config, const std::string& mesh, const data::Sampler& sampler,
            const std::vector<StepRecord>& steps, const std::string& init_from) {
  const auto count = std::min<int64_t>(Proof::kSteps, static_cast<int64_t>(steps.size()));
  const auto alone = on_one_rank(config);
  Losses reference;
  comm::run_ranks(1, [&](int64_t) {
    run_loop(alone, sampler, {.steps = count, .evaluate = false, .init_from = init_from}, reference);
  });
  Proof proof{count, config.ranks(), mesh, 0, config.is_exact() ? 0 : default_tolerance(config), config.is_exact()};
  for (int64_t i = 0; i < count; ++i) {
    const auto a = reference.losses[static_cast<size_t>(i)], b = steps[static_cast<size_t>(i)].loss;
    proof.difference = std::max(proof.difference, a == b ? 0 : std::abs(a - b) / std::abs(a));
  }
  return proof;
}

// What this process shows and writes: under a launcher, files are rank 0's alone.
TrainOptions own_options(TrainOptions options, const std::optional<comm::Place>& place) {
  if (options.metrics.empty() && !options.folder.empty()) {
    options.metrics = metrics_path(options.folder);
  }
  if (place && place->rank != 0) {
    options.metrics = options.ledger = options.folder = "";
  }
  if (place && !launch::prints(place->rank)) {
    options.out = nullptr;
  }
  return options;
}

std::optional<ProfiledSteps> profiled_steps(const Config& config, const TrainOptions& options) {
  if (options.profile.empty()) {
    return std::nullopt;
  }
  const auto steps = parse_profiled_steps(options.profile);
  TESSERA_CHECK_AS(ConfigError, !options.folder.empty(), "[train] --profile ", options.profile,
                   " without --out; accepted: with a folder, for its trace/");
  TESSERA_CHECK_AS(ConfigError, steps.last <= config.train.steps, "[train] --profile ", options.profile,
                   " of a run of ", config.train.steps, " steps; accepted: steps 1 to ", config.train.steps);
  return steps;
}

// Keeps the model, and shows what it writes by now. A model of tokens that cannot be read (a .bin file without a
// tokenizer) shows nothing.
void finish(const Config& config, const data::Corpus& corpus, const TrainOptions& options,
            const std::vector<checkpoint::NamedTensor>& parameters) {
  if (!options.folder.empty()) {
    save_run(options.folder, config, corpus.vocabulary(), parameters);
  }
  const bool is_text = corpus.is_bytes() || !corpus.vocabulary().is_bytes();
  if (options.out == nullptr || !is_text) {
    return;
  }
  constexpr int64_t kCharacters = 200;
  const GenerateOptions sampling{.max_tokens = kCharacters, .seed = config.train.seed};
  const bool starts_document = !corpus.is_bytes() && corpus.vocabulary().end();
  const auto text =
      generate_text(make_text_model(config, corpus.vocabulary(), parameters), starts_document ? "" : "\n", sampling);
  *options.out << fmt::format("sample (temperature {}):\n{}", sampling.temperature,
                              data::first_characters(text, kCharacters))
               << std::endl;
}

// Where a run goes on, if it does; verified before anything is made or removed.
ResumePlan resume_plan_of(const TrainOptions& options) {
  TESSERA_CHECK_AS(ConfigError, (options.save_every == 0 && options.resume != "auto") || !options.folder.empty(),
                   "[train] --save-every and --resume auto need a folder; accepted: with --out");
  TESSERA_CHECK_AS(ConfigError, options.init_from.empty() || options.resume.empty() || options.resume == "auto",
                   "[train] --init-from \"", options.init_from, "\" and --resume \"", options.resume,
                   "\" both say what the run begins with; accepted: one of them, or --resume auto");
  TESSERA_CHECK_AS(ConfigError, !options.replace || options.resume != "auto",
                   "[train] --replace removes what --resume auto would go on with; accepted: one of them");
  return options.resume.empty() ? ResumePlan() : find_resume_plan(options.resume, options.folder);
}

// The checkpoint whose parameters the run begins with; empty: none. Verified before anything is made or removed.
std::string init_folder_of(const Config& config, const TrainOptions& options) {
  if (options.init_from.empty()) {
    return "";
  }
  checkpoint::PosixStore store;
  const auto folder = checkpoint::find_checkpoint(store, options.init_from);
  verify_same_model(config, folder);
  return folder;
}

SavePolicy save_policy_of(const TrainOptions& options, const Config& config, const data::Vocabulary& vocabulary) {
  if (options.save_every == 0) {
    return {};
  }
  return {.folder = checkpoints_folder(options.folder),
          .every = options.save_every,
          .keep = options.keep,
          .files = files_beside_model(config, vocabulary)};
}

EarlierRun earlier_run_of(const TrainOptions& options) {
  return options.replace            ? EarlierRun::kReplace
         : options.resume == "auto" ? EarlierRun::kContinue
                                    : EarlierRun::kRefuse;
}

void write_ledgers(std::ofstream& file, const std::vector<std::string>& ledgers, size_t steps) {
  file << "{\"steps\": " << steps << ", \"ranks\": [\n" << base::join(ledgers, ",\n") << "\n]}\n" << std::flush;
}

}  // namespace

std::string proof_line(const Proof& proof) {
  const auto start =
      fmt::format("proof: first {} steps on 1 rank and on {} ({}): largest relative difference of the loss {:.1e} ",
                  proof.steps, proof.ranks, proof.mesh, proof.difference);
  if (proof.is_exact) {
    return start + (proof.holds() ? "(numerics exact): same bits" : "(numerics exact): NOT the same bits");
  }
  return start + fmt::format("({} {:.0e}): {}", proof.holds() ? "<=" : ">", proof.tolerance,
                             proof.holds() ? "same training" : "NOT the same training");
}

TrainResult train(const Config& given, const TrainOptions& options) {
  verify_run(given);
  const auto config = with_vocabulary(given);
  const auto profiled = profiled_steps(config, options);
  const auto sampler = make_sampler(config);
  const auto place = launch::find_place();
  const auto own = own_options(options, place);
  const auto resumed = resume_plan_of(options);
  const auto init_from = resumed.points.empty() ? init_folder_of(config, options) : "";
  std::optional<RunFolder> folder;
  if (!own.folder.empty()) {
    folder.emplace(own.folder, earlier_run_of(own));
  }
  const int64_t first = resumed.points.empty() ? 0 : resumed.points.front().step;
  if (!own.folder.empty() && own.resume == "auto") {
    cut_metrics(own.metrics, first);
  }
  const auto saves = save_policy_of(options, config, sampler.corpus().vocabulary());
  const bool keeps_model = !options.folder.empty() || options.out != nullptr;  // the same on every rank
  auto ledger_file = open_for_writing(own.ledger, "--ledger");
  const auto ranks = config.ranks();
  TrainResult result;
  Console console(config, sampler, own, first, result);
  for (const auto& damage : resumed.skipped) {
    console.print(damage + "; it is set aside");
  }
  std::vector<std::string> ledgers;
  const comm::FlightFolder flights(options.folder.empty() ? "" : trace_folder(options.folder));
  launch::run_job(ranks, [&](int64_t rank) {
    Observer silent;
    const bool is_heard = place || rank == 0;
    Observer& observer = is_heard ? console : silent;
    std::optional<Profiler> profiler;
    if (profiled) {
      profiler.emplace(*profiled, profile_path(options.folder, profiled->str()), observer);
    }
    run_loop(config, sampler,
             {.gather_parameters = keeps_model, .resume_from = resumed.points, .init_from = init_from, .saves = saves},
             profiler ? *profiler : observer);
    if (!options.ledger.empty()) {
      auto texts = comm::gather_texts(*comm::RankContext::require().world, comm::RankContext::require().ledger.json());
      if (is_heard) {
        ledgers = std::move(texts);
      }
    }
  });
  if (ledger_file.is_open()) {
    write_ledgers(ledger_file, ledgers, result.steps.size());
    check_written(ledger_file, "--ledger");
  }
  if (console.finished()) {
    TESSERA_THROW(Stopped, "[train] stopped after step ", *console.finished(), ", which is saved");
  }
  finish(config, sampler.corpus(), own, console.parameters());
  if (config.train.proof && ranks > 1 && first == 0 && (!place || place->rank == 0)) {
    result.proof = prove(config, console.mesh(), sampler, result.steps, init_from);
    if (own.out != nullptr) {
      *own.out << proof_line(*result.proof) << std::endl;
    }
  }
  return result;
}

}  // namespace tessera::train
