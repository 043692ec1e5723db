#include "tessera/parallel/optimizer_fields.h"

#include <algorithm>
#include <deque>
#include <mutex>

#include <torch/optim/adagrad.h>
#include <torch/optim/adam.h>
#include <torch/optim/adamw.h>
#include <torch/optim/rmsprop.h>
#include <torch/optim/sgd.h>

#include "tessera/base/error.h"
#include "tessera/base/text.h"
#include "tessera/optim/adamw_8bit.h"
#include "tessera/optim/lion.h"

namespace tessera::parallel {

namespace {

using namespace torch::optim;  // NOLINT(google-build-using-namespace): eleven names of it

// Of Adam and of AdamW.
template <typename Options>
void visit_adam_options(Options& options, FieldVisitor& visit) {
  auto [beta1, beta2] = options.betas();
  visit.number("lr", options.lr()), visit.number("beta1", beta1), visit.number("beta2", beta2);
  options.betas({beta1, beta2});
  visit.number("eps", options.eps()), visit.number("weight_decay", options.weight_decay());
  visit.flag("amsgrad", options.amsgrad());
}

template <typename State>
void visit_adam_state(State& state, FieldVisitor& visit) {
  visit.integer("step", state.step());
  visit.tensor("exp_avg", state.exp_avg()), visit.tensor("exp_avg_sq", state.exp_avg_sq());
  visit.tensor("max_exp_avg_sq", state.max_exp_avg_sq());
}

void visit_sgd_options(SGDOptions& options, FieldVisitor& visit) {
  visit.number("lr", options.lr()), visit.number("momentum", options.momentum());
  visit.number("dampening", options.dampening()), visit.number("weight_decay", options.weight_decay());
  visit.flag("nesterov", options.nesterov());
}

void visit_sgd_state(SGDParamState& state, FieldVisitor& visit) {
  visit.tensor("momentum_buffer", state.momentum_buffer());
}

void visit_rmsprop_options(RMSpropOptions& options, FieldVisitor& visit) {
  visit.number("lr", options.lr()), visit.number("alpha", options.alpha()), visit.number("eps", options.eps());
  visit.number("weight_decay", options.weight_decay()), visit.number("momentum", options.momentum());
  visit.flag("centered", options.centered());
}

void visit_rmsprop_state(RMSpropParamState& state, FieldVisitor& visit) {
  visit.integer("step", state.step());
  visit.tensor("square_avg", state.square_avg()), visit.tensor("momentum_buffer", state.momentum_buffer());
  visit.tensor("grad_avg", state.grad_avg());
}

void visit_adagrad_options(AdagradOptions& options, FieldVisitor& visit) {
  visit.number("lr", options.lr()), visit.number("lr_decay", options.lr_decay());
  visit.number("weight_decay", options.weight_decay()), visit.number("eps", options.eps());
  visit.number("initial_accumulator_value", options.initial_accumulator_value());
}

void visit_adagrad_state(AdagradParamState& state, FieldVisitor& visit) {
  visit.integer("step", state.step());
  visit.tensor("sum", state.sum());
}

void visit_adamw_8bit_options(optim::AdamW8bitOptions& options, FieldVisitor& visit) {
  auto [beta1, beta2] = options.betas();
  visit.number("lr", options.lr()), visit.number("beta1", beta1), visit.number("beta2", beta2);
  options.betas({beta1, beta2});
  visit.number("eps", options.eps()), visit.number("weight_decay", options.weight_decay());
  visit.flag("maximize", options.maximize());
}

void visit_adamw_8bit_state(optim::AdamW8bitParamState& state, FieldVisitor& visit) {
  visit.integer("step", state.step());
  visit.tensor("exp_avg_codes", state.exp_avg_codes()), visit.tensor("exp_avg_scales", state.exp_avg_scales());
  visit.tensor("exp_avg_sq_codes", state.exp_avg_sq_codes());
  visit.tensor("exp_avg_sq_scales", state.exp_avg_sq_scales());
}

void visit_lion_options(optim::LionOptions& options, FieldVisitor& visit) {
  auto [beta1, beta2] = options.betas();
  visit.number("lr", options.lr()), visit.number("beta1", beta1), visit.number("beta2", beta2);
  options.betas({beta1, beta2});
  visit.number("weight_decay", options.weight_decay()), visit.flag("maximize", options.maximize());
}

void visit_lion_state(optim::LionParamState& state, FieldVisitor& visit) { visit.tensor("exp_avg", state.exp_avg()); }

struct Kinds {
  std::mutex mutex;
  std::deque<OptimizerKind> all = {
      optimizer_kind<SGD, SGDOptions, SGDParamState>("SGD", visit_sgd_options, visit_sgd_state),
      optimizer_kind<Adam, AdamOptions, AdamParamState>("Adam", visit_adam_options, visit_adam_state),
      optimizer_kind<AdamW, AdamWOptions, AdamWParamState>("AdamW", visit_adam_options, visit_adam_state),
      optimizer_kind<RMSprop, RMSpropOptions, RMSpropParamState>("RMSprop", visit_rmsprop_options, visit_rmsprop_state),
      optimizer_kind<Adagrad, AdagradOptions, AdagradParamState>("Adagrad", visit_adagrad_options, visit_adagrad_state),
      optimizer_kind<optim::Lion, optim::LionOptions, optim::LionParamState>("Lion", visit_lion_options,
                                                                             visit_lion_state),
      optimizer_kind<optim::AdamW8bit, optim::AdamW8bitOptions, optim::AdamW8bitParamState>(
          "AdamW8bit", visit_adamw_8bit_options, visit_adamw_8bit_state)};
};

Kinds& kinds() {
  static Kinds result;
  return result;
}

}  // namespace

void register_optimizer(OptimizerKind kind) {
  Kinds& known = kinds();
  const std::lock_guard lock(known.mutex);
  const bool is_taken = std::any_of(known.all.begin(), known.all.end(),
                                    [&](const OptimizerKind& each) { return each.name == kind.name; });
  TESSERA_CHECK(!is_taken, "[register_optimizer] a second optimizer named ", kind.name,
                "; accepted: a name that none has");
  known.all.push_back(std::move(kind));
}

const OptimizerKind* find_kind(const torch::optim::Optimizer& optimizer) {
  Kinds& known = kinds();
  const std::lock_guard lock(known.mutex);
  const auto found = std::find_if(known.all.rbegin(), known.all.rend(),  // one that is derived comes after its base
                                  [&](const OptimizerKind& each) { return each.is_of(optimizer); });
  return found == known.all.rend() ? nullptr : &*found;
}

std::vector<at::Tensor> state_of(torch::optim::Optimizer& optimizer) {
  const OptimizerKind* kind = find_kind(optimizer);
  TESSERA_CHECK_AS(ConfigError, kind, "[state_of] an optimizer that is none of ", optimizer_names(),
                   "; tell of it with register_optimizer (parallel/optimizer_fields.h)");
  std::vector<at::Tensor> tensors;
  TensorVisitor visitor([&](const char*, const at::Tensor& value) {
    if (value.defined()) {
      tensors.push_back(value);
    }
  });
  for (auto& [parameter, state] : optimizer.state()) {
    kind->visit_state(*state, visitor);
  }
  return tensors;
}

std::string optimizer_names() {
  Kinds& known = kinds();
  const std::lock_guard lock(known.mutex);
  return base::join(known.all, ", ", [](std::ostream& out, const OptimizerKind& each) { out << each.name; });
}

}  // namespace tessera::parallel
