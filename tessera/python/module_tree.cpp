#include "tessera/python/module_tree.h"

#include <algorithm>
#include <set>

#include "tessera/base/error.h"

namespace tessera::python {
namespace {

using plan::ModuleTree;
using Kind = ModuleTree::Kind;

bool is_instance(const py::object& module, const char* name) {
  return py::isinstance(module, py::module_::import("torch.nn").attr(name));
}

Kind kind_of(const py::object& module) {
  if (is_instance(module, "Linear")) {
    return Kind::kLinear;
  }
  if (is_instance(module, "Embedding")) {
    return Kind::kEmbedding;
  }
  if (is_instance(module, "Sequential") || is_instance(module, "ModuleList")) {
    return Kind::kChain;
  }
  // transformers' product of GPT-2's times.
  return py::str(py::type::of(module).attr("__name__")).cast<std::string>() == "Conv1D" ? Kind::kTransposedLinear
                                                                                        : Kind::kOther;
}

// The first of the named attributes that is a number above zero; 0: none.
int64_t number_of(const py::object& owner, std::initializer_list<const char*> names) {
  for (const char* name : names) {
    const py::object value = py::getattr(owner, name, py::none());
    if (PyLong_CheckExact(value.ptr()) && value.cast<int64_t>() > 0) {
      return value.cast<int64_t>();
    }
  }
  return 0;
}

void read_heads(const py::object& module, ModuleTree& tree) {
  const auto heads_in = [](const py::object& owner) {
    return number_of(owner, {"num_attention_heads", "num_heads", "n_heads", "n_head"});
  };
  const py::object config = py::getattr(module, "config", py::none());
  tree.heads = heads_in(module);
  if (tree.heads == 0) {
    tree.heads = heads_in(config);
  }
  tree.kv_heads = number_of(module, {"num_key_value_heads"});
  if (tree.kv_heads == 0) {
    tree.kv_heads = number_of(config, {"num_key_value_heads"});
  }
  if (tree.heads > 0 && tree.kv_heads > 0 && tree.heads % tree.kv_heads != 0) {
    tree.heads = tree.kv_heads = 0;
  }
}

void add_tensors(const py::dict& from, ModuleTree::Tensors& to) {
  for (const auto& [name, value] : from) {
    if (!value.is_none()) {
      to.emplace_back(name.cast<std::string>(), value.cast<at::Tensor>());
    }
  }
}

ModuleTree describe_as(const py::object& module, std::string name) {
  ModuleTree tree;
  tree.name = std::move(name);
  tree.kind = kind_of(module);
  read_heads(module, tree);
  tree.alternates = py::getattr(module, "is_concatenated", py::none()).is(py::bool_(false));
  add_tensors(module.attr("_parameters"), tree.parameters);
  add_tensors(module.attr("_buffers"), tree.buffers);
  for (const auto& [own, tensor] : tree.parameters) {
    if (own == "weight") {
      tree.weight = tensor;
    } else if (own == "bias") {
      tree.bias = tensor;
    }
  }
  for (const auto& [key, child] : module.attr("_modules").cast<py::dict>()) {
    if (!child.is_none()) {
      tree.children.push_back(describe_as(py::reinterpret_borrow<py::object>(child), key.cast<std::string>()));
    }
  }
  return tree;
}

// Adds the dotted names of buffers that do not persist.
void add_transient(const py::object& module, const std::string& name, std::set<std::string>& names) {
  for (const auto& own : module.attr("_non_persistent_buffers_set")) {
    names.insert(plan::dotted(name, own.cast<std::string>()));
  }
  for (const auto& [key, child] : module.attr("_modules").cast<py::dict>()) {
    if (!child.is_none()) {
      add_transient(py::reinterpret_borrow<py::object>(child), plan::dotted(name, key.cast<std::string>()), names);
    }
  }
}

}  // namespace

std::vector<plan::NamedTensor> persistent_tensors(const py::object& module) {
  auto tensors = plan::tensors_of(describe(module));
  std::set<std::string> transient;
  add_transient(module, "", transient);
  std::erase_if(tensors, [&](const plan::NamedTensor& named) {
    return std::all_of(named.aliases.begin(), named.aliases.end(),
                       [&](const auto& alias) { return transient.contains(alias); }) &&
           transient.contains(named.name);
  });
  return tensors;
}

ModuleTree describe(const py::object& module) {
  TESSERA_CHECK_AS(PlanError, is_instance(module, "Module"), "[parallelize] expected a torch.nn.Module, got ",
                   py::str(py::type::of(module)).cast<std::string>());
  return describe_as(module, "");
}

}  // namespace tessera::python
