"""The small models that the lessons train, and their batches.

Everything is made from seeds: all ranks that build the same model have the same weights, and a rank's batches are the
same in every run. The language models learn to predict the next byte of eighteen sonnets (`data/NOTICE.md`), the MLPs
the sine of their inputs; both can be learned, so the loss falls. No dropout: stages are compared to the last digit.
"""

from collections.abc import Callable, Iterable, Iterator, Sequence, Sized
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from importlib.resources import files
from numbers import Integral
from typing import Any

import numpy as np
import torch
from torch import nn
from torch.nn import functional
from torch.utils._pytree import tree_leaves, tree_map

from zerolab.names import unknown

Batch = tuple[torch.Tensor, torch.Tensor]
ModelSource = str | Callable[[], nn.Module]
BatchSource = Callable[[int, int, int], Iterable[Batch]]

_device = torch.device("cpu")

VOCABULARY = 128  # the text is ASCII: a byte is a token


class Attention(nn.Module):
    """Causal self-attention: [rows, length, width] -> the same shape."""

    def __init__(self, width: int, heads: int) -> None:
        super().__init__()
        self.heads = heads
        self.queries_keys_values = nn.Linear(width, 3 * width)
        self.out = nn.Linear(width, width)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """Mixes positions; `x` is [rows, length, width]."""
        rows, length, width = x.shape
        # One matrix for all three: one parameter to place, and one gradient to wait for.
        split = self.queries_keys_values(x).view(rows, length, 3, self.heads, width // self.heads)
        queries, keys, values = split.permute(2, 0, 3, 1, 4)
        mixed = functional.scaled_dot_product_attention(queries, keys, values, is_causal=True)
        out: torch.Tensor = self.out(mixed.transpose(1, 2).reshape(rows, length, width))
        return out


class Block(nn.Module):
    """One transformer block: attention and an MLP four times as wide, each with a residual connection."""

    def __init__(self, width: int, heads: int) -> None:
        super().__init__()
        self.norm1, self.attention = nn.LayerNorm(width), Attention(width, heads)
        self.norm2 = nn.LayerNorm(width)
        # A Sequential inside a block is not a unit of its own: the search for units ends at the block.
        self.mlp = nn.Sequential(nn.Linear(width, 4 * width), nn.GELU(), nn.Linear(4 * width, width))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """[rows, length, width] -> the same shape."""
        attended: torch.Tensor = x + self.attention(self.norm1(x))
        changed: torch.Tensor = self.mlp(self.norm2(attended))
        return attended + changed


class GPT(nn.Module):
    """A GPT: tokens [rows, length] -> logits [rows, length, vocabulary] for the next token, in the lessons a byte.

    As in GPT-2, the output layer shares its weight with the token embedding, so that weight counts once in Ψ.
    Source: Radford et al. 2019, "Language Models are Unsupervised Multitask Learners".
    """

    def __init__(self, width: int, heads: int, depth: int, context: int, vocabulary: int = VOCABULARY) -> None:
        super().__init__()
        self.tokens = nn.Embedding(vocabulary, width)
        self.positions = nn.Embedding(context, width)
        self.blocks = nn.ModuleList(Block(width, heads) for _ in range(depth))
        self.norm = nn.LayerNorm(width)
        self.head = nn.Linear(width, vocabulary, bias=False)
        for embedding in (self.tokens, self.positions):
            nn.init.normal_(embedding.weight, std=0.02)  # torch's default of 1 makes tied logits far too large
        self.head.weight = self.tokens.weight

    def forward(self, tokens: torch.Tensor) -> torch.Tensor:
        """Logits for every position; `tokens` is [rows, length] of int64, at most `context` long."""
        x = self.embed(tokens)
        for block in self.blocks:
            x = block(x)
        logits: torch.Tensor = self.head(self.norm(x))
        return logits

    def embed(self, tokens: torch.Tensor) -> torch.Tensor:
        """The inputs of the first block, [rows, length, width]."""
        x: torch.Tensor = self.tokens(tokens) + self.positions(torch.arange(tokens.shape[1], device=tokens.device))
        return x


def mlp_odd() -> nn.Module:
    """6 -> 13 -> 13 -> 5: three units of 91, 182 and 70 parameters, none a multiple of 3 or 4, so flats get padding."""
    return nn.Sequential(nn.Linear(6, 13), nn.Tanh(), nn.Linear(13, 13), nn.Tanh(), nn.Linear(13, 5))


def mlp_bench() -> nn.Module:
    """Six blocks [Linear(512, 2048), GELU, Linear(2048, 512)]: 12,598,272 parameters, the benchmark's model."""
    return nn.Sequential(*(nn.Sequential(nn.Linear(512, 2048), nn.GELU(), nn.Linear(2048, 512)) for _ in range(6)))


@dataclass(frozen=True)
class Recipe:
    """How a named model is built, and its batches: `rows` per rank, of `length` tokens, or 0 for rows of numbers."""

    build: Callable[[], nn.Module]
    rows: int
    length: int = 0
    inputs: int = 0  # numbers in a row of inputs and, below, of targets, where there are no tokens
    outputs: int = 0


RECIPES = {
    "mlp-odd": Recipe(mlp_odd, rows=4, inputs=6, outputs=5),
    "mlp-bench": Recipe(mlp_bench, rows=8, inputs=512, outputs=512),
    "gpt-tiny": Recipe(lambda: GPT(width=64, heads=4, depth=4, context=64), rows=4, length=32),
    "gpt-10m": Recipe(lambda: GPT(width=384, heads=6, depth=6, context=128), rows=2, length=64),
}


def train_on(device: torch.device) -> None:
    """Puts all later models and batches of this process on `device`; a rank with a GPU calls it when it starts."""
    global _device  # noqa: PLW0603  (a process trains on one device)
    _device = device


def build(name: str, seed: int = 0) -> nn.Module:
    """The model called `name`, with the same weights for the same seed; the caller's random state does not change.

    It is on the GPU in a rank that has one, else on the CPU. Raises ValueError for an unknown name.
    """
    recipe = _recipe(name)
    with _random_numbers_of(seed):
        return recipe.build().to(_device)  # made on the CPU, so that the weights are the same everywhere


def batches(
    name: str,
    world_size: int,
    rank: int,
    steps: int,
    *,
    seed: int = 0,
    rows: int | None = None,
    length: int | None = None,
) -> list[Batch]:
    """This rank's batches, one (inputs, targets) per step; every rank has its own, the same in every run.

    Language models get int64 tokens [rows, length] and the token after each of them; MLPs get float32 [rows, inputs]
    and [rows, outputs]. They are on the GPU in a rank that has one. `rows` and `length` replace those of the recipe.

    Raises ValueError for an unknown name, a rank outside 0..world_size - 1, or fewer than one row.
    """
    recipe = _recipe(name)
    rows, length = rows or recipe.rows, length or recipe.length
    if not 0 <= rank < world_size:
        raise ValueError(f"rank is {rank} in a world of {world_size}: it must be 0 to {world_size - 1}")
    # Every rank draws the batches of all ranks and takes its own, so no two ranks see the same rows.
    generator = torch.Generator().manual_seed(seed)
    shape = (steps, world_size, rows)
    if recipe.length:
        # A window is one token longer than its inputs, because the last target comes after them.
        starts = torch.randint(len(text()) - length, shape, generator=generator)[:, rank]
        windows = starts[..., None] + torch.arange(length + 1)
        return [(window[:, :-1], window[:, 1:]) for window in text()[windows].to(_device)]
    numbers = torch.randn(*shape, recipe.inputs, generator=generator)[:, rank].to(_device)
    return [(step, step[:, : recipe.outputs].sin()) for step in numbers]


def check_pairs(batches: Sequence[Any]) -> None:
    """Raises TypeError unless every batch is a pair."""
    for index, batch in enumerate(batches):
        if not (isinstance(batch, (tuple, list)) and len(batch) == 2):
            raise TypeError(f"batch {index} is a {type(batch).__name__}: pass pairs, (inputs, targets)")


def check_source(model: object) -> None:
    """Raises TypeError unless it is a name, or a function that may return a module."""
    if not isinstance(model, str) and (not callable(model) or isinstance(model, nn.Module)):
        raise TypeError(f"model is a {type(model).__name__}: pass a model's name, or a function that returns a module")


def module_of(model: ModelSource) -> nn.Module:
    """The module, by name or from the caller's function, which gets the same random numbers on every rank."""
    check_source(model)
    if isinstance(model, str):
        return build(model)
    with _random_numbers_of(0):
        return model()


@contextmanager
def _random_numbers_of(seed: int) -> Iterator[None]:
    """Within it random numbers are those of a seed, on this process's GPU, too; the caller's state does not change."""
    # One by one: torch.manual_seed also seeds GPUs that this process has not used, or uses only later.
    gpus = [torch.cuda.current_device()] if torch.cuda.is_initialized() else []
    with torch.random.fork_rng(devices=gpus):
        torch.default_generator.manual_seed(seed)
        if gpus:
            torch.cuda.manual_seed(seed)
        yield


def feed(model: ModelSource, given: BatchSource | Sequence[Batch] | None, world_size: int, steps: int) -> BatchSource:
    """A function of (world_size, rank, steps) that gives a rank its batches; refuses batches that it cannot divide."""
    if isinstance(steps, bool) or not isinstance(steps, Integral) or steps < 2:
        raise ValueError(f"steps is {steps!r}: take at least 2, whole ones, because Adam makes its state in the first")
    if given is None:
        if not isinstance(model, str):
            raise ValueError("the model is a function of your own: pass batches=, a list of (inputs, targets)")
        return partial(batches, model)
    if callable(given):
        return given
    if not isinstance(given, Sized):
        raise TypeError(f"batches is a {type(given).__name__}, which has no length: pass a list of (inputs, targets)")
    given = list(given)  # it is sent to the ranks and read more than once
    if len(given) < steps:
        raise ValueError(f"there are {len(given)} batches for {steps} steps: pass one per step")
    check_pairs(given)
    for index, batch in enumerate(given):
        _check_rows(index, batch, world_size)
    return partial(_share, given)


def _check_rows(index: int, batch: Batch, world_size: int) -> None:
    for what, part in zip(("inputs", "targets"), batch, strict=True):
        leaves = tree_leaves(part)
        if not leaves or not all(isinstance(leaf, torch.Tensor) and leaf.ndim for leaf in leaves):
            raise TypeError(
                f"the {what} of batch {index} are a {type(part).__name__}, whose rows cannot be divided: "
                "pass tensors, or a function of (world_size, rank, steps) that returns a rank's batches"
            )
        if uneven := [len(leaf) for leaf in leaves if len(leaf) % world_size]:
            raise ValueError(
                f"batch {index} has {uneven[0]} rows for {world_size} ranks: give every rank the same number"
            )


def _share(batches: list[Batch], world_size: int, rank: int, steps: int) -> list[Batch]:
    """This rank's rows of each of the first `steps` batches."""
    return [tree_map(lambda tensor: tensor.chunk(world_size)[rank], batch) for batch in batches[:steps]]


def to_device(batch: Any, device: str) -> Any:
    """The same batch with its tensors on `device`."""
    return tree_map(lambda leaf: leaf.to(device) if isinstance(leaf, torch.Tensor) else leaf, batch)


def loss(outputs: torch.Tensor, targets: torch.Tensor) -> torch.Tensor:
    """The loss of every lesson, a mean: cross-entropy where targets are whole numbers (classes), else squared error.

    `outputs` is [..., classes] for int64 `targets` [...], or has the shape of the targets; the result is a scalar.
    Raises TypeError or ValueError for anything else.
    """
    if not isinstance(outputs, torch.Tensor):
        raise TypeError(f"the model returned a {type(outputs).__name__}: this loss takes one tensor, so return that")
    if targets.is_floating_point():
        if outputs.shape != targets.shape:  # torch would broadcast them, and the loss would mean something else
            raise ValueError(
                f"the model returned {tuple(outputs.shape)} for targets {tuple(targets.shape)}: squared error takes "
                "targets of the same shape (whole numbers would be classes)"
            )
        dtype = torch.promote_types(outputs.dtype, targets.dtype)  # torch 2.11 has no backward for two dtypes
        return functional.mse_loss(outputs.to(dtype), targets.to(dtype))
    return functional.cross_entropy(outputs.flatten(0, -2), targets.flatten())


_kept_text: list[torch.Tensor] = []


def text() -> torch.Tensor:
    """The sonnets as int64 tokens [characters], one per byte."""
    if _kept_text:
        return _kept_text[0]
    content = files("zerolab").joinpath("data", "sonnets.txt").read_bytes()
    # In numpy's memory: a recording must not count what a rank keeps from run to run.
    made = torch.from_numpy(np.frombuffer(content, dtype=np.uint8).astype(np.int64))
    # A simulation's tensors have no numbers: kept, they would be what a real run reads afterwards.
    if type(made) is torch.Tensor and not made.is_meta:
        _kept_text.append(made)
    return made


def _recipe(name: str) -> Recipe:
    if name not in RECIPES:
        raise ValueError(f"{unknown('model', name, RECIPES)} (or pass a function that builds one)")
    return RECIPES[name]
