"""What a parting means: each rule tests one hypothesis on the numbers, and none that fails says anything."""

import math
from typing import Any

from zerolab.difference.prints import Print
from zerolab.difference.runs import Run, Step, Vector, dot, length, minus

TIED = "tied weights came apart: tie them after the model is made, moved or loaded, and before it is wrapped"
FROZEN = "it is frozen in one run: set requires_grad before the wrapper and the optimizer are made"
UNEQUAL_START = "the ranks began with unequal weights: seed them alike, or broadcast rank 0's weights before training"
OTHER_START = "they begin with other weights: another seed, another number of draws before, or another checkpoint"
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


def batches(good_run: Run, bad_run: Run, good: Step, bad: Step) -> str:  # noqa: PLR0911  # one for each hypothesis
    """What other rows mean."""
    forwards = [len(rank["losses"]) for rank in bad.ranks]
    most = max(forwards)
    if min(forwards) < most and len({len(rank["losses"]) for rank in good.ranks}) == 1:
        late = ", ".join(str(rank) for rank, count in enumerate(forwards) if count == most)
        return f"rank {late} made {most} backwards before its update, others {min(forwards)}: it left an update out"
    for rank, mine in enumerate(bad.rows):
        for other in range(rank):
            if mine.count and mine.same(bad.rows[other]) and not any(good.rows[0].same(r) for r in good.rows[1:]):
                return (
                    f"rank {rank} has the rows of rank {other}: give the sampler num_replicas and rank, "
                    "or take every Nth row"
                )
    before = bad_run.steps.get(bad.number - 1)
    after = good_run.steps.get(good.number + 1)
    alike = good_run.world_size == bad_run.world_size
    for rank, these in enumerate(bad.rows):
        if before is not None and these.count and these.same(before.rows[rank]):
            return f"rank {rank} has the rows of its step before: it repeated a batch"
        if alike and after is not None and these.count and these.same(after.rows[rank]):
            return f"rank {rank} has what it has one step later in GOOD: it skipped a batch"
    ours, theirs = good.all_rows, bad.all_rows
    n, m = ours.count, theirs.count
    if n != m:
        return f"the batch of all ranks together has {m} rows and not {n}: lr and noise mean something else"
    if ours.are_listed and theirs.are_listed and not {*ours.hashes} & {*theirs.hashes}:
        return "none of the rows is the same: other data, another order, or a sampler whose epoch was not set"
    return ""


def loss(good: float, bad: float, step: Step, *, same_rows: bool) -> str:
    """What another loss means; `same_rows` if the runs are known to have them."""
    micro = max(len(rank["losses"]) for rank in step.ranks)
    for what, factor in (("micro-batches", micro), ("ranks", len(step.ranks))):
        if factor > 1 and math.isclose(bad, good * factor, rel_tol=1e-3):
            return f"it is {factor} times as large, the number of {what}: the loss is not divided by it"
        if factor > 1 and math.isclose(bad * factor, good, rel_tol=1e-3):
            return f"it is divided once more by {factor}, the number of {what}"
    if not same_rows:
        return "the same weights give another loss: other data, another forward, loss function, mask or precision"
    return "the same weights and rows give another loss: another forward, loss function, mask or precision"


def apart(good: Step, bad: Step, names: list[str], slack: float) -> str:
    """What copies of gradients mean that are not the same on all ranks."""
    whole = good.whole("read")
    local = [rank["local"] for rank in bad.ranks]
    own = [
        all(name in local[r] and _near(_piece(bad, r, name), local[r][name], slack) for name in names)
        for r in range(len(local))
    ]
    if all(own):
        micro = max(len(rank["losses"]) for rank in bad.ranks)
        why = "no_sync() also surrounds the last micro-batch, or " if micro > 1 else ""
        return f"each rank uses its own gradient, which was never averaged: {why}the reduction is missing"
    factors = [_common(whole, {n: _piece(bad, r, n) for n in names}, names, slack) for r in range(len(local))]
    if all(factors):
        each = ", ".join(f"{factor:.4g}" for factor in factors if factor)
        return f"each rank has the right gradient times a factor of its own ({each}): each clips by its own norm"
    if all(name in whole and _near(_mean_of_copies(bad, name), whole[name].signed, slack) for name in names):
        return (
            "the mean of the ranks' copies is GOOD's: each group of ranks averages by itself, and nothing averages "
            "across groups (under HSDP the all-reduce over the replicas is missing)"
        )
    return ""


def _mean_of_copies(step: Step, name: str) -> Vector:
    """The whole tensor's signed sums, of each piece the mean over the ranks that have it."""
    pieces: dict[int, list[Vector]] = {}
    for rank in range(len(step.ranks)):
        for (other, start), found in step.of_rank("read", rank).items():
            if other == name:
                pieces.setdefault(start, []).append(found.signed)
    means = [[sum(each) / len(copies) for each in zip(*copies, strict=True)] for copies in pieces.values()]
    return tuple(map(sum, zip(*means, strict=True)))


def gradient(good: Step, bad: Step, before: Step | None, far: list[str], slack: float) -> str:
    """What another gradient means."""
    return (
        _scaled(good, bad, far, slack)
        or _left_over(good, bad, before, far, slack)
        or _of_one_rank(bad, far, slack)
        or _coarse(good, bad, far)
        or _beside_its_mean(good, bad, far, slack)
    )


def _scaled(good: Step, bad: Step, far: list[str], slack: float) -> str:
    ours, theirs = good.whole("read"), bad.whole("read")
    few = f" in {len(far)} of {len(ours)} tensors" if len(far) < len(ours) else ""
    factor = _common(ours, theirs, far, slack)
    if not factor:
        if not _pieces(good, bad, far, slack):
            return ""
        return (
            "each rank's shard is GOOD's times a number of its own: the norm of a shard was taken for that of the "
            "whole; sum the squares over ranks before the root"
        )
    times = f"it is GOOD's times {factor:.5g}{few}"
    return f"{times}: {_why_scaled(factor, bad) or _clipped(factor, good, bad, few) or SCALED}"


def _why_scaled(factor: float, bad: Step) -> str:
    """What a factor means by its size."""
    if bad.scale != 1 and _is(factor * bad.scale, 1):
        return f"divided twice by the loss's scale of {bad.scale:g}; only scaler.unscale_(optimizer) is to do so"
    if bad.scale != 1 and _is(factor, bad.scale):
        return (
            "the loss's scale is still in it; update by scaler.step(optimizer), and call scaler.unscale_(optimizer) "
            "before gradients are clipped or looked at"
        )
    micro = max(len(rank["losses"]) for rank in bad.ranks)
    for number, ranks in ((len(bad.ranks), True), (micro, False)):
        if number > 1 and _is(factor, number):
            summed = f"summed over {number} {'ranks and not averaged' if ranks else 'micro-batches'}"
            return f"{summed}; divide by their number"
        if number > 1 and _is(factor * number, 1):
            return f"divided by the {number} {'ranks' if ranks else 'micro-batches'} once more than needed"
    return ""


def _clipped(factor: float, good: Step, bad: Step, few: str) -> str:
    """Whether all is smaller, and its norm such a number as people clip at."""
    norm, other = (math.sqrt(sum(each.squares for each in step.whole("read").values())) for step in (bad, good))
    if factor < 1 and not few and math.isclose(norm, float(f"{norm:.1g}"), rel_tol=1e-3):
        return f"its norm is {norm:.4g}, and GOOD's {other:.4g}: clipped in BAD, as DeepSpeed does by itself"
    return ""


def _left_over(good: Step, bad: Step, before: Step | None, far: list[str], slack: float) -> str:
    ours, theirs = good.whole("read"), bad.whole("read")
    if before is not None:
        old = before.whole("read")
        extra = {n: minus(theirs[n].signed, ours[n].signed) for n in far}
        if all(n in old and length(minus(extra[n], old[n].signed)) <= slack * length(old[n].signed) for n in far):
            return "it is GOOD's plus that of the step before: zero_grad() was forgotten"
    last, micro = bad.mean_signed("last"), max(len(rank["losses"]) for rank in bad.ranks)
    if micro > 1 and all(n in last and _near(theirs[n].signed, last[n], slack) for n in far):
        return f"only the last of {micro} micro-batches is in it: zero_grad() comes too early, between them"
    return ""


def _of_one_rank(bad: Step, far: list[str], slack: float) -> str:
    theirs = bad.whole("read")
    for rank, each in enumerate(bad.ranks if len(bad.ranks) > 1 else []):
        mine = each["local"]
        if all(n in mine and _near(theirs[n].signed, mine[n], slack) for n in far):
            return f"it is rank {rank}'s own gradient: that of the other ranks is left out"
    return ""


def _coarse(good: Step, bad: Step, far: list[str]) -> str:
    theirs, ours = ([step.whole("read")[n] for n in far] for step in (bad, good))
    found, also, numel = sum(p.coarse for p in theirs), sum(p.coarse for p in ours), sum(p.numel for p in theirs)
    if found > 0.5 * numel and also < 0.1 * numel:
        return f"{found} of {numel} numbers are ones that bf16 has, {also} in GOOD: reduced or kept in bf16"
    return ""


def _beside_its_mean(good: Step, bad: Step, far: list[str], slack: float) -> str:
    local, ours = bad.mean_signed("local"), good.whole("read")
    if local and all(n in local and _near(local[n], ours[n].signed, slack) for n in far):
        return "the ranks' own gradients are right, and what the optimizer reads is not their mean: look between them"
    return ""


def setting(run: Run, step: Step, name: str, key: str, value: Any) -> str:
    """What another setting means."""
    mine = step.settings()[name][key]
    if key == "weight_decay" and value and not mine:
        return "weight decay on what has none in GOOD, such as biases and norms: put these into a group without"
    if key == "lr" and all(isinstance(each, (int, float)) for each in (mine, value)):
        for number, other in run.steps.items():
            if number > step.number and math.isclose(other.settings().get(name, {}).get(key, math.nan), value):
                return f"GOOD has this lr in step {number}: the schedule is ahead, and is stepped more than once a step"
        return f"the lr is {value / mine:.4g} times GOOD's" if mine else ""
    return ""


def moves(step: Step) -> dict[str, Vector]:
    """How far each tensor moved in a step, as signed sums."""
    before, end = step.whole("before"), step.whole("end")
    return {name: minus(end[name].signed, before[name].signed) for name in before if name in end}


def copies(step: Step) -> str:
    """What copies of parameters mean that are not the same after an update."""
    still = [rank for rank in range(len(step.ranks)) if _stood_still(step, rank)]
    if still and len(still) < len(step.ranks):
        return f"nothing moved on rank {', '.join(map(str, still))}: it made no update, or did not get the others'"
    return "the ranks updated otherwise: gradient, settings or state differ, or an update was not sent to all"


def update(bad: Step, far: list[str], moved: list[dict[str, Vector]], slack: float) -> str:
    """What another update means."""
    before, end = bad.whole("before"), bad.whole("end")
    still = [name for name in far if before[name].exact == end[name].exact]
    if still == far:
        if set(far) - bad.settings().keys():
            return f"{len(far)} tensors did not move, and no optimizer has them: make it after the model is complete"
        return f"{len(far)} tensors did not move at all: an update was left out, or not brought back into them"
    lost = [(name, rank) for name in far for rank in _still_shards(bad, name)]
    if lost:
        return f"rank {lost[0][1]} did not move its shard of {lost[0][0]}: it was not updated"
    factor, owners = _common(moved[0], moved[1], far, 0.02), bad.owners()
    if factor:
        shared = [ranks for ranks in (owners.get(name, []) for name in far) if _is(len(ranks), factor)]
        if len(shared) == len(far) and {len(owners[name]) for name in owners if name not in far} == {1}:
            ranks = " and ".join(map(str, shared[0]))
            twice = f"ranks {ranks} updated it both, and each shard is to have one owner"
            return f"it is GOOD's step times {factor:.4g}: {twice}"
        why = "the update is made twice" if _is(factor, 2) and max(r["updates"] for r in bad.ranks) > 1 else ""
        return f"it is GOOD's step times {factor:.4g}: {why or 'the update or its lr is scaled'}"
    if set(far) <= bad.by_muon() and all(bad.pieces()[name] > 1 for name in far):
        found = IN_PIECES
    elif slack > 0.01:  # in coarse precision what follows would see patterns in rounding
        found = ""
    else:
        found = _decayed(bad, far, moved) or _partly(far, moved)
    return found


def _decayed(bad: Step, far: list[str], moved: list[dict[str, Vector]]) -> str:
    before, ratios = bad.whole("before"), []
    for name in far:
        weights, extra = before[name].signed, minus(moved[1][name], moved[0][name])
        ratio = -dot(extra, weights) / max(dot(weights, weights), 1e-300)
        if length(minus(extra, weights, -ratio)) > 0.1 * length(extra):
            return ""
        ratios.append(ratio)
    if ratios and max(ratios) - min(ratios) <= 0.1 * abs(ratios[0]):
        return f"{abs(ratios[0]):.3g} of the weights are {'taken off' if ratios[0] > 0 else 'left'}: weight decay"
    return ""


def _partly(far: list[str], moved: list[dict[str, Vector]]) -> str:
    part = [dot(moved[1][n], moved[0][n]) / max(dot(moved[0][n], moved[0][n]), 1e-300) for n in far]
    inside = [length(moved[1][n]) < length(moved[0][n]) and _is_part(moved, n) for n in far]
    if far and all(inside):
        return (
            f"only a part of it moved, about {100 * part[0]:.0f} % of the first tensor's step: a shard was not updated"
        )
    return ""


def _is(one: float, other: float) -> bool:
    return math.isclose(one, other, rel_tol=0.01)


def _near(one: Any, other: Any, slack: float) -> bool:
    return bool(one) and length(minus(tuple(one), tuple(other))) <= slack * max(length(one), length(other))


def _signed(found: Any) -> Vector:
    return found.signed if isinstance(found, Print) else tuple(found)


def _common(good: Any, bad: Any, names: list[str], slack: float) -> float | None:
    """The one number by which all of these are another run's; None if there is none."""
    pairs = [(_signed(good[name]), _signed(bad[name])) for name in names if name in good and bad.get(name)]
    size = sum(dot(a, a) for a, _ in pairs)
    if not pairs or not size:
        return None
    factor = sum(dot(a, b) for a, b in pairs) / size
    rest = math.sqrt(sum(length(minus(b, a, factor)) ** 2 for a, b in pairs))
    reached = abs(factor) * math.sqrt(size)
    return factor if reached and rest <= max(slack, 1e-4) * reached and abs(factor - 1) > slack else None


def _piece(step: Step, rank: int, name: str) -> Vector:
    return next((p.signed for (n, _), p in step.of_rank("read", rank).items() if n == name), ())


def _pieces(good: Step, bad: Step, far: list[str], slack: float) -> bool:
    """Whether every rank's shards are another run's, each rank's times a number of its own."""
    if len(good.ranks) != len(bad.ranks) or len(bad.ranks) < 2:
        return False
    factors = []
    for rank in range(len(bad.ranks)):
        one, two = good.of_rank("read", rank), bad.of_rank("read", rank)
        keys = [key for key in one if key[0] in far and key in two and one[key].squares]
        if one.keys() != two.keys():
            return False
        pairs = [(one[key].signed, two[key].signed) for key in keys]
        size = sum(dot(a, a) for a, _ in pairs)
        if size:
            factor = sum(dot(a, b) for a, b in pairs) / size
            rest = math.sqrt(sum(length(minus(b, a, factor)) ** 2 for a, b in pairs))
            if rest > max(slack, 1e-4) * abs(factor) * math.sqrt(size):
                return False
            factors.append(factor)
    return len(factors) > 1 and max(factors) - min(factors) > slack * max(factors)


def _stood_still(step: Step, rank: int) -> bool:
    one, two = step.of_rank("before", rank), step.of_rank("end", rank)
    return bool(one) and all(two.get(key) is not None and two[key].exact == each.exact for key, each in one.items())


def _still_shards(step: Step, name: str) -> list[int]:
    found = []
    for rank in range(len(step.ranks)):
        one, two = step.of_rank("before", rank), step.of_rank("end", rank)
        mine = [key for key in one if key[0] == name and key in two and one[key].squares]
        if mine and all(one[key].exact == two[key].exact for key in mine):
            found.append(rank)
    return found


def _is_part(moved: list[dict[str, Vector]], name: str) -> bool:
    """Whether what is missing and what is there are at right angles, as two parts of one tensor are."""
    there, missing = moved[1][name], minus(moved[0][name], moved[1][name])
    return abs(dot(there, missing)) <= 0.5 * length(there) * length(missing)
