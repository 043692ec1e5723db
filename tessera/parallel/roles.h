// Which products of a model are cut by columns and which by rows, from the kinds, names and shapes of its modules.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include <torch/nn/module.h>

namespace tessera::parallel {

// One torch::nn::Linear of a model: a product with a weight [out, in].
struct LinearInfo {
  std::string name;  // dotted, without `.weight`
  int64_t in = 0;
  int64_t out = 0;
  bool has_bias = false;
};

// Column-parallel products (their output features are cut) and the row-parallel one (its input features are cut) that reads
// what they make; a head has no reader.
struct LinearGroup {
  std::vector<LinearInfo> columns;
  std::optional<LinearInfo> row;
};

// One torch::nn::Embedding of a model.
struct EmbeddingInfo {
  std::string name;
  int64_t rows = 0;
  bool is_position = false;  // named as a table of positions (`wpe`, `...pos...`): read by position, not by token
};

// What the walk over a model found, in the order of registration.
struct ModelRoles {
  std::vector<LinearGroup> groups;
  std::vector<EmbeddingInfo> embeddings;
  std::vector<std::string> unknown;  // parameters of two and more dims of modules of other kinds
};

// Pairs Linears that follow one another: `is_chain` when the order of registration is the order of execution (Sequential,
// ModuleList); else Linears of one input width are siblings, and the last that fits is the one that reads them.
std::vector<LinearGroup> pair_linears(const std::vector<LinearInfo>& linears, bool is_chain);

// Walks the model; a tied parameter counts at its first name.
ModelRoles find_roles(const torch::nn::Module& model);

}  // namespace tessera::parallel
