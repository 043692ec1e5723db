#include "tessera/plan/roles.h"

#include <algorithm>
#include <unordered_set>

namespace tessera::plan {
namespace {

using Kind = ModuleTree::Kind;
using Linears = std::vector<LinearInfo>;

// `reader` can read what `maker` makes: all of it, or (fused products) an equal part.
bool can_read(const LinearInfo& reader, const LinearInfo& maker) { return maker.out % reader.in == 0; }

bool is_linear(const ModuleTree& module) {
  const ModuleTree* layer = layer_of(module).layer;
  return layer && layer->kind != Kind::kEmbedding;
}

bool has_matrices(const ModuleTree& module) {
  const auto is_matrix = [](const auto& named) { return named.second.defined() && named.second.dim() >= 2; };
  return std::any_of(module.parameters.begin(), module.parameters.end(), is_matrix) ||
         std::any_of(module.children.begin(), module.children.end(), has_matrices);
}

// Tables that are read by position, distance or segment, not by token.
bool is_position_name(const std::string& name) {
  const auto last = name.substr(name.rfind('.') + 1);
  const auto has = [&](const char* part) { return last.find(part) != std::string::npos; };
  return last == "wpe" || has("pos") || has("bias") || has("type");
}

std::vector<LinearInfo> stacked_products(const ModuleTree& module, bool is_transposed) {
  std::vector<LinearInfo> products;
  int64_t experts = 0;
  for (const auto& [name, parameter] : module.parameters) {
    if (!parameter.defined() || parameter.dim() != 3) {
      continue;
    }
    if (experts != 0 && parameter.size(0) != experts) {
      return {};
    }
    experts = parameter.size(0);
    const auto is_bias = [&, own = name](const auto& other) { return other.first == own + "_bias"; };
    products.push_back({.name = name,
                        .in = parameter.size(is_transposed ? 1 : 2),
                        .out = parameter.size(is_transposed ? 2 : 1),
                        .has_bias = std::any_of(module.parameters.begin(), module.parameters.end(), is_bias),
                        .is_transposed = is_transposed,
                        .is_stacked = true,
                        .alternates = module.alternates});
  }
  return products;
}

// The products that the module's tensors of three dims are; none where they do not follow one another.
LinearGroup stacked_group(const ModuleTree& module) {
  for (const bool is_transposed : {false, true}) {
    std::vector<LinearInfo> products = stacked_products(module, is_transposed);
    if (products.size() < 2) {
      return {};
    }
    const LinearInfo row = products.back();
    products.pop_back();
    const auto fits = [&](const LinearInfo& made) { return made.in == row.out && can_read(row, made); };
    if (std::all_of(products.begin(), products.end(), fits)) {
      return {products, row};
    }
  }
  return {};
}

class Walk {
 public:
  explicit Walk(ModelRoles& roles) : roles_(roles) {}

  void visit_model(const ModuleTree& model) {
    const auto open = visit(model, "", {});
    add_groups(roles_.groups.size(), open, false);
  }

 private:
  struct Heads {
    int64_t queries = 0, keys = 0;
  };

  // Returns the products that nothing in the module reads; what follows it may.
  Linears visit(const ModuleTree& module, const std::string& prefix, Heads heads) {
    if (module.heads > 0) {
      heads = {module.heads, module.kv_heads > 0 ? module.kv_heads : module.heads};
    }
    if (const WrappedLayer wrapped = layer_of(module); wrapped.layer) {
      const std::string name = dotted(prefix, wrapped.name);
      if (is_linear(module)) {
        return take_linear(*wrapped.layer, name, heads);
      }
      take_embedding(*wrapped.layer, name);
      return {};
    }
    take_stacked(module, prefix);
    for (const auto& [name, parameter] : module.parameters) {
      if (parameter.defined() && parameter.dim() >= 2 && is_new(parameter)) {
        roles_.unknown.push_back(dotted(prefix, name));
      }
    }
    return visit_children(module, prefix, heads);
  }

  // Linears in a row, with nothing but modules without matrices between them, are paired.
  Linears visit_children(const ModuleTree& module, const std::string& prefix, const Heads& heads) {
    const bool is_chain = module.kind == Kind::kChain;
    Linears open;
    for (const auto& child : module.children) {
      const size_t before = roles_.groups.size();
      auto made = visit(child, dotted(prefix, child.name), heads);
      const bool is_barrier =
          !is_linear(child) && (made.empty() || is_chain || roles_.groups.size() > before) && has_matrices(child);
      if (is_barrier) {
        add_groups(before, std::exchange(open, {}), is_chain);
        add_groups(roles_.groups.size(), made, is_chain);
      } else {
        open.insert(open.end(), made.begin(), made.end());
      }
    }
    return pair(open, is_chain);
  }

  bool is_new(const at::Tensor& parameter) { return seen_.insert(parameter.unsafeGetTensorImpl()).second; }

  Linears take_linear(const ModuleTree& module, const std::string& name, const Heads& heads) {
    if (!module.weight.defined() || module.weight.dim() != 2 || !is_new(module.weight)) {
      return {};
    }
    const bool is_transposed = module.kind == Kind::kTransposedLinear;
    return {{.name = name,
             .in = module.weight.size(is_transposed ? 0 : 1),
             .out = module.weight.size(is_transposed ? 1 : 0),
             .has_bias = module.bias.defined(),
             .is_transposed = is_transposed,
             .heads = heads.queries,
             .kv_heads = heads.keys}};
  }

  // Products of all experts in one tensor each, [experts, out, in] or [experts, in, out]: the last one reads the
  // others.
  void take_stacked(const ModuleTree& module, const std::string& prefix) {
    LinearGroup group = stacked_group(module);
    if (!group.row) {
      return;
    }
    for (const auto& [name, parameter] : module.parameters) {
      if (parameter.defined() && parameter.dim() >= 2) {
        is_new(parameter);
      }
    }
    for (LinearInfo& linear : group.columns) {
      linear.name = dotted(prefix, linear.name);
    }
    group.row->name = dotted(prefix, group.row->name);
    roles_.groups.push_back(std::move(group));
  }

  void take_embedding(const ModuleTree& module, const std::string& name) {
    if (module.weight.defined() && is_new(module.weight)) {
      roles_.embeddings.push_back({name, module.weight.size(0), is_position_name(name)});
    }
  }

  // Notes the pairs among `linears`; returns those at the end that nothing reads yet.
  Linears pair(const Linears& linears, bool is_chain) {
    auto groups = pair_linears(linears, is_chain);
    Linears open;
    if (!is_chain && !groups.empty() && !groups.back().row) {
      open = std::move(groups.back().columns);
      groups.pop_back();
    }
    roles_.groups.insert(roles_.groups.end(), groups.begin(), groups.end());
    return open;
  }

  // Before group `at`: what came before a module stands before that module's own.
  void add_groups(size_t at, const Linears& linears, bool is_chain) {
    const auto groups = pair_linears(linears, is_chain);
    roles_.groups.insert(roles_.groups.begin() + static_cast<int64_t>(at), groups.begin(), groups.end());
  }

  ModelRoles& roles_;
  std::unordered_set<const void*> seen_;
};

}  // namespace

std::string LinearInfo::weight() const { return is_stacked ? name : dotted(name, "weight"); }

std::string LinearInfo::bias() const { return is_stacked ? name + "_bias" : dotted(name, "bias"); }

std::vector<LinearGroup> pair_linears(const std::vector<LinearInfo>& linears, bool is_chain) {
  std::vector<LinearGroup> groups;
  bool is_open = false;
  const auto reads_open = [&](const LinearInfo& linear) {
    const auto& columns = groups.back().columns;
    return std::any_of(columns.begin(), columns.end(), [&](const LinearInfo& made) { return can_read(linear, made); });
  };
  for (size_t i = 0; i < linears.size(); ++i) {
    const auto& linear = linears[i];
    if (is_open && reads_open(linear)) {
      // A sibling of the same widths may come first: of those that could lead back, the last one does.
      const auto width = groups.back().columns.front().in;
      const bool may_be_sibling = !is_chain && linear.in == width;
      const bool is_last = i + 1 == linears.size() || linears[i + 1].in != width || linears[i + 1].out != linear.out ||
                           linear.out != width;
      const bool leads_back = linear.out == width && is_last;
      if (!may_be_sibling || leads_back) {
        groups.back().row = linear;
        is_open = false;
        continue;
      }
    }
    const bool is_sibling = is_open && !is_chain && linear.in == groups.back().columns.front().in;
    if (!is_sibling) {
      groups.emplace_back();
    }
    groups.back().columns.push_back(linear);
    is_open = true;
  }
  return groups;
}

ModelRoles find_roles(const ModuleTree& model) {
  ModelRoles roles;
  Walk(roles).visit_model(model);
  roles.adapters = find_adapters(model);
  return roles;
}

}  // namespace tessera::plan
