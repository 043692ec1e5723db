#include "tessera/checkpoint/program/file_names.h"

#include <ATen/core/grad_mode.h>
#include <nlohmann/json.hpp>

#include "tessera/base/error.h"
#include "tessera/dtensor/front/dtensor.h"

namespace tessera::checkpoint {
namespace {

using catalogue::NameMap;

// Cut along another dim than `dim`, which is about to be taken apart: what is cut there would become whole on every
// rank.
at::Tensor cut_beside(const at::Tensor& tensor, int64_t dim) {
  if (!dtensor::is_dtensor(tensor) || tensor.dim() < 2) {
    return tensor;
  }
  auto placements = dtensor::spec_of(tensor)->placements;
  for (auto& placement : placements) {
    if (placement.is_shard(dim)) {
      placement = layout::Shard(dim == 0 ? 1 : 0);
    }
  }
  return dtensor::redistribute(tensor, placements);
}

at::Tensor changed(at::Tensor tensor, const NameMap::Mapped& to) {
  for (const auto& change : to.changes) {
    const bool is_taken_apart = !change.factors.empty();
    tensor = catalogue::changed(is_taken_apart ? cut_beside(tensor, change.dim) : tensor, change, to.name);
  }
  return tensor;
}

}  // namespace

// JSON: [[pattern of names in files, [[dim, other, factors, order], ...]], ...].
std::string form_of(const NameMap& names) {
  auto rules = nlohmann::json::array();
  for (const auto& rule : names.rules()) {
    auto changes = nlohmann::json::array();
    for (const auto& change : rule.changes) {
      changes.push_back({change.dim, change.other, change.factors, change.order});
    }
    if (!changes.empty()) {
      rules.push_back({rule.to, changes});
    }
  }
  return rules.empty() ? "" : rules.dump();
}

Contents as_in_files(Contents own, const NameMap& names) {
  const at::NoGradGuard no_grad;
  const dtensor::ModeScope implicit(dtensor::Mode::kImplicit);
  for (auto& kept : own.tensors) {
    if (is_of_model(kept.role)) {
      const auto to = names.at(kept.name);
      kept.tensor = changed(kept.tensor.detach(), to);
      kept.name = to.name;
      for (auto& alias : kept.aliases) {
        alias = names.at(alias).name;
      }
    }
  }
  if (auto form = form_of(names); !form.empty()) {
    own.values[kForm] = std::move(form);
  }
  return own;
}

void verify_form(const catalogue::Values& found, const Contents& contents, const std::string& source) {
  const auto form_in = [](const catalogue::Values& values) {
    const auto form = values.find(kForm);
    return form == values.end() ? nlohmann::json() : nlohmann::json::parse(form->second);
  };
  TESSERA_CHECK_AS(
      DataError, form_in(found) == form_in(contents.values), "[checkpoint] \"", source, "\" has parameters in ",
      found.contains(kForm) ? "the form of other libraries' files" : "the form of the program that saved it",
      ", the job reads ", contents.values.contains(kForm) ? "another" : "those of its own form",
      "; accepted: a job with the JobOptions::file_names that it was saved with");
}

void take_from_files(const Contents& in_files, const Contents& own, const NameMap& names) {
  const at::NoGradGuard no_grad;
  const dtensor::ModeScope implicit(dtensor::Mode::kImplicit);
  const auto back = names.inverse();
  for (size_t i = 0; i < own.tensors.size(); ++i) {
    const auto& from = in_files.tensors[i];
    if (!is_of_model(from.role)) {
      continue;
    }
    if (const auto to = back.at(from.name); !to.changes.empty()) {
      own.tensors[i].tensor.copy_(changed(from.tensor, to));
    }
  }
}

}  // namespace tessera::checkpoint
