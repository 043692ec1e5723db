#include "tessera/dtensor/front/walk_sends.h"

#include <algorithm>

#include "tessera/dtensor/dispatch/operands.h"

namespace tessera::dtensor {

using Tensors = std::vector<at::Tensor>;

std::optional<WalkSends> WalkSends::since(const RankState& state, size_t first, const Tensors& tensors) {
  WalkSends found;
  for (size_t i = first; i < state.engine.sent.size(); ++i) {
    const Sent& sent = state.engine.sent[i];
    const auto of = std::find_if(tensors.begin(), tensors.end(), [&](const at::Tensor& tensor) {
      return is_dtensor(tensor) && meta_of(tensor) == sent.value;
    });
    if (of == tensors.end()) {
      return std::nullopt;
    }
    found.sends_.push_back({static_cast<size_t>(of - tensors.begin()), sent.from, sent.to, sent.reader});
  }
  return found;
}

bool WalkSends::run(RankState& state, const Tensors& tensors) const {
  const bool lie_alike = std::all_of(sends_.begin(), sends_.end(), [&](const Send& send) {
    const at::Tensor& tensor = tensors[send.tensor];
    return is_dtensor(tensor) && meta_of(tensor)->spec == send.from;
  });
  for (size_t i = 0; lie_alike && i < sends_.size(); ++i) {
    send_ahead(state, sends_[i].reader, *meta_of(tensors[sends_[i].tensor]), sends_[i].to);
  }
  return lie_alike;
}

}  // namespace tessera::dtensor
