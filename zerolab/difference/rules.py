"""What a parting means: each rule tests its hypotheses on the numbers, and says the first that holds, or nothing."""

import math
from collections.abc import Callable, Collection, Iterator, Mapping
from functools import wraps
from itertools import combinations
from typing import Any, ParamSpec

from zerolab.difference.runs import Piece, Run, Step, Vector, dot, length, minus

TIED = "tied weights came apart: tie them after the model is made, moved or loaded, and before it is wrapped"
FROZEN = "it is frozen in one run: set requires_grad before the wrapper and the optimizer are made"
UNEQUAL_START = "the ranks began with unequal weights: seed them alike, or broadcast rank 0's weights before training"
OTHER_START = "they begin with other weights: another seed, another number of draws before, or another checkpoint"
EARLIER = (
    "they came apart before the first step that both recorded: record both from step 1 on, or where they are alike"
)
STATE = "the optimizer's state was not there at the resume, or belongs to another run: load its state_dict, too"
BUFFERS = "buffers came apart: broadcast them before the forward (broadcast_buffers=True), or keep none that change"
SEEDS = "all ranks use the same dropout masks: add the rank to the seed once the model is made"
OTHER_SEEDS = "dropout draws different numbers, so nothing after it can be compared: give both runs the same seed"
NOT_HELD = "no optimizer has it: it was made before the model was sharded, replaced or extended; make it afterwards"
NO_GRADIENT = "it gets no gradient: it was detached, frozen, or computed under no_grad, or its gradient was dropped"
MORE = "it trains in BAD alone: in GOOD it is frozen or detached, or its gradient is dropped"

OVERFLOW = (
    "the scaler found a number that is not finite and left the update out, which is right: record both from a step on "
    "in which the scale has come down, or begin with a smaller one (init_scale)"
)
SCALED = "scaled once more or not at all, by clipping, by a loss scale or by hand"
IN_PIECES = "Muon updated each shard by itself, and orthogonalises whole matrices: give each an owner that has it whole"
NO_MASTER = "the optimizer updates low-precision weights: there is no fp32 master copy, and small updates are lost"
ROUNDED = "the fp32 weights are copied back from rounded ones after each update: small updates are lost"

BROKEN_GRADIENT = "the backward or the reduction makes them: a division by zero, or a number too large for its dtype"
BROKEN_UPDATE = "the update makes them: its lr, its eps or the optimizer's state is zero, too large, or not finite"

Vectors = Mapping[str, Vector]
Given = ParamSpec("Given")


def _first(rule: Callable[Given, Iterator[str]]) -> Callable[Given, str]:
    """The rule as what it yields first; empty where nothing that it knows fits."""

    @wraps(rule)
    def meaning(*args: Given.args, **keywords: Given.kwargs) -> str:
        return next(rule(*args, **keywords), "")

    return meaning


def beside(one: float, two: float) -> str:
    """Two losses that differ, in as many digits as tell them apart: the last ones differ between processors, too."""
    apart = abs(one - two) / max(abs(one), abs(two))
    digits = max(5, 3 - math.floor(math.log10(apart))) if math.isfinite(apart) else 5
    return f"{one:.{digits}g} in GOOD, {two:.{digits}g} in BAD"


@_first
def batches(good_run: Run, bad_run: Run, good: Step, bad: Step) -> Iterator[str]:
    """What other rows mean."""
    forwards = [len(rank["losses"]) for rank in bad.ranks]
    most, least = max(forwards), min(forwards)
    if least < most and len({len(rank["losses"]) for rank in good.ranks}) == 1:
        late = ", ".join(str(rank) for rank, count in enumerate(forwards) if count == most)
        yield f"rank {late} made {most} backwards before its update, others {least}: it left an update out"
    first, *others = (good.rows[rank] for rank in good.served)
    for other, rank in combinations(bad.served, 2) if not any(map(first.same, others)) else ():
        if bad.rows[rank].count and bad.rows[rank].same(bad.rows[other]):
            sampled = "give the sampler num_replicas and rank, or take every Nth row"
            yield f"rank {rank} has the rows of rank {other}: {sampled}"
    before = bad_run.steps.get(bad.number - 1)
    after = good_run.steps.get(good.number + 1)
    alike = good_run.world_size == bad_run.world_size
    for rank, these in enumerate(bad.rows):
        if before is not None and these.count and these.same(before.rows[rank]):
            yield f"rank {rank} has the rows of its step before: it repeated a batch"
        if alike and after is not None and these.count and these.same(after.rows[rank]):
            yield f"rank {rank} has what it has one step later in GOOD: it skipped a batch"
    ours, theirs = good.all_rows, bad.all_rows
    n, m = ours.count, theirs.count
    if n != m:
        yield f"the batch of all ranks together has {m} rows and not {n}: lr and noise mean something else"
    elif ours.are_listed and theirs.are_listed and not {*ours.hashes} & {*theirs.hashes}:
        yield "none of the rows is the same: other data, another order, or a sampler whose epoch was not set"


@_first
def loss(good: float, bad: float, step: Step, *, same_rows: bool) -> Iterator[str]:
    """What another loss means; `same_rows` if the runs are known to have them."""
    for what, factor in (("micro-batches", step.micro), ("ranks", len(step.ranks))):
        if factor > 1 and math.isclose(bad, good * factor, rel_tol=1e-3):
            yield f"it is {factor} times as large, the number of {what}: the loss is not divided by it"
        if factor > 1 and math.isclose(bad * factor, good, rel_tol=1e-3):
            yield f"it is divided once more by {factor}, the number of {what}"
    same, other = ("weights and rows", "") if same_rows else ("weights", "other data, ")
    yield f"the same {same} give another loss: {other}another forward, loss function, mask or precision"


@_first
def apart(good: Step, bad: Step, names: list[str], slack: float) -> Iterator[str]:
    """What copies of gradients mean that are not the same on all ranks."""
    whole = good.signed("read")
    copies = [{name: found.signed for (name, _), found in reversed(mine.items())} for mine in bad.by_rank("read")]
    if all(_same(mine, rank["local"], names, slack) for mine, rank in zip(copies, bad.ranks, strict=True)):
        why = "no_sync() also surrounds the last micro-batch, or " if bad.micro > 1 else ""
        yield f"each rank uses its own gradient, which was never averaged: {why}the reduction is missing"
    factors = [_common(whole, mine, names, slack) for mine in copies]
    if all(factors):
        each = ", ".join(f"{factor:.4g}" for factor in factors if factor)
        yield f"each rank has the right gradient times a factor of its own ({each}): each clips by its own norm"
    if _same({name: _mean_of_copies(bad, name) for name in names}, whole, names, slack):
        yield (
            "the mean of the ranks' copies is GOOD's: each group of ranks averages by itself, and nothing averages "
            "across groups (under HSDP the all-reduce over the replicas is missing)"
        )


def _mean_of_copies(step: Step, name: str) -> Vector:
    """The whole tensor's signed sums, of each piece the mean over the ranks that have it."""
    pieces: dict[int, list[Vector]] = {}
    for mine in step.by_rank("read"):
        for (other, start), found in mine.items():
            if other == name:
                pieces.setdefault(start, []).append(found.signed)
    means = [[sum(each) / len(copies) for each in zip(*copies, strict=True)] for copies in pieces.values()]
    return tuple(map(sum, zip(*means, strict=True)))


@_first
def gradient(good: Step, bad: Step, before: Step | None, far: list[str], slack: float) -> Iterator[str]:
    """What another gradient means."""
    ours, theirs = good.signed("read"), bad.signed("read")
    if factor := _common(ours, theirs, far, slack):
        few = f" in {len(far)} of {len(ours)} tensors" if len(far) < len(ours) else ""
        yield f"it is GOOD's times {factor:.5g}{few}: {_scaled(factor, good, bad, few)}"
    if _each_by_its_own(good, bad, far, slack):
        yield (
            "each rank's shard is GOOD's times a number of its own: the norm of a shard was taken for that of the "
            "whole; sum the squares over ranks before the root"
        )
    # With a slack of 1 anything would be as near to the old gradient as to nothing.
    old = before.signed("read") if before is not None and slack < 1 else {}
    left = {name: length(minus(minus(theirs[name], ours[name]), old[name])) for name in far if name in old}
    if all(name in old and left[name] <= slack * length(old[name]) for name in far):
        yield "it is GOOD's plus that of the step before: zero_grad() was forgotten"
    if bad.micro > 1 and _same(theirs, bad.mean_signed("last"), far, slack):
        yield f"only the last of {bad.micro} micro-batches is in it: zero_grad() comes too early, between them"
    for rank, each in enumerate(bad.ranks if len(bad.ranks) > 1 else []):
        if _same(theirs, each["local"], far, slack):
            yield f"it is rank {rank}'s own gradient: that of the other ranks is left out"
    found, also = ([step.whole("read")[name] for name in far] for step in (bad, good))
    coarse, numel = sum(p.coarse for p in found), sum(p.numel for p in found)
    if coarse > 0.5 * numel and (less := sum(p.coarse for p in also)) < 0.1 * numel:
        yield f"{coarse} of {numel} numbers are ones that bf16 has, {less} in GOOD: reduced or kept in bf16"
    if _same(ours, bad.mean_signed("local"), far, slack):
        yield "the ranks' own gradients are right, and what the optimizer reads is not their mean: look between them"


@_first
def _scaled(factor: float, good: Step, bad: Step, few: str) -> Iterator[str]:
    """What a factor means; `few` says in how many tensors it is, empty for all."""
    if bad.scale != 1 and _is(factor * bad.scale, 1):
        yield f"divided twice by the loss's scale of {bad.scale:g}; only scaler.unscale_(optimizer) is to do so"
    if bad.scale != 1 and _is(factor, bad.scale):
        yield (
            "the loss's scale is still in it; update by scaler.step(optimizer), and call scaler.unscale_(optimizer) "
            "before gradients are clipped or looked at"
        )
    for number, what, also in ((len(bad.ranks), "ranks", " and not averaged"), (bad.micro, "micro-batches", "")):
        if number > 1 and _is(factor, number):
            yield f"summed over {number} {what}{also}; divide by their number"
        if number > 1 and _is(factor * number, 1):
            yield f"divided by the {number} {what} once more than needed"
    norm, other = (math.sqrt(sum(each.squares for each in step.whole("read").values())) for step in (bad, good))
    # All is smaller, and its norm such a number as people clip at.
    if factor < 1 and not few and math.isclose(norm, float(f"{norm:.1g}"), rel_tol=1e-3):
        yield f"its norm is {norm:.4g}, and GOOD's {other:.4g}: clipped in BAD, as DeepSpeed does by itself"
    yield SCALED


@_first
def setting(run: Run, step: Step, name: str, key: str, value: Any) -> Iterator[str]:
    """What another setting means."""
    mine = step.settings()[name][key]
    if key == "weight_decay" and value and not mine:
        yield "weight decay on what has none in GOOD, such as biases and norms: put these into a group without"
    if key == "lr" and all(isinstance(each, (int, float)) for each in (mine, value)):
        for number, other in run.steps.items():
            if number > step.number and math.isclose(other.settings().get(name, {}).get(key, math.nan), value):
                yield f"GOOD has this lr in step {number}: the schedule is ahead, and is stepped more than once a step"
        if mine:
            yield f"the lr is {value / mine:.4g} times GOOD's"


def moves(step: Step) -> dict[str, Vector]:
    """How far each tensor moved in a step, as signed sums."""
    before, end = step.signed("before"), step.signed("end")
    return {name: minus(end[name], before[name]) for name in before if name in end}


def copies(step: Step) -> str:
    """What copies of parameters mean that are not the same after an update."""
    moments = zip(step.by_rank("before"), step.by_rank("end"), strict=True)
    same = [bool(a) and all(key in b and a[key].exact == b[key].exact for key in a) for a, b in moments]
    still = [str(rank) for rank, stood in enumerate(same) if stood]
    if still and len(still) < len(step.ranks):
        return f"nothing moved on rank {', '.join(still)}: it made no update, or did not get the others'"
    return "the ranks updated otherwise: gradient, settings or state differ, or an update was not sent to all"


@_first
def update(bad: Step, far: list[str], moved: list[dict[str, Vector]], slack: float) -> Iterator[str]:
    """What another update means."""
    before, end = bad.whole("before"), bad.whole("end")
    if all(before[name].exact == end[name].exact for name in far):
        if set(far) - bad.settings().keys():
            yield f"{len(far)} tensors did not move, and no optimizer has them: make it after the model is complete"
        yield f"{len(far)} tensors did not move at all: an update was left out, or not brought back into them"
    stood = _stood(bad)
    for name in far:
        for rank, pieces in enumerate(stood):
            if {still for (other, _), still in pieces.items() if other == name} == {True}:
                yield f"rank {rank} did not move its shard of {name}: it was not updated"
    if factor := _common(moved[0], moved[1], far, 0.02):
        yield f"it is GOOD's step times {factor:.4g}: {_lengthened(factor, bad, far)}"
    if set(far) <= bad.by_muon() and all(bad.pieces()[name] > 1 for name in far):
        yield IN_PIECES
    elif slack <= 0.01:  # in coarse precision it would see patterns in rounding
        yield from _decayed(bad.signed("before"), far, moved)
        yield from _partly(far, moved)


def _lengthened(factor: float, bad: Step, far: list[str]) -> str:
    """What a factor of a step means."""
    owners = bad.owners()
    shared = [ranks for ranks in (owners.get(name, []) for name in far) if _is(len(ranks), factor)]
    if len(shared) == len(far) and {len(owners[name]) for name in owners if name not in far} == {1}:
        return f"ranks {' and '.join(map(str, shared[0]))} updated it both, and each shard is to have one owner"
    is_twice = _is(factor, 2) and max(rank["updates"] for rank in bad.ranks) > 1
    return "the update is made twice" if is_twice else "the update or its lr is scaled"


def _decayed(weights: Vectors, far: list[str], moved: list[dict[str, Vector]]) -> Iterator[str]:
    extra = {name: minus(moved[1][name], moved[0][name]) for name in far}
    ratios = [-dot(extra[n], weights[n]) / max(dot(weights[n], weights[n]), 1e-300) for n in far]
    fits = [
        length(minus(extra[n], weights[n], -ratio)) <= 0.1 * length(extra[n])
        for n, ratio in zip(far, ratios, strict=True)
    ]
    if all(fits) and max(ratios) - min(ratios) <= 0.1 * abs(ratios[0]):
        yield f"{abs(ratios[0]):.3g} of the weights are {'taken off' if ratios[0] > 0 else 'left'}: weight decay"


def _partly(far: list[str], moved: list[dict[str, Vector]]) -> Iterator[str]:
    """Whether what is missing and what is there are at right angles, as two parts of one tensor are."""
    pairs = [(moved[0][name], moved[1][name]) for name in far]
    missing = [minus(whole, there) for whole, there in pairs]
    if all(
        length(there) < length(whole) and abs(dot(there, rest)) <= 0.5 * length(there) * length(rest)
        for (whole, there), rest in zip(pairs, missing, strict=True)
    ):
        whole, there = pairs[0]
        part = f"about {100 * dot(there, whole) / max(dot(whole, whole), 1e-300):.0f} % of the first tensor's step"
        yield f"only a part of it moved, {part}: a shard was not updated"


def _is(one: float, other: float) -> bool:
    return math.isclose(one, other, rel_tol=0.01)


def _same(one: Vectors, other: Vectors, names: Collection[str], slack: float) -> bool:
    """Whether these tensors are the same in both, but for rounding."""
    both = [(tuple(one.get(name, ())), tuple(other.get(name, ()))) for name in names]
    return all(a and b and length(minus(a, b)) <= slack * max(length(a), length(b)) for a, b in both)


def _factor(pairs: list[tuple[Vector, Vector]], slack: float) -> float | None:
    """The one number by which the first of each pair is the second; None if there is none."""
    size = sum(dot(a, a) for a, _ in pairs)
    if not size:
        return None
    factor = sum(dot(a, b) for a, b in pairs) / size
    rest = math.sqrt(sum(length(minus(b, a, factor)) ** 2 for a, b in pairs))
    return factor if rest <= max(slack, 1e-4) * abs(factor) * math.sqrt(size) else None


def _common(good: Vectors, bad: Vectors, names: list[str], slack: float) -> float | None:
    """The one number by which all of these are another run's; None if there is none, or if it is 1."""
    factor = _factor([(good[name], bad[name]) for name in names if name in good and name in bad], slack)
    return factor if factor is not None and abs(factor - 1) > slack else None


def _each_by_its_own(good: Step, bad: Step, far: list[str], slack: float) -> bool:
    """Whether every rank's shards are another run's, each rank's times a number of its own."""
    ours, theirs = good.by_rank("read"), bad.by_rank("read")
    if [mine.keys() for mine in ours] != [mine.keys() for mine in theirs]:
        return False
    factors = []
    for one, two in zip(ours, theirs, strict=True):
        pairs = [(one[key].signed, two[key].signed) for key in one if key[0] in far and one[key].squares]
        factors += [_factor(pairs, slack)] if pairs else []
    known = [factor for factor in factors if factor is not None]
    return 1 < len(known) == len(factors) and max(known) - min(known) > slack * max(known)


def _stood(step: Step) -> list[dict[Piece, bool]]:
    """Whether each of every rank's pieces stood still in a step; of pieces that are all zeros nobody can tell."""
    moments = zip(step.by_rank("before"), step.by_rank("end"), strict=True)
    return [{key: a[key].exact == b[key].exact for key in a if key in b and a[key].squares} for a, b in moments]
