// What an optimizer, of libtorch or of ours, keeps and is set to, field by field, under PyTorch's names.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include <torch/optim/optimizer.h>

namespace tessera::parallel {

// Meets the fields of an object one by one, in an order that is always the same. Each may be read, or written; what a
// visitor does not override it passes by.
class FieldVisitor {
 public:
  virtual ~FieldVisitor() = default;
  virtual void tensor(const char* name, at::Tensor& value) {}  // undefined where there is none
  virtual void integer(const char* name, int64_t& value) {}
  virtual void number(const char* name, double& value) {}
  virtual void flag(const char* name, bool& value) {}
};

// Visits tensors alone.
class TensorVisitor : public FieldVisitor {
 public:
  using Visit = std::function<void(const char* name, at::Tensor& value)>;
  explicit TensorVisitor(Visit visit) : visit_(std::move(visit)) {}
  void tensor(const char* name, at::Tensor& value) override { visit_(name, value); }

 private:
  Visit visit_;
};

// A kind of optimizer: its options (of each group of parameters) and its state (of each parameter).
struct OptimizerKind {
  std::string name;  // `AdamW`
  std::function<bool(const torch::optim::Optimizer&)> is_of;
  std::function<void(torch::optim::OptimizerOptions&, FieldVisitor&)> visit_options;
  std::function<std::unique_ptr<torch::optim::OptimizerParamState>()> make_state;
  std::function<void(torch::optim::OptimizerParamState&, FieldVisitor&)> visit_state;
};

// SGD, Adam, AdamW, RMSprop, Adagrad, Lion and AdamW8bit are known. A program that has another registers it, once,
// before it is used:
//
//     register_optimizer(optimizer_kind<Rprop, RpropOptions, RpropParamState>(
//         "Rprop", [](RpropOptions& options, FieldVisitor& visit) { visit.number("lr", options.lr()); },
//         [](RpropParamState& state, FieldVisitor& visit) { visit.tensor("step_size", state.step_size()); }));
//
// Throws c10::Error if the name is taken. Thread-safe.
void register_optimizer(OptimizerKind kind);

// Null if it is of none. Thread-safe; kinds live as long as the process.
const OptimizerKind* find_kind(const torch::optim::Optimizer& optimizer);

// The tensors that the optimizer keeps so far. Throws ConfigError if it is of no known kind.
std::vector<at::Tensor> state_of(torch::optim::Optimizer& optimizer);

// The names of all kinds, in the order of their registration: `SGD, Adam, ...`.
std::string optimizer_names();

template <typename Optimizer, typename Options, typename State>
OptimizerKind optimizer_kind(std::string name, void (*options)(Options&, FieldVisitor&),
                             void (*state)(State&, FieldVisitor&)) {
  return {
      std::move(name),
      [](const torch::optim::Optimizer& optimizer) { return dynamic_cast<const Optimizer*>(&optimizer) != nullptr; },
      [options](torch::optim::OptimizerOptions& all, FieldVisitor& visit) {
        options(static_cast<Options&>(all), visit);
      },
      [] { return std::make_unique<State>(); },
      [state](torch::optim::OptimizerParamState& all, FieldVisitor& visit) { state(static_cast<State&>(all), visit); }};
}

}  // namespace tessera::parallel
