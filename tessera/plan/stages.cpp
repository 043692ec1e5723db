#include "tessera/plan/stages.h"

#include <algorithm>
#include <limits>
#include <unordered_map>

#include "tessera/base/text.h"

namespace tessera::plan {
namespace {

using Kind = ModuleTree::Kind;

class PartWalk {
 public:
  std::vector<ModelPart> parts;

  void visit(const ModuleTree& module, const std::string& name, bool is_in_layer) {
    for (const auto& [own, tensor] : module.parameters) {
      if (tensor.defined()) {
        add(module, tensor, dotted(name, own), is_in_layer);
      }
    }
    for (const auto& child : module.children) {
      const bool begins_layer = !is_in_layer && base::try_parse_int(child.name);
      if (begins_layer) {
        parts.push_back({.name = dotted(name, child.name)});
      }
      visit(child, dotted(name, child.name), is_in_layer || begins_layer);
      is_open_ = is_open_ && !begins_layer;
    }
  }

 private:
  // What belongs to no layer makes parts of its own, by the module that it is in.
  ModelPart& part_of(const std::string& name, bool is_in_layer) {
    const std::string module = name.substr(0, std::min(name.rfind('.'), name.size()));
    if (!is_in_layer && !(is_open_ && parts.back().name == module)) {
      parts.push_back({.name = module});
      is_open_ = true;
    }
    return parts.back();
  }

  void add(const ModuleTree& module, const at::Tensor& tensor, const std::string& name, bool is_in_layer) {
    ModelPart& part = part_of(name, is_in_layer);
    const auto [first, is_new] = names_.emplace(tensor.unsafeGetTensorImpl(), name);
    if (is_new) {
      part.parameters.push_back(name);
      part.elements += tensor.numel();
    } else {
      part.tied.push_back(first->second);
    }
    const bool is_table = module.kind == Kind::kEmbedding;
    part.cost += static_cast<double>(is_table ? tensor.size(-1) : tensor.numel());
    const bool is_product = module.kind == Kind::kLinear || module.kind == Kind::kTransposedLinear;
    if (is_table || (is_product && tensor.dim() == 2)) {
      part.width = tensor.size(is_table || module.kind == Kind::kTransposedLinear ? 1 : 0);
      part.dtype = tensor.scalar_type();
    }
  }

  std::unordered_map<const void*, std::string> names_;
  bool is_open_ = false;  // the last part is of no layer
};

}  // namespace

std::vector<ModelPart> parts_of(const ModuleTree& model) {
  PartWalk walk;
  walk.visit(model, "", false);
  std::erase_if(walk.parts, [](const ModelPart& part) { return part.parameters.empty() && part.tied.empty(); });
  return std::move(walk.parts);
}

std::vector<int64_t> balanced_stages(const std::vector<double>& costs, int64_t stages) {
  const size_t parts = costs.size(), used = std::min(parts, static_cast<size_t>(stages));
  std::vector<double> until(parts + 1);
  for (size_t i = 0; i < parts; ++i) {
    until[i + 1] = until[i] + costs[i];
  }
  constexpr double kNone = std::numeric_limits<double>::infinity();
  // Of the first i parts on k stages: what they cost, and where the last stage begins.
  std::vector<std::vector<size_t>> begins;
  const auto solve = [&](const auto& of_stage, const auto& joined) {
    begins.assign(used + 1, std::vector<size_t>(parts + 1));
    std::vector<double> best(parts + 1, kNone);
    best[0] = 0;
    for (size_t k = 1; k <= used; ++k) {
      std::vector<double> next(parts + 1, kNone);
      for (size_t end = k; end <= parts; ++end) {
        for (size_t begin = k - 1; begin < end; ++begin) {
          const double cost = joined(best[begin], of_stage(until[end] - until[begin]));
          if (cost < next[end]) {
            next[end] = cost, begins[k][end] = begin;
          }
        }
      }
      best = std::move(next);
    }
    return best[parts];
  };
  const double most = solve([](double cost) { return cost; }, [](double a, double b) { return std::max(a, b); });
  solve([&](double cost) { return cost > most ? kNone : cost * cost; }, [](double a, double b) { return a + b; });
  std::vector<int64_t> result(parts);
  for (size_t k = used, end = parts; k > 0; end = begins[k--][end]) {
    std::fill(result.begin() + static_cast<int64_t>(begins[k][end]), result.begin() + static_cast<int64_t>(end),
              static_cast<int64_t>(k - 1));
  }
  return result;
}

}  // namespace tessera::plan
