#include "tessera/plan/adapter_entries.h"

#include <algorithm>

#include "tessera/plan/groups.h"

namespace tessera::plan {
namespace {

using layout::Placement;
using layout::Placements;

bool has_effect(const ParameterPlan& entry) {
  const auto is_cut = [](const Placement& placement) { return placement.is_shard(); };
  return std::any_of(entry.storage.begin(), entry.storage.end(), is_cut) || entry.kept || entry.gradient ||
         entry.storage_dtype || entry.compute_dtype || entry.reduce_dtype;
}

}  // namespace

ParameterPlan entry_beside(const layout::Mesh& mesh, const AdapterInfo& adapter, const ParameterPlan& weight) {
  ParameterPlan entry{adapter.name, {}, {}, {}};
  const Placements& read = weight.compute ? *weight.compute : weight.storage;
  for (const Placement& placement : read) {
    entry.storage.push_back(placement_beside(adapter, placement));
  }
  entry.storage = layout::normal_form(mesh, entry.storage);
  const Placements compute = entry.storage;
  for (size_t axis = 0; axis < read.size(); ++axis) {
    if (weight.storage[axis].is_shard() && read[axis].is_replicate()) {
      const auto cut = layout::Shard(0, {.blocks = row_blocks(compute)});
      entry.storage = cut_rows(mesh, entry.storage, static_cast<int64_t>(axis), cut);
    }
  }
  if (weight.compute) {
    entry.compute = compute;
  }
  if (weight.kept) {
    entry.kept = *weight.kept == read ? compute : entry.storage;
  }
  if (weight.gradient) {
    entry.gradient = entry.storage;
    for (size_t axis = 0; axis < read.size(); ++axis) {
      if ((*weight.gradient)[axis].is_partial()) {
        (*entry.gradient)[axis] = layout::Partial();
      }
    }
  }
  entry.storage_dtype = weight.storage_dtype;
  entry.compute_dtype = weight.compute_dtype;
  entry.reduce_dtype = weight.reduce_dtype;
  return entry;
}

Plan for_wrapped(Plan plan, const ModuleTree& model) {
  std::vector<ParameterPlan> entries;
  for (const AdapterInfo& adapter : find_adapters(model)) {
    const ParameterPlan* weight = plan.find(adapter.layer);
    if (weight && !matches(weight->pattern, adapter.layer) && !plan.find(adapter.name)) {
      entries.push_back(entry_beside(plan.mesh, adapter, *weight));
    }
  }
  std::copy_if(entries.begin(), entries.end(), std::back_inserter(plan.parameters), has_effect);
  return plan;
}

Plan for_added(const Plan& plan, const std::vector<AdapterInfo>& added) {
  Plan own = plan;
  own.parameters.clear();
  for (const AdapterInfo& adapter : added) {
    const ParameterPlan* said = plan.find(adapter.name);
    const ParameterPlan* weight = plan.find(adapter.layer);
    if (said) {
      own.parameters.push_back(*said);
      own.parameters.back().pattern = adapter.name;
    } else if (weight) {
      own.parameters.push_back(entry_beside(plan.mesh, adapter, *weight));
    }
  }
  return own;
}

}  // namespace tessera::plan
