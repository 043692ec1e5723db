"""Small programs of many kinds, as people write them for one device: `PROGRAMS` has each by its name. On a mesh a program gives its models to `place`; what
it returns is a list of numbers.
"""

import copy

import torch
from torch import nn
from torch.nn import functional as F

PROGRAMS = {}
STEPS = 3


def program(function):
    PROGRAMS[function.__name__] = function
    return function


def stepped(model, loss_of, optimizer):
    """The losses of some steps."""
    losses = []
    for _ in range(STEPS):
        loss = loss_of(model)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        losses.append(loss.item())
    return losses


def trained(place, model, loss_of):
    place(model)
    return stepped(model, loss_of, torch.optim.Adam(model.parameters(), 1e-2))


class Image(nn.Module):
    def __init__(self):
        super().__init__()
        self.body = nn.Sequential(nn.Conv2d(3, 8, 3, padding=1), nn.BatchNorm2d(8), nn.ReLU(), nn.MaxPool2d(2), nn.Conv2d(8, 16, 3, padding=1), nn.GroupNorm(4, 16),
                                  nn.SiLU(), nn.AdaptiveAvgPool2d(1), nn.Flatten())
        self.head = nn.Linear(16, 10)

    def forward(self, x):
        return self.head(self.body(x))


@program
def image_classifier(place):
    model, x, y = Image(), torch.randn(8, 3, 16, 16), torch.randint(0, 10, (8,))
    place(model)
    losses = stepped(model, lambda m: F.cross_entropy(m(x), y), torch.optim.SGD(model.parameters(), 0.1, momentum=0.9))
    model.eval()
    with torch.no_grad():
        return [*losses, F.cross_entropy(model(x), y).item()]


@program
def gan(place):
    maker, judge = nn.Sequential(nn.Linear(8, 32), nn.ReLU(), nn.Linear(32, 4)), nn.Sequential(nn.Linear(4, 32), nn.LeakyReLU(0.2), nn.Linear(32, 1))
    place(maker)
    place(judge)
    of_maker, of_judge = (torch.optim.Adam(model.parameters(), 1e-3) for model in (maker, judge))
    real, losses = torch.randn(8, 4), []
    for _ in range(STEPS):
        made = maker(torch.randn(8, 8))
        loss = F.softplus(-judge(real)).mean() + F.softplus(judge(made.detach())).mean()
        of_judge.zero_grad()
        loss.backward()
        of_judge.step()
        losses.append(loss.item())
        loss = F.softplus(-judge(made)).mean()
        of_maker.zero_grad()
        loss.backward()
        of_maker.step()
        losses.append(loss.item())
    return losses


@program
def gradient_penalty(place):
    x = torch.randn(8, 4, requires_grad=True)

    def loss_of(model):
        score = model(x)
        (slope,) = torch.autograd.grad(score.sum(), x, create_graph=True)
        return score.mean() + 10 * ((slope.norm(dim=1) - 1) ** 2).mean()

    return trained(place, nn.Sequential(nn.Linear(4, 32), nn.Tanh(), nn.Linear(32, 1)), loss_of)


@program
def teacher_that_follows(place):
    student = nn.Sequential(nn.Linear(4, 32), nn.GELU(), nn.Linear(32, 4))
    teacher = copy.deepcopy(student).requires_grad_(False)
    place(student)
    place(teacher)
    optimizer, x, losses = torch.optim.AdamW(student.parameters(), 1e-2), torch.randn(8, 4), []
    for _ in range(STEPS):
        with torch.no_grad():
            want = teacher(x)
        loss = F.mse_loss(student(x + 0.1), want)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        with torch.no_grad():
            for slow, fast in zip(teacher.parameters(), student.parameters(), strict=True):
                slow.lerp_(fast, 0.1)
        losses.append(loss.item())
    return losses


@program
def weights_that_are_averaged(place):
    model, x = nn.Sequential(nn.Linear(4, 32), nn.GELU(), nn.Linear(32, 4)), torch.randn(8, 4)
    place(model)
    averaged = torch.optim.swa_utils.AveragedModel(model)
    optimizer, losses = torch.optim.SGD(model.parameters(), 0.1), []
    for _ in range(STEPS):
        losses += stepped(model, lambda m: m(x).square().mean(), optimizer)
        averaged.update_parameters(model)
    copied = copy.deepcopy(model)
    return [*losses, averaged(x).sum().item(), copied(x).sum().item()]


class Encoder(nn.Module):
    def __init__(self):
        super().__init__()
        self.tokens = nn.Embedding(50, 32)
        self.layers = nn.TransformerEncoder(nn.TransformerEncoderLayer(32, 4, 64, 0.1, batch_first=True), 2)
        self.head = nn.Linear(32, 50)

    def forward(self, x):
        return self.head(self.layers(self.tokens(x), mask=nn.Transformer.generate_square_subsequent_mask(x.shape[1]), is_causal=True))


class Attending(nn.Module):
    def __init__(self):
        super().__init__()
        self.layers = nn.TransformerEncoder(nn.TransformerEncoderLayer(32, 4, 64, batch_first=True), 2)
        self.attention = nn.MultiheadAttention(32, 4, batch_first=True)

    def forward(self, x, padding):
        x = self.layers(x, src_key_padding_mask=padding).masked_fill(padding.unsqueeze(-1), 0)
        return self.attention(x, x, x, need_weights=False)[0]


@program
def attention_in_evaluation(place):
    """Where PyTorch has one operator for a layer, and one for all of attention."""
    model, x = Attending(), torch.randn(8, 7, 32)
    padding = torch.arange(7) >= torch.tensor([7, 5, 6, 7, 3, 7, 4, 7]).unsqueeze(-1)
    place(model)
    model.eval()
    with torch.no_grad():
        return [value.item() for value in (model(x, padding).sum(), model(x, padding).square().mean())]


@program
def transformer_encoder(place):
    model, x = Encoder(), torch.randint(0, 50, (8, 7))
    place(model)
    optimizer, losses = torch.optim.Adam(model.parameters(), 1e-3), []
    for _ in range(STEPS):
        loss = F.cross_entropy(model(x).transpose(1, 2), x)
        optimizer.zero_grad()
        loss.backward()
        losses += [loss.item(), nn.utils.clip_grad_norm_(model.parameters(), 1.0).item()]
        optimizer.step()
    return losses


class HandmadeAttention(nn.Module):
    def __init__(self):
        super().__init__()
        self.q, self.k, self.v, self.o = (nn.Parameter(torch.randn(sizes) * 0.1) for sizes in ((16, 4, 8), (16, 4, 8), (16, 4, 8), (4, 8, 16)))

    def forward(self, x):
        q, k, v = (torch.einsum("btd,dhe->bhte", x, w) for w in (self.q, self.k, self.v))
        weights = torch.einsum("bhte,bhse->bhts", q, k).div(8**0.5).softmax(-1)
        return torch.einsum("bhts,bhse,hed->btd", weights, v, self.o)


@program
def attention_by_einsum(place):
    x = torch.randn(8, 5, 16)
    return trained(place, HandmadeAttention(), lambda m: (m(x) - x).square().mean())


@program
def bag_of_words(place):
    x, y = torch.randint(0, 50, (8, 5)), torch.randint(0, 4, (8,))
    return trained(place, nn.Sequential(nn.EmbeddingBag(50, 16, mode="mean"), nn.Linear(16, 4)), lambda m: F.cross_entropy(m(x), y))


class Vae(nn.Module):
    def __init__(self):
        super().__init__()
        self.encode, self.mean, self.spread = nn.Linear(12, 16), nn.Linear(16, 4), nn.Linear(16, 4)
        self.decode = nn.Sequential(nn.Linear(4, 16), nn.ReLU(), nn.Linear(16, 12))

    def forward(self, x):
        hidden = F.relu(self.encode(x))
        mean, spread = self.mean(hidden), self.spread(hidden)
        return self.decode(mean + torch.randn_like(mean) * (0.5 * spread).exp()), mean, spread


@program
def variational_autoencoder(place):
    x = torch.rand(8, 12)

    def loss_of(model):
        y, mean, spread = model(x)
        return F.binary_cross_entropy_with_logits(y, x, reduction="sum") / 8 - 0.5 * (1 + spread - mean**2 - spread.exp()).sum() / 8

    return trained(place, Vae(), loss_of)


class Pairs(nn.Module):
    def __init__(self):
        super().__init__()
        self.left, self.right, self.scale = nn.Linear(12, 16), nn.Linear(10, 16), nn.Parameter(torch.tensor(1.0))

    def forward(self, x, y):
        scores = F.normalize(self.left(x), dim=-1) @ F.normalize(self.right(y), dim=-1).t() * self.scale.exp()
        own = torch.arange(scores.shape[0])
        return (F.cross_entropy(scores, own) + F.cross_entropy(scores.t(), own)) / 2


@program
def contrastive_pairs(place):
    x, y = torch.randn(8, 12), torch.randn(8, 10)
    return trained(place, Pairs(), lambda m: m(x, y))


class Experts(nn.Module):
    def __init__(self):
        super().__init__()
        self.router = nn.Linear(16, 4)
        self.experts = nn.ModuleList(nn.Sequential(nn.Linear(16, 32), nn.GELU(), nn.Linear(32, 16)) for _ in range(4))

    def forward(self, x):
        weights, chosen = self.router(x).softmax(-1).topk(2)
        y = torch.zeros_like(x)
        for number, expert in enumerate(self.experts):
            row, place = torch.where(chosen == number)
            y.index_add_(0, row, expert(x[row]) * weights[row, place, None])
        return y


@program
def experts_with_a_router(place):
    x = torch.randn(8, 16)
    return trained(place, Experts(), lambda m: (m(x) - x).square().mean())


class Denoiser(nn.Module):
    def __init__(self):
        super().__init__()
        self.first, self.down, self.up, self.last = nn.Conv2d(1, 8, 3, padding=1), nn.Conv2d(8, 16, 3, 2, 1), nn.ConvTranspose2d(16, 8, 2, 2), nn.Conv2d(16, 1, 1)
        self.middle, self.time = nn.MultiheadAttention(16, 2, batch_first=True), nn.Linear(1, 16)

    def forward(self, x, time):
        wide = F.silu(self.first(x))
        low = F.silu(self.down(wide) + self.time(time)[:, :, None, None])
        flat = low.flatten(2).transpose(1, 2)
        flat = flat + self.middle(flat, flat, flat, need_weights=False)[0]
        return self.last(torch.cat([wide, self.up(flat.transpose(1, 2).reshape(low.shape))], 1))


@program
def diffusion(place):
    x, time = torch.randn(8, 1, 8, 8), torch.rand(8, 1)

    def loss_of(model):
        noise = torch.randn_like(x)
        return F.mse_loss(model(x + noise, time), noise)

    return trained(place, Denoiser(), loss_of)


@program
def lbfgs(place):
    model, x, y = nn.Linear(4, 1), torch.randn(8, 4), torch.randn(8, 1)
    place(model)
    optimizer = torch.optim.LBFGS(model.parameters(), 0.5, max_iter=4)

    def closure():
        optimizer.zero_grad()
        loss = F.mse_loss(model(x), y)
        loss.backward()
        return loss

    return [optimizer.step(closure).item() for _ in range(2)]


class Recurrent(nn.Module):
    def __init__(self):
        super().__init__()
        self.layers, self.both_ways = nn.GRU(6, 12, 2, batch_first=True, dropout=0.1), nn.LSTM(12, 6, 2, batch_first=True, dropout=0.1, bidirectional=True)
        self.cell, self.head = nn.LSTMCell(12, 12), nn.Linear(12, 3)

    def forward(self, x):
        values, hidden = self.both_ways(self.layers(x)[0])[0], None
        for step in values.unbind(1):
            hidden = self.cell(step, hidden)
        return self.head(hidden[0])


@program
def recurrent_layers(place):
    x = torch.randn(8, 5, 6)
    return trained(place, Recurrent(), lambda m: m(x).square().mean())


@program
def projected_lstm(place):
    class Layer(nn.LSTM):
        def forward(self, x):
            values, (hidden, cell) = super().forward(x)
            return values.sum(0) + hidden.sum() + cell.mean()

    x = torch.randn(5, 8, 6)
    return trained(place, Layer(6, 12, 2, bias=False, proj_size=4), lambda m: m(x).square().mean())


@program
def words_of_a_longest_norm(place):
    x = torch.randint(0, 20, (8, 5))
    return trained(place, nn.Sequential(nn.Embedding(20, 8, padding_idx=0, max_norm=1.0), nn.Flatten(), nn.Linear(40, 20)), lambda m: F.cross_entropy(m(x), x[:, 0]))


@program
def speech_without_alignment(place):
    x, y, frames, letters = torch.randn(8, 12, 6), torch.randint(1, 5, (8, 4)), torch.full((8,), 12), torch.full((8,), 4)
    model = nn.Sequential(nn.Linear(6, 32), nn.ReLU(), nn.Linear(32, 5))
    return trained(place, model, lambda m: F.ctc_loss(m(x).log_softmax(-1).transpose(0, 1), y, frames, letters))


@program
def weights_with_norms(place):
    x = torch.randn(8, 6)
    model = nn.Sequential(nn.utils.parametrizations.weight_norm(nn.Linear(6, 32)), nn.ReLU(), nn.utils.parametrizations.spectral_norm(nn.Linear(32, 4)))
    return trained(place, model, lambda m: m(x).square().mean())


class Spatial(nn.Module):
    def __init__(self):
        super().__init__()
        self.where, self.layer, self.up = nn.Linear(64, 6), nn.Conv2d(1, 4, 3, padding=1), nn.Upsample(scale_factor=2, mode="bilinear")

    def forward(self, x):
        grid = F.affine_grid(self.where(x.flatten(1)).view(-1, 2, 3) * 0.1 + torch.eye(2, 3), list(x.shape), align_corners=False)
        seen = F.grid_sample(x, grid, align_corners=False)
        return F.pixel_shuffle(self.layer(seen), 2).sum() + self.up(seen).square().mean()


@program
def spatial_transformer(place):
    x = torch.randn(8, 1, 8, 8)
    return trained(place, Spatial(), lambda m: m(x))


class Spectral(nn.Module):
    def __init__(self):
        super().__init__()
        self.weight, self.layer = nn.Parameter(torch.randn(9, 16, dtype=torch.cfloat) * 0.1), nn.Linear(16, 16)

    def forward(self, x):
        return torch.fft.irfft(torch.fft.rfft(self.layer(x), dim=1) * self.weight, n=16, dim=1)


@program
def fourier_layer(place):
    x = torch.randn(8, 16, 16)
    return trained(place, Spectral(), lambda m: (m(x) - x).square().mean())


@program
def convolutions_of_other_dims(place):
    x, solid = torch.randn(8, 4, 8), torch.randn(8, 1, 4, 4, 4)
    line = nn.Sequential(nn.Conv1d(4, 8, 3, padding=1), nn.InstanceNorm1d(8, affine=True), nn.PReLU(), nn.Conv1d(8, 8, 3, padding=1, groups=4), nn.AvgPool1d(2),
                         nn.Flatten(), nn.LayerNorm(32), nn.Linear(32, 3))
    block = nn.Sequential(nn.Conv3d(1, 4, 3, padding=1), nn.BatchNorm3d(4), nn.Hardswish(), nn.ConvTranspose3d(4, 2, 2, 2), nn.Dropout3d(0.2), nn.Flatten(),
                          nn.Linear(1024, 3))
    return trained(place, line, lambda m: m(x).square().mean()) + trained(place, block, lambda m: m(solid).square().mean())


@program
def many_losses(place):
    x, classes, wanted = torch.randn(8, 6), torch.randint(0, 4, (8,)), torch.rand(8, 4)
    signs = torch.where(torch.rand(8, 4) > 0.5, 1.0, -1.0)

    def loss_of(model):
        y = model(x)
        return sum((F.huber_loss(y, wanted), F.smooth_l1_loss(y, wanted), F.kl_div(y.log_softmax(-1), wanted.softmax(-1), reduction="batchmean"),
                    F.multi_margin_loss(y, classes), F.soft_margin_loss(y, signs), F.multilabel_soft_margin_loss(y, (wanted > 0.5).float()),
                    F.triplet_margin_loss(y, y.roll(1, 0), y.roll(2, 0)), F.cosine_embedding_loss(y, wanted, signs[:, 0]), F.poisson_nll_loss(y, wanted),
                    F.gaussian_nll_loss(y, wanted, wanted + 0.1), F.hinge_embedding_loss(y, signs), F.margin_ranking_loss(y[:, 0], y[:, 1], signs[:, 0]),
                    F.cross_entropy(y, classes, label_smoothing=0.1, weight=torch.tensor([1.0, 2, 3, 4]), ignore_index=2)))

    return trained(place, nn.Linear(6, 4), loss_of)


@program
def linear_algebra(place):
    x = torch.randn(8, 6)

    def loss_of(model):
        w = model.weight
        a = w @ w.t() + torch.eye(6)
        return (torch.logdet(a) + torch.linalg.inv(a).sum() + torch.linalg.cholesky(a).diagonal().sum() + torch.linalg.svdvals(w).sum()
                + torch.linalg.matrix_exp(w * 0.1).sum() + torch.linalg.solve(a, model(x).t()).square().mean() + torch.linalg.norm(w)
                + torch.linalg.qr(a)[1].diagonal().abs().sum())

    return trained(place, nn.Linear(6, 6), loss_of)


@program
def orders_and_choices(place):
    x = torch.randn(8, 6)

    def loss_of(model):
        y = model(x)
        values, places = y.sort(1)
        kinds = torch.unique((y * 2).round().detach()).numel()
        return (values.cumsum(1).square().mean() + y[y > 0].mean() + y.gather(1, places[:, :3]).sum() * 0.01 + y.masked_fill(y < 0, 0).max(1).values.sum() * 0.1
                + torch.zeros(8, 8).scatter_add(1, places, y).square().mean() + torch.cdist(y, y.flip(0)).mean() + y.median() + y.logsumexp(1).mean()
                + y.unfold(1, 3, 1).mean() + y.tril().sum() * 0.01 + torch.stack([y[3], y[4]]).norm() + kinds * 0.01 + y.std() + y.var(0).sum()
                + torch.logcumsumexp(y, 0).mean() + y.quantile(0.3) + y.cumprod(1).mean() * 0.01 + y.kthvalue(2, 1).values.sum() * 0.01 + y.diff(dim=0).abs().mean())

    return trained(place, nn.Linear(6, 8), loss_of)


@program
def policy_gradient(place):
    x = torch.randn(8, 6)

    def loss_of(model):
        y = model(x)
        moves, choices = torch.distributions.Normal(y[:, :4], F.softplus(y[:, 4:]) + 0.1), torch.distributions.Categorical(logits=y)
        apart = torch.distributions.kl_divergence(moves, torch.distributions.Normal(0.0, 1.0)).mean()
        return apart - moves.log_prob(moves.rsample()).mean() - choices.log_prob(choices.sample()).mean() - choices.entropy().mean() * 0.1

    return trained(place, nn.Linear(6, 8), loss_of)


class Recomputed(nn.Module):
    def __init__(self):
        super().__init__()
        self.blocks = nn.ModuleList(nn.Sequential(nn.Linear(8, 32), nn.Dropout(0.1), nn.GELU(), nn.Linear(32, 8)) for _ in range(3))

    def forward(self, x):
        for block in self.blocks:
            x = x + torch.utils.checkpoint.checkpoint(block, x, use_reentrant=False)
        return x


@program
def checkpointed_blocks(place):
    x = torch.randn(8, 8)
    return trained(place, Recomputed(), lambda m: m(x).square().mean())


@program
def lazy_layers_with_hooks(place):
    model, x, seen = nn.Sequential(nn.LazyLinear(16), nn.ReLU(), nn.Linear(16, 4)), torch.randn(8, 6), []
    model(x)
    model[0].weight.register_hook(lambda gradient: gradient * 2)
    place(model)
    model[0].register_forward_hook(lambda module, args, output: seen.append(output.sum().item()))
    model[2].weight.register_hook(lambda gradient: gradient * 0.5)
    return stepped(model, lambda m: m(x).square().mean(), torch.optim.SGD(model.parameters(), 0.1)) + seen


class Rounded(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x):
        return x.round()

    @staticmethod
    def backward(ctx, gradient):
        return gradient


@program
def rounded_weights(place):
    x = torch.randn(8, 6)
    return trained(place, nn.Linear(6, 8), lambda m: F.linear(x, Rounded.apply(m.weight * 8) / 8, m.bias).square().mean())


@program
def values_that_decide(place):
    x = torch.randn(8, 6)

    def loss_of(model):
        y = model(x)
        if (y > 2).any():
            y = y * 0.5
        return y.square().mean() * int((y > 0).sum()) * 0.01

    return trained(place, nn.Linear(6, 8), loss_of)


class Named(nn.Module):
    def __init__(self):
        super().__init__()
        self.first, self.norm, self.last = nn.Linear(6, 16), nn.RMSNorm(16), nn.Bilinear(16, 3, 4)

    def forward(self, batch, scale=1.0):
        return {"y": self.last(self.norm(F.relu(self.first(batch["x"]))), batch["z"]) * scale}


@program
def batches_by_name(place):
    batch = {"x": torch.randn(8, 6), "z": torch.randn(8, 3)}
    return trained(place, Named(), lambda m: m(batch, scale=2.0)["y"].square().mean())


@program
def gradients_of_a_functional_call(place):
    model, x = nn.Sequential(nn.Linear(4, 8), nn.Tanh(), nn.Linear(8, 1)), torch.randn(8, 4)
    place(model)
    parameters = dict(model.named_parameters())
    loss = torch.func.functional_call(model, parameters, (x,)).sum()
    return [gradient.sum().item() for gradient in torch.autograd.grad(loss, list(parameters.values()))]
