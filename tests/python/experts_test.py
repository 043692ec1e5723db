#!/usr/bin/env python3
"""Mixtures of experts of `transformers`, their experts as lists of modules or stacked in tensors of three dims: the losses of one device, and on the tensor
axis each rank keeps its part of every expert.

Usage: experts_test.py [unittest's arguments]
"""

import unittest

import tessera
import torch
from zoo import tf, tokens

SIZES = {"vocab_size": 99, "hidden_size": 32, "intermediate_size": 64, "num_hidden_layers": 2, "num_attention_heads": 4, "num_key_value_heads": 2}
LATENT = {"q_lora_rank": 16, "kv_lora_rank": 16, "qk_rope_head_dim": 8, "qk_nope_head_dim": 8, "v_head_dim": 8}
ROUTED = {"num_experts_per_tok": 2, "moe_intermediate_size": 32}
FAMILIES = {
    "Mixtral": {"num_local_experts": 4},
    "Qwen3Moe": {"head_dim": 8, "num_experts": 4, "decoder_sparse_step": 1, **ROUTED},
    "DeepseekV3": {"num_key_value_heads": 4, "n_routed_experts": 4, "n_shared_experts": 1, "n_group": 2, "topk_group": 1, "first_k_dense_replace": 1, **LATENT, **ROUTED},
    "GptOss": {"head_dim": 8, "num_local_experts": 4, "num_experts_per_tok": 2},
    "Llama4": {"head_dim": 8, "num_local_experts": 4, "num_experts_per_tok": 1, "intermediate_size_mlp": 64, "interleave_moe_layer_step": 1},
}


def make(family):
    torch.manual_seed(0)
    name = family + ("TextConfig" if family == "Llama4" else "Config")
    return tf.AutoModelForCausalLM.from_config(getattr(tf, name)(**{**SIZES, **FAMILIES[family]}))


def train(family, mesh=None):
    """Losses of some steps, and the share of the experts' products that the rank keeps."""
    model = make(family)
    if mesh:
        tessera.parallelize(model, mesh)
    optimizer, losses = torch.optim.SGD(model.parameters(), 0.1), []
    for _ in range(3):
        loss = model(**tokens(4)).loss
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
        losses.append(loss.item())
    products = [p.detach() for name, p in model.named_parameters() if ".experts." in name and not name.endswith("bias")]
    kept = sum((tessera.to_local(p) if mesh else p).numel() for p in products)
    return losses, kept / sum(p.numel() for p in products)


class ExpertsTest(unittest.TestCase):
    def test_families(self):
        for family in FAMILIES:
            want, _ = train(family)
            for mesh in ("tp=2", "dp=2,tp=2", "fsdp=2", "fsdp=2,tp=2"):
                with self.subTest(family=family, mesh=mesh):
                    ranks = tessera.run_ranks(train, tessera.Mesh(mesh).size(), args=(family, mesh), results="all")
                    for losses, share in ranks:
                        self.assertLessEqual(max(abs(a - b) / a for a, b in zip(want, losses, strict=True)), 1e-4, (want, losses))
                        if mesh in ("tp=2", "dp=2,tp=2"):
                            self.assertEqual(share, 0.5)
                    if "fsdp" in mesh:
                        self.assertAlmostEqual(sum(share for _, share in ranks), 1.0)


if __name__ == "__main__":
    unittest.main()
