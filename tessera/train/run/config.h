// What a training run is, as typed data read from TOML.
#pragma once

#include <array>
#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include <c10/core/ScalarType.h>

#include "tessera/layout/mesh.h"
#include "tessera/plan/rows.h"
#include "tessera/sums/lattice.h"

namespace tessera::train {

// [model]: which model, and its sizes. A field that the kind does not have must keep its default.
struct ModelConfig {
  std::string kind = "llama";  // llama or gpt
  int64_t vocab_size = 0;      // 0: as many as the tokenizer has, 256 without one
  int64_t dim = 128;
  int64_t layers = 4;
  int64_t heads = 4;
  int64_t kv_heads = 0;  // llama; 0: as many as heads
  int64_t hidden = 0;    // llama; 0: 3 dim
  double dropout = 0;    // gpt
  double norm_eps = 1e-5;
  double rope_theta = 10000;  // llama
  double init_std = 0.02;
  bool tie_embeddings = false;
  bool fused_attention = false;
};

// [data]: the text. Paths are relative to the folder of the configuration file.
struct DataConfig {
  std::string file;                    // .jsonl: documents; .bin: tokens; anything else: one text
  std::string tokenizer;               // tokenizer.json; empty: tokens are bytes
  std::string eos;                     // the token that ends a document; empty: the tokenizer's, by its usual names
  std::string token_dtype = "uint16";  // of a .bin file without a header: uint16 or uint32
  double held_out = 0.05;              // fraction at the end that training never sees
  int64_t sequence = 128;              // tokens of a sample
};

// [train]: the run.
struct TrainConfig {
  int64_t steps = 100;
  int64_t batch = 16;      // samples of a step, over all ranks and micro-batches
  int64_t accumulate = 1;  // micro-batches of a step
  int64_t warmup = 0;      // steps until optimizer.lr is reached
  double min_lr = 0;       // where the cosine ends
  double clip = 1;         // largest gradient norm; 0: no clipping
  int64_t seed = 0;
  std::string dtype = "float32";
  std::string numerics =
      "exact";               // the same bits on every mesh that the lattice allows (docs/guide/same-bits.md); or fast
  sums::Lattice lattice;     // of `exact`; a text such as batch=8,sequence=1,feature=8
  int64_t eval_every = 0;    // steps; 0: only at the end
  int64_t eval_batches = 8;  // of an evaluation on the way; the one at the end reads all that was held out
  int64_t log_every = 10;
  bool proof = false;  // at the end, run the first steps on one rank and compare
};

// [optimizer]: what changes the parameters. A field that the named one does not have must keep its default.
struct OptimizerConfig {
  std::string name = "adamw";  // adamw, sgd, lion or adamw8bit
  double lr = 1e-3;            // at most
  std::array<double, 2> betas = {0.9, 0.95};
  double eps = 1e-8;  // adamw, adamw8bit: gradients much smaller than this hardly move their parameter
  double weight_decay = 0.1;
  double momentum = 0;  // sgd
};

// [precision]: dtypes of parameters, by name (float32, bfloat16, ...); empty: train.dtype, which the model has.
struct PrecisionConfig {
  std::string storage;  // between steps, where the optimizer works
  std::string compute;  // inside of operators
  std::string reduce;   // while gradients are merged over ranks
};

// [recompute]: what keeps only its inputs for backward, and runs again there.
struct RecomputeConfig {
  std::string modules;  // patterns over names of modules, with commas between them: model.layers.*; empty: nothing
  std::string keep;     // operators whose results are kept and not computed again: scaled_dot_product_attention, linear
};

// [offload]: what lies elsewhere than in memory: of the optimizer between steps, of activations until backward.
struct OffloadConfig {
  std::string state;  // the folder where each rank keeps the optimizer's state, in a file without a name; empty: memory
  std::string activations;  // what modules save for backward: patterns over their names, with commas; empty: nothing
  std::string folder;       // where each rank keeps activations, likewise; empty: that for temporary files
};

// [parallel]: the ranks and the layout.
struct ParallelConfig {
  int64_t ranks = 0;  // 0: as many as the mesh has
  std::string mesh;   // dp=2,tp=2; empty: chosen for the ranks
  bool sequence_parallel = false;
  std::string sharding = "parameters";  // what fsdp axes cut: state, gradients as well, or parameters as well
  // How the stages of a pp axis share the micro-batches (train.accumulate) of a step: gpipe, 1f1b, ...; empty: one
  // after the other. It says how many stages a rank has unless stages_per_rank does (0). Without pp it says nothing.
  std::string schedule;
  int64_t stages_per_rank = 0;
  // Embedding and head are cut over the stages of a pp axis, in a schedule with so many barriers: 1 or 2; 0: they are
  // on the first and the last.
  int64_t vocabulary = 0;
  bool keep_gathered = true;
  std::string plan;  // a plan file instead of a generated plan; relative to the folder of the configuration file
};

// A value. Names in messages are `section.key`, as in TOML and in `--set`.
struct Config {
  ModelConfig model;
  DataConfig data;
  TrainConfig train;
  OptimizerConfig optimizer;
  PrecisionConfig precision;
  RecomputeConfig recompute;
  OffloadConfig offload;
  ParallelConfig parallel;

  at::ScalarType dtype() const;
  bool is_exact() const { return train.numerics == "exact"; }

  // Number of ranks, and their mesh if it is given. Throws ConfigError if they contradict.
  int64_t ranks() const;
  layout::Mesh mesh()
      const;  // of `parallel.mesh`, each axis with its role (PlanError); the mesh of one if that is empty

  // Throws ConfigError if two fields contradict, or one names no dtype.
  void verify() const;
  // ... of [optimizer] alone.
  void verify_optimizer() const;
  // ... if there is no such schedule, or a step has not as many micro-batches as it wants for the stages of a mesh;
  // `deal` is what a job wants for its samples in `exact`.
  void verify_schedule(const layout::Mesh& mesh, const std::string& name, int64_t stages_per_rank, int64_t vocabulary,
                       plan::Deal deal) const;

 private:
  // ... if the mesh cuts what the lattice has fewer leaves of.
  void verify_lattice() const;
};

// Reads TOML. Throws ConfigError, which names the source, the line and what is accepted, for an unknown key, a wrong
// type, a value out of range, a field that is given twice. Fields that are not given keep their defaults. Those of
// [optimizer] that stood in [train] are taken there as well. Does not verify().
Config parse_config(std::string_view toml, const std::string& source);

// parse_config of a file, with `data.file`, `data.tokenizer` and `parallel.plan` made relative to where the program
// runs.
Config read_config(const std::string& path);

// `optimizer.lr=1e-3`: changes one field. Texts need no quotes. Throws ConfigError as parse_config does.
void set_field(Config& config, std::string_view assignment);

// The whole configuration as TOML, which parse_config reads back.
std::string to_toml(const Config& config);

// Every `section.key`, in order.
std::vector<std::string> field_names();

}  // namespace tessera::train
