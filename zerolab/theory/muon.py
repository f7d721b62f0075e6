"""Muon in closed form: what a rank holds and sends under its three placements, to the byte, in fp32.

Sources: of the update Jordan et al. 2024, "Muon: An optimizer for hidden layers in neural networks"
(https://kellerjordan.github.io/posts/muon/): one momentum a matrix, where Adam has two moments, and five Newton-Schulz
iterations. Of what shards hold and send, as for the stages, ZeRO (arXiv 1910.02054) sections 5 and 7 and FSDP (arXiv
2304.11277) section 3.2; of whole matrices on owners torchtitan's pull request 3502, of the all-to-all of rows its pull
request 4060 and Canzona (arXiv 2602.06079). "Muon is Scalable for LLM Training" (arXiv 2502.16982, section 2) gathers
each matrix on all ranks instead, and repeats its update there.
"""

from collections.abc import Mapping, Sequence
from math import prod
from typing import NamedTuple

from zerolab.engines.placement import SYSTEMS, Placement, Shapes, balanced, flat, held, matrices, rows, sent
from zerolab.names import check_count, check_known
from zerolab.theory.forms import FP32_BYTES, STEP_COUNTER_BYTES

PLACED = ("muon-replicated", "muon-owners", "muon-rows")
"""Rows of `placement.SYSTEMS`: those of the matrices, and of the rest, too, but for ZeRO-2's beside owners."""


class Unit(NamedTuple):
    """The shapes of one unit's parameters: the matrices that Muon updates, and the rest."""

    matrices: Shapes
    rest: Shapes
    is_root: bool = False


def state_bytes(stage: str, units: Sequence[Unit], world_size: int, rank: int = 0) -> dict[str, int]:
    """Bytes of parameters, gradients and optimizer state of `rank` at the update, padding and step counters included.

    With M elements in matrices, of which the rank owns m, and R in the rest, padding apart:

    * muon-replicated: 4(M + R), 4(M + R) and 4M + 8R.
    * muon-owners: 4(M + R), 4m + 4R/N and 4m + 8R/N.
    * muon-rows: an Nth of what muon-replicated has, in whole rows.

    Raises ValueError for another stage, a world size below 1, or a rank outside it.
    """
    total = {"parameters": 0, "gradients": 0, "optimizer_state": 0}
    for unit, cuts in _cut(stage, units, world_size, rank):
        for kind, (system, cut) in cuts.items():
            shapes = getattr(unit, kind)
            for category, numel in held(SYSTEMS[system], cut, shapes, world_size, rank).items() if shapes else ():
                if category != "optimizer_state":
                    total[category] += FP32_BYTES * numel
                elif kind == "rest":
                    total[category] += 2 * FP32_BYTES * numel
                else:  # of matrices alone, not of the padding beside them
                    total[category] += FP32_BYTES * min(numel, sum(map(prod, shapes)))
        # Of a flat one, of DTensors each its own.
        counters = len(unit.rest) if stage == "muon-rows" else bool(unit.rest)
        total["optimizer_state"] += STEP_COUNTER_BYTES * counters
    return total


def traffic_bytes(stage: str, units: Sequence[Unit], world_size: int, rank: int = 0) -> int:
    """Bytes that `rank` sends in a step.

    With the letters of `state_bytes`, in elements: muon-replicated 2(M + R)(N - 1)/N; muon-owners M - m of gradients,
    (N - 1)m of updated matrices and 2R(N - 1)/N; muon-rows 3(M + R)(N - 1)/N, but for the root unit, which FSDP2
    gathers once, and about 2M(N - 1)/N^2 for the rows' way to their owners and back.

    Raises ValueError as `state_bytes`.
    """
    numel = 0
    for unit, cuts in _cut(stage, units, world_size, rank):
        gathers = 1 if stage == "muon-rows" and unit.is_root else None
        for kind, (system, cut) in cuts.items():
            if shapes := getattr(unit, kind):
                numel += sent(SYSTEMS[system], cut, shapes, world_size, rank, gathers=gathers)
    if stage == "muon-rows":
        numel += _between_owners(units, world_size, rank)
    return FP32_BYTES * numel


def newton_schulz_flops(shape: Sequence[int], iterations: int = 5) -> int:
    """FLOPs of one matrix's update: each iteration multiplies m x n with n x m, m x m with m x m, and m x m with m x n.

    m is the shorter side: 4m^2 n + 2m^3 an iteration, at most 6m^2 n (Jordan et al.).
    """
    shorter, longer = sorted(shape)
    return iterations * (4 * shorter**2 * longer + 2 * shorter**3)


def owners_of(units: Sequence[Unit], world_size: int) -> list[list[int]]:
    """The owner of each matrix, unit by unit, balanced over the whole model. Raises ValueError without any ranks."""
    check_count("world size", world_size)
    sizes = [[shape[0] * shape[1] for shape in unit.matrices] for unit in units]
    owners = iter(balanced([size for of_unit in sizes for size in of_unit], world_size))
    return [[next(owners) for _ in of_unit] for of_unit in sizes]


def _cut(
    stage: str, units: Sequence[Unit], world_size: int, rank: int
) -> list[tuple[Unit, Mapping[str, tuple[str, Placement]]]]:
    """Each unit with the row of `SYSTEMS` and the cut of its matrices and of its rest, if there is such a rank."""
    check_known("placement of Muon", stage, PLACED)
    check_count("world size", world_size)
    if rank not in range(world_size):
        raise ValueError(f"rank is {rank!r}, and {world_size} ranks are 0 to {world_size - 1}: choose one of them")
    if stage == "muon-owners":
        return [
            (unit, {"matrices": (stage, matrices(owners)), "rest": ("zero2", flat)})
            for unit, owners in zip(units, owners_of(units, world_size), strict=True)
        ]
    cut = rows if stage == "muon-rows" else flat
    return [(unit, {"matrices": (stage, cut), "rest": (stage, cut)}) for unit in units]


def _between_owners(units: Sequence[Unit], world_size: int, rank: int) -> int:
    """Elements that go to the owners of matrices, and rows of its own matrices that `rank` sends back to the others."""
    numel = 0
    for unit, owners in zip(units, owners_of(units, world_size), strict=True):
        for shape, owner in zip(unit.matrices, owners, strict=True):
            mine = rows([shape], world_size)[rank].numel
            numel += shape[0] * shape[1] - mine if owner == rank else mine
    return numel
