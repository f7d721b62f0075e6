"""What exercises over torch's `fully_shard` share: small models, what they are judged by, and one process beside.

What they shard is to train as one process would on the rows of all ranks; the clinic's second ward are such loops.
"""

import copy
import random
from collections.abc import Callable
from typing import Any

import numpy as np
import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.tensor import DTensor

from zerolab import evaluation, models
from zerolab.exercises.harness.onranks import RankTargets
from zerolab.exercises.harness.plain import Words, kind_of

STEPS, ROWS, WIDTH, OUT = 4, 6, 6, 5
STACK_STEPS = 3
FILLING = 512  # bytes of rows that only fill a gathered unit up
GIVEN = """import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.fsdp import fully_shard
from zerolab import models"""

Batches = list[tuple[torch.Tensor, ...]]
"""What each rank reads in a step."""

Step = Callable[[nn.Module, Batches], None]
"""Of a model and what each rank reads in a step, leaves the gradients that the update is made with."""


class Block(nn.Module):
    """Two layers beside a residual."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.up, self.down = nn.Linear(width, 2 * width), nn.Linear(2 * width, width)

    def forward(self, rows: torch.Tensor) -> torch.Tensor:
        """The same shape again."""
        change: torch.Tensor = self.down(torch.tanh(self.up(rows)))
        return rows + change


class Stack(nn.Module):
    """A first layer, equal blocks and a last layer, the same for the same seed; `batches` is what a rank reads."""

    def __init__(self, width: int, blocks: int, seed: int) -> None:
        super().__init__()
        self.seed = seed
        self.batches: Batches = []
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(seed)
            self.first, self.last = nn.Linear(WIDTH, width), nn.Linear(width, OUT)
            self.blocks = nn.ModuleList(Block(width) for _ in range(blocks))

    def reading(self, rank: int) -> "Stack":
        """A copy with a rank's rows of all steps, and what should be made of them."""
        model, generator = copy.deepcopy(self), torch.Generator().manual_seed(self.seed + rank)
        model.batches = [
            (torch.randn(ROWS, WIDTH, generator=generator), torch.randn(ROWS, OUT, generator=generator))
            for _ in range(STACK_STEPS)
        ]
        return model

    def held(self, world_size: int) -> tuple[int, int]:
        """The bytes of a rank's rows, and the most that is whole beside them: two blocks, and what is in none."""
        rows = sum(weight.chunk(world_size)[0].nbytes for weight in self.parameters())
        block = sum(weight.nbytes for weight in self.blocks[0].parameters())
        rest = sum(weight.nbytes for weight in self.parameters()) - len(self.blocks) * block
        return rows, rest + 2 * block + FILLING

    def forward(self, rows: torch.Tensor) -> torch.Tensor:
        """What the model makes of rows of shape [rows, WIDTH]."""
        rows = self.first(rows)
        for block in self.blocks:
            rows = block(rows)
        outputs: torch.Tensor = self.last(rows)
        return outputs


def whole(model: Any) -> Any:
    """All weights of a model end to end, sharded or not; every rank must ask, whatever it has."""
    weights = [weight.detach() for weight in model.parameters()] if isinstance(model, nn.Module) else []
    gathers = sum(isinstance(weight, DTensor) for weight in weights)
    if not all_have(gathers):
        return Words("a sharded model, which not all ranks returned") if gathers else no_model(model)
    if not isinstance(model, nn.Module):
        return no_model(model)
    with evaluation():  # its exchanges are of no step
        return torch.cat([(w.full_tensor() if isinstance(w, DTensor) else w).flatten() for w in weights])


def no_model(returned: Any) -> Any:
    """In words what came in place of a model; of nothing None."""
    return None if returned is None else Words(f"{kind_of(returned)} where a model belongs")


def all_have(number: int) -> bool:
    """Whether all ranks come with this number, as all must ask: a gather of what one rank lacks would never end."""
    if not dist.is_initialized():
        return True
    ends = torch.tensor([number, -number])
    with evaluation():
        dist.all_reduce(ends, dist.ReduceOp.MAX)
    return ends.tolist() == [number, -number]


def draw(dice: random.Random, world_size: int) -> list[tuple[Any, ...]]:
    """For each rank rows of every step, and what the model should make of them."""
    numbers = np.random.default_rng(dice.randrange(2**31))
    rows = numbers.standard_normal((world_size, STEPS, ROWS, WIDTH)).astype(np.float32)
    wanted = numbers.standard_normal((world_size, STEPS, ROWS, OUT)).astype(np.float32)
    return list(zip(rows, wanted, strict=True))


def mean_error(model: nn.Module, batches: Batches) -> None:
    """The gradient of the mean squared error over all rows of all ranks."""
    rows, wanted = (torch.cat(each) for each in zip(*batches, strict=True))
    nn.functional.mse_loss(model(rows), wanted).backward()


def trained(arguments: list[tuple[Any, ...]], step: Step = mean_error, *, lr: float = 0.5, forgets: bool = True) -> Any:
    """The weights that one process ends with, if `step` makes the gradients; `forgets` those of the step before."""
    model = models.build("mlp-odd")
    for number in range(STEPS):
        if forgets:
            model.zero_grad()
        step(model, [tuple(torch.from_numpy(each[number]) for each in of_rank) for of_rank in arguments])
        # Not torch's SGD, because the first optimizer of a kernel imports for seconds.
        for weight in model.parameters():
            if weight.grad is not None:
                weight.data.add_(weight.grad, alpha=-lr)
    return whole(model)


def once(of_all: Callable[[list[tuple[Any, ...]]], Any]) -> Callable[[list[tuple[Any, ...]], int], Any]:
    """Of all ranks' arguments and a rank, what is the same on every rank: made for the first that asks."""
    made: list[Any] = []

    def of_rank(arguments: list[tuple[Any, ...]], _rank: int) -> Any:
        if not made or made[0] is not arguments:
            made[:] = arguments, of_all(arguments)
        return made[1]

    return of_rank


def like_one_process(step: Step, **options: Any) -> RankTargets:
    """Targets that are reached by whoever ends with the weights of one process on the rows of all ranks."""
    shared: dict[str, Any] = {"draw": draw, "world_sizes": (2, 3, 4), "tolerance": 1e-5}
    shared |= {"allows": ("torch.distributed.fsdp",), "reads": whole}
    return RankTargets(wanted=once(lambda arguments: trained(arguments, step)), **shared | options)


def judge_kept(kept: int, rows: int, reductions: int) -> str:
    """Empty if a rank keeps no more bytes of parameters at the update than its rows; `reductions` are a step's."""
    if kept <= rows:
        return ""
    why = f"a rank keeps {kept:,} bytes of parameters at the update; its rows are {rows:,}"
    if not reductions:
        return f"{why}. Nothing is sharded."
    return f"{why}. What is in no unit stays whole on every rank, and nobody takes the mean of its gradients."
