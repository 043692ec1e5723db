"""Models of transformers, trained on one device: what schedules_test.py makes a pipeline's program by two more lines.

Usage: schedules_program.py FOLDER [MESH SCHEDULE MICROBATCHES], where each rank writes its losses to a file
"""

import os
import sys
from pathlib import Path

import torch
from models_test import build
from wide import doubles
from zoo import ZOO


def train(name):
    model, batch = build(ZOO[name], torch.float64)
    optimizer = torch.optim.AdamW(model.parameters(), 1e-3)
    losses = []
    for _ in range(3):
        loss = model(**batch).loss
        loss.backward()
        norm = torch.nn.utils.clip_grad_norm_(model.parameters(), 0.1)
        optimizer.step()
        optimizer.zero_grad()
        losses += [loss.item(), norm.item()]
    return losses


with doubles():
    lines = [f"{name} {number!r}\n" for name in ("llama", "gpt2", "t5", "vit") for number in train(name)]
(Path(sys.argv[1]) / f"rank{os.environ.get('RANK', 0)}").write_text("".join(lines))
