"""tessera: one program for one device, on many, with the one-device result.

    import tessera

    model = AutoModelForCausalLM.from_config(config)                       # any torch.nn.Module
    tessera.parallelize(model, tessera.generate_plan(model, devices=2))    # parameters become DTensors, in place
    loss = model(**batch).loss                                             # as before

Ranks are the threads of `run_ranks`, or the processes of a launcher such as torchrun. The names are those of
`torch.distributed.tensor`; docs/guide/python.md has the rest.
"""

from tessera import _torch_version as _torch_version  # first: refuses a torch that this was not built for
from tessera._built_for import VERSION as __version__  # noqa: F401
from tessera import _loading as _loading
from tessera import _on_torch as _on_torch
from tessera import _threads as _threads
from tessera import optim as optim
from tessera._C import CommError, CommTimeout, DivergenceError, Mesh, Placement, Plan, RankFailed, Stopped
from tessera._checkpoint import Loaded, Saving, load, remove_unfinished, save, start_save
from tessera._dataloader import ShardedDataLoader, shard_dataloader
from tessera._estimate import RankEstimate, estimate
from tessera._explain import explain, find_nan
from tessera._fully_shard import FSDPModule, MixedPrecisionPolicy, OffloadPolicy, fully_shard
from tessera._layout import DeviceMesh, InterleavedShard, On, Partial, RaggedShard, Replicate, Shard, init_device_mesh
from tessera._parallel import deferred, generate_plan, is_deferred, parallelize, place_rows
from tessera._ranks import in_rank, join, rank, run_fake, run_ranks, world_size
from tessera._recompute import offload, recompute, set_offload_folder
from tessera._run import explicit, implicit, ledger, manual_seed, numerics, set_generator, set_step_tokens
from tessera._tensor import DTensor, distribute_tensor, from_local, full_tensor, redistribute, to_local
from tessera._whole_state import full_optimizer_state_dict, full_state_dict

__all__ = [
    "CommError", "CommTimeout", "DTensor", "DeviceMesh", "DivergenceError", "FSDPModule", "InterleavedShard", "Loaded", "Mesh", "MixedPrecisionPolicy",
    "OffloadPolicy", "On", "Partial", "Placement", "Plan", "RaggedShard", "RankEstimate", "RankFailed", "Replicate", "Saving", "Shard", "ShardedDataLoader", "Stopped",
    "deferred", "distribute_tensor", "estimate", "explain", "explicit", "find_nan", "from_local", "full_optimizer_state_dict", "full_state_dict", "full_tensor",
    "fully_shard", "generate_plan", "implicit", "in_rank", "init_device_mesh", "is_deferred", "join", "ledger", "load", "manual_seed", "numerics",
    "offload", "optim", "parallelize", "place_rows", "rank", "recompute", "redistribute", "remove_unfinished", "run_fake", "run_ranks", "save",
    "set_generator", "set_offload_folder", "set_step_tokens", "shard_dataloader", "start_save", "to_local", "world_size",
]
