// tessera for users: the everyday names, lifted into `tessera::`. Everything else stays on its floor (docs/floors.md).
//
// A one-device libtorch program becomes a program of many ranks by five lines and a word (examples/02_many_ranks.cpp):
//
//     #include <tessera/tessera.h>
//     auto model = tessera::deferred([] { return Model(...); });    // described; no memory yet
//     auto plan = tessera::generate_plan(*model, {.devices = 4});   // what is cut, and how
//     auto job = tessera::parallelize(model, plan, optimizer);      // parameters become DTensors, in place
//     auto loss = job(inputs, targets);                             // instead of model(inputs, targets)
//     tessera::run_ranks(4, train);                                 // instead of train()
//
// Nothing inside tessera includes this header.
#pragma once

#include "tessera/checkpoint/program/job.h"
#include "tessera/comm/core/errors.h"
#include "tessera/comm/threads/run_ranks.h"
#include "tessera/dtensor/front/dtensor.h"
#include "tessera/dtensor/front/gather_to.h"
#include "tessera/dtensor/front/offload.h"
#include "tessera/dtensor/front/recomputable.h"
#include "tessera/watch/explain.h"
#include "tessera/watch/find_nan.h"
#include "tessera/layout/mesh.h"
#include "tessera/layout/placement.h"
#include "tessera/layout/spec.h"
#include "tessera/optim/adamw_8bit.h"
#include "tessera/optim/clip.h"
#include "tessera/optim/ema.h"
#include "tessera/optim/lion.h"
#include "tessera/optim/owned.h"
#include "tessera/optim/schedule.h"
#include "tessera/optim/state_file.h"
#include "tessera/parallel/deferred.h"
#include "tessera/parallel/generate_plan.h"
#include "tessera/parallel/job.h"
#include "tessera/parallel/optimizer_fields.h"
#include "tessera/plan/plan.h"

namespace tessera {

// Ranks: threads of this process, or imagined ones for planning.
using comm::run_fake;
using comm::run_ranks;

// Layouts: named axes over ranks, and what each does to a tensor.
using sums::Lattice;
using layout::Mesh;
using layout::Partial;
using layout::Placement;
using layout::Placements;
using layout::RaggedShard;
using layout::ReduceOp;
using layout::Replicate;
using layout::Shard;
using layout::Spec;
using layout::spanning;

// Distributed tensors, which libtorch's operators, autograd, modules and optimizers take as they are.
using dtensor::deep_copy;
using dtensor::distribute;
using watch::Explain;
using dtensor::from_local;
using dtensor::full_tensor;
using dtensor::gather_to;
using dtensor::GeneratorKind;
using dtensor::is_dtensor;
using dtensor::manual_seed;
using dtensor::Mode;
using dtensor::ModeScope;
using watch::NanFinder;
using dtensor::Numerics;
using dtensor::offload;
using dtensor::recompute;
using dtensor::Recomputable;
using dtensor::redistribute;
using dtensor::RecomputeOptions;
using dtensor::run_block;
using dtensor::set_generator;
using dtensor::set_numerics;
using dtensor::set_offload_folder;
using dtensor::spec_of;
using dtensor::stock_generator;
using dtensor::to_local;
using dtensor::to_string;
using dtensor::with_labels;

// Models on a mesh.
using parallel::deferred;
using parallel::generate_plan;
using parallel::is_deferred;
using parallel::Job;
using parallel::parallelize;
using parallel::place;
using plan::Plan;

// Jobs that end and go on, on whatever mesh.
using checkpoint::load;
using checkpoint::LoadJobOptions;
using checkpoint::remove_unfinished;
using checkpoint::save;
using checkpoint::SaveOptions;
using checkpoint::Saving;
using checkpoint::start_save;
using parallel::register_optimizer;
using parallel::state_of;

// Gradients, optimizers and learning rates.
using optim::AdamW8bit;
using optim::clip_grad_norm;
using optim::Ema;
using optim::grad_norm;
using optim::Lion;
using optim::owned;
using optim::StateFile;
using optim::WarmupCosine;
using optim::WarmupStableDecay;

}  // namespace tessera
