#include "tessera/checkpoint/ranks/whole_gets.h"

#include <algorithm>

#include "tessera/catalogue/transfers.h"
#include "tessera/checkpoint/format/box_runs.h"
#include "tessera/checkpoint/ranks/contents.h"
#include "tessera/comm/core/context.h"
#include "tessera/comm/core/gather_numbers.h"
#include "tessera/dtensor/front/dtensor.h"
#include "tessera/dtensor/record/meta.h"

namespace tessera::checkpoint {
namespace {

constexpr int64_t kNowhere = -1;

// Where this rank's part lies, if it lies as its layout says and holds values, not terms of them.
int64_t address_of(const at::Tensor& tensor) {
  if (dtensor::is_dtensor(tensor)) {
    const auto& meta = *dtensor::meta_of(tensor);
    if (meta.is_pending() || meta.derived() || meta.spec->has_partial) {
      return kNowhere;
    }
  }
  const auto part = part_of(tensor);
  return is_plain_memory(part) ? reinterpret_cast<intptr_t>(part.const_data_ptr()) : kNowhere;
}

}  // namespace

WholeGets::WholeGets(const catalogue::Catalogue& catalogue, const std::vector<int64_t>& owners,
                     const std::vector<at::Tensor>& tensors)
    : catalogue_(catalogue), owners_(owners), window_(comm::RankContext::require().world->open_window()) {
  if (window_ == nullptr) {
    return;
  }
  std::vector<int64_t> own;
  for (const auto& tensor : tensors) {
    own.push_back(address_of(tensor));
  }
  auto& world = *comm::RankContext::require().world;
  addresses_ = comm::gather_numbers(
      world, own, std::vector<int64_t>(static_cast<size_t>(world.size()), static_cast<int64_t>(own.size())));
  for (size_t entry = 0; entry < own.size(); ++entry) {
    is_readable_.push_back(std::all_of(addresses_.begin(), addresses_.end(),
                                       [&](const auto& addresses) { return addresses[entry] != kNowhere; }));
  }
}

at::Tensor WholeGets::get(size_t entry, HostMemory& memory) {
  const int64_t rank = comm::RankContext::require().rank;
  const auto& spec = catalogue_.entries()[entry].spec;
  const auto element = static_cast<int64_t>(at::elementSize(spec->dtype));
  const reshard::Exchange exchange(reshard::Holdings::of_holders(spec),
                                   reshard::Holdings::of_holders(catalogue::whole_at(spec, owners_[entry])));
  const auto transfers = exchange.transfers_of(rank);
  for (const auto& send : transfers.sends) {
    given_ += send.to == rank ? 0 : reshard::numel(send.box) * element;
  }
  if (owners_[entry] != rank) {
    return at::Tensor();
  }
  const auto whole = memory.empty(spec->sizes, spec->dtype);
  auto* to = static_cast<std::byte*>(whole.mutable_data_ptr());
  std::vector<comm::Get> gets;
  for (const auto& receive : transfers.receives) {
    const auto* from = reinterpret_cast<const std::byte*>(addresses_[static_cast<size_t>(receive.from)][entry]);
    const auto part = catalogue::part_around(spec, receive.from, receive.box);
    gets.clear();
    for_each_run(receive.box, part, everything(spec->sizes), [&](int64_t at, int64_t into, int64_t elements) {
      gets.push_back({from + at * element, to + into * element, static_cast<size_t>(elements * element)});
    });
    window_->get(receive.from, gets);
  }
  return whole;
}

void WholeGets::finish() {
  if (window_ != nullptr) {
    auto& context = comm::RankContext::require();
    context.ledger.record("get", context.world->name(), "save", given_);
    context.world->barrier();
  }
}

}  // namespace tessera::checkpoint
