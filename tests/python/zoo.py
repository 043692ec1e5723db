"""Tiny random models of `transformers` 4.57 (zero edits) and a ResNet in plain torch.

ZOO[name] is an Entry: `make(attn)` builds the seeded model, `batch(n)` a batch of n samples; the loss is
`model(**batch).loss`. `generate(model)` is the call of model.generate, or None.
"""

import sys
from dataclasses import dataclass
from types import SimpleNamespace
from typing import Callable, Optional

import torch
from torch import nn

try:
    import transformers as tf
except ImportError:
    print("skipped: transformers is not installed (requirements.txt)")
    sys.exit(77)


@dataclass
class Entry:
    make: Callable
    batch: Callable
    generate: Optional[Callable] = None
    trains_alike: bool = False  # training mode has nothing random in it


def seeded(build):
    def make(attn="sdpa"):
        torch.manual_seed(0)
        return build(attn).train()
    return make


def gen(seed=1):
    return torch.Generator().manual_seed(seed)


def tokens(n, length=12, vocab=99):
    ids = torch.randint(3, vocab, (n, length), generator=gen())
    return dict(input_ids=ids, labels=ids.clone())


def padded(n, length=12, vocab=99):
    batch = tokens(n, length, vocab)
    mask = torch.ones(n, length, dtype=torch.long)
    for i in range(n):
        mask[i, length - i % 3:] = 0
    batch["attention_mask"] = mask
    batch["labels"] = batch["labels"].masked_fill(mask == 0, -100)
    return batch


def gptj(attn):
    return tf.GPTJForCausalLM(tf.GPTJConfig(
        vocab_size=99, n_embd=32, n_layer=2, n_head=4, rotary_dim=4, n_positions=64, attn_pdrop=0.0, resid_pdrop=0.0, embd_pdrop=0.0))


def llama(attn):
    return tf.LlamaForCausalLM(tf.LlamaConfig(
        vocab_size=99, hidden_size=32, intermediate_size=64, num_hidden_layers=2, num_attention_heads=4,
        num_key_value_heads=2, max_position_embeddings=64, attn_implementation=attn))


def gpt2(attn):
    return tf.GPT2LMHeadModel(tf.GPT2Config(
        vocab_size=99, n_embd=32, n_layer=2, n_head=4, n_positions=64, bos_token_id=1, eos_token_id=2,
        attn_implementation=attn))


def qwen3(attn):
    return tf.Qwen3ForCausalLM(tf.Qwen3Config(
        vocab_size=99, hidden_size=32, intermediate_size=64, num_hidden_layers=2, num_attention_heads=4,
        num_key_value_heads=2, head_dim=8, max_position_embeddings=64, attn_implementation=attn))


def mixtral(attn):
    return tf.MixtralForCausalLM(tf.MixtralConfig(
        vocab_size=99, hidden_size=32, intermediate_size=48, num_hidden_layers=2, num_attention_heads=4,
        num_key_value_heads=2, num_local_experts=4, num_experts_per_tok=2, max_position_embeddings=64,
        output_router_logits=True, attn_implementation=attn, experts_implementation="eager"))  # grouped products take no float64


def bert(attn):
    return tf.BertForMaskedLM(tf.BertConfig(
        vocab_size=99, hidden_size=32, num_hidden_layers=2, num_attention_heads=4, intermediate_size=64,
        max_position_embeddings=64, attn_implementation=attn))


def t5(attn):
    return tf.T5ForConditionalGeneration(tf.T5Config(
        vocab_size=99, d_model=32, d_kv=8, d_ff=64, num_layers=2, num_heads=4, decoder_start_token_id=0))


def vit(attn):
    return tf.ViTForImageClassification(tf.ViTConfig(
        hidden_size=32, num_hidden_layers=2, num_attention_heads=4, intermediate_size=64, image_size=32, patch_size=8,
        num_labels=5, attn_implementation=attn))


def whisper(attn):
    return tf.WhisperForConditionalGeneration(tf.WhisperConfig(
        vocab_size=99, num_mel_bins=16, d_model=32, encoder_layers=2, decoder_layers=2, encoder_attention_heads=4,
        decoder_attention_heads=4, encoder_ffn_dim=64, decoder_ffn_dim=64, max_source_positions=20,
        max_target_positions=32, pad_token_id=0, bos_token_id=1, eos_token_id=2, decoder_start_token_id=3,
        suppress_tokens=None, begin_suppress_tokens=None, attn_implementation=attn))


def mamba(attn):
    # weights so large that the tokens which it generates depend on both parts of its cache
    return tf.MambaForCausalLM(tf.MambaConfig(
        vocab_size=99, hidden_size=32, state_size=8, num_hidden_layers=2, conv_kernel=4, expand=2, time_step_rank=4,
        initializer_range=0.3))


class Block(nn.Module):
    def __init__(self, inside, out, stride):
        super().__init__()
        self.conv1 = nn.Conv2d(inside, out, 3, stride, 1, bias=False)
        self.bn1 = nn.BatchNorm2d(out)
        self.conv2 = nn.Conv2d(out, out, 3, 1, 1, bias=False)
        self.bn2 = nn.BatchNorm2d(out)
        self.down = None
        if stride != 1 or inside != out:
            self.down = nn.Sequential(nn.Conv2d(inside, out, 1, stride, bias=False), nn.BatchNorm2d(out))
        self.relu = nn.ReLU(inplace=True)

    def forward(self, x):
        skip = x if self.down is None else self.down(x)
        x = self.relu(self.bn1(self.conv1(x)))
        x = self.bn2(self.conv2(x))
        x += skip
        return self.relu(x)


class ResNet(nn.Module):
    def __init__(self, classes=5):
        super().__init__()
        self.conv1 = nn.Conv2d(3, 8, 7, 2, 3, bias=False)
        self.bn1 = nn.BatchNorm2d(8)
        self.relu = nn.ReLU(inplace=True)
        self.pool = nn.MaxPool2d(3, 2, 1)
        self.layers = nn.Sequential(Block(8, 8, 1), Block(8, 16, 2))
        self.mean = nn.AdaptiveAvgPool2d((1, 1))
        self.fc = nn.Linear(16, classes)

    def forward(self, pixel_values, labels=None):
        x = self.pool(self.relu(self.bn1(self.conv1(pixel_values))))
        logits = self.fc(torch.flatten(self.mean(self.layers(x)), 1))
        loss = nn.functional.cross_entropy(logits, labels) if labels is not None else None
        return SimpleNamespace(loss=loss, logits=logits)


def images(n, classes=5):
    return dict(pixel_values=torch.randn(n, 3, 32, 32, generator=gen()),
                labels=torch.randint(0, classes, (n,), generator=gen(2)))


def speech(n):
    return dict(input_features=torch.randn(n, 16, 40, generator=gen()),
                labels=torch.randint(3, 99, (n, 7), generator=gen(2)))


def causal_generate(model):
    ids = tokens(3, 5)["input_ids"]
    if hasattr(model.config, "output_router_logits"):
        model.config.output_router_logits = False  # transformers' own balance loss fails on a cached step with a mask
    return model.eval().generate(ids, attention_mask=torch.ones_like(ids), max_new_tokens=8, min_new_tokens=8,
                                 do_sample=False, pad_token_id=0)


def encoder_generate(model):
    ids = tokens(3, 5)["input_ids"]
    return model.eval().generate(ids, max_new_tokens=8, min_new_tokens=8, do_sample=False)


def whisper_generate(model):
    model.generation_config.pad_token_id = 0
    return model.eval().generate(speech(3)["input_features"], max_new_tokens=8, min_new_tokens=8, do_sample=False)


ZOO = {
    "llama": Entry(seeded(llama), padded, causal_generate),
    "gpt2": Entry(seeded(gpt2), padded, causal_generate),
    "gptj": Entry(seeded(gptj), tokens, causal_generate),
    "qwen3": Entry(seeded(qwen3), tokens, causal_generate),
    "mixtral": Entry(seeded(mixtral), padded, causal_generate),
    "bert": Entry(seeded(bert), padded),
    "t5": Entry(seeded(t5), padded, encoder_generate),
    "vit": Entry(seeded(vit), images),
    "whisper": Entry(seeded(whisper), speech, whisper_generate),
    "mamba": Entry(seeded(mamba), tokens, causal_generate),
    "resnet": Entry(seeded(lambda attn: ResNet()), images, trains_alike=True),
}
