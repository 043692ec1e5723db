"""A script of the shape of TRL's SFT: on one device, and with two lines changed on any mesh. sft_test.py runs it in every way.

Usage: sft_program.py RUN...     RUN: the fields of Run as JSON; one after the other, in one job. Rank 0 prints what each saw, as JSON
"""

import dataclasses

import datasets
import peft
import tessera.trl
import torch
import trl
from runs import run_given
from tokenizers import Tokenizer, models, pre_tokenizers
from zoo import tf

WORDS = ["[PAD]", "[BOS]", "[EOS]", *(f"w{i}" for i in range(61))]


@dataclasses.dataclass
class Run:
    """One run of the script. Without a mesh it is TRL alone."""
    model: str          # a folder to fine-tune, by make_model of clm_program
    out: str
    mesh: str = ""
    numerics: str = "fast"
    lattice: str = ""
    resume: str = ""    # a checkpoint
    adapters: bool = False
    options: dict = dataclasses.field(default_factory=dict)


def tokenizer():
    words = Tokenizer(models.WordLevel({word: i for i, word in enumerate(WORDS)}, unk_token="[PAD]"))
    words.pre_tokenizer = pre_tokenizers.WhitespaceSplit()
    return tf.PreTrainedTokenizerFast(tokenizer_object=words, pad_token="[PAD]", bos_token="[BOS]", eos_token="[EOS]")


def rows_of(count, seed):
    """Prompts and completions, of which the latter alone are learned, of many lengths."""
    draws = torch.Generator().manual_seed(seed)

    def words(least, most):
        count = int(torch.randint(least, most, (), generator=draws))
        return "".join(f" w{i}" for i in torch.randint(61, (count,), generator=draws))

    return datasets.Dataset.from_list([{"prompt": words(2, 5), "completion": words(3, 9)} for _ in range(count)])


def main(run):
    args = trl.SFTConfig(run.out, **({"per_device_train_batch_size": 4, "gradient_accumulation_steps": 2, "max_steps": 6, "logging_steps": 1, "save_steps": 3,
                                      "learning_rate": 1e-2, "max_length": 16, "eos_token": "[EOS]", "bf16": False, "use_cpu": True, "report_to": [],
                                      "disable_tqdm": True, "gradient_checkpointing": False} | run.options))
    tf.set_seed(args.seed)
    options = {"args": args, "train_dataset": rows_of(44, 1), "eval_dataset": rows_of(9, 2), "processing_class": tokenizer()}
    if run.adapters:
        options["peft_config"] = peft.LoraConfig(r=4, target_modules=["q_proj", "v_proj", "down_proj"])
    model = tf.AutoModelForCausalLM.from_pretrained(run.model, dtype="auto")
    if run.mesh:
        trainer = tessera.trl.SFTTrainer(model, **options, mesh=run.mesh, numerics=run.numerics, lattice=run.lattice)
    else:
        trainer = trl.SFTTrainer(model, **options)
    trainer.remove_callback(tf.trainer_callback.PrinterCallback)
    trainer.train(resume_from_checkpoint=run.resume or None)
    trainer.save_model()
    trainer.evaluate()
    return [{name: value for name, value in line.items() if "runtime" not in name and "second" not in name} for line in trainer.state.log_history]


if __name__ == "__main__":
    datasets.disable_progress_bars()
    run_given(main, Run)
