"""A script of the shape of transformers' run_clm.py: on one device, and with three lines changed on any mesh. trainer_test.py runs it in every way.

Usage: clm_program.py RUN...     RUN: the fields of Run as JSON; one after the other, in one job. Rank 0 prints what each saw, as JSON
"""

import dataclasses

import tessera
import torch
from runs import run_given
from tessera.transformers import Sharded
from zoo import tf

VOCABULARY, LENGTH = 64, 12


@dataclasses.dataclass
class Run:
    """One run of the script. Without a mesh it is the Trainer of transformers alone."""
    model: str          # a folder to fine-tune
    out: str
    mesh: str = ""
    numerics: str = "fast"
    lattice: str = ""
    resume: str = ""    # a checkpoint
    adapters: bool = False
    schedule: str = ""  # of a pipeline, for which the script places the model itself
    microbatches: int = 1
    options: dict = dataclasses.field(default_factory=dict)


def make_model(folder, family="gpt2", dtype=torch.float32, dropout=0.1):
    """What the script is to fine-tune."""
    torch.manual_seed(0)
    common = {"vocab_size": VOCABULARY, "bos_token_id": 1, "eos_token_id": 2}
    if family == "gpt2":
        model = tf.GPT2LMHeadModel(tf.GPT2Config(n_embd=32, n_layer=2, n_head=4, n_positions=16, attn_pdrop=dropout, resid_pdrop=dropout,
                                                 embd_pdrop=dropout, **common))
    else:
        model = tf.LlamaForCausalLM(tf.LlamaConfig(hidden_size=32, intermediate_size=64, num_hidden_layers=2, num_attention_heads=4, num_key_value_heads=2,
                                                   attention_dropout=dropout, **common))
    model.to(dtype).save_pretrained(folder)
    return str(folder)


def with_adapters(folder):
    import peft

    config = peft.LoraConfig(r=4, lora_dropout=0.1, target_modules=["c_attn", "c_proj"], fan_in_fan_out=True)
    return peft.get_peft_model(tf.AutoModelForCausalLM.from_pretrained(folder, dtype="auto"), config)


def rows_of(count, seed):
    ids = torch.randint(3, VOCABULARY, (count, LENGTH), generator=torch.Generator().manual_seed(seed))
    ids[:, 1::2] = ids[:, ::2]  # something to learn
    labels = ids.masked_fill(torch.arange(count)[:, None] + torch.arange(LENGTH) < 3, -100)  # the first rows count less
    return [{"input_ids": row, "labels": label} for row, label in zip(ids, labels, strict=True)]


def main(run):
    args = tf.TrainingArguments(run.out, **({"per_device_train_batch_size": 4, "per_device_eval_batch_size": 5, "gradient_accumulation_steps": 2, "max_steps": 8,
                                             "learning_rate": 1e-2, "lr_scheduler_type": "cosine", "warmup_steps": 2, "max_grad_norm": 0.5, "logging_steps": 2,
                                             "eval_strategy": "steps", "eval_steps": 4, "save_steps": 4, "use_cpu": True, "report_to": [],
                                             "disable_tqdm": True} | run.options))
    tf.set_seed(args.seed)
    model = tf.AutoModelForCausalLM.from_pretrained(run.model, dtype="auto")
    options = {"args": args, "train_dataset": rows_of(44, 1), "eval_dataset": rows_of(13, 2)}
    options |= {"model_init": lambda: with_adapters(run.model)} if run.adapters else {"model": model}
    if run.schedule:
        tessera.parallelize(model, tessera.generate_plan(model, mesh=run.mesh, schedule=run.schedule), microbatches=run.microbatches)
    if run.mesh:
        trainer = Meshed(**options, mesh=run.mesh, numerics=run.numerics, lattice=run.lattice)
    else:
        trainer = tf.Trainer(**options)
    trainer.remove_callback(tf.trainer_callback.PrinterCallback)
    trainer.train(resume_from_checkpoint=run.resume or None)
    trainer.save_model()
    trainer.evaluate()
    return [{name: value for name, value in line.items() if "runtime" not in name and "second" not in name} for line in trainer.state.log_history]


class Meshed(Sharded, tf.Trainer):
    """tessera.transformers.Trainer, as a Trainer of one's own is made of it."""


if __name__ == "__main__":
    run_given(main, Run)
