// What launchers tell a process through its environment: which rank it is, and where the others meet.
#pragma once

#include <cstdint>
#include <functional>
#include <optional>
#include <string>

#include "tessera/comm/join/process.h"

namespace tessera::launch {

// Looks a variable up: its value, or nothing. An empty value counts as nothing.
using Environment = std::function<std::optional<std::string>(const std::string& name)>;

// The process's own.
Environment process_environment();

// The place of this process in its job, from the first launcher that left its variables:
//
//   torchrun, tessera launch  RANK, WORLD_SIZE, LOCAL_WORLD_SIZE, MASTER_ADDR, MASTER_PORT;
//   TORCHELASTIC_USE_AGENT_STORE: the
//                             store is the launcher's, TORCHELASTIC_RESTART_COUNT keeps attempts apart
//   mpirun (Open MPI)         OMPI_COMM_WORLD_RANK, _SIZE, _LOCAL_SIZE
//   mpiexec (MPICH, Intel)    PMI_RANK, PMI_SIZE, MPI_LOCALNRANKS
//   srun                      SLURM_PROCID, SLURM_NTASKS (of the step), SLURM_STEP_NODELIST, SLURM_JOB_ID,
//   SLURM_STEP_ID; a batch
//                             script outside of srun is no rank
//
// MASTER_ADDR and MASTER_PORT, if given, are obeyed everywhere. Without them srun's ranks meet on the first host of the
// list at a port derived from the job and step, and mpirun's, if all are on one machine, at a port derived from the
// job. Nothing without a launcher. Throws ConfigError, which names the missing variable and what to do, if half of them
// are there.
std::optional<comm::Place> find_place(const Environment& environment = process_environment());

// The first host of a Slurm list: `node[007-009,12],other` is node007.
std::string first_host(const std::string& nodelist);

// Whether `rank` prints its progress: those in LOG_RANK (`0`, `0,3`, `all`); rank 0 if that is not set.
bool prints(int64_t rank, const Environment& environment = process_environment());

}  // namespace tessera::launch
