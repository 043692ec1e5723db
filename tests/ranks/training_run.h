// Trains a small model on a mesh and keeps what the tests compare.
#pragma once

#include <map>
#include <string>
#include <vector>

#include <torch/torch.h>

#include "tessera/checkpoint/program/job.h"
#include "tessera/comm/threads/run_ranks.h"
#include "tessera/dtensor/front/dtensor.h"
#include "tessera/models/gpt.h"
#include "tessera/models/llama.h"
#include "tessera/parallel/deferred.h"
#include "tessera/parallel/generate_plan.h"
#include "tessera/parallel/job.h"
#include "tests/support/sanitized.h"

namespace tessera::ranks {

// How long a model is trained. Sanitizers look at what ranks do with memory, of which more steps show nothing new.
constexpr int64_t kTrainedSteps = support::kIsSanitized ? 3 : 20;

// A layout to train on.
struct Case {
  std::string mesh = "1";
  bool sequence_parallel = false;
  int64_t accumulate = 1;
  plan::Sharding sharding = plan::Sharding::kParameters;
  std::string schedule = "";
  int64_t vocabulary = 0;

  std::string str() const {
    return mesh + (sequence_parallel ? " sp" : "") + " accumulate " + std::to_string(accumulate) + " shards " +
           plan::name_of(sharding) + (schedule.empty() ? "" : " schedule " + schedule) +
           (vocabulary == 0 ? "" : " vocabulary " + std::to_string(vocabulary));
  }
};

struct Setting;
inline at::Tensor tokens_of(const Setting& setting, int64_t step);

// What is trained, whatever the layout.
struct Setting {
  int64_t steps = kTrainedSteps, batch = 16, length = 16, vocabulary = 64;
  double learning_rate = 1e-3, eps = 1e-8;
  int64_t seed = 7;
  std::map<std::string, at::Tensor> initial = {};       // what parameters begin with; the others with what they draw
  std::optional<sums::Lattice> lattice = std::nullopt;  // of exact numerics; none: fast
  plan::Precision precision = {};
  std::vector<std::string> recompute = {}, recompute_keep = {}, offload = {};
  std::string load_from = "", save_to = "";  // folders of runs: training goes on there, is kept there
  std::optional<catalogue::NameMap> file_names = std::nullopt;  // the form of parameters there
  int threads = 0;                                              // of each rank; 0: its share of the cores
  at::Tensor (*tokens)(const Setting&, int64_t step) = tokens_of;
  // Clips gradients to a norm of 1 and returns the norm.
  double (*clip)(const std::vector<at::Tensor>&) = [](const std::vector<at::Tensor>& parameters) {
    return torch::nn::utils::clip_grad_norm_(parameters, 1.0);
  };
};

// Losses and norms step by step, and the parameters after the last one.
struct Curve {
  std::vector<double> losses, norms;
  std::map<std::string, at::Tensor> parameters;
};

// The first thing that differs; empty if nothing does.
inline std::string difference(const Curve& a, const Curve& b) {
  for (size_t i = 0; i < a.losses.size(); ++i) {
    if (a.losses[i] != b.losses[i]) {
      return c10::str("loss of step ", i, ": ", a.losses[i], " and ", b.losses[i]);
    }
    if (a.norms[i] != b.norms[i]) {
      return c10::str("norm of step ", i, ": ", a.norms[i], " and ", b.norms[i]);
    }
  }
  for (const auto& [name, value] : a.parameters) {
    if (!at::equal(value, b.parameters.at(name))) {
      return name;
    }
  }
  return "";
}

// Root mean squares of relative distances: of the losses, of the gradients' norms, and of the parameters (of each by
// its euclidean norm). Unlike the largest, they are alike for every way of rounding the same values.
struct Distance {
  double losses = 0, norms = 0, parameters = 0;
};

// How much further from training in float64 one way of rounding to float32 may lie than another. Both round the same
// values (a weight, an activation and a gradient each) and differ in the order of their sums alone
// (docs/measured/rounding.md).
constexpr double kRounding = 4;

inline double root_mean_square(const std::vector<double>& values) {
  double sum = 0;
  for (double value : values) {
    sum += value * value;
  }
  return std::sqrt(sum / static_cast<double>(values.size()));
}

inline Distance distance(const Curve& curve, const Curve& from) {
  std::vector<double> losses, norms, parameters;
  for (size_t i = 0; i < from.losses.size(); ++i) {
    losses.push_back(curve.losses[i] / from.losses[i] - 1);
    norms.push_back(curve.norms[i] / from.norms[i] - 1);
  }
  for (const auto& [name, value] : from.parameters) {
    if (name.find("c_attn.bias") != std::string::npos) {
      continue;  // holds the bias of K, whose gradient is rounding alone
    }
    parameters.push_back(((curve.parameters.at(name).to(at::kDouble) - value).norm() / value.norm()).item().toDouble());
  }
  return {root_mean_square(losses), root_mean_square(norms), root_mean_square(parameters)};
}

inline std::string str(const Distance& distance) {
  return c10::str("losses ", distance.losses, ", norms ", distance.norms, ", parameters ", distance.parameters);
}

// The largest of the three quotients.
inline double times_as_far(const Distance& far, const Distance& near) {
  return std::max({far.losses / near.losses, far.norms / near.norms, far.parameters / near.parameters});
}

inline at::Tensor tokens_of(const Setting& setting, int64_t step) {
  auto generator = at::make_generator<at::CPUGeneratorImpl>(100 + step);
  return at::randint(setting.vocabulary, {setting.batch, setting.length + 1}, generator, at::kLong);
}

inline int64_t kv_heads_of(const models::LlamaConfig& config) { return config.kv_heads; }
inline int64_t kv_heads_of(const models::GptConfig& config) { return config.heads; }

template <typename Model, typename Config>
Curve train(const Setting& setting, const Config& config, const Case& c) {
  Curve curve;
  std::vector<at::Tensor> data;
  for (int64_t i = 0; i < setting.steps; ++i) {
    data.push_back(setting.tokens(setting, i));
  }
  const auto mesh = layout::Mesh::parse(c.mesh);
  comm::run_ranks(
      mesh.size(),
      [&](int64_t rank) {
        dtensor::manual_seed(setting.seed);
        if (setting.lattice) {
          dtensor::set_numerics(dtensor::Numerics::kExact, *setting.lattice);
        }
        auto model = parallel::deferred([&] { return Model(config); });
        torch::optim::AdamW optimizer(model->parameters(),
                                      torch::optim::AdamWOptions(setting.learning_rate).eps(setting.eps));
        const auto plan = parallel::generate_plan(*model, {.mesh = mesh,
                                                           .sequence_parallel = c.sequence_parallel,
                                                           .sharding = c.sharding,
                                                           .precision = setting.precision,
                                                           .schedule = c.schedule,
                                                           .vocabulary = c.vocabulary,
                                                           .recompute = setting.recompute,
                                                           .recompute_keep = setting.recompute_keep,
                                                           .offload = setting.offload,
                                                           .heads = config.heads,
                                                           .kv_heads = kv_heads_of(config),
                                                           .lattice = setting.lattice});
        parallel::place(*model, plan, &optimizer);
        for (const auto& item : model->named_parameters()) {
          const torch::NoGradGuard no_grad;
          if (const auto found = setting.initial.find(item.key()); found != setting.initial.end()) {
            item.value().copy_(found->second);
          }
        }
        parallel::Job job(
            model.ptr(), plan,
            [model](const std::vector<at::Tensor>& batch) mutable { return model->loss(batch[0], batch[1]); },
            {.accumulate = c.accumulate, .optimizer = &optimizer, .file_names = setting.file_names});
        if (!setting.load_from.empty()) {
          checkpoint::load(setting.load_from, job);
        }
        for (int64_t i = job.step(); i < setting.steps; ++i) {
          const at::Tensor all = data[i];
          at::Tensor loss =
              job(all.slice(1, 0, setting.length).contiguous(), all.slice(1, 1, setting.length + 1).contiguous());
          loss.backward();
          const double norm = setting.clip(model->parameters());
          optimizer.step();
          optimizer.zero_grad();
          const double value = loss.item().toDouble();
          if (rank == 0) {
            curve.losses.push_back(value), curve.norms.push_back(norm);
          }
        }
        if (!setting.save_to.empty()) {
          checkpoint::save(setting.save_to, job);
        }
        for (const auto& item : model->named_parameters()) {
          const at::Tensor whole = dtensor::full_tensor(item.value().detach());
          if (rank == 0) {
            curve.parameters[item.key()] = whole.clone();
          }
        }
      },
      {.intra_op_threads = setting.threads});
  return curve;
}

// Training in float64 on one rank, in `fast`, from the values that the same model has in float32.
template <typename Model, typename Config>
Curve train_in_doubles(Setting setting, Config config) {
  Setting start = setting;
  start.steps = 0;
  config.dtype = at::kFloat;
  setting.initial = train<Model>(start, config, {}).parameters;
  setting.lattice.reset();
  config.dtype = at::kDouble;
  return train<Model>(setting, config, {});
}

}  // namespace tessera::ranks
