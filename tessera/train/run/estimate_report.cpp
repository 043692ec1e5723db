#include "tessera/train/run/estimate.h"

#include <map>

#include <fmt/format.h>
#include <nlohmann/json.hpp>

#include "tessera/base/text.h"
#include "tessera/train/run/report.h"

namespace tessera::train {
namespace {

using base::human_bytes;
using Json = nlohmann::ordered_json;

// Calls and bytes of all operators, by axis and kind of collective.
std::map<std::pair<std::string, std::string>, std::pair<int64_t, int64_t>> by_axis(const RankEstimate& rank) {
  std::map<std::pair<std::string, std::string>, std::pair<int64_t, int64_t>> sums;
  for (const auto& entry : rank.sent) {
    auto& [calls, bytes] = sums[{entry.axis, entry.collective}];
    calls += entry.calls, bytes += entry.bytes;
  }
  return sums;
}

Json rank_json(const RankEstimate& rank) {
  Json sent = Json::array();
  for (const auto& entry : rank.sent) {
    sent.push_back({{"axis", entry.axis},
                    {"collective", entry.collective},
                    {"op", entry.op},
                    {"calls", entry.calls},
                    {"bytes", entry.bytes}});
  }
  return {{"rank", rank.rank},
          {"parameters", rank.parameters},
          {"gradients", rank.gradients},
          {"optimizer", rank.optimizer},
          {"activations", rank.activations()},
          {"pass_peak", rank.pass_peak},
          {"update_peak", rank.update_peak},
          {"start_peak", rank.start_peak},
          {"peak", rank.peak()},
          {"messages", rank.messages()},
          {"bytes_sent", rank.bytes_sent()},
          {"sent", sent}};
}

std::string ranks_line(const Estimate& estimate) {
  std::vector<std::string> names;
  for (const auto& rank : estimate.ranks) {
    names.push_back(std::to_string(rank.rank));
  }
  return fmt::format("rank{} {} of {} looked at; of the largest, rank {}:", names.size() == 1 ? "" : "s",
                     base::join(names, ", "), estimate.ranks_of_job, estimate.largest().rank);
}

}  // namespace

std::string Estimate::text(std::optional<int64_t> memory) const {
  const RankEstimate& most = largest();
  std::string text = fmt::format("{} of {} parameters in {} (numerics {}) on {} rank{} ({}), {} tokens a step\n{}\n",
                                 model, base::human_count(model_parameters), dtype, numerics, ranks_of_job,
                                 ranks_of_job == 1 ? "" : "s", mesh, with_commas(tokens), ranks_line(*this));
  const auto row = [&](const char* name, int64_t bytes, const char* remark) {
    text += fmt::format("  {:<16}{:>12}{}{}\n", name, human_bytes(bytes), *remark ? "  " : "", remark);
  };
  row("parameters", most.parameters, "");
  row("optimizer", most.optimizer, "its state");
  row("activations", most.activations(), "gradients and all else of forward and backward, at most");
  row("  gradients", most.gradients, "of these, when backward has ended");
  row("peak of a step", std::max(most.pass_peak, most.update_peak),
      most.update_peak > most.pass_peak ? "in the update" : "in forward and backward");
  row("peak", most.peak(), most.start_peak >= most.peak() ? "before the second step" : "in a step");
  text += fmt::format("sends in a step: {} in {} message{}\n", human_bytes(most.bytes_sent()),
                      with_commas(most.messages()), most.messages() == 1 ? "" : "s");
  for (const auto& [where, sum] : by_axis(most)) {
    text += fmt::format("  {:<8}{:<16}{:>12}  {:>8} calls\n", where.first, where.second, human_bytes(sum.second),
                        with_commas(sum.first));
  }
  for (const auto& note : notes) {
    text += "note: " + note + "\n";
  }
  if (memory) {
    const int64_t over = most.peak() - *memory;
    text += over > 0 ? fmt::format("does NOT fit in {}: {} too much\n", human_bytes(*memory), human_bytes(over))
                     : fmt::format("fits in {}: {} left\n", human_bytes(*memory), human_bytes(-over));
  }
  return text;
}

std::string Estimate::json(std::optional<int64_t> memory) const {
  Json all = {{"model", model},
              {"parameters", model_parameters},
              {"dtype", dtype},
              {"numerics", numerics},
              {"mesh", mesh},
              {"ranks", ranks_of_job},
              {"tokens", tokens},
              {"largest", largest().rank},
              {"peak", largest().peak()}};
  if (memory) {
    all["memory"] = *memory;
    all["fits"] = largest().peak() <= *memory;
  }
  all["notes"] = notes;
  all["looked_at"] = Json::array();
  for (const auto& rank : ranks) {
    all["looked_at"].push_back(rank_json(rank));
  }
  return all.dump();
}

}  // namespace tessera::train
