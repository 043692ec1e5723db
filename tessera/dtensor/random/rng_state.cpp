#include "tessera/dtensor/random/rng_state.h"

#include <cstring>
#include <utility>

#include <ATen/ops/empty.h>
#include <torch/csrc/autograd/function.h>
#include <torch/csrc/autograd/graph_task.h>

#include "tessera/base/error.h"
#include "tessera/dtensor/record/interception.h"
#include "tessera/dtensor/state/state.h"

namespace tessera::dtensor {

namespace {

constexpr uint64_t kMagic = 0x74657373726e6732;  // tessrng2

using Words = std::vector<uint64_t>;

uint64_t site_of(const ParameterInfo* parameter) { return parameter ? parameter->site : 0; }

// Whether the program is in a backward pass, and not in a forward that it runs again.
bool in_backward(const RankState& state) { return torch::autograd::get_current_node() && !state.pass.is_recomputing(); }

Words words_of(const RankState& state) {
  const Sites& sites = state.pass.sites;
  const Sites::Position& here = sites.position();
  Words words = {kMagic,
                 state.random.seed(),
                 here.step,
                 here.evaluation,
                 sites.passes(),
                 in_backward(state),
                 site_of(here.parameter),
                 here.reading,
                 here.draws,
                 here.calls};
  words.push_back(here.readings.size());
  for (const auto& [parameter, count] : here.readings) {
    words.insert(words.end(), {site_of(parameter), count});
  }
  return words;
}

// Reads words one after the other.
class Reader {
 public:
  explicit Reader(const at::Tensor& bytes) : bytes_(bytes) {}

  uint64_t next() {
    uint64_t word = 0;
    TESSERA_CHECK(at_ + static_cast<int64_t>(sizeof word) <= bytes_.numel(),
                  "[set_rng_state] the state ends too early: ", bytes_.numel(), " bytes");
    std::memcpy(&word, bytes_.const_data_ptr<uint8_t>() + at_, sizeof word);
    at_ += sizeof word;
    return word;
  }
  at::Tensor rest() const { return bytes_.narrow(0, at_, bytes_.numel() - at_); }

 private:
  const at::Tensor& bytes_;
  int64_t at_ = 0;
};

}  // namespace

at::Tensor rng_state() {
  RankState& state = RankState::require();
  const LocalScope scope;
  const Words words = words_of(state);
  const at::Tensor stream =
      state.random.stock() ? state.random.stock().handle().get_state() : at::empty({0}, at::kByte);
  const auto bytes = static_cast<int64_t>(words.size() * sizeof(uint64_t));
  at::Tensor result = at::empty({bytes + stream.numel()}, at::kByte);
  std::memcpy(result.mutable_data_ptr(), words.data(), static_cast<size_t>(bytes));
  result.narrow(0, bytes, stream.numel()).copy_(stream);
  return result;
}

void set_rng_state(const at::Tensor& given) {
  RankState& state = RankState::require();
  const LocalScope scope;
  TESSERA_CHECK(!is_dtensor(given) && given.scalar_type() == at::kByte && given.dim() == 1,
                "[set_rng_state] expected what rng_state() returned, got ", given.scalar_type(), given.sizes());
  const at::Tensor bytes = given.contiguous();
  Reader reader(bytes);
  TESSERA_CHECK(
      reader.next() == kMagic,
      "[set_rng_state] these bytes are no state of a rank's generator; inside a rank, keep what rng_state() (in "
      "Python, torch.get_rng_state()) returned there");
  const uint64_t seed = reader.next();
  Sites::Position position;
  position.step = reader.next();
  position.evaluation = reader.next();
  const uint64_t passes = reader.next();
  const bool taken_in_backward = reader.next() != 0;
  position.parameter = state.engine.parameters.find(reader.next());
  position.reading = reader.next();
  position.draws = reader.next();
  position.calls = reader.next();
  for (uint64_t left = reader.next(); left > 0; --left) {
    const ParameterInfo* parameter = state.engine.parameters.find(reader.next());
    position.readings[parameter] = reader.next();
  }
  const at::Tensor stream = reader.rest();
  TESSERA_CHECK((stream.numel() > 0) == static_cast<bool>(state.random.stock()),
                "[set_rng_state] the state was taken under another generator (counter or stock)");
  state.pass.sites.restore(std::move(position), passes);
  state.random.set_seed(seed);
  if (state.random.stock()) {
    state.random.stock().handle().set_state(stream.clone());
  }
  state.pass.set_recomputing(torch::autograd::get_current_node() && !taken_in_backward);
}

}  // namespace tessera::dtensor
