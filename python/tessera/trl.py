"""`trl.SFTTrainer` on a mesh: a script changes the import, and names the mesh. docs/guide/trainers.md has the rest.

    from tessera.trl import SFTTrainer          # instead of: from trl import SFTTrainer
    trainer = SFTTrainer(model, args=args, train_dataset=rows, mesh="dp=2,tp=2")
"""

import trl

from tessera.transformers import Sharded

__all__ = ["SFTTrainer"]


class SFTTrainer(Sharded, trl.SFTTrainer):
    """trl.SFTTrainer on a mesh: its arguments, and those of Sharded."""
