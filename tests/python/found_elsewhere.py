"""Programs that other libraries computed wrongly, without a word, when parallelisms met: each restated for one device.

A program is a module whose forward returns its loss. What it says is what went wrong elsewhere, in the issues and pull requests it names;
found_elsewhere_test.py runs it here, docs/found-elsewhere.md lists them all.
"""

import torch
from torch import nn
from torch.nn import functional as F

ROWS, LENGTH, DIM, HEADS, VOCABULARY = 6, 4, 8, 4, 10

PROGRAMS = {}


def program(*sources, says, **how):
    """Registers a class. `how`: micro (micro-batches of a step), sequence_parallel, optimizer, refused (what `exact` has no form of)."""

    def add(cls):
        cls.sources, cls.says, cls.how = sources, says, how
        PROGRAMS[cls.__name__] = cls
        return cls

    return add


class Language(nn.Module):
    """Tokens to logits, which `score` makes a loss."""

    def __init__(self):
        super().__init__()
        self.embed, self.mlp, self.head = nn.Embedding(VOCABULARY, DIM), Mlp(), nn.Linear(DIM, VOCABULARY, bias=False)

    def forward(self, tokens, labels, x):
        return self.score(self.head(self.mlp(self.embed(tokens))).flatten(0, 1), labels.flatten())


class Mlp(nn.Module):
    def __init__(self, dropout=0.0):
        super().__init__()
        self.up, self.act, self.down, self.dropout = nn.Linear(DIM, 3 * DIM), nn.GELU(), nn.Linear(3 * DIM, DIM), nn.Dropout(dropout)

    def forward(self, x):
        return x + self.dropout(self.down(self.act(self.up(x))))


class Attention(nn.Module):
    """Heads of DIM / HEADS. `weights` is for those who change what is between."""

    def __init__(self, dropout=0.0):
        super().__init__()
        self.num_heads, self.p = HEADS, dropout
        self.q_proj, self.k_proj, self.v_proj, self.o_proj = (nn.Linear(DIM, DIM, bias=False) for _ in range(4))

    def heads(self, x):
        return x.view(*x.shape[:-1], HEADS, DIM // HEADS).transpose(1, 2)

    def weights(self, q, k):
        return (q @ k.transpose(-1, -2) / (DIM // HEADS) ** 0.5).softmax(-1)

    def forward(self, x):
        q, k, v = self.heads(self.q_proj(x)), self.heads(self.k_proj(x)), self.heads(self.v_proj(x))
        mixed = F.dropout(self.weights(q, k), self.p, self.training) @ v
        return self.o_proj(mixed.transpose(1, 2).flatten(2))


def mean_square(value):
    return value.square().mean()


# Losses over a vocabulary that tensor parallelism cuts.


@program("NVIDIA/Megatron-LM#737", "NVIDIA/Megatron-LM#7464", "NVIDIA/Megatron-LM#7452",
         says="label smoothing took the mean over a rank's part of the vocabulary: another loss on each rank")
class LabelSmoothing(Language):
    def score(self, logits, labels):
        return F.cross_entropy(logits, labels, label_smoothing=0.2, ignore_index=-100)


@program("NVIDIA/Megatron-LM#7452", says="logits that were gathered already went through the loss for cut ones: log(tp) too much, wrong gradients")
class LogitsUsedTwice(Language):
    def score(self, logits, labels):
        return F.cross_entropy(logits, labels) + 1e-2 * logits.logsumexp(-1).square().mean()


@program("pytorch/pytorch#190746", says="the gradient of a log_softmax that no cross entropy follows was the identity")
class Entropy(Language):
    def score(self, logits, labels):
        logs = logits.log_softmax(-1)
        return F.nll_loss(logs, labels) - 0.1 * -(logs.exp() * logs).sum(-1).mean()


@program("modelscope/ms-swift#9947", says="the log-probability of a token on another rank had no gradient for this rank's logits")
class LogProbabilityOfTokens(Language):
    def score(self, logits, labels):
        kept = labels != -100
        chosen = logits.log_softmax(-1).gather(1, labels.clamp(min=0)[:, None])[:, 0]
        return -(chosen * kept).sum() / kept.sum()


@program("pytorch/torchtitan#4637", says="the row of the padding token was looked for on every rank: other rows lost their gradient")
class PaddingRow(nn.Module):
    def __init__(self):
        super().__init__()
        self.embed, self.mlp = nn.Embedding(VOCABULARY, DIM, padding_idx=7), Mlp()

    def forward(self, tokens, labels, x):
        return mean_square(self.mlp(self.embed(tokens)))


# Means over rows of which ranks have different numbers.


@program("pytorch/torchtitan#1842", "NVIDIA/Megatron-LM#7452", says="a mean of ranks' means, where ranks have different numbers of labels that count")
class LabelsThatDoNotCount(Language):
    def score(self, logits, labels):
        return F.cross_entropy(logits, labels, ignore_index=-100)


@program("huggingface/transformers#45994", says="a sum over tokens, divided by the tokens of all, counted tp times")
class SumOverTokens(Language):
    def score(self, logits, labels):
        return F.cross_entropy(logits, labels, ignore_index=-100, reduction="sum") / 17


@program("verl-project/verl#5625", "huggingface/trl#2175",
         says="micro-batches of different numbers of tokens weighed alike", micro=3, refused="set_step_tokens")
class TokensOfMicroBatches(SumOverTokens):
    pass


@program("huggingface/sentence-transformers#3442", "horovod/horovod#1797", says="negatives of a batch were those of a rank alone")
class Contrast(nn.Module):
    def __init__(self):
        super().__init__()
        self.left, self.right = nn.Linear(DIM, 5), nn.Linear(DIM, 5)

    def forward(self, tokens, labels, x):
        a, b = (F.normalize(side(x.mean(1)), dim=-1) for side in (self.left, self.right))
        similar = a @ b.T / 0.1
        return F.cross_entropy(similar, torch.arange(len(similar)))


@program("pytorch/pytorch#24391", "pytorch/pytorch#13711", "PaddlePaddle/Paddle#32464",
         says="a batch norm's mean was that of a rank's rows, or of ranks with different numbers of them; running means differed", refused="batch_norm")
class BatchNorm(nn.Module):
    def __init__(self):
        super().__init__()
        self.conv, self.norm, self.out = nn.Conv1d(DIM, 6, 1), nn.BatchNorm1d(6), nn.Linear(6, 3)

    def forward(self, tokens, labels, x):
        return mean_square(self.out(self.norm(self.conv(x[:5].transpose(1, 2))).relu().mean(-1)))


@program("NVIDIA/Megatron-LM#3672",
         says="the balance of experts over the whole batch was divided by its tokens twice, or taken of a rank's rows alone", refused="aminmax")
class BalanceOfExperts(nn.Module):
    def __init__(self):
        super().__init__()
        self.router, self.mlp = nn.Linear(DIM, 3, bias=False), Mlp()

    def forward(self, tokens, labels, x):
        odds = self.router(x).flatten(0, 1).softmax(-1)
        share = F.one_hot(odds.argmax(-1), 3).to(odds.dtype).mean(0)
        return mean_square(self.mlp(x)) + 3 * (share * odds.mean(0)).sum()


# Parameters that one rank uses in part, or all ranks alike.


@program("pytorch/torchtitan#4332", "huggingface/text-generation-inference#1036", "PaddlePaddle/Paddle#35186",
         says="the bias after a cut sum was added tp times, or its gradient was 1/tp of what it is")
class BiasAfterSum(nn.Module):
    def __init__(self):
        super().__init__()
        self.first, self.second = Mlp(), Mlp()

    def forward(self, tokens, labels, x):
        return mean_square(self.second(self.first(x)))


@program("pytorch/torchtitan#1373", "ROCm/TransformerEngine#715",
         says="a part of the keys that all heads share had the gradient of one rank's heads; what is whole counted tp times in the norm")
class SharedKeyPart(Attention):
    def __init__(self):
        super().__init__()
        self.down, self.shared = nn.Linear(DIM, DIM, bias=False), nn.Linear(DIM, 1, bias=False)

    def forward(self, tokens, labels, x):
        latent = self.down(x)
        q, k, v = self.heads(self.q_proj(x)), self.heads(self.k_proj(latent)), self.heads(self.v_proj(latent))
        every_head = self.shared(x)[:, None].expand(-1, HEADS, -1, -1)
        q, k = F.pad(q, (0, 1), value=1.0), torch.cat([k, every_head], -1)
        return mean_square(self.o_proj((self.weights(q, k) @ v).transpose(1, 2).flatten(2)))


@program("NVIDIA-NeMo/RL#3788", "mindspore-ai/hyper-parallel#526", "pytorch/pytorch#88621",
         says="parameters that ranks hold whole counted once a rank in the gradient's norm")
class NormOfHeads(Attention):
    def __init__(self):
        super().__init__()
        self.q_norm, self.k_norm = nn.RMSNorm(DIM // HEADS), nn.RMSNorm(DIM // HEADS)

    def forward(self, tokens, labels, x):
        q, k = self.q_norm(self.heads(self.q_proj(x))), self.k_norm(self.heads(self.k_proj(x)))
        return mean_square(self.o_proj((self.weights(q, k) @ self.heads(self.v_proj(x))).transpose(1, 2).flatten(2)))


@program("NVIDIA/Megatron-LM#7452", says="the sinks of attention, one a head, were in the norm as if every rank had all of them")
class AttentionSinks(Attention):
    def __init__(self):
        super().__init__()
        self.sinks = nn.Parameter(torch.randn(HEADS))

    def weights(self, q, k):
        scores = q @ k.transpose(-1, -2)
        sinks = self.sinks.view(1, HEADS, 1, 1).expand(*scores.shape[:-1], 1)
        return torch.cat([scores, sinks], -1).softmax(-1)[..., :-1]

    def forward(self, tokens, labels, x):
        return mean_square(super().forward(x))


@program("NVIDIA/Megatron-LM#7452", says="the gate of a shared expert was stepped by one rank's part of its gradient", sequence_parallel=True)
class GateOfSharedExpert(nn.Module):
    def __init__(self):
        super().__init__()
        self.norm, self.gate, self.mlp = nn.LayerNorm(DIM), nn.Linear(DIM, 1, bias=False), Mlp()

    def forward(self, tokens, labels, x):
        x = self.norm(x)
        return mean_square(self.gate(x).sigmoid() * self.mlp(x))


@program("state-spaces/mamba#916", says="groups of a norm were counted over all ranks where their width was one rank's")
class NormOfGroups(nn.Module):
    def __init__(self):
        super().__init__()
        self.up, self.weight, self.down = nn.Linear(DIM, 12), nn.Parameter(torch.rand(12)), nn.Linear(12, DIM)

    def forward(self, tokens, labels, x):
        h = self.up(x)
        groups = h.unflatten(-1, (4, 3))
        h = (groups * (groups.square().mean(-1, keepdim=True) + 1e-5).rsqrt()).flatten(-2) * self.weight
        return mean_square(self.down(h))


@program("pytorch/pytorch#144359", "pytorch/pytorch#120158",
         says="a cut pair of layers, with a norm over all of what is between, gave other values than one device")
class NormBetweenCutLayers(nn.Module):
    def __init__(self):
        super().__init__()
        self.up, self.norm, self.down = nn.Linear(DIM, 12), nn.LayerNorm(12), nn.Linear(12, DIM)

    def forward(self, tokens, labels, x):
        return mean_square(self.down(F.gelu(self.norm(self.up(x)), approximate="tanh")))


@program("pytorch/pytorch#160285", says="gradients of experts were doubled, or halved", refused="topk")
class Experts(nn.Module):
    def __init__(self):
        super().__init__()
        self.router, self.experts = nn.Linear(DIM, 3, bias=False), nn.ModuleList(Mlp() for _ in range(3))

    def forward(self, tokens, labels, x):
        odds, chosen = self.router(x).softmax(-1).topk(2, -1)
        out = torch.zeros_like(x)
        for index, expert in enumerate(self.experts):
            out = out + expert(x) * (odds * (chosen == index)).sum(-1, keepdim=True)
        return mean_square(out)


@program("pytorch/torchtitan#2252", "NVIDIA/Megatron-LM#656", says="a head that is tied to the embedding was one no more: two gradients, two steps")
class TiedHead(Language):
    def __init__(self):
        super().__init__()
        self.head.weight = self.embed.weight

    def score(self, logits, labels):
        return F.cross_entropy(logits, labels)


# Random numbers.


@program("tenstorrent/tt-metal#55947", says="rows of all data ranks had one mask")
class DropoutOfRows(nn.Module):
    def __init__(self):
        super().__init__()
        self.mlp = Mlp(0.3)

    def forward(self, tokens, labels, x):
        return mean_square(self.mlp(F.dropout(x, 0.2, self.training)))


@program("NVIDIA/Megatron-LM#1256", "NVIDIA/TransformerEngine#1272", "PaddlePaddle/PaddleFleetX#1005",
         says="parts of a sequence had the mask of one another", sequence_parallel=True)
class DropoutOfSequences(nn.Module):
    def __init__(self):
        super().__init__()
        self.norm, self.first, self.second = nn.LayerNorm(DIM), Mlp(0.3), Mlp(0.3)

    def forward(self, tokens, labels, x):
        return mean_square(self.second(self.norm(self.first(x))))


@program("NVIDIA/Fuser#3123", "awslabs/slapo#21", says="heads of different ranks had one mask, or ranks different ones of what all have")
class DropoutOfHeads(nn.Module):
    def __init__(self):
        super().__init__()
        self.attention, self.mlp = Attention(0.3), Mlp(0.3)

    def forward(self, tokens, labels, x):
        return mean_square(self.mlp(self.attention(x)))


@program("Dao-AILab/flash-attention#612", says="is the mask of backward that of forward, where a block runs again?")
class DropoutThatRunsAgain(DropoutOfHeads):
    def forward(self, tokens, labels, x):
        return mean_square(torch.utils.checkpoint.checkpoint(lambda y: self.mlp(self.attention(y)), x, use_reentrant=False))


# Optimizers.


@program("meta-pytorch/torchtune#2420", "karpathy/build-nanogpt#17",
         says="clipping and one call for all parameters failed where some are cut", optimizer="AdamW foreach")
class ClippedTogether(SharedKeyPart):
    pass


@program("NVIDIA/Megatron-LM#5974",
         says="fully sharded, the step was a half to two thirds of what the same gradients give elsewhere", optimizer="AdamW")
class StepOfShards(BiasAfterSum):
    pass


@program("pytorch/pytorch#109581", "facebookresearch/fairscale#767",
         says="a mean over rows, or a norm, of what a rank has of a matrix", optimizer="Adafactor", refused="square_")
class RowMeansOfShards(BiasAfterSum):
    pass


@program("MoonshotAI/Moonlight#27", says="a matrix was made orthogonal part by part", optimizer="Muon")
class OrthogonalShards(nn.Module):
    def __init__(self):
        super().__init__()
        self.up, self.down = nn.Linear(DIM, 12, bias=False), nn.Linear(12, DIM, bias=False)

    def forward(self, tokens, labels, x):
        return mean_square(self.down(self.up(x).tanh()))
