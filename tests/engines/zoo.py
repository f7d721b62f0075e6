"""Models that are awkward to shard, each in its own way; and how one process and all ranks train them."""

import copy
from dataclasses import dataclass
from typing import NamedTuple

import torch
from torch import nn
from torch.utils.checkpoint import checkpoint

from zerolab.theory import STAGES

ROWS, WIDTH = 12, 6


class Block(nn.Module):
    """A residual block; its names are those that the other models freeze or call."""

    def __init__(self, width=WIDTH, bias=True):
        super().__init__()
        self.norm = nn.LayerNorm(width)
        self.up = nn.Linear(width, 2 * width, bias=bias)
        self.down = nn.Linear(2 * width, width, bias=bias)

    def forward(self, x):
        return x + self.down(torch.tanh(self.up(self.norm(x))))


class Stack(nn.Module):
    """Blocks between an entry and a head; the base of most models here."""

    def __init__(self, count=3, block=Block):
        super().__init__()
        self.entry = nn.Linear(WIDTH, WIDTH)
        self.blocks = nn.ModuleList(block() for _ in range(count))
        self.head = nn.Linear(WIDTH, 1)

    def forward(self, x):
        x = self.entry(x)
        for block in self.blocks:
            x = block(x)
        return self.head(x)


def frozen(model, *parts):
    for name, parameter in model.named_parameters():
        parameter.requires_grad_(not any(part in name for part in parts))
    return model


def tied_within_and_across():
    model = Stack()
    model.blocks[0].norm.bias = model.blocks[0].down.bias  # one parameter, twice in a unit
    model.blocks[2].up.weight = model.blocks[0].up.weight  # and one in two units
    return model


class Adapted(nn.Module):
    """A frozen Linear with a low-rank addition that is trained, as LoRA does."""

    def __init__(self, base):
        super().__init__()
        self.base = base.requires_grad_(False)
        self.a = nn.Parameter(torch.randn(2, base.in_features) / 3)
        self.b = nn.Parameter(torch.randn(base.out_features, 2) / 3)

    def forward(self, x):
        return self.base(x) + x @ self.a.t() @ self.b.t()


def adapted():
    model = Stack(4).requires_grad_(False)
    for block in [model.blocks[0], model.blocks[2]]:
        block.up, block.down = Adapted(block.up), Adapted(block.down)
    return model


class KeywordBlock(Block):
    """Takes what it needs by keyword, also an input that all blocks share."""

    def forward(self, *, hidden, shared=None):
        return super().forward(hidden) * (1 if shared is None else shared)


class Keywords(Stack):
    """Blocks called by keyword; all of them read one tensor that needs a gradient."""

    def __init__(self):
        super().__init__(3, KeywordBlock)

    def forward(self, *, x):
        x = self.entry(x)
        shared = torch.sigmoid(x)
        for block in self.blocks:
            x = block(hidden=x, shared=shared)
        return self.head(x)


def keywords_with_frozen_weights():
    return frozen(Keywords(), "blocks.1", "blocks.2.up")


class Skipping(Stack):
    """Leaves a unit, or one parameter of a unit, out when the rows that a rank sees say so."""

    def __init__(self, skips_unit):
        super().__init__(4)
        self.skips_unit = skips_unit
        self.extra = nn.ParameterList(torch.zeros(WIDTH) for _ in range(4))

    def forward(self, x):
        skip = bool(x.sum() > 0)
        x = self.entry(x)
        for index, block in enumerate(self.blocks):
            if index != 1 or not (skip and self.skips_unit):
                x = block(x)
            if not skip:
                x = x + self.extra[index]
        return self.head(x)


class LeavingOut(Stack):
    """Leaves out one block of two; which one, its rows say."""

    def forward(self, x):
        kept = self.blocks[:2] if x.sum() > 0 else self.blocks[1:]
        return self.head(kept[1](kept[0](self.entry(x))))


class SkippingBlock(Block):
    """Uses its up and down only when its rows say so."""

    def forward(self, x):
        return super().forward(x) if x.sum() > 0 else x * self.norm.weight


class Twice(Stack):
    """Calls its modules twice in a forward."""

    def forward(self, x):
        x = self.entry(x)
        for block in [*self.blocks, *reversed(self.blocks)]:
            x = block(x) / 2
        return self.head(x) + self.head(x.detach())


def nested():
    rows = [nn.Sequential(*(nn.Sequential(nn.Linear(WIDTH, WIDTH), nn.ReLU(inplace=True)) for _ in range(2)))]
    return nn.Sequential(nn.ModuleDict({"only": nn.Linear(WIDTH, WIDTH)})["only"], *rows, nn.Linear(WIDTH, 1))


class Mixed(nn.Module):
    """Parameters in two precisions within a unit."""

    def __init__(self):
        super().__init__()
        self.blocks = nn.ModuleList(
            nn.ModuleDict({"a": nn.Linear(WIDTH, WIDTH), "b": nn.Linear(WIDTH, WIDTH).double()}) for _ in range(2)
        )

    def forward(self, x):
        for block in self.blocks:
            x = block["b"](block["a"](x).double()).float()
        return x


class LargeUnit(Stack):
    """One unit fifty times the others."""

    def __init__(self):
        super().__init__()
        self.blocks[1].up = nn.Linear(WIDTH, 50 * WIDTH, bias=False)
        self.blocks[1].down = nn.Linear(50 * WIDTH, WIDTH, bias=False)


def not_contiguous():
    model = Stack()
    for block in model.blocks:
        block.up.weight = nn.Parameter(torch.randn(WIDTH, 2 * WIDTH).t() / 4)
    return model


class ScalarsAndNothing(Stack):
    """A parameter without dimensions, one without elements, and a unit that has nothing else."""

    def __init__(self):
        super().__init__()
        self.scale, self.nothing = nn.Parameter(torch.tensor(0.7)), nn.Parameter(torch.empty(0, 3))
        self.gates = nn.ModuleList([nn.ParameterList([torch.empty(0)]), nn.ParameterList([torch.tensor(1.5)])])

    def forward(self, x):
        return super().forward(x) * self.scale + self.nothing.sum()


class InPlace(nn.Module):
    """In-place activations right behind a unit, and on what enters one."""

    def __init__(self):
        super().__init__()
        self.blocks = nn.ModuleList(nn.Linear(WIDTH, WIDTH) for _ in range(3))

    def forward(self, x):
        for block in self.blocks:
            x = nn.functional.leaky_relu_(block(x), 0.1) * 2
            x += 0.5
        return x


class Checkpointed(Stack):
    """Recomputes activations: of one block, of two together, and of a frozen one."""

    def __init__(self, *frozen_parts):
        super().__init__(5)
        frozen(self, *frozen_parts)

    def forward(self, x):
        x = self.entry(x)
        x = checkpoint(self.blocks[0], x, use_reentrant=False)
        x = checkpoint(lambda y: self.blocks[2](self.blocks[1](y)), x, use_reentrant=False)
        x = self.blocks[3](x)
        return self.head(checkpoint(self.blocks[4], x, use_reentrant=False))


class Pair(NamedTuple):
    """A named tuple."""

    main: torch.Tensor
    side: torch.Tensor


class OddPair(Pair):
    """A tuple of a class of its own, as PackedSequence is."""


@dataclass
class Outputs:
    """What many models return."""

    main: torch.Tensor
    others: dict


KINDS = {  # how to wrap two tensors, and how to unwrap them
    "tuple": (lambda a, b: (None, [a, b]), lambda out: out[1]),
    "dict": (lambda a, b: {"deep": {"a": a}, "b": (b,)}, lambda out: (out["deep"]["a"], out["b"][0])),
    "dataclass": (lambda a, b: Outputs(a, {"b": b}), lambda out: (out.main, out.others["b"])),
    "odd tuple": (OddPair, tuple),
}


class Returning(nn.Module):
    """A unit without submodules that returns its result in a container, whatever kind it is."""

    def __init__(self, kind):
        super().__init__()
        self.kind, self.weight = kind, nn.Parameter(torch.randn(WIDTH, WIDTH) / 3)

    def forward(self, x):
        y = x @ self.weight
        return KINDS[self.kind][0](y, torch.sin(x @ self.weight.t()))


class Containers(nn.Module):
    """Units that return tuples, dicts, dataclasses; and so does the model."""

    def __init__(self):
        super().__init__()
        self.blocks = nn.ModuleList(Returning(kind) for kind in KINDS)

    def forward(self, x):
        for block in self.blocks:
            a, b = KINDS[block.kind][1](block(x))
            x = a + b
        return Outputs(x, {"loss": x.square().mean()})


class Aside(Block):
    """Keeps a part of the loss for itself, as routers of experts do."""

    def forward(self, x):
        inside = self.up(self.norm(x))
        self.loss = inside.square().mean(-1, keepdim=True)
        return x + self.down(inside)


class SideLosses(Stack):
    """Adds to its loss what the units have kept; of the last one it uses nothing else."""

    def __init__(self):
        super().__init__(3, Aside)

    def forward(self, x):
        x = self.entry(x)
        hidden = [x := block(x) for block in self.blocks]
        return self.head(hidden[-2]) + sum(block.loss for block in self.blocks)


class Bypassed(Stack):
    """Calls what is in the blocks, never the blocks."""

    def forward(self, x):
        x = self.entry(x)
        for block in self.blocks:
            x = x + block.down(torch.tanh(block.up(block.norm(x))))
        return self.head(x)


class Direct(nn.Module):
    """Reads its child's weights without calling it."""

    def __init__(self):
        super().__init__()
        self.inner = nn.Linear(WIDTH, WIDTH)

    def forward(self, x):
        return torch.tanh(nn.functional.linear(x, self.inner.weight, self.inner.bias))


class InParts(Stack):
    """Units without a forward of their own, of a layer and of a module that reads its child's weights."""

    def __init__(self):
        super().__init__()
        self.blocks = nn.ModuleList(
            nn.ModuleDict({"a": nn.Linear(WIDTH, WIDTH), "act": nn.ReLU(), "b": Direct()}) for _ in range(2)
        )

    def forward(self, x):
        x = self.entry(x)
        for block in self.blocks:
            x = block["b"](block["act"](block["a"](x)))
        return self.head(self.blocks[0]["b"](x))


class Detached(nn.Module):
    """Uses its weight a second time without a gradient: autograd needs it after its own gradient is there."""

    def __init__(self):
        super().__init__()
        self.weight = nn.Parameter(torch.randn(WIDTH, WIDTH) / 3)

    def forward(self, x):
        return x + torch.tanh(nn.functional.linear(x, self.weight.detach())) + x.detach() @ self.weight


class Attention(nn.Module):
    """Torch's own attention, which reads its children's weights without calling them, and a recurrent layer."""

    def __init__(self):
        super().__init__()
        self.layers = nn.ModuleList([nn.MultiheadAttention(WIDTH, 2, batch_first=True) for _ in range(2)])
        self.recurrent = nn.ModuleList(
            [nn.LSTM(WIDTH, WIDTH, batch_first=True), nn.GRU(WIDTH, WIDTH, batch_first=True)]
        )

    def forward(self, x):
        x = torch.stack([x, x.cos()], 1)
        for layer in self.layers:
            x = x + layer(x, x, x)[0]
        for layer in self.recurrent:
            packed = nn.utils.rnn.pack_padded_sequence(x, [2] * len(x), batch_first=True)
            x = nn.utils.rnn.pad_packed_sequence(layer(packed)[0], batch_first=True)[0]
        return x


def parametrized():
    model = Stack()
    for block in model.blocks:
        nn.utils.parametrizations.weight_norm(block.up)
        nn.utils.parametrizations.orthogonal(block.down, orthogonal_map="cayley")
    return model


def with_hooks_of_their_own():
    block = Block()
    block.register_forward_pre_hook(lambda module, inputs: (inputs[0] * module.norm.weight,))
    block.register_forward_hook(lambda module, _inputs, output: output * module.norm.weight)
    model = Stack()
    model.blocks = nn.ModuleList(copy.deepcopy(block) for _ in range(3))
    return model


class Sparse(nn.Module):
    """An embedding whose gradients are sparse."""

    def __init__(self):
        super().__init__()
        self.embedding = nn.Embedding(7, WIDTH, sparse=True)
        self.blocks = nn.ModuleList(Block() for _ in range(2))

    def forward(self, x):
        x = self.embedding((x[:, :3] * 3).long().clamp(0, 6))
        for block in self.blocks:
            x = block(x)
        return x


class Filter(nn.Module):
    """One multiplication in the frequency domain."""

    def __init__(self):
        super().__init__()
        self.weight = nn.Parameter(torch.randn(WIDTH // 2 + 1, dtype=torch.complex64))

    def forward(self, x):
        return torch.fft.irfft(torch.fft.rfft(x) * self.weight, n=WIDTH)


class Penalised(Stack):
    """Adds the size of the gradient of its inputs to its outputs: backward runs through a backward."""

    def forward(self, x):
        x = x.detach().requires_grad_()
        outputs = super().forward(x)
        (slope,) = torch.autograd.grad(outputs.sum(), x, create_graph=True)
        return outputs + slope.square().sum(-1, keepdim=True)


class Quantized(Stack):
    """A frozen weight in whole numbers, which no precision may touch."""

    def __init__(self):
        super().__init__()
        self.blocks[1].codes = nn.Parameter(torch.arange(-3, 3, dtype=torch.int8), requires_grad=False)

    def forward(self, x):
        x = self.blocks[0](self.entry(x))
        x = self.blocks[2](self.blocks[1](x))
        return self.head(x)


class Parcel:
    """What a block passes on: an object that is no container."""

    def __init__(self, hidden):
        self.hidden = hidden


class SlimParcel:
    """The same, without a dict of attributes."""

    __slots__ = ("hidden",)

    def __init__(self, hidden):
        self.hidden = hidden


class Parcelling(nn.Module):
    """Takes and gives parcels; uses parameters of its own, first a frozen one, then two that are trained."""

    def __init__(self, kind):
        super().__init__()
        self.kind, self.fixed = kind, nn.Parameter(torch.randn(WIDTH, WIDTH) / 3, requires_grad=False)
        self.weight, self.bias = nn.Parameter(torch.randn(WIDTH, WIDTH) / 3), nn.Parameter(torch.zeros(WIDTH))

    def forward(self, parcel):
        return self.kind(torch.tanh(parcel.hidden @ self.fixed) @ self.weight + self.bias)


class Parcels(nn.Module):
    """Blocks that pass objects on."""

    def __init__(self):
        super().__init__()
        self.entry = nn.Linear(WIDTH, WIDTH)
        self.blocks = nn.ModuleList(Parcelling(kind) for kind in (Parcel, SlimParcel, Parcel))

    def forward(self, x):
        parcel = Parcel(self.entry(x))
        for block in self.blocks:
            parcel = block(parcel)
        return parcel.hidden


class Nothing(nn.Module):
    """A unit whose only parameter has no elements."""

    def __init__(self):
        super().__init__()
        self.weight = nn.Parameter(torch.empty(0, WIDTH))

    def forward(self, x):
        return x + self.weight.sum()


MODELS = {
    "plain": Stack,
    "units that pass objects on": Parcels,
    "units of parameters without elements": lambda: Stack(3, Nothing),
    "tied weights within a unit and across units": tied_within_and_across,
    "whole frozen blocks": lambda: frozen(Stack(4), "blocks.1", "blocks.3"),
    "a frozen first block and entry": lambda: frozen(Stack(), "entry", "blocks.0"),
    "frozen but for the head": lambda: frozen(Stack(), "entry", "blocks"),
    "low-rank additions to frozen weights": adapted,
    "keyword inputs of blocks": Keywords,
    "keyword inputs of blocks with frozen weights": keywords_with_frozen_weights,
    "modules called twice": Twice,
    "nested containers": nested,
    "two precisions": Mixed,
    "no bias": lambda: Stack(3, lambda: Block(bias=False)),
    "one large unit": LargeUnit,
    "parameters that are not contiguous": not_contiguous,
    "scalar and empty parameters": ScalarsAndNothing,
    "in-place activations": InPlace,
    "recomputed activations": Checkpointed,
    "recomputed activations with frozen weights": lambda: Checkpointed("blocks.0", "blocks.2.up", "blocks.4"),
    "units and a model that return containers": Containers,
    "losses kept aside": SideLosses,
    "units that are never called themselves": Bypassed,
    "parts of units that read their children's weights": InParts,
    "a weight used a second time without gradient": lambda: Stack(3, Detached),
    "attention and recurrent layers": Attention,
    "parametrized weights": parametrized,
    "copied blocks with hooks that use weights": with_hooks_of_their_own,
    "sparse gradients": Sparse,
    "complex weights": lambda: nn.Sequential(Filter(), nn.Tanh(), Filter()),
    "a gradient within the forward": Penalised,
    "whole numbers": Quantized,
}
# In these a rank's rows change what is computed, so that only a process that takes each rank's rows alone agrees.
BY_RANK = {
    "batch normalisation": lambda: nn.Sequential(
        nn.Linear(WIDTH, WIDTH), nn.BatchNorm1d(WIDTH), nn.ReLU(inplace=True), nn.Linear(WIDTH, 1)
    ),
    "dropout": lambda: nn.Sequential(nn.Linear(WIDTH, 32), nn.Dropout(0.5), nn.Linear(32, 1), nn.Dropout(0.1)),
    "parameters unused on some ranks in some steps": lambda: Skipping(skips_unit=False),
    "parts of units unused on some ranks in some steps": lambda: Stack(4, SkippingBlock),
    "whole units unused on some ranks in some steps": lambda: Skipping(skips_unit=True),
    "whole units unused, another one on each rank": LeavingOut,
}


def make(name):
    """The model of that name with seed 0."""
    torch.manual_seed(0)
    return {**MODELS, **BY_RANK}[name]()


def batch(step):
    """The whole batch of one step, shape [12, 6]; no two equal rows, so that a lost one is seen."""
    return torch.randn(ROWS, WIDTH, generator=torch.Generator().manual_seed(step))


def call(model, rows):
    return model(x=rows) if isinstance(model, Keywords) else model(rows)


def loss_of(outputs):
    """A loss that every output takes part in."""
    if isinstance(outputs, Outputs):
        return outputs.main.sin().mean() + outputs.others["loss"]
    return (outputs.real.float() - 0.3).square().mean()


def train_alone(name, optimizer_cls, steps, parts, **keywords):
    """One process; every `parts` rows alone, as one rank of so many takes them, or with 1 the whole batch."""
    model = make(name)
    replicas = [model, *(copy.deepcopy(model) for _ in range(parts - 1))]
    trainable = [parameter for parameter in model.parameters() if parameter.requires_grad]
    optimizer = optimizer_cls(trainable, **keywords)
    generators = [torch.Generator().manual_seed(rank).get_state() for rank in range(parts)]
    for step in range(steps):
        for rank, (replica, rows) in enumerate(zip(replicas, batch(step).chunk(parts), strict=True)):
            torch.set_rng_state(generators[rank])
            (loss_of(call(replica, rows)) / parts).backward()
            generators[rank] = torch.get_rng_state()
        for number, parameter in enumerate(trainable):
            mine = [[p for p in replica.parameters() if p.requires_grad][number] for replica in replicas]
            gradients = [p.grad.to_dense() for p in mine if p.grad is not None]
            # One replica's gradient is enough; without any the parameter is left alone, as torch DDP does.
            parameter.grad = sum(gradients, torch.zeros_like(parameter)) if gradients else None
        optimizer.step()
        for replica in replicas:
            replica.zero_grad()
            for mine, updated in zip(replica.parameters(), model.parameters(), strict=True):
                mine.data.copy_(updated.data)
    return [{key: value.detach().clone() for key, value in replica.state_dict().items()} for replica in replicas]


def train_on_ranks(name, optimizer_cls, steps, stages=STAGES, **keywords):
    """The same on the ranks of the default group, stage by stage; what this rank ends with in each."""
    import torch.distributed as dist

    from zerolab.engines import ENGINES

    ends = {}
    for stage in stages:
        engine = ENGINES[stage](make(name), optimizer_cls, **keywords)
        torch.manual_seed(dist.get_rank())
        for step in range(steps):
            rows = batch(step).chunk(dist.get_world_size())[dist.get_rank()]
            engine.backward(loss_of(call(engine.model, rows)))
            engine.step()
        ends[stage] = engine.state_dict()
    return ends


def distance(state, reference):
    """The largest difference of any element of two state dicts."""
    assert state.keys() == reference.keys()
    pairs = [(state[key], reference[key]) for key in reference if reference[key].numel()]
    assert all(a.dtype == b.dtype and a.shape == b.shape for a, b in pairs)
    return max((a - b).abs().double().max().item() for a, b in pairs)
