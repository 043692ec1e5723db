#include "tessera/train/run/generate.h"

#include <algorithm>
#include <cmath>
#include <numeric>

#include <ATen/core/grad_mode.h>
#include <ATen/ops/from_blob.h>

#include "tessera/base/error.h"
#include "tessera/comm/core/errors.h"
#include "tessera/comm/threads/run_ranks.h"
#include "tessera/data/utf8.h"
#include "tessera/nn/key_value_cache.h"
#include "tessera/random/counter.h"

namespace tessera::train {
namespace {

struct Candidate {
  int32_t id = 0;
  double weight = 0;
};

// The candidates that top_k and top_p leave, not normalised.
std::vector<Candidate> candidates_of(std::span<const double> logits, const GenerateOptions& options) {
  const double highest = *std::max_element(logits.begin(), logits.end());
  std::vector<Candidate> all(logits.size());
  for (size_t id = 0; id < logits.size(); ++id) {
    all[id] = {static_cast<int32_t>(id), std::exp((logits[id] - highest) / options.temperature)};
  }
  const auto count = options.top_k > 0 ? std::min(static_cast<size_t>(options.top_k), all.size()) : all.size();
  if (count == all.size() && options.top_p >= 1) {
    return all;
  }
  std::partial_sort(
      all.begin(), all.begin() + static_cast<int64_t>(count), all.end(),
      [](const Candidate& a, const Candidate& b) { return a.weight != b.weight ? a.weight > b.weight : a.id < b.id; });
  all.resize(count);
  const double wanted =
      options.top_p *
      std::accumulate(all.begin(), all.end(), 0.0, [](double sum, const Candidate& each) { return sum + each.weight; });
  double sum = 0;
  const auto enough =
      std::find_if(all.begin(), all.end(), [&](const Candidate& each) { return (sum += each.weight) >= wanted; });
  all.erase(enough == all.end() ? enough : enough + 1, all.end());
  return all;
}

double uniform_of(uint64_t seed, uint64_t step) {
  static const auto site = random::make_site("generate").hash;
  constexpr int64_t kSteps = int64_t{1} << 53;
  return static_cast<double>(random::draw_integer({seed, site, step}, 0, 0, kSteps)) / static_cast<double>(kSteps);
}

// The logits behind the last of some tokens, which follow those in the cache.
std::vector<double> logits_after(models::LanguageModel& model, std::span<const int32_t> tokens, int64_t vocabulary,
                                 nn::KeyValueCache& cache) {
  std::vector<int64_t> wide(tokens.begin(), tokens.end());
  const auto input = at::from_blob(wide.data(), {1, static_cast<int64_t>(wide.size())}, at::kLong);
  const auto last =
      model.forward(input, &cache).select(1, -1).select(0, 0).slice(0, 0, vocabulary).to(at::kDouble).contiguous();
  return {last.const_data_ptr<double>(), last.const_data_ptr<double>() + last.numel()};
}

}  // namespace

void GenerateOptions::verify() const {
  TESSERA_CHECK_AS(ConfigError, max_tokens >= 1, "[generate] max_tokens ", max_tokens, "; accepted: at least 1");
  TESSERA_CHECK_AS(ConfigError, temperature >= 0 && std::isfinite(temperature), "[generate] temperature ", temperature,
                   "; accepted: at least 0, which always takes the likeliest token");
  TESSERA_CHECK_AS(ConfigError, top_k >= 0, "[generate] top_k ", top_k,
                   "; accepted: at least 0, which means all tokens");
  TESSERA_CHECK_AS(ConfigError, seed >= 0, "[generate] seed ", seed, "; accepted: at least 0");
  TESSERA_CHECK_AS(ConfigError, top_p > 0 && top_p <= 1, "[generate] top_p ", top_p,
                   "; accepted: above 0 and at most 1");
}

int32_t choose_token(std::span<const double> logits, const GenerateOptions& options, double uniform) {
  const auto broken = std::find_if(logits.begin(), logits.end(), [](double logit) { return !std::isfinite(logit); });
  TESSERA_CHECK(broken == logits.end(), "[generate] the logit of token ", broken - logits.begin(), " is ", *broken,
                "; the model's parameters are damaged or its training diverged");
  const auto likeliest = static_cast<int32_t>(std::max_element(logits.begin(), logits.end()) - logits.begin());
  if (options.temperature == 0) {
    return likeliest;
  }
  const auto candidates = candidates_of(logits, options);
  double total = 0;
  for (const auto& each : candidates) {
    total += each.weight;
  }
  double sum = 0;
  for (const auto& each : candidates) {
    sum += each.weight;
    if (sum > uniform * total) {
      return each.id;
    }
  }
  return likeliest;  // the sums' rounding left nothing behind `uniform`
}

std::vector<int32_t> generate(models::LanguageModel& model, const Continuation& continuation,
                              const GenerateOptions& options, const std::function<void(int32_t)>& on_token) {
  options.verify();
  TESSERA_CHECK(!continuation.prompt.empty() && continuation.context > 0, "[generate] a prompt of ",
                continuation.prompt.size(), " tokens and a context of ", continuation.context,
                "; accepted: at least one of each");
  const auto stops = comm::stop_requests();
  const at::NoGradGuard no_grad;
  const auto prompt = continuation.prompt.size(), context = static_cast<size_t>(continuation.context);
  auto tokens = continuation.prompt;
  nn::KeyValueCache cache;
  size_t start = prompt - std::min(prompt, context), seen = start;
  for (int64_t step = 0; step < options.max_tokens; ++step) {
    comm::throw_if_stopped_since(stops);
    if (tokens.size() - start > context) {
      cache.clear();
      start = seen = tokens.size() - std::max<size_t>(context / 2, 1);
    }
    const auto logits = logits_after(model, std::span(tokens).subspan(seen), continuation.vocabulary, cache);
    seen = tokens.size();
    const auto next =
        choose_token(logits, options, uniform_of(static_cast<uint64_t>(options.seed), static_cast<uint64_t>(step)));
    if (next == continuation.end) {
      break;
    }
    tokens.push_back(next);
    if (on_token) {
      on_token(next);
    }
  }
  return {tokens.begin() + static_cast<int64_t>(prompt), tokens.end()};
}

std::string generate_text(const TextModel& text_model, std::string_view prompt, const GenerateOptions& options,
                          const std::function<void(std::string_view)>& show) {
  const auto& vocabulary = text_model.vocabulary;
  data::Utf8Stream stream;
  std::string text;
  const auto add = [&](const std::string& part) {
    text += part;
    if (show && !part.empty()) {
      show(part);
    }
  };
  generate(*text_model.model,
           {.prompt = vocabulary.encode_prompt(prompt),
            .context = text_model.context,
            .vocabulary = vocabulary.size(),
            .end = vocabulary.end()},
           options, [&](int32_t token) { add(stream.push(vocabulary.bytes_of(token))); });
  add(stream.finish());
  return text;
}

}  // namespace tessera::train
