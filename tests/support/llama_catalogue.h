// The persistent tensors of a Llama: parameters and the two moments of each, as catalogues of any mesh.
#pragma once

#include <cstdint>
#include <functional>
#include <string>
#include <utility>
#include <vector>

#include "tessera/catalogue/catalogue.h"

namespace tessera::support {

// Sizes of Llama 3.1 405B.
struct LlamaSizes {
  int64_t layers = 126, dim = 16384, hidden = 53248, kv_dim = 8 * 128, vocab = 128256;
};

// The layout of a tensor on a mesh: its dim that tensor parallelism cuts (-1: none) and its layer (that of the
// embedding is 0, that of the head the last).
using Lay = std::function<layout::Placements(const layout::Mesh& mesh, int64_t tp_dim, int64_t layer)>;

inline catalogue::Catalogue llama_catalogue(const LlamaSizes& llama, const layout::Mesh& mesh, const Lay& parameters,
                                            const Lay& moments) {
  std::vector<catalogue::Entry> entries;
  const auto add = [&](const std::string& name, const std::vector<int64_t>& sizes, int64_t tp_dim, int64_t layer) {
    using catalogue::Role;
    const auto make = [&](const Lay& lay, c10::ScalarType dtype) {
      return layout::Spec::contiguous(mesh, lay(mesh, tp_dim, layer), sizes, dtype);
    };
    entries.push_back({name, {}, Role::kParameter, make(parameters, c10::ScalarType::BFloat16)});
    entries.push_back({"exp_avg/" + name, {}, Role::kMoment, make(moments, c10::ScalarType::Float)});
    entries.push_back({"exp_avg_sq/" + name, {}, Role::kMoment, make(moments, c10::ScalarType::Float)});
  };
  add("model.embed_tokens.weight", {llama.vocab, llama.dim}, 0, 0);
  for (int64_t layer = 0; layer < llama.layers; ++layer) {
    const std::string at = "model.layers." + std::to_string(layer) + ".";
    add(at + "input_layernorm.weight", {llama.dim}, -1, layer);
    add(at + "self_attn.q_proj.weight", {llama.dim, llama.dim}, 0, layer);
    add(at + "self_attn.k_proj.weight", {llama.kv_dim, llama.dim}, 0, layer);
    add(at + "self_attn.v_proj.weight", {llama.kv_dim, llama.dim}, 0, layer);
    add(at + "self_attn.o_proj.weight", {llama.dim, llama.dim}, 1, layer);
    add(at + "post_attention_layernorm.weight", {llama.dim}, -1, layer);
    add(at + "mlp.gate_proj.weight", {llama.hidden, llama.dim}, 0, layer);
    add(at + "mlp.up_proj.weight", {llama.hidden, llama.dim}, 0, layer);
    add(at + "mlp.down_proj.weight", {llama.dim, llama.hidden}, 1, layer);
  }
  add("model.norm.weight", {llama.dim}, -1, llama.layers - 1);
  add("lm_head.weight", {llama.vocab, llama.dim}, 0, llama.layers - 1);
  return catalogue::Catalogue(std::move(entries), {{"step", "1000"}});
}

// Cut over tp where the mesh has it, over dp too where `cuts_dp`, On a stage of pp where the mesh has it.
inline Lay llama_lay(const LlamaSizes& llama, bool cuts_dp) {
  return [layers = llama.layers, cuts_dp](const layout::Mesh& mesh, int64_t tp_dim, int64_t layer) {
    layout::Placements placements(mesh.ndim());
    for (int64_t a = 0; a < mesh.ndim(); ++a) {
      const layout::Axis& axis = mesh.axis(a);
      if (axis.name == "pp") {
        placements[a] = layout::On(layer * axis.size / layers);
      } else if (axis.name == "tp" && tp_dim >= 0) {
        placements[a] = layout::Shard(tp_dim);
      } else if (axis.name == "dp" && cuts_dp) {
        placements[a] = layout::Shard(0);
      }
    }
    return placements;
  };
}

}  // namespace tessera::support
