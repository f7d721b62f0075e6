"""The fingerprints of one run, read from its ranks' files, and those of whole tensors made of their pieces'."""

import json
import math
import os
from collections import Counter
from dataclasses import dataclass
from functools import cached_property, reduce
from operator import add
from pathlib import Path
from typing import Any

from zerolab import files
from zerolab.difference.fingerprint import BATCH, SIGNS, VERSION, Print, folder_of

# The distance between neighbouring numbers at 1.
EPSILON = {"float64": 2.0**-52, "float32": 2.0**-23, "float16": 2.0**-10, "bfloat16": 2.0**-7}
EPSILON |= {"complex128": 2.0**-52, "complex64": 2.0**-23, "complex32": 2.0**-10}
Vector = tuple[float, ...]
Piece = tuple[str, int]
"""The name of a tensor, and where in it the piece begins."""


@dataclass(frozen=True)
class Rows:
    """What one rank saw of its rows in a step, or all ranks together."""

    count: int
    sum: int  # of their hashes, mod 2^64
    hashes: list[int]  # of many rows only the first ones'

    @property
    def are_listed(self) -> bool:
        """Whether each row has its hash in the list."""
        return len(self.hashes) == self.count

    def same(self, other: "Rows") -> bool:
        """Whether these are the other's rows, in any order."""
        return (self.count, self.sum) == (other.count, other.sum)


def empty_step(number: int) -> dict[str, Any]:
    """What one rank notes of a step, before it has noted anything."""
    step: dict[str, Any] = {"step": number, "updates": 0, "scale": 1.0, "skipped": False}
    step |= {name: {} for name in ("buffers", "lines", "local", "last", "read", "settings", "state")}
    step |= {name: [] for name in ("losses", "random", "compute", "unseen", "made")}
    return step | {"rows": {"count": 0, "sum": 0, "hashes": []}}


class Step:
    """One step of all ranks."""

    def __init__(self, number: int, ranks: list[dict[str, Any]]) -> None:
        self.number, self.ranks = number, ranks

    def whole(self, moment: str) -> dict[str, Print]:
        """Each tensor's fingerprint, made of one piece from each place; of copies the lowest rank's."""
        pieces: dict[str, dict[int, Print]] = {}
        for mine in self.by_rank(moment):
            for (name, start), found in mine.items():
                pieces.setdefault(name, {}).setdefault(start, found)
        return {name: reduce(add, found.values()) for name, found in pieces.items()}

    def signed(self, moment: str) -> dict[str, Vector]:
        """Each tensor's signed sums."""
        return {name: found.signed for name, found in self.whole(moment).items()}

    def by_rank(self, moment: str) -> list[dict[Piece, Print]]:
        """Each rank's pieces."""
        kept = [(rank.get(moment) or {}).items() for rank in self.ranks]
        return [{(name, start): Print.of_list(rest) for name, those in mine for start, *rest in those} for mine in kept]

    def apart(self, moment: str) -> dict[str, list[int]]:
        """Tensors of which ranks have copies that are not the same to the bit, and the first such two ranks."""
        first: dict[tuple[str, int, int], tuple[int, int]] = {}
        found: dict[str, list[int]] = {}
        for rank, mine in enumerate(self.by_rank(moment)):
            for (name, start), piece in mine.items():
                other, exact = first.setdefault((name, start, piece.numel), (rank, piece.exact))
                if piece.exact != exact:
                    found.setdefault(name, [other, rank])
        return found

    def mean_signed(self, kind: str) -> dict[str, Vector]:
        """The mean over ranks of their own gradients, as signed sums, where every rank saw its own."""
        if not all(rank[kind] for rank in self.ranks):
            return {}
        names, zero = {name for rank in self.ranks for name in rank[kind]}, [0.0] * SIGNS
        columns = {name: zip(*(rank[kind].get(name, zero) for rank in self.ranks), strict=True) for name in names}
        return {name: tuple(sum(each) / len(self.ranks) for each in found) for name, found in columns.items()}

    @cached_property
    def rows(self) -> list[Rows]:
        """Each rank's."""
        return [Rows(**rank["rows"]) for rank in self.ranks]

    @cached_property
    def served(self) -> list[int]:
        """The ranks with a batch of their own: of those that share one, as tensor parallelism has them, the lowest."""
        found: list[int] = []
        for rank, (rows, step) in enumerate(zip(self.rows, self.ranks, strict=True)):
            shared = (other for other in step.get("sharing", ()) if other < rank)
            if not any(rows.same(self.rows[other]) for other in shared):
                found.append(rank)
        return found

    @cached_property
    def all_rows(self) -> Rows:
        """Those of all ranks together."""
        rows = [self.rows[rank] for rank in self.served]
        return Rows(
            sum(r.count for r in rows), sum(r.sum for r in rows) % (1 << 64), [h for r in rows for h in r.hashes]
        )

    @cached_property
    def unseen(self) -> set[str]:
        """What was there in a form that cannot be read."""
        return {what for rank in self.ranks for what in rank["unseen"]}

    def hides(self, name: str) -> bool:
        """Whether a parameter has a gradient that cannot be read, such as a sparse one."""
        return any(what.startswith(f"gradient of {name} (") for what in self.unseen)

    @cached_property
    def saw_batch(self) -> bool:
        """Whether rows were seen, and every tensor of theirs could be read."""
        return bool(self.all_rows.count) and not any(what.startswith(BATCH) for what in self.unseen)

    def has_rows_beside(self, other: "Step") -> bool:
        """Whether the rows of two runs are of the same models: one that gets another's outputs has none of its own."""
        made = [{model for rank in step.ranks for model in rank["made"]} for step in (self, other)]
        return made[0] == made[1] and bool(self.all_rows.count) and bool(other.all_rows.count)

    @cached_property
    def loss(self) -> float | None:
        """The mean over ranks; None where a backward began at no single number, or ranks had unequal shares."""
        losses = [sum(rank["losses"]) for rank in self.ranks]
        equal = len({rows.count for rows in self.rows}) == 1 and all(rank["losses"] for rank in self.ranks)
        return sum(losses) / len(losses) if equal else None

    @property
    def micro(self) -> int:
        """How many micro-batches a step has: backwards before the update."""
        return max(len(rank["losses"]) for rank in self.ranks)

    @cached_property
    def skipped(self) -> bool:
        """Whether a scaler has found an overflow and left the update out."""
        return any(rank["skipped"] for rank in self.ranks)

    @cached_property
    def scale(self) -> float:
        """By what a scaler multiplied the loss; 1 where there is none."""
        return float(max(rank["scale"] for rank in self.ranks))

    @cached_property
    def is_finite(self) -> bool:
        """Whether there is no inf or NaN in its gradients, nor after it in the weights that have one."""
        read, end = self.whole("read"), self.whole("end")
        return all(found.is_finite for name in read for found in (read[name], end.get(name, read[name])))

    def owners(self) -> dict[str, list[int]]:
        """The ranks whose optimizers have each parameter, or a piece of it."""
        having = [rank["settings"].keys() for rank in self.ranks]
        return {name: [rank for rank, names in enumerate(having) if name in names] for name in self.settings()}

    def line(self, moment: str) -> str:
        """The line of the script at which something happened, as rank 0 saw it; empty if none is known."""
        return str(self.ranks[0]["lines"].get(moment, ""))

    def settings(self) -> dict[str, dict[str, Any]]:
        """Each parameter's settings in the optimizer that has it."""
        return {name: each for rank in self.ranks for name, each in rank["settings"].items()}

    def by_muon(self) -> set[str]:
        """The parameters that Muon updates."""
        return {name for name, each in self.settings().items() if "ns_steps" in each}

    def pieces(self) -> Counter[str]:
        """In how many pieces each parameter lies after the update."""
        return Counter(name for name, _ in set().union(*self.by_rank("end")))

    def counters(self) -> dict[str, float]:
        """Updates that each parameter has had, as the optimizer counts them."""
        return {name: count for rank in self.ranks for name, count in rank["state"].get("step", {}).items()}


class Run:
    """One run's fingerprints.

    Raises:
        ValueError: there are none, or some rank's are missing or no such file.
    """

    def __init__(self, place: str | os.PathLike[str]) -> None:
        path = Path(place)
        folder = path if path.is_dir() else folder_of(path)
        found = sorted(folder.glob("rank-*.json"))
        if not found:
            raise ValueError(f"there are no fingerprints in {str(folder)!r}: record the run with --fingerprints")
        ranks = [_read(file) for file in found]
        ranks.sort(key=lambda rank: rank["rank"])
        self.world_size = ranks[0]["world_size"]
        if [rank["rank"] for rank in ranks] != list(range(self.world_size)):
            have = ", ".join(str(rank["rank"]) for rank in ranks)
            raise ValueError(f"{str(folder)!r} has rank {have} of {self.world_size}: all files of one run are needed")
        self.about: dict[str, list[Any]] = {name: each for rank in ranks for name, each in rank["parameters"].items()}
        self.splits: set[str] = {reason for rank in ranks for reason in rank["splits"]}
        of = [{step["step"]: step for step in rank["steps"]} for rank in ranks]
        numbers = sorted(set.intersection(*map(set, of)))
        self.steps = {number: Step(number, [steps[number] for steps in of]) for number in numbers}

    @cached_property
    def unseen(self) -> list[str]:
        """What was there and is not in the fingerprints."""
        found = sorted(set().union(*(step.unseen for step in self.steps.values())))
        blind = sum(not step.all_rows.count for step in self.steps.values())
        of = "" if blind == len(self.steps) else f" in {blind} of {len(self.steps)} steps"
        return [*found, *[f"rows of the batches{of}"] * bool(blind)]

    @cached_property
    def epsilon(self) -> float:
        """The coarsest rounding of a forward's results or the parameters in it."""
        kinds = {kind for step in self.steps.values() for rank in step.ranks for kind in rank["compute"]}
        kinds |= {dtype for _, _, dtype in self.about.values()}
        return max((EPSILON.get(kind, 0.0) for kind in kinds), default=EPSILON["float32"])


def otherwise_named(good: Run, bad: Run) -> str:
    """What is wrong with two runs whose names differ by a prefix alone; empty if they do not."""
    for whose, run, other in (("BAD", bad, good), ("GOOD", good, bad)):
        prefix = min(run.about, default="").removesuffix(min(other.about, default=""))
        if prefix and {prefix + name for name in other.about} == run.about.keys():
            return (
                f"these may be runs of one model, but {whose} has {prefix!r} before the names of all parameters, and "
                "fingerprints are of names, too: its outermost module is another, as with and without Lightning's ddp "
                "strategy; record both runs with the same one"
            )
    return ""


def alike(one: Any, other: Any) -> bool:
    """Whether two settings are the same; one that lies in a tensor has been rounded to fp32."""
    if isinstance(one, list) and isinstance(other, list):
        return len(one) == len(other) and all(map(alike, one, other))
    if isinstance(one, (int, float)) and isinstance(other, (int, float)):
        return math.isclose(one, other, rel_tol=EPSILON["float32"])
    return bool(one == other)


def length(vector: Vector) -> float:
    """The estimated length of what has these signed sums."""
    return math.sqrt(dot(vector, vector))


def dot(one: Vector, other: Vector) -> float:
    """The estimated inner product."""
    return sum(a * b for a, b in zip(one, other, strict=True)) / max(1, len(one)) if one else 0.0


def minus(one: Vector, other: Vector, factor: float = 1.0) -> Vector:
    """The signed sums of `one - factor * other`."""
    return tuple(a - factor * b for a, b in zip(one, other, strict=True))


def distance(one: Print, two: Print) -> float:
    """The estimated length of the difference of two tensors."""
    return length(minus(two.signed, one.signed))


def close(one: Print, two: Print, allowed: float, least: float = 0.0, *, infinite: bool = True) -> bool:
    """Whether two tensors are the same but for so much of their length; `infinite` if both have inf or NaN."""
    if one.dtype == two.dtype and one.exact == two.exact:
        return True
    if not (one.is_finite or two.is_finite):
        return infinite
    return within(distance(one, two), allowed * max(one.size, two.size, least), one.squares, two.squares)


def within(apart: float, most: float, one: float, two: float) -> bool:
    """Whether two numbers are so close; of inf and NaN, which are at no distance, whether both are the same."""
    if math.isfinite(one) and math.isfinite(two):
        return apart <= most
    return one == two or (math.isnan(one) and math.isnan(two))


def _read(path: Path) -> dict[str, Any]:
    files.check_readable(path)
    try:
        with files.named(path):
            contents = json.loads(path.read_text("utf-8"))
        version, sound = contents["fingerprints"], isinstance(contents["steps"], list) and contents["rank"] >= 0
    except (ValueError, KeyError, TypeError, RecursionError) as error:  # a million open brackets are no JSON, either
        raise ValueError(f"{str(path)!r} holds no fingerprints of a rank: {error!r}") from error
    if version != VERSION or not sound:
        raise ValueError(f"{str(path)!r} has fingerprints of version {version!r}; this zerolab reads {VERSION}")
    return dict(contents)
