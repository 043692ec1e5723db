// Pipeline stages: each parameter is on one coordinate of the pp axis, layers in their order, so that stages cost
// alike.
//
// A tied parameter is where it is read first; operators of other stages fetch it, and its gradient goes home. Tables of
// tokens and the head may be cut over all stages instead.
#include <algorithm>
#include <map>

#include "tessera/base/error.h"
#include "tessera/base/text.h"
#include "tessera/plan/draft.h"
#include "tessera/plan/stages.h"
#include "tessera/schedule/families/family.h"

namespace tessera::plan {
namespace {

class PipelineStyle {
 public:
  PipelineStyle(Draft& draft, int64_t axis) : draft_(draft), axis_(static_cast<size_t>(axis)), parts_(draft.parts()) {
    for (const EmbeddingInfo& table : draft.roles.embeddings) {
      if (may_be_head(table)) {
        add_head(table.weight());
      }
    }
    if (draft.options.vocabulary > 0) {
      cut_vocabulary();
    }
    std::vector<double> costs;
    for (const ModelPart& part : parts_) {
      costs.push_back(part.cost);
    }
    if (!draft.options.schedule.empty()) {
      set_schedule(draft.options.schedule, draft.options.stages_per_rank);
    } else {
      rank_of_stage_ = schedule::loop_of_stages(ranks(), 1);
    }
    stages_ = balanced_stages(costs, stages());
  }

  void run() {
    std::map<std::string, int64_t> homes;
    for (size_t i = 0; i < parts_.size(); ++i) {
      for (const std::string& name : parts_[i].parameters) {
        draft_.entry(name).storage[axis_] = place_of(stages_[i]);
        homes[name] = stages_[i];
      }
    }
    for (size_t i = 0; i < parts_.size(); ++i) {
      for (const std::string& name : parts_[i].tied) {
        if (homes.at(name) != stages_[i]) {
          fetch(draft_.entry(name));
        }
      }
    }
    for (int64_t stage = 0; stage < stages(); ++stage) {
      describe(stage);
    }
  }

 private:
  int64_t ranks() const { return draft_.plan.mesh.axis(static_cast<int64_t>(axis_)).size; }
  int64_t stages() const { return static_cast<int64_t>(rank_of_stage_.size()); }
  layout::Placement place_of(int64_t stage) const {
    return layout::On(rank_of_stage_[static_cast<size_t>(stage)], stage);
  }

  // Which rank has which stage is the schedule's to say, whatever the number of micro-batches.
  void set_schedule(const std::string& name, int64_t stages_per_rank) {
    const int64_t per_rank = stages_per_rank > 0 ? stages_per_rank : schedule::family_of(name).per_rank;
    const schedule::Sizes sizes{
        .ranks = ranks(), .micro_batches = 2 * ranks(), .per_rank = per_rank, .barriers = draft_.options.vocabulary};
    const schedule::Schedule all = schedule::make_schedule(name, sizes);
    TESSERA_CHECK_AS(PlanError, all.chains == 1, "[generate_plan] schedule ", name,
                     " holds every stage twice; accepted: a schedule that holds each once, such as dualpipe-v");
    rank_of_stage_ = all.rank_of_stage;
    draft_.plan.schedule = name;
    draft_.plan.stages_per_rank = per_rank;
    draft_.plan.vocabulary = draft_.options.vocabulary;
  }

  // A table of tokens that no product of its size stands beside: a C++ model may read it at its end, which its modules
  // do not say.
  bool may_be_head(const EmbeddingInfo& table) const {
    const auto& groups = draft_.roles.groups;
    const auto is_as_wide = [&](const LinearInfo& linear) { return linear.out == table.rows; };
    const bool is_named_twice = std::any_of(parts_.begin(), parts_.end(), [&](const ModelPart& part) {
      return std::find(part.tied.begin(), part.tied.end(), table.weight()) != part.tied.end();
    });
    return !table.is_position && !is_named_twice && std::none_of(groups.begin(), groups.end(), [&](const auto& group) {
      return std::any_of(group.columns.begin(), group.columns.end(), is_as_wide) ||
             (group.row && is_as_wide(*group.row));
    });
  }

  // What is cut over all stages is on none of them, and costs each as much.
  void cut_vocabulary() {
    TESSERA_CHECK_AS(PlanError, draft_.options.vocabulary <= 2, "[generate_plan] a vocabulary with ",
                     draft_.options.vocabulary, " barriers; accepted: 1 or 2, or 0 where it is not cut");
    TESSERA_CHECK_AS(PlanError, draft_.wide_axes(layout::AxisRole::kSharded).empty(),
                     "[generate_plan] a vocabulary that is cut over stages on mesh {", draft_.plan.mesh.str(),
                     "}, of which an axis shards parameters; accepted: axes pp, dp and tp");
    std::vector<std::string> cut;
    for (const EmbeddingInfo& table : draft_.roles.embeddings) {
      if (table.is_position) {
        continue;
      }
      cut_over_stages(table.weight(), 0, table.rows, /*is_table=*/true, cut);
      for (const LinearGroup& group : draft_.roles.groups) {
        for (const LinearInfo& head : group.columns) {
          if (!group.row && head.out == table.rows) {
            cut_over_stages(head.weight(), head.out_dim(), head.out, /*is_table=*/false, cut);
            cut_over_stages(head.bias(), head.first_dim(), head.out, /*is_table=*/false, cut);
          }
        }
      }
    }
    std::erase_if(parts_, [](const ModelPart& part) { return part.parameters.empty() && part.tied.empty(); });
    TESSERA_CHECK_AS(PlanError, !cut.empty(),
                     "[generate_plan] a vocabulary that is cut over stages, and the model has no table of tokens; "
                     "accepted: a model with one, or no option vocabulary");
    draft_.note(c10::str(base::join(cut, ", "), ": cut over the ", ranks(), " ranks of ",
                         draft_.plan.mesh.axis(static_cast<int64_t>(axis_)).name));
  }

  // The parameter of this name, if it is one of the model's, leaves its parts. Its dim `dim` is the vocabulary.
  void cut_over_stages(const std::string& name, int64_t dim, int64_t rows, bool is_table,
                       std::vector<std::string>& cut) {
    const auto all = draft_.parameters();
    const auto named = std::find_if(all.begin(), all.end(), [&](const NamedTensor& own) { return own.name == name; });
    if (named == all.end() || std::find(cut.begin(), cut.end(), name) != cut.end()) {
      return;
    }
    cut.push_back(name);
    const auto& lattice = draft_.options.lattice;
    const int64_t unit = lattice ? sums::leaf_unit(rows, lattice->feature) : 1;
    draft_.entry(name).storage[axis_] = layout::Shard(dim, {.unit = unit});
    const int64_t elements = named->tensor.numel();
    for (ModelPart& part : parts_) {
      const auto own = static_cast<int64_t>(std::erase(part.parameters, name));
      const auto tied = static_cast<int64_t>(std::erase(part.tied, name));
      part.elements -= own * elements;
      part.cost -= static_cast<double>(own * (is_table ? elements / rows : elements) + tied * elements);
    }
  }

  void add_head(const std::string& weight) {
    for (const NamedTensor& named : draft_.parameters()) {
      if (named.name == weight) {
        parts_.back().tied.push_back(weight);
        parts_.back().cost += static_cast<double>(named.tensor.numel());
      }
    }
  }

  void fetch(ParameterPlan& entry) const {
    entry.compute = entry.storage;
    (*entry.compute)[axis_] = layout::Replicate();
    entry.gradient = entry.storage;
    for (layout::Placement& placement : *entry.gradient) {
      placement = placement.is_replicate() ? layout::Partial() : placement;
    }
  }

  // What a stage has, costs and gets from the one before it.
  void describe(int64_t stage) const {
    const auto begin = std::find(stages_.begin(), stages_.end(), stage);
    const auto end = std::find_if(begin, stages_.end(), [&](int64_t other) { return other != stage; });
    if (begin == end) {
      return draft_.note(
          c10::str("stage ", stage, " is empty: the model has ", parts_.size(), " parts for ", stages(), " stages"));
    }
    double all = 0, cost = 0;
    int64_t elements = 0;
    for (size_t i = 0; i < parts_.size(); ++i) {
      all += parts_[i].cost;
      cost += stages_[i] == stage ? parts_[i].cost : 0;
      elements += stages_[i] == stage ? parts_[i].elements : 0;
    }
    const auto part_at = [&](auto it) -> const ModelPart& { return parts_[static_cast<size_t>(it - stages_.begin())]; };
    const std::string first = part_at(begin).name, last = part_at(end - 1).name;
    const bool is_told = draft_.plan.stages_per_rank > 1;
    std::string text = c10::str("stage ", stage, is_told ? c10::str(" (rank ", place_of(stage).coordinate(), ")") : "",
                                ": ", first, first == last ? "" : " to " + last, ", ", elements, " parameters, ",
                                static_cast<int64_t>(100 * cost / std::max(all, 1.0) + 0.5), "% of the cost");
    if (stage > 0) {
      const ModelPart& before = part_at(begin - 1);
      const auto dtype = draft_.options.precision.compute.value_or(before.dtype);
      text += before.width > 0 ? c10::str(", gets ", before.width * static_cast<int64_t>(c10::elementSize(dtype)),
                                          " bytes for each token from the stage before it")
                               : ", gets what the stage before it makes";
    }
    draft_.note(text);
  }

  Draft& draft_;
  const size_t axis_;
  std::vector<ModelPart> parts_;
  std::vector<int64_t> rank_of_stage_;
  std::vector<int64_t> stages_;  // of each part
};

}  // namespace

void plan_pipeline(Draft& draft) {
  if (const auto axis = draft.wide_axis(layout::AxisRole::kPipeline)) {
    PipelineStyle(draft, *axis).run();
  }
}

}  // namespace tessera::plan
