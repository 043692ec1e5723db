// Text from a trained model, one token after the other, on one device.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "tessera/data/vocabulary.h"
#include "tessera/models/language_model.h"

namespace tessera::train {

struct GenerateOptions {
  int64_t max_tokens = 200;
  double temperature = 0.8;  // logits are divided by it; 0: always the likeliest token
  int64_t top_k = 0;         // only among the k likeliest tokens; 0: all
  double top_p = 1;          // only among the likeliest tokens that together have this probability, after top_k
  int64_t seed = 0;

  // Throws ConfigError for a value out of range.
  void verify() const;
};

// The token that a uniform number in [0, 1) chooses. Equal logits count in the order of their ids. Throws c10::Error if
// a logit is not finite.
int32_t choose_token(std::span<const double> logits, const GenerateOptions& options, double uniform);

// What a model can continue.
struct Continuation {
  std::vector<int32_t> prompt;  // at least one token
  int64_t context = 0;          // the model's longest sequence
  int64_t vocabulary = 0;       // only ids below it are chosen
  std::optional<int32_t> end;   // ends the text; is not part of it
};

// The tokens that follow the prompt; `on_token` is told each as it comes. A model in evaluation mode, of plain tensors.
//
// The n-th token is a function of seed and n, of the logits, and of nothing else. Keys and values are kept. When the
// context is full the text goes on from its later half, as if it had begun there. Throws Stopped when the job is asked
// to stop.
std::vector<int32_t> generate(models::LanguageModel& model, const Continuation& continuation,
                              const GenerateOptions& options, const std::function<void(int32_t)>& on_token = {});

// A model and how it reads.
struct TextModel {
  std::shared_ptr<models::LanguageModel> model;  // plain tensors, evaluation mode
  data::Vocabulary vocabulary;
  int64_t context = 0;
};

// The text that follows `prompt`, as valid UTF-8: bytes that are none become U+FFFD. `show` gets it part by part, whole
// characters only.
std::string generate_text(const TextModel& text_model, std::string_view prompt, const GenerateOptions& options,
                          const std::function<void(std::string_view)>& show = {});

}  // namespace tessera::train
