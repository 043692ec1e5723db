#include "tessera/comm/processes/c10d_messages.h"

#include <algorithm>

#include <ATen/ops/zeros.h>

#include "tessera/base/hash.h"
#include "tessera/comm/core/context.h"

namespace tessera::comm {
namespace {

int tag_of(uint64_t hash, const at::Tensor& tensor) {
  hash = base::hash_range(tensor.sizes(), base::hash_combine(hash, static_cast<uint64_t>(tensor.scalar_type())));
  return static_cast<int>(hash & 0x7fffffff);
}

// What travels for a tensor: itself, or a byte for an empty one.
std::vector<at::Tensor> body_of(const at::Tensor& tensor) {
  return {tensor.numel() > 0 ? tensor.detach() : at::zeros({1}, at::TensorOptions().dtype(at::kByte))};
}

}  // namespace

uint64_t fingerprint_of(const Round& round) {
  const auto& call = round.call;
  auto hash = base::hash_combine(round.group, static_cast<uint64_t>(round.number));
  hash = base::hash_combine(hash, static_cast<uint64_t>(call.kind) * 256 + static_cast<uint64_t>(call.reduce));
  hash = base::hash_combine(hash, static_cast<uint64_t>(facts_of(call.kind).has_root ? call.peer : 0));
  return call.program ? base::hash_combine(base::hash_combine(hash, call.program->hash), call.program->count) : hash;
}

C10dMessages::C10dMessages(std::shared_ptr<ProcessJob> job, c10::intrusive_ptr<c10d::Backend> backend,
                           std::vector<int64_t> ranks)
    : job_(std::move(job)),
      backend_(std::move(backend)),
      ranks_(std::move(ranks)),
      member_(std::find(ranks_.begin(), ranks_.end(), job_->rank()) - ranks_.begin()) {}

C10dMessages::WorkPtr C10dMessages::send(int64_t to, const at::Tensor& tensor, uint64_t hash) const {
  auto body = body_of(tensor);
  return backend_->send(body, static_cast<int>(ranks_[static_cast<size_t>(to)]), tag_of(hash, tensor));
}

C10dMessages::WorkPtr C10dMessages::receive(int64_t from, const at::Tensor& tensor, uint64_t hash) const {
  auto body = body_of(tensor);
  return backend_->recv(body, static_cast<int>(ranks_[static_cast<size_t>(from)]), tag_of(hash, tensor));
}

}  // namespace tessera::comm
