#include "tessera/dtensor/ops/recurrent.h"

#include <array>
#include <tuple>
#include <vector>

#include <ATen/ops/cat.h>
#include <ATen/ops/dropout.h>
#include <ATen/ops/linear.h>
#include <ATen/ops/stack.h>

#include "tessera/base/error.h"
#include "tessera/dtensor/record/kernel_registry.h"

namespace tessera::dtensor {

namespace {

// Of one direction of one layer. The two biases are undefined, or both there; the projection is of an LSTM that has
// one.
struct Weights {
  at::Tensor input, hidden, input_bias, hidden_bias, projection;
};

// `all` as `torch.nn.LSTM` lists them: layer by layer, direction by direction.
std::vector<Weights> weights_of(at::TensorList all, bool has_biases, bool is_projected) {
  const size_t each = 2 + (has_biases ? 2 : 0) + (is_projected ? 1 : 0);
  TESSERA_CHECK(all.size() % each == 0, "[lstm] ", all.size(), " weights; accepted: ", each,
                " for each direction of each layer");
  std::vector<Weights> found;
  for (size_t i = 0; i < all.size(); i += each) {
    found.push_back({all[i], all[i + 1], has_biases ? all[i + 2] : at::Tensor(), has_biases ? all[i + 3] : at::Tensor(),
                     is_projected ? all[i + each - 1] : at::Tensor()});
  }
  return found;
}

struct State {
  at::Tensor hidden, cell;
};

// Steps through `inputs` [time, batch, features], or back through them: what is hidden at each step, and the last
// state.
std::pair<at::Tensor, State> run_direction(const at::Tensor& inputs, State state, const Weights& weights,
                                           bool is_reversed) {
  std::vector<at::Tensor> gates = at::linear(inputs, weights.input, weights.input_bias).unbind(0);
  std::vector<at::Tensor> hidden(gates.size());
  for (size_t i = 0; i < gates.size(); ++i) {
    const size_t step = is_reversed ? gates.size() - 1 - i : i;
    const auto parts = (gates[step] + at::linear(state.hidden, weights.hidden, weights.hidden_bias)).chunk(4, -1);
    state.cell = parts[1].sigmoid() * state.cell + parts[0].sigmoid() * parts[2].tanh();
    state.hidden = parts[3].sigmoid() * state.cell.tanh();
    if (weights.projection.defined()) {
      state.hidden = at::linear(state.hidden, weights.projection);
    }
    hidden[step] = state.hidden;
  }
  return {at::stack(hidden), state};
}

// libtorch gives float32 on CPUs to oneDNN, an operator of its own with its own derivative; all else it computes so
// too.
std::tuple<at::Tensor, at::Tensor, at::Tensor> lstm(const at::Tensor& input, at::TensorList first, at::TensorList all,
                                                    bool has_biases, int64_t layers, double dropout, bool is_training,
                                                    bool is_bidirectional, bool is_batch_first) {
  TESSERA_CHECK(first.size() == 2, "[lstm] ", first.size(), " states; accepted: hidden and cell");
  TESSERA_CHECK(input.dim() == 3 && input.size(is_batch_first ? 1 : 0) > 0, "[lstm] input ", input.sizes(),
                "; accepted: three dims, one step or more");
  const std::vector<Weights> weights = weights_of(all, has_biases, first[0].size(2) != first[1].size(2));
  const int64_t directions = is_bidirectional ? 2 : 1;
  TESSERA_CHECK(static_cast<int64_t>(weights.size()) == layers * directions, "[lstm] weights of ", weights.size(),
                " directions for ", layers, " layers of ", directions);
  const std::vector<at::Tensor> hidden = first[0].unbind(0), cells = first[1].unbind(0);
  at::Tensor values = is_batch_first ? input.transpose(0, 1) : input;
  std::vector<at::Tensor> last_hidden, last_cells;
  for (int64_t layer = 0; layer < layers; ++layer) {
    std::vector<at::Tensor> results;
    for (int64_t direction = 0; direction < directions; ++direction) {
      const auto index = static_cast<size_t>(layer * directions + direction);
      auto [result, last] = run_direction(values, {hidden[index], cells[index]}, weights[index], direction == 1);
      results.push_back(std::move(result));
      last_hidden.push_back(std::move(last.hidden));
      last_cells.push_back(std::move(last.cell));
    }
    values = results.size() == 1 ? results[0] : at::cat(results, -1);
    if (dropout > 0 && is_training && layer + 1 < layers) {
      values = at::dropout(values, dropout, true);
    }
  }
  return {is_batch_first ? values.transpose(0, 1) : values, at::stack(last_hidden), at::stack(last_cells)};
}

}  // namespace

void register_recurrent_kernels(KernelRegistry& registry) {
  for (torch::Library* library : registry.before_autograd()) {
    library->impl("lstm.input", TORCH_FN(lstm));
  }
}

}  // namespace tessera::dtensor
