"""Tiny random models of families of `transformers` beyond the zoo's, zero edits.

FAMILIES[name] is a Family: `make()` builds the seeded model, without anything random in its forward, `batch(n)` a batch of n samples; the loss is
`model(**batch).loss`. `refused` names the operator for which `exact` has no form; empty where it trains. `is_wide`: it runs in
float64 where nothing inside asks for float32 (wide.py); the others write the smallest double into a float.
"""

from dataclasses import dataclass
from typing import Callable

import torch
from zoo import gen, images, tf, tokens

WIDTH = dict(vocab_size=99, hidden_size=32, num_hidden_layers=2, num_attention_heads=4, intermediate_size=64, max_position_embeddings=64)
TOKENS = dict(pad_token_id=0, bos_token_id=1, eos_token_id=2)
GROUPED = dict(num_key_value_heads=2)
PIXELS = dict(image_size=32, patch_size=8, num_channels=3)
SEQUENCES = dict(vocab_size=99, d_model=32, encoder_layers=2, decoder_layers=2, encoder_attention_heads=4, decoder_attention_heads=4,
                 encoder_ffn_dim=64, decoder_ffn_dim=64, max_position_embeddings=64, decoder_start_token_id=2, forced_eos_token_id=2, **TOKENS)


@dataclass
class Family:
    make: Callable
    batch: Callable = tokens
    refused: str = ""
    is_wide: bool = True


def family(name, task, config, batch=tokens, trains=False, **about):
    """The model class `name + task` of these settings, in evaluation mode unless `trains`."""
    def make():
        torch.manual_seed(0)
        return getattr(tf, name + task)(getattr(tf, name + "Config")(**config)).train(trains)
    return Family(make, batch, **about)


def causal(name, refused="", **config):
    return family(name, "ForCausalLM", {**WIDTH, **config}, refused=refused)


def masked(name, refused="", **config):
    return family(name, "ForMaskedLM", {**WIDTH, **TOKENS, **config}, refused=refused)


def pairs(n):
    """Texts and images that belong together."""
    return dict(input_ids=tokens(n)["input_ids"], pixel_values=images(n)["pixel_values"], return_loss=True)


def waves(n):
    return dict(input_values=torch.randn(n, 400, generator=gen()), labels=torch.randint(0, 5, (n,), generator=gen(2)))


def to_bart(n):
    batch = tokens(n)
    batch["input_ids"][:, -1] = TOKENS["eos_token_id"]
    return batch


def clip():
    text = {key: WIDTH[key] for key in WIDTH if key != "vocab_size"} | dict(vocab_size=99, **TOKENS)
    vision = {key: WIDTH[key] for key in WIDTH if key not in ("vocab_size", "max_position_embeddings")} | PIXELS
    return dict(text_config=text, vision_config=vision, projection_dim=16)


FAMILIES = {
    "albert": masked("Albert", embedding_size=16),
    "bart": family("Bart", "ForConditionalGeneration", SEQUENCES, to_bart),
    "beit": family("Beit", "ForImageClassification", dict(WIDTH, num_labels=5, **PIXELS), images),
    "bloom": family("Bloom", "ForCausalLM", dict(vocab_size=99, hidden_size=32, n_layer=2, n_head=4), is_wide=False),
    "clip": family("CLIP", "Model", clip(), pairs, is_wide=False, refused="sum"),
    "cohere": causal("Cohere", **GROUPED, **TOKENS),
    "deberta": masked("DebertaV2", relative_attention=True, pos_att_type=["p2c", "c2p"], position_buckets=8),
    "deit": family("DeiT", "ForImageClassification", dict(WIDTH, num_labels=5, **PIXELS), images),
    "distilbert": family("DistilBert", "ForMaskedLM", dict(vocab_size=99, dim=32, n_layers=2, n_heads=4, hidden_dim=64, max_position_embeddings=64)),
    "electra": masked("Electra", embedding_size=16),
    "falcon": family("Falcon", "ForCausalLM", dict(vocab_size=99, hidden_size=32, num_hidden_layers=2, num_attention_heads=4)),
    "gemma": causal("Gemma", head_dim=8, **GROUPED, **TOKENS),
    "gemma2": causal("Gemma2", head_dim=8, sliding_window=8, **GROUPED, **TOKENS),
    "gpt_neo": family("GPTNeo", "ForCausalLM", dict(vocab_size=99, hidden_size=32, num_layers=2, num_heads=4, intermediate_size=64, attention_types=[[["global", "local"], 1]],
                                                    window_size=4, max_position_embeddings=64)),
    "gpt_neox": causal("GPTNeoX", rotary_pct=0.5),
    "granite": causal("Granite", **GROUPED, **TOKENS),
    "marian": family("Marian", "MTModel", SEQUENCES, to_bart),
    "mistral": causal("Mistral", sliding_window=8, **GROUPED),
    "mpnet": masked("MPNet"),
    "olmo2": causal("Olmo2", **GROUPED, **TOKENS),
    "opt": family("OPT", "ForCausalLM", dict(vocab_size=99, hidden_size=32, num_hidden_layers=2, num_attention_heads=4, ffn_dim=64, max_position_embeddings=64,
                                             word_embed_proj_dim=32)),
    "phi": causal("Phi", partial_rotary_factor=0.5),
    "phi3": causal("Phi3", **GROUPED, **TOKENS),
    "roberta": masked("Roberta"),
    "rwkv": family("Rwkv", "ForCausalLM", dict(vocab_size=99, hidden_size=32, num_hidden_layers=2, attention_hidden_size=32, intermediate_size=64, context_length=64),
                   trains=True),  # in evaluation it writes to what its backward reads
    "stablelm": causal("StableLm", **GROUPED),
    "starcoder2": causal("Starcoder2", **GROUPED),
    "swin": family("Swin", "ForImageClassification", dict(PIXELS, patch_size=4, embed_dim=16, depths=[1, 1], num_heads=[2, 4], window_size=4, num_labels=5), images,
                   refused="as_strided"),
    "wav2vec2": family("Wav2Vec2", "ForSequenceClassification", dict(
        WIDTH, num_labels=5, conv_dim=[16, 16], conv_kernel=[10, 3], conv_stride=[5, 2], num_conv_pos_embeddings=16, num_conv_pos_embedding_groups=4,
        classifier_proj_size=16), waves, refused="native_group_norm"),
    "xglm": family("XGLM", "ForCausalLM", dict(vocab_size=99, d_model=32, num_layers=2, attention_heads=4, ffn_dim=64, max_position_embeddings=64), is_wide=False,
                   refused="index_select"),
}
