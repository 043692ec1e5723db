"""A model of the shape of the one in FSDP2's tutorial, and its script but for the line that imports fully_shard."""

import torch
from torch import nn
from torch.nn import functional as F

STEPS, ROWS, LENGTH, VOCABULARY = 5, 8, 6, 17


class Attention(nn.Module):
    def __init__(self, dim, heads, dropout):
        super().__init__()
        self.heads, self.dropout = heads, dropout
        self.wq, self.wk, self.wv, self.wo = (nn.Linear(dim, dim, bias=False) for _ in range(4))

    def forward(self, x):
        rows, length, dim = x.shape
        q, k, v = (each(x).view(rows, length, self.heads, dim // self.heads).transpose(1, 2) for each in (self.wq, self.wk, self.wv))
        found = F.scaled_dot_product_attention(q, k, v, None, self.dropout if self.training else 0.0, is_causal=True)
        return self.wo(found.transpose(1, 2).contiguous().view(rows, length, dim))


class Block(nn.Module):
    def __init__(self, dim, heads, dropout):
        super().__init__()
        self.attention_norm, self.attention = nn.LayerNorm(dim), Attention(dim, heads, dropout)
        self.ffn_norm = nn.LayerNorm(dim)
        self.feed_forward = nn.Sequential(nn.Linear(dim, 4 * dim), nn.GELU(), nn.Linear(4 * dim, dim), nn.Dropout(dropout))

    def forward(self, x):
        h = x + self.attention(self.attention_norm(x))
        return h + self.feed_forward(self.ffn_norm(h))


class Transformer(nn.Module):
    def __init__(self, layers=3, dim=12, heads=3, dropout=0.0, tied=True):
        super().__init__()
        self.tok_embeddings, self.pos_embeddings = nn.Embedding(VOCABULARY, dim), nn.Embedding(LENGTH, dim)
        self.dropout = nn.Dropout(dropout)
        self.layers = nn.ModuleList(Block(dim, heads, dropout) for _ in range(layers))
        self.norm, self.output = nn.LayerNorm(dim), nn.Linear(dim, VOCABULARY, bias=False)
        if tied:
            self.output.weight = self.tok_embeddings.weight

    def forward(self, tokens):
        h = self.dropout(self.tok_embeddings(tokens) + self.pos_embeddings(torch.arange(tokens.shape[1], device=tokens.device)))
        for layer in self.layers:
            h = layer(h)
        return self.output(self.norm(h))

    def reset_parameters(self):
        for seed, parameter in enumerate(self.parameters()):
            with torch.no_grad():
                values = torch.randn(parameter.shape, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)
                parameter.copy_(0.3 * values + (parameter.dim() == 1))
        return self


def make(dtype=torch.float64, **options):
    return Transformer(**options).to(dtype).reset_parameters()


def tokens_of(step, rows=ROWS):
    return torch.randint(VOCABULARY, (rows, LENGTH), generator=torch.Generator().manual_seed(step))


def shard(model, fully_shard, **options):
    for layer in model.layers:
        fully_shard(layer, **options)
    return fully_shard(model, **options)


def train(model, rows_of, see=lambda value: value.detach().clone(), steps=STEPS, before=lambda: None):
    """The losses and norms of steps whose batches are `rows_of(tokens)`; `before` each something is done."""
    optimizer = torch.optim.Adam(model.parameters(), lr=1e-2)
    seen = []
    for step in range(steps):
        before()
        loss = model(rows_of(tokens_of(step))).square().mean()
        loss.backward()
        norm = torch.nn.utils.clip_grad_norm_(model.parameters(), max_norm=1.0)
        optimizer.step()
        optimizer.zero_grad()
        seen += [see(loss), see(norm)]
    return torch.stack(seen)
