#include "tessera/dtensor/dispatch/same_values.h"

#include <algorithm>
#include <string_view>

#include <ATen/core/LegacyTypeDispatch.h>

#include "tessera/base/hash.h"
#include "tessera/base/text.h"
#include "tessera/comm/core/gather_texts.h"
#include "tessera/comm/processes/packing.h"
#include "tessera/dtensor/record/interception.h"
#include "tessera/dtensor/record/meta.h"

namespace tessera::dtensor {
namespace {

using c10::DispatchKey;

// The program's transforms and modes do not see what the comparison does.
constexpr c10::DispatchKeySet kModes{DispatchKey::FuncTorchDynamicLayerFrontMode,
                                     DispatchKey::FuncTorchDynamicLayerBackMode, DispatchKey::Python,
                                     DispatchKey::PythonTLSSnapshot, kIntercept};
// Tensors that stand for others.
constexpr c10::DispatchKeySet kWrappers{DispatchKey::FuncTorchBatched, DispatchKey::FuncTorchGradWrapper,
                                        DispatchKey::Functionalize, DispatchKey::Python};

// What one rank says of a value.
struct Said {
  std::string name;
  uint64_t hash = 0;
  std::string what;  // `Long[4, 12]`
};
using AllSaid = std::vector<Said>;

bool is_readable(const at::Tensor& tensor) {
  return !is_dtensor(tensor) && !tensor.key_set().has_any(kWrappers) && tensor.layout() == at::kStrided &&
         !tensor.is_meta() && tensor.has_storage();
}

Said said_of(const NamedValue& value) {
  const at::Tensor& tensor = value.tensor;
  if (!tensor.defined()) {
    return {value.name, 0, "nothing"};
  }
  const std::string what = c10::str(is_dtensor(tensor) ? "a DTensor of " : "", tensor.scalar_type(), tensor.sizes());
  const uint64_t hash = base::hash_string(what);
  if (!is_readable(tensor)) {
    return {value.name, hash, what};
  }
  const at::Tensor dense = tensor.cpu().contiguous();
  return {value.name, base::hash_bytes(dense.const_data_ptr(), dense.nbytes(), hash), what};
}

uint64_t hash_of(const AllSaid& all) {
  uint64_t hash = all.size();
  for (const Said& said : all) {
    hash = base::hash_combine(base::hash_string(said.name, hash), said.hash);
  }
  return hash;
}

std::string pack(const AllSaid& all) {
  comm::Packer packer;
  packer.number(all.size());
  for (const Said& said : all) {
    packer.text(said.name).number(said.hash).text(said.what);
  }
  return packer.take();
}

AllSaid unpack(std::string_view message) {
  comm::Unpacker reader(message);
  AllSaid all(reader.number());
  for (Said& said : all) {
    said.name = reader.text();
    said.hash = reader.number();
    said.what = reader.text();
  }
  return all;
}

// Of one value, by position: `labels is Long[4, 12] on rank 0, other values on ranks 1, 3`; empty if all ranks have the
// same.
std::string described(const std::vector<const Said*>& said, const std::vector<int64_t>& ranks) {
  std::vector<std::pair<std::string, std::vector<int64_t>>> groups;
  for (size_t i = 0; i < said.size(); ++i) {
    const bool is_first = said[i]->hash == said[0]->hash;
    const std::string what = !is_first && said[i]->what == said[0]->what ? "other values" : said[i]->what;
    auto group = std::find_if(groups.begin(), groups.end(), [&](const auto& each) { return each.first == what; });
    if (group == groups.end()) {
      group = groups.insert(groups.end(), {what, {}});
    }
    group->second.push_back(ranks[i]);
  }
  if (groups.size() == 1) {
    return {};
  }
  return said[0]->name + " is " + base::join(groups, ", ", [](std::ostream& out, const auto& group) {
           out << group.first << (group.second.size() == 1 ? " on rank " : " on ranks ")
               << base::join(group.second, ", ");
         });
}

std::string described(const std::vector<AllSaid>& all, const std::vector<int64_t>& ranks) {
  const auto names = [](const AllSaid& each) {
    return base::join(each, ", ", [](std::ostream& out, const Said& said) { out << said.name; });
  };
  for (size_t i = 1; i < all.size(); ++i) {
    if (names(all[i]) != names(all[0])) {
      return c10::str("rank ", ranks[0], " has ", names(all[0]), ", and rank ", ranks[i], " ", names(all[i]));
    }
  }
  std::vector<std::string> found;
  for (size_t k = 0; k < all[0].size(); ++k) {
    std::vector<const Said*> said;
    for (const AllSaid& each : all) {
      said.push_back(&each[k]);
    }
    found.push_back(described(said, ranks));
  }
  std::erase(found, "");
  return base::join(found, "; ");
}

}  // namespace

std::vector<std::string> gather_unseen(comm::Communicator& ranks, const std::string& mine) {
  const c10::impl::ExcludeDispatchKeyGuard no_modes(kModes);
  const at::AutoDispatchBelowADInplaceOrView below;
  return comm::gather_texts(ranks, mine, std::vector<int64_t>(ranks.ranks().size(), static_cast<int64_t>(mine.size())));
}

std::string difference_between_ranks(RankState& state, const layout::Mesh& mesh,
                                     const std::vector<NamedValue>& values) {
  return mesh.size() == 1 ? "" : difference_between_ranks(state.ctx.whole(mesh), values);
}

std::string difference_between_ranks(comm::Communicator& ranks, const std::vector<NamedValue>& values) {
  const c10::impl::ExcludeDispatchKeyGuard no_modes(kModes);
  const at::AutoDispatchBelowADInplaceOrView below;
  AllSaid own;
  for (const NamedValue& value : values) {
    own.push_back(said_of(value));
  }
  const std::string message = pack(own), summary = comm::Packer().number(hash_of(own)).number(message.size()).take();
  const auto summaries = gather_unseen(ranks, summary);
  if (std::all_of(summaries.begin(), summaries.end(), [&](const auto& each) { return each == summary; })) {
    return {};
  }

  std::vector<int64_t> sizes;
  for (const auto& each : summaries) {
    sizes.push_back(static_cast<int64_t>(comm::Unpacker(std::string_view(each).substr(sizeof(uint64_t))).number()));
  }
  std::vector<AllSaid> all;
  for (const auto& each : comm::gather_texts(ranks, message, sizes)) {
    all.push_back(unpack(each));
  }
  return described(all, ranks.ranks());
}

}  // namespace tessera::dtensor
