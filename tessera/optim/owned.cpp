#include "tessera/optim/owned.h"

#include <algorithm>

#include "tessera/base/error.h"
#include "tessera/optim/closure.h"

namespace tessera::optim {
namespace {

const torch::optim::Optimizer& checked(const std::unique_ptr<torch::optim::Optimizer>& optimizer) {
  TESSERA_CHECK(optimizer, "[owned] no optimizer");
  return *optimizer;
}

// While it lives, an optimizer has other parameters, and the state that is kept for these.
class Stepped {
 public:
  using State = ska::flat_hash_map<void*, std::unique_ptr<torch::optim::OptimizerParamState>>;

  // `parameters` are those of the groups one after the other; where one of `stepped` is undefined it is left out.
  Stepped(torch::optim::Optimizer& optimizer, State& state, const std::vector<at::Tensor>& parameters,
          const std::vector<at::Tensor>& stepped)
      : optimizer_(optimizer), state_(state), parameters_(parameters), stepped_(stepped) {
    size_t next = 0;
    for (auto& group : optimizer_.param_groups()) {
      sizes_.push_back(group.params().size());
      group.params().clear();
      for (size_t i = 0; i < sizes_.back(); ++i, ++next) {
        if (stepped_[next].defined()) {
          group.params().push_back(stepped_[next]);
        }
      }
    }
    for_each_state([&](void* kept, void* run) { move(state_, kept, optimizer_.state(), run); });
  }

  ~Stepped() {
    for_each_state([&](void* kept, void* run) { move(optimizer_.state(), run, state_, kept); });
    auto next = parameters_.begin();
    for (size_t g = 0; g < sizes_.size(); ++g) {
      const auto end = next + static_cast<int64_t>(sizes_[g]);
      optimizer_.param_groups()[g].params().assign(next, end);
      next = end;
    }
  }
  Stepped(const Stepped&) = delete;
  Stepped& operator=(const Stepped&) = delete;

 private:
  template <typename Body>
  void for_each_state(const Body& body) const {
    for (size_t i = 0; i < stepped_.size(); ++i) {
      if (stepped_[i].defined()) {
        body(parameters_[i].unsafeGetTensorImpl(), stepped_[i].unsafeGetTensorImpl());
      }
    }
  }

  static void move(State& from, void* key, State& to, void* new_key) {
    if (const auto found = from.find(key); found != from.end()) {
      auto value = std::move(found->second);
      from.erase(found);
      to[new_key] = std::move(value);
    }
  }

  torch::optim::Optimizer& optimizer_;
  State& state_;
  const std::vector<at::Tensor>&parameters_, &stepped_;
  std::vector<size_t> sizes_;
};

}  // namespace

Owned::Owned(std::unique_ptr<torch::optim::Optimizer> optimizer, OwnedOptions options)
    : Optimizer(checked(optimizer).param_groups(), checked(optimizer).defaults().clone()),
      optimizer_(std::move(optimizer)),
      wholes_(options.over) {
  TESSERA_CHECK(optimizer_->state().empty(),
                "[owned] the optimizer has state already; accepted: one that took no step");
}

std::vector<at::Tensor> Owned::all_parameters() const {
  std::vector<at::Tensor> all;
  for (const auto& group : param_groups()) {
    all.insert(all.end(), group.params().begin(), group.params().end());
  }
  return all;
}

torch::Tensor Owned::step(LossClosure closure) {
  const at::Tensor loss = loss_of(closure);
  const at::NoGradGuard no_grad;
  const std::vector<at::Tensor> parameters = all_parameters();
  if (std::none_of(parameters.begin(), parameters.end(), dtensor::is_dtensor)) {
    run_on(parameters);
    return loss;
  }
  {
    const std::vector<at::Tensor> wholes = wholes_.lend(parameters);
    const PlainScope plain;
    run_on(wholes);
  }
  wholes_.take_back();
  return loss;
}

void Owned::run_on(const std::vector<at::Tensor>& stepped) {
  for (size_t g = 0; g < param_groups().size(); ++g) {
    optimizer_->param_groups()[g].set_options(param_groups()[g].options().clone());
  }
  const std::vector<at::Tensor> parameters = all_parameters();
  const Stepped scope(*optimizer_, state_, parameters, stepped);
  optimizer_->step();
}

std::unique_ptr<Owned> owned(std::unique_ptr<torch::optim::Optimizer> optimizer, OwnedOptions options) {
  return std::make_unique<Owned>(std::move(optimizer), options);
}

}  // namespace tessera::optim
