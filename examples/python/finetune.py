#!/usr/bin/env python3
"""Fine-tuning a language model of `transformers` with its Trainer, whole or by LoRA adapters of `peft`, on any mesh.

    python finetune.py --model folder                                              one device; without --model it makes a small one
    python finetune.py --ranks 4 --mesh dp=2,tp=2 --lora                           four rank threads of this process
    torchrun --nproc-per-node 4 finetune.py --mesh fsdp=4                          four processes; `tessera launch -n 4 -- python` does the same
    python finetune.py --ranks 2 --mesh tp=2 --resume tuned/checkpoint-10          goes on from there, on another mesh

What tessera is for stands in the lines that name it; the rest is the Trainer's script for one device. In `exact` numerics it ends
with the same bits on every mesh. The folder that it leaves is read by from_pretrained, or by `peft`.
"""

import argparse
from pathlib import Path

import peft
import tessera
import torch
from tessera.transformers import Trainer
from transformers import AutoModelForCausalLM, GPT2Config, GPT2LMHeadModel, PrinterCallback, TrainerCallback, TrainingArguments, set_seed

TEXT = Path(__file__).parents[1] / "data" / "kjv.txt"
BATCH, LENGTH = 8, 48


class PrintLosses(TrainerCallback):
    """On the rank that writes."""

    def on_log(self, args, state, control, logs=None, **others):
        if state.is_world_process_zero and "loss" in logs:
            print(f"step {state.global_step}: loss {logs['loss']!r}", flush=True)


def rows_of(text):
    """Pieces of the text: bytes are tokens."""
    ids = torch.frombuffer(bytearray(text), dtype=torch.uint8).long()
    return [{"input_ids": piece, "labels": piece} for piece in ids[: len(ids) // LENGTH * LENGTH].view(-1, LENGTH)[:2000]]


def make_model(options):
    if options.model:
        model = AutoModelForCausalLM.from_pretrained(options.model)
    else:
        model = GPT2LMHeadModel(GPT2Config(vocab_size=256, n_positions=LENGTH, n_embd=64, n_layer=2, n_head=4, bos_token_id=0, eos_token_id=0,
                                           loss_type="ForCausalLM"))
    if options.lora:
        model = peft.get_peft_model(model, peft.LoraConfig(r=8, target_modules="all-linear", task_type="CAUSAL_LM"))
    return model


def train(options):
    args = TrainingArguments(options.out, per_device_train_batch_size=BATCH // 2, gradient_accumulation_steps=2, max_steps=options.steps, learning_rate=3e-3,
                             warmup_steps=2, logging_steps=1, save_steps=options.save_every, use_cpu=True, report_to=[], disable_tqdm=True)
    set_seed(args.seed)
    lattice = f"batch={BATCH}" if options.numerics == "exact" else ""
    trainer = Trainer(model_init=lambda: make_model(options), args=args, train_dataset=rows_of(TEXT.read_bytes()), callbacks=[PrintLosses],
                      mesh=options.mesh, numerics=options.numerics, lattice=lattice)
    trainer.remove_callback(PrinterCallback)
    trainer.train(resume_from_checkpoint=options.resume)
    trainer.save_model()


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--model", help="a folder of from_pretrained, or a name; a small model of random values, if it is not given")
    parser.add_argument("--lora", action="store_true", help="tune adapters alone")
    parser.add_argument("--out", default="tuned", help="the folder of checkpoints, and of what is tuned in the end")
    parser.add_argument("--resume", help="a checkpoint in such a folder")
    parser.add_argument("--steps", type=int, default=20)
    parser.add_argument("--save-every", type=int, default=10)
    parser.add_argument("--mesh", default=None, help="such as dp=2,tp=2; as many ranks as there are, if it is not given")
    parser.add_argument("--ranks", type=int, default=1, help="rank threads of this process, where no launcher has made ranks of processes")
    parser.add_argument("--numerics", choices=("fast", "exact"), default="fast")
    options = parser.parse_args()
    if tessera.in_rank():  # a launcher has started this process as one
        train(options)
    else:
        tessera.run_ranks(lambda: train(options), options.ranks)


if __name__ == "__main__":
    main()
