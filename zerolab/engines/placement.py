"""A shard is a placement: four ways to say who owns what of some parameters, and the systems as rows of one table.

A placement is a function of the parameters' shapes and N that gives each rank its share: spans of the parameters laid
end to end, and padding beside them. What a stage is follows from three choices, where parameters, gradients and
optimizer state lie (`SYSTEMS`), and so does what a rank holds (`held`) and what it sends (`sent`). Nothing here needs
torch or moves a byte; that the engines do hold and send it is tested.

    replicated   every rank has everything                            DDP
    flat         N equal parts, cut wherever they fall                ZeRO (arXiv 1910.02054), FSDP1 (arXiv 2304.11277)
    rows         of each parameter some rows                          FSDP2: DTensor's Shard(0)
    matrices     of each parameter all or nothing                     Muon's owners; torch's ZeroRedundancyOptimizer
"""

from collections.abc import Callable, Iterator, Sequence
from itertools import accumulate, pairwise
from math import prod
from typing import NamedTuple

Shapes = Sequence[Sequence[int]]
Spans = tuple[tuple[int, int], ...]


class Share(NamedTuple):
    """What one rank has of parameters that are laid end to end.

    Attributes:
        spans: the elements `[start, stop)`, in order; none of them is empty.
        padding: elements that it keeps beside them, so that shares are equally large.
    """

    spans: Spans
    padding: int = 0

    @property
    def numel(self) -> int:
        """Elements of parameters."""
        return sum(stop - start for start, stop in self.spans)

    @property
    def size(self) -> int:
        """Elements, the padding included."""
        return self.numel + self.padding


Placement = Callable[[Shapes, int], list[Share]]


def replicated(shapes: Shapes, world_size: int) -> list[Share]:
    """Every rank has everything."""
    return [_share([(0, sum(map(prod, shapes)))]) for _ in range(world_size)]


def flat(shapes: Shapes, world_size: int) -> list[Share]:
    """N equal parts of all of it, cut wherever they fall; the last ones may be padding (`FlatLayout`)."""
    numel = sum(map(prod, shapes))
    size = max(1, -(-numel // world_size))
    cuts = [min(rank * size, numel) for rank in range(world_size + 1)]
    return [_share([span], size) for span in pairwise(cuts)]


def rows(shapes: Shapes, world_size: int) -> list[Share]:
    """Of each parameter as many rows as `torch.chunk` gives a rank, perhaps none, in room for the most that one has."""
    starts = accumulate(map(prod, shapes), initial=0)
    cut = [list(_rows(shape, start, world_size)) for shape, start in zip(shapes, starts, strict=False)]
    room = sum(stop - start for (start, stop), *_ in cut)  # the first rank has the most
    return [_share([spans[rank] for spans in cut], room) for rank in range(world_size)]


def matrices(owners: Sequence[int]) -> Placement:
    """Each parameter whole on one rank; `owners` has their ranks in order, as `balanced` gives them."""

    def owned(shapes: Shapes, world_size: int) -> list[Share]:
        spans = pairwise(accumulate(map(prod, shapes), initial=0))
        owned_spans = list(zip(owners, spans, strict=True))
        return [_share([span for owner, span in owned_spans if owner == rank]) for rank in range(world_size)]

    return owned


def balanced(sizes: Sequence[int], world_size: int) -> list[int]:
    """An owner for each matrix: the largest first, each to the rank that has the least so far.

    The fullest rank then has at most 4/3 - 1/(3N) of what the best division would give it.
    Source: Graham 1969, "Bounds on Multiprocessing Timing Anomalies", theorem 2.
    """
    loads, owners = [0] * world_size, [0] * len(sizes)
    for place in sorted(range(len(sizes)), key=lambda place: -sizes[place]):
        owners[place] = loads.index(min(loads))
        loads[owners[place]] += sizes[place]
    return owners


def imbalance(sizes: Sequence[int], owners: Sequence[int], world_size: int) -> float:
    """How much more the fullest rank owns than the mean: 1.0 is even, N is all of it on one rank."""
    loads = [0] * world_size
    for size, owner in zip(sizes, owners, strict=True):
        loads[owner] += size
    return max(loads) * world_size / (sum(loads) or 1)


class System(NamedTuple):
    """Where parameters, gradients and optimizer state lie, by the placements' names, and how many `replicas` there are.

    With several, N ranks are so many groups: each has everything among its ranks, and they add up their gradients.
    """

    parameters: str
    gradients: str
    optimizer_state: str
    replicas: int = 1


SYSTEMS = {
    "ddp": System("replicated", "replicated", "replicated"),
    "zero1": System("replicated", "replicated", "flat"),
    "zero2": System("replicated", "flat", "flat"),
    "zero3": System("flat", "flat", "flat"),
    "fsdp2": System("rows", "rows", "rows"),
    "hsdp": System("rows", "rows", "rows", replicas=2),
    "muon-replicated": System("replicated", "replicated", "replicated"),
    "muon-owners": System("replicated", "matrices", "matrices"),
    "muon-rows": System("rows", "rows", "rows"),
}
"""Systems by what they place where; those with Muon by what they do with its matrices (the rest: their files)."""


def system_of(parameters: str, gradients: str, optimizer_state: str, replicas: int = 1) -> str:
    """The name of the first system that places so: `ENGINES[system_of("flat", "flat", "flat")]` is ZeRO-3.

    Raises:
        ValueError: no engine places so.
    """
    wanted = System(parameters, gradients, optimizer_state, replicas)
    if found := [name for name, system in SYSTEMS.items() if system == wanted]:
        return found[0]
    ways = "; ".join(f"{name}: {', '.join(system[:3])}" for name, system in SYSTEMS.items())
    raise ValueError(
        f"no engine has parameters {parameters}, gradients {gradients} and optimizer state {optimizer_state} in "
        f"{replicas} replicas: choose one of ({ways})"
    )


def held(system: System, cut: Placement, shapes: Shapes, world_size: int, rank: int) -> dict[str, int]:
    """Elements of parameters, gradients and optimizer state that `rank` holds at the update.

    Optimizers update a shard of a flat with its padding; of rows they get a view without it.

    Args:
        system: a row of `SYSTEMS`.
        cut: the placement of what is not replicated; `flat` where all is, since it lies in padded flats then, too.
        shapes: those of one flat's parameters; the sum over flats is the model.
        world_size: N.
        rank: which one.
    """
    shares = cut(shapes, world_size // system.replicas)
    whole, mine = sum(share.size for share in shares), shares[rank % len(shares)]
    found = {
        category: whole if getattr(system, category) == "replicated" else mine.size for category in System._fields[:3]
    }
    return found | ({"optimizer_state": mine.numel} if system.optimizer_state == "rows" else {})


def sent(
    system: System, cut: Placement, shapes: Shapes, world_size: int, rank: int, *, gathers: int | None = None
) -> int:
    """Elements that `rank` sends in a step; arguments as for `held`.

    Everything that others own goes to them as a gradient, and what a rank owns goes to all others: once after the
    update where parameters are replicated, else before forward and before backward, `gathers` times (None: twice). With
    N equal shares each is (N - 1)/N of the whole, a pass of ZeRO's section 7. Replicas all-reduce their shares.
    """
    shares = cut(shapes, world_size // system.replicas)
    whole, mine = sum(share.size for share in shares), shares[rank % len(shares)].size
    if gathers is None:
        gathers = 1 if system.parameters == "replicated" else 2
    between = 2 * mine * (system.replicas - 1) // system.replicas
    return whole - mine + gathers * (len(shares) - 1) * mine + between


def _share(spans: Sequence[tuple[int, int]], room: int = 0) -> Share:
    """A share of these spans, filled up to `room` elements."""
    present = tuple((start, stop) for start, stop in spans if start < stop)
    return Share(present, max(0, room - sum(stop - start for start, stop in present)))


def _rows(shape: Sequence[int], start: int, world_size: int) -> Iterator[tuple[int, int]]:
    """Each rank's rows of one parameter that begins at element `start`; a single number is one row."""
    count = shape[0] if shape else 1
    width, most = prod(shape[1:]), -(-count // world_size)
    return pairwise(start + width * min(rank * most, count) for rank in range(world_size + 1))
