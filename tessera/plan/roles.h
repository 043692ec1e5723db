// Which products of a model are cut by columns and which by rows, from the kinds, names and shapes of its modules.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "tessera/plan/adapters.h"
#include "tessera/plan/module_tree.h"

namespace tessera::plan {

// One product of a model with a weight [out, in].
struct LinearInfo {
  std::string name;  // dotted, without `.weight`; where it is stacked that of the weight
  int64_t in = 0;
  int64_t out = 0;
  bool has_bias = false;
  bool is_transposed = false;  // the weight is [in, out]
  // Of the attention that it is in, if the model says; 0: unknown.
  int64_t heads = 0;
  int64_t kv_heads = 0;
  bool is_stacked = false;  // one product of each expert: all tensors have their number as another, first dim
  bool alternates = false;  // of two products that are fused in it the rows take turns

  std::string weight() const;
  std::string bias() const;
  int64_t out_dim() const { return first_dim() + (is_transposed ? 1 : 0); }  // of the weight
  int64_t in_dim() const { return first_dim() + (is_transposed ? 0 : 1); }
  int64_t first_dim() const { return is_stacked ? 1 : 0; }  // of the bias too
};

// Column-parallel products (their output features are cut) and the row-parallel one (its input features are cut) that
// reads what they make; a head has no reader.
struct LinearGroup {
  std::vector<LinearInfo> columns;
  std::optional<LinearInfo> row;
};

// One table of a model.
struct EmbeddingInfo {
  std::string name;
  int64_t rows = 0;
  bool is_position = false;  // named as one that is read by position, distance or segment (`wpe`, `...pos...`,
                             // `...bias...`, `...type...`), not by token

  std::string weight() const { return dotted(name, "weight"); }
};

// What the walk over a model found, in the order of registration.
struct ModelRoles {
  std::vector<LinearGroup> groups;
  std::vector<EmbeddingInfo> embeddings;
  std::vector<AdapterInfo> adapters;
  std::vector<std::string> unknown;  // parameters of two and more dims of modules of other kinds
};

// Pairs Linears that follow one another: `is_chain` when the order of registration is the order of execution
// (Sequential, ModuleList); else Linears of one input width are siblings, and the last that fits is the one that reads
// them.
std::vector<LinearGroup> pair_linears(const std::vector<LinearInfo>& linears, bool is_chain);

// Walks the model; a layer that adapters were put on counts as itself, and a tied parameter at its first name. Products
// that nothing in their module reads are paired with what follows the module, up to the next list of modules.
ModelRoles find_roles(const ModuleTree& model);

}  // namespace tessera::plan
