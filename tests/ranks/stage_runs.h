// Small models on the stages of a pipeline, beside one rank.
#pragma once

#include <algorithm>
#include <string>
#include <vector>

#include "tessera/optim/clip.h"
#include "tests/ranks/support.h"
#include "tests/ranks/training_run.h"

namespace tessera::ranks {

// To a norm of 0.5, which bites at every step of these models.
inline double clip_to_half(const std::vector<at::Tensor>& parameters) {
  return full_tensor(optim::clip_grad_norm(parameters, 0.5)).item().toDouble();
}

inline models::LlamaConfig stage_llama(int64_t layers, bool is_tied = false) {
  models::LlamaConfig config;
  config.vocab_size = 64, config.dim = 32, config.layers = layers, config.heads = 8, config.kv_heads = 8,
  config.hidden = 48, config.max_seq = 16, config.tie_embeddings = is_tied;
  return config;
}

inline models::GptConfig stage_gpt(int64_t layers, bool is_tied) {
  models::GptConfig config;
  config.vocab_size = 64, config.dim = 32, config.layers = layers, config.heads = 8, config.max_seq = 16,
  config.dropout = 0.1, config.tie_embeddings = is_tied;
  return config;
}

// Each of the cases has the bits of one rank with as many micro-batches as `accumulate` says.
template <typename Model, typename Config>
void expect_one_ranks_bits(const Setting& setting, const Config& config, int64_t accumulate,
                           const std::vector<Case>& cases) {
  const Curve one = train<Model>(setting, config, {.accumulate = accumulate});
  EXPECT_GT(*std::min_element(one.norms.begin(), one.norms.end()), 0.5);  // clipping bites
  for (const Case& c : cases) {
    SCOPED_TRACE(c.str());
    try {
      EXPECT_EQ(difference(one, train<Model>(setting, config, c)), "");
    } catch (const std::exception& error) {
      ADD_FAILURE() << error.what();
    }
  }
}

// One step on mesh `from`, kept in `folder`, and the others on mesh `to` are the steps of `whole`.
template <typename Model, typename Config>
void expect_goes_on(const Setting& setting, const Config& config, const std::string& folder, const std::string& from,
                    const std::string& to, const Curve& whole) {
  SCOPED_TRACE(c10::str(from, " -> ", to));
  Setting first = setting, second = setting;
  first.steps = 1, first.save_to = second.load_from = folder + "/" + from;
  train<Model>(first, config, {from});
  const Curve rest = train<Model>(second, config, {to});
  EXPECT_TRUE(std::equal(rest.losses.begin(), rest.losses.end(), whole.losses.begin() + 1));
  for (const auto& [name, value] : whole.parameters) {
    EXPECT_TRUE(at::equal(value, rest.parameters.at(name))) << name;
  }
}

}  // namespace tessera::ranks
