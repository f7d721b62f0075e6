"""A model with everything that is inconvenient to shard, its data, and one process that trains it whole."""

import copy

import torch
from torch import nn

ROWS, VOCABULARY = 12, 11  # 12 rows split evenly over 1, 2, 3 and 4 ranks


class Awkward(nn.Module):
    """Odd sizes, tied weights, an unused parameter, a buffer, in-place activations, blocks without bias."""

    def __init__(self):
        super().__init__()
        self.embedding = nn.Embedding(VOCABULARY, 7)
        self.blocks = nn.ModuleList(
            nn.Sequential(nn.Linear(7, 13, bias=index != 2), nn.ReLU(inplace=True), nn.Linear(13, 7))
            for index in range(4)
        )
        self.norm = nn.LayerNorm(7)
        self.unused = nn.Parameter(torch.ones(3))
        self.head = nn.Linear(7, VOCABULARY, bias=False)
        self.head.weight = self.embedding.weight
        self.register_buffer("scale", torch.tensor(0.5))

    def forward(self, tokens):
        hidden = self.embedding(tokens)
        for block in self.blocks:
            hidden = hidden + block(hidden) * self.scale
        return self.head(self.norm(hidden))


def make(frozen=()):
    """The model with seed 0; parameters whose name contains one of `frozen` need no gradient."""
    torch.manual_seed(0)
    model = Awkward()
    for name, parameter in model.named_parameters():
        parameter.requires_grad_(not any(part in name for part in frozen))
    return model


def loss_fn(logits, targets):
    """Mean cross-entropy of next tokens."""
    return nn.functional.cross_entropy(logits.flatten(0, 1), targets.flatten())


def batch(step):
    """The whole batch of one step: tokens and targets, shape [12, 5]."""
    tokens = torch.randint(0, VOCABULARY, (ROWS, 5), generator=torch.Generator().manual_seed(step))
    return tokens, (tokens * 3 + 1) % VOCABULARY


def shard_of(tensor, rank, world_size):
    """This rank's rows of a batch."""
    return tensor.chunk(world_size)[rank]


def my_rows(step):
    """This rank's rows of a step's batch."""
    import torch.distributed as dist

    return [shard_of(tensor, dist.get_rank(), dist.get_world_size()) for tensor in batch(step)]


def train_alone(optimizer_cls, steps, frozen=(), **keywords):
    """One process, the whole batch: the weights that every stage must reach."""
    model = copy.deepcopy(make(frozen))
    trainable = [parameter for parameter in model.parameters() if parameter.requires_grad]
    optimizer = optimizer_cls(trainable, **keywords)
    for step in range(steps):
        tokens, targets = batch(step)
        loss_fn(model(tokens), targets).backward()
        optimizer.step()
        optimizer.zero_grad()
    return {name: value.detach().clone() for name, value in model.state_dict().items()}


def train_sharded(stage, optimizer_cls, steps, frozen=(), **keywords):
    """The same on the ranks of the default group; returns what this rank ends with."""
    from zerolab.engines import ENGINES

    engine = ENGINES[stage](make(frozen), optimizer_cls, **keywords)
    for step in range(steps):
        engine.training_step(*my_rows(step), loss_fn)
    return engine.state_dict()


def distance(state, reference):
    """The largest difference of any element of two state dicts."""
    assert state.keys() == reference.keys()
    return max((state[name] - reference[name]).abs().max().item() for name in reference)
