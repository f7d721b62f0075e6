"""Owners of whole matrices.

Muon updates whole matrices. So that not every rank repeats all the work, each matrix gets an owner, which alone updates
it. Your function gets

* `weights`: a list of matrices of several shapes, the same on every rank;
* `gradients`: this rank's own gradients of them, in the same order;
* `update(weight, gradient)`: Muon's step of one matrix, in place, from the mean gradient.

Choose an owner for each matrix: the largest matrix first, each to the rank that owns the fewest elements so far. Add up
a matrix's gradient on its owner, update it there, and send it to all the others. Return `weights`.
`dist.reduce(tensor, dst=rank)` adds a tensor up over all ranks; only `dst` gets the sum. `dist.broadcast(tensor,
src=rank)` sends `src`'s to all.

Targets, on 1, 2, 3 and 4 ranks:

* every rank returns the updated weights, to 1e-4;
* one `reduce` and one `broadcast` for each matrix, in the same order on every rank, and one `update`, by its owner;
* the fullest rank owns no more elements than with the owners above; other choices that are as even pass, too.
"""

import random
from collections.abc import Callable, Iterator, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
import torch.distributed as dist

from zerolab.exercises import RankTargets, Wrong

if TYPE_CHECKING:
    from zerolab.recording.recording import Recording

MATRICES = 7


def update_on_owners(
    weights: list[torch.Tensor], gradients: list[torch.Tensor], update: Callable[[torch.Tensor, torch.Tensor], None]
) -> list[torch.Tensor]:
    """Every rank comes to the same owners, because all of them know the sizes."""
    loads = [0] * dist.get_world_size()
    owners = [0] * len(weights)
    for place in sorted(range(len(weights)), key=lambda place: -weights[place].numel()):
        owners[place] = loads.index(min(loads))
        loads[owners[place]] += weights[place].numel()
    for weight, gradient, owner in zip(weights, gradients, owners, strict=True):
        dist.reduce(gradient, dst=owner)
        if owner == dist.get_rank():
            update(weight, gradient / dist.get_world_size())
    for weight, owner in zip(weights, owners, strict=True):
        dist.broadcast(weight, src=owner)
    return weights


def muon_step(weight: torch.Tensor, gradient: torch.Tensor) -> None:
    """A step of Muon without momentum, its Newton-Schulz iterations replaced by what they come close to.

    Made by an optimizer of torch's, so that the recording shows it.
    """
    left, _, right = torch.linalg.svd(gradient, full_matrices=False)
    weight.grad = left @ right
    torch.optim.SGD([weight], lr=0.1).step()
    weight.grad = None


def owners_of(sizes: Sequence[int], order: Sequence[int], world_size: int) -> list[int]:
    """The owners if matrices come in this order, each to the rank that has the least."""
    loads, owners = [0] * world_size, [0] * len(sizes)
    for place in order:
        owners[place] = loads.index(min(loads))
        loads[owners[place]] += sizes[place]
    return owners


def fullest(sizes: Sequence[int], owners: Sequence[int]) -> int:
    """What the fullest rank owns."""
    return max(sum(size for size, its in zip(sizes, owners, strict=True) if its == owner) for owner in owners)


def largest_first(sizes: Sequence[int], world_size: int) -> list[int]:
    """The owners that the statement gives."""
    return owners_of(sizes, sorted(range(len(sizes)), key=lambda place: -sizes[place]), world_size)


def draw(dice: random.Random, world_size: int) -> list[tuple[Any, ...]]:
    """Matrices of which no simpler choice of owners makes as even shares, and gradients of each rank's own."""
    while True:
        shapes = [(4 * dice.randrange(2, 12), 4 * dice.randrange(2, 12)) for _ in range(MATRICES)]
        sizes = [rows * columns for rows, columns in shapes]
        smallest_first = sorted(range(MATRICES), key=lambda place: sizes[place])
        others = [owners_of(sizes, order, world_size) for order in (range(MATRICES), smallest_first)]
        others.append([place % world_size for place in range(MATRICES)])
        best = fullest(sizes, largest_first(sizes, world_size))
        if world_size == 1 or best < min(fullest(sizes, owners) for owners in others):
            break
    numbers = np.random.default_rng(dice.randrange(2**31))

    def drawn() -> list[torch.Tensor]:
        return [torch.from_numpy(numbers.standard_normal(shape).astype(np.float32)) for shape in shapes]

    weights = drawn()
    return [(weights, drawn(), muon_step) for _ in range(world_size)]


def updated(arguments: list[tuple[Any, ...]], gradient_of: Callable[[int], torch.Tensor]) -> Any:
    """All weights, each updated from the gradient of its place."""
    weights = [weight.clone() for weight in arguments[0][0]]
    for place, weight in enumerate(weights):
        muon_step(weight, gradient_of(place))
    return weights


def wanted(arguments: list[tuple[Any, ...]], _rank: int) -> Any:
    """From the mean gradients."""
    return updated(arguments, lambda place: torch.stack([gradients[place] for _, gradients, _ in arguments]).mean(0))


def from_the_owners_own(arguments: list[tuple[Any, ...]], _rank: int) -> Any:
    """What comes of a reduction that is left out."""
    owners = largest_first([weight.numel() for weight in arguments[0][0]], len(arguments))
    return updated(arguments, lambda place: arguments[owners[place]][1][place])


def not_sent(arguments: list[tuple[Any, ...]], rank: int) -> Any:
    """What a rank has to whom no owner sends anything."""
    before = arguments[0][0]
    owners = largest_first([weight.numel() for weight in before], len(arguments))
    after = wanted(arguments, rank)
    return [new if owner == rank else old for owner, new, old in zip(owners, after, before, strict=True)]


def judge_owners(recording: "Recording", arguments: list[tuple[Any, ...]]) -> Iterator[tuple[str, str]]:
    """Who sent how many elements of weights to all, and how many updates all ranks made."""
    owned: dict[str, int] = {}
    for event in recording.ranks[0].events:
        if event.op == "broadcast" and event.kind == "collective" and event.text:
            owned[event.text] = owned.get(event.text, 0) + event.numel
    sizes = [weight.numel() for weight in arguments[0][0]]
    most = fullest(sizes, largest_first(sizes, len(arguments)))
    who = max(owned, key=lambda text: owned[text], default="")
    full = who.removeprefix("from ")
    said = f"{full} owns {owned.get(who, 0):,} elements; with the largest matrix first no rank has more than {most:,}."
    yield "owners", said if owned.get(who, 0) > most else ""
    made = sum(event.kind == "optimizer" for rank in recording.ranks for event in rank.events)
    said = f"the ranks made {made} updates of {MATRICES} matrices; each is updated once, by its owner alone."
    yield "updates", said if made > MATRICES else ""


solution = update_on_owners
hole = "give each matrix an owner, reduce to it, update there, send it to all"
given = "import torch\nimport torch.distributed as dist"
look_for = "When it passes, count the bytes: as many as an all-reduce sends, and each update is made only once."
targets = RankTargets(
    draw=draw,
    wanted=wanted,
    collectives=lambda _world_size: ("reduce",) * MATRICES + ("broadcast",) * MATRICES,
    seen=judge_owners,
    tolerance=1e-4,
)
hints = (
    "All ranks know all sizes, so each can work out the owners of all matrices: no message is needed for that.",
    "Keep a list of what each rank owns so far; `loads.index(min(loads))` is the next owner.",
    "Every rank calls `dist.reduce(gradient, dst=owner)`; the owner alone updates; then all call `dist.broadcast`.",
)
wrong = (
    Wrong(
        says="elements; with the largest matrix first no rank has more than",
        replace="owners[place] = loads.index(min(loads))",
        by="owners[place] = place % len(loads)",
    ),
    Wrong(
        says="elements; with the largest matrix first no rank has more than",
        replace="sorted(range(len(weights)), key=lambda place: -weights[place].numel())",
        by="range(len(weights))",
    ),
    Wrong(
        says="elements; with the largest matrix first no rank has more than",
        replace="key=lambda place: -weights",
        by="key=lambda place: weights",
    ),
    Wrong(
        says="updates from the owner's own gradient, not from the mean",
        replace="        dist.reduce(gradient, dst=owner)\n",
        by="",
        gives=from_the_owners_own,
    ),
    Wrong(
        says="keeps what it updates to itself: the matrices of other owners are as old as before",
        replace="        dist.broadcast(weight, src=owner)\n",
        by="        pass\n",
        gives=not_sent,
    ),
    Wrong(
        says="started 7 all_reduce, 7 broadcast; the target is 7 reduce, 7 broadcast",
        replace="dist.reduce(gradient, dst=owner)",
        by="dist.all_reduce(gradient)",
    ),
    Wrong(
        says="updates of 7 matrices; each is updated once, by its owner alone",
        whole="""
def update_on_owners(weights, gradients, update):
    for weight, gradient in zip(weights, gradients):
        dist.all_reduce(gradient)
        update(weight, gradient / dist.get_world_size())
    return weights
""",
    ),
)
