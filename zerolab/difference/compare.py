"""Two runs, step by step and moment by moment: the first place where they part, and what fits it.

What is counted or named is compared exactly. Numbers are compared by the length of their difference, which the signed
sums estimate, next to a tolerance made of the coarser run's rounding `e` (2^-23 in fp32, 2^-7 in bf16), of the number
of parameters `d` through which a rounding travels, and of the summands `n` of a batch's mean:

    loss        2 e sqrt(d) + 8 2^-23 sqrt(n), of the larger loss
    gradient    four times that, of the tensor's own length or that of a tensor of its size with the run's mean square
    update      the same for SGD; Adam turns a gradient near zero into a whole step, so for it that part of the elements
                may go the other way (`_flips`)

times the number of steps so far, because what is rounded in one goes into the next. Muon computes in bf16 whatever the
model is in, so of its updates, and of all that comes after them, e is 2^-7.
"""

import math
import os
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass

from zerolab.difference import rules
from zerolab.difference.fingerprint import Print
from zerolab.difference.runs import EPSILON, Run, Step, alike, close, distance, length, minus, otherwise_named, within

ADAPTIVE = ("exp_avg_sq", "square_avg", "sum", "acc_delta")  # state by which a step's size is divided
OTHERS = "these are runs of other models"
READS = "gradients that the optimizer reads"


@dataclass(frozen=True)
class Parting:
    """Where two runs part: what was measured, and what it means, empty where nothing fits."""

    step: int
    phase: str
    tensors: tuple[str, ...]
    measured: str
    meaning: str = ""
    line: str = ""

    def __str__(self) -> str:
        """As the command prints it."""
        more = f" and {len(self.tensors) - 1} more" if len(self.tensors) > 1 else ""
        of = f": {self.tensors[0]}{more}" if self.tensors else ""
        unit = self.tensors[0].rpartition(".")[0] if self.tensors else ""
        lines = [f"They part in step {self.step}, {self.phase}{of}" + (f", in {unit}" if unit else "")]
        lines += [f"  line:     {self.line}"] * bool(self.line)
        lines += [f"  measured: {self.measured}"]
        lines += [f"  meaning:  {self.meaning or 'nothing known fits: look at what this line computes'}"]
        return "\n".join(lines)


@dataclass(frozen=True)
class Result:
    """What comes of a comparison; `parting` is None where there is no difference."""

    parting: Parting | None
    steps: tuple[int, ...]
    notes: tuple[str, ...]

    def __str__(self) -> str:
        """As the command prints it."""
        same = f"no difference in step {', '.join(map(str, self.steps))}"
        return "\n".join([str(self.parting or same), *(f"  note:     {note}" for note in self.notes)])


def compare(good: str | os.PathLike[str], bad: str | os.PathLike[str]) -> Result:
    """Compares the fingerprints of two runs.

    Args:
        good: the file of a recording with fingerprints, or their folder: the run that is right.
        bad: the same of the run that is to be explained; stage and number of ranks may be others.

    Raises:
        ValueError: fingerprints are missing, or the runs have other models or no step in common.
    """
    pair, notes = _Pair(Run(good), Run(bad)), []
    if pair.only_begins:
        what = " and ".join(pair.only_begins)
        notes.append(f"with {what} the loss depends on how ranks share a batch: beginnings and batches compared")
    for whose, run in (("GOOD", pair.good), ("BAD", pair.bad)):
        notes += [f"not seen in {whose}, and not compared: {', '.join(run.unseen)}"] * bool(run.unseen)
    lost = [
        number for number in pair.steps if not (pair.good.steps[number].is_finite or pair.bad.steps[number].is_finite)
    ]
    notes += [f"both have inf or NaN in step {number}: no distance can be told from them" for number in lost[:1]]
    return Result(next(pair.partings(), None), tuple(pair.steps), tuple(notes))


class _Pair:
    def __init__(self, good: Run, bad: Run) -> None:
        self.good, self.bad = good, bad
        others = sorted(good.about.keys() ^ bad.about.keys())
        if others:
            raise ValueError(otherwise_named(good, bad) or f"{OTHERS}: only one of them has {', '.join(others[:3])}")
        self.steps = sorted(good.steps.keys() & bad.steps.keys())
        if not self.steps:
            one, two = list(good.steps), list(bad.steps)
            raise ValueError(f"the runs have no step in common: {one} and {two}; record both with the same --steps")
        numels = [run.steps[self.steps[0]].whole("before") for run in (good, bad)]
        for name in sorted(numels[0].keys() & numels[1].keys()):
            has, also = (found[name].numel for found in numels)
            if has != also:
                raise ValueError(f"{OTHERS}: {name} has {has} elements, and {also}")
        self.epsilon = max(good.epsilon, bad.epsilon)
        splits = good.splits | bad.splits
        self.only_begins = sorted(splits) if good.world_size != bad.world_size else []
        self.depth = max(1, len(good.about))

    def partings(self) -> Iterator[Parting]:
        """All of them in the order in which they came about; the first explains the others."""
        for place, number in enumerate(self.steps):
            good, bad = self.good.steps[number], self.bad.steps[number]
            if not place:
                yield from self._setup(good)
                yield from self._beginning(good, bad)
            yield from self._batches(good, bad)
            yield from self._overflow(good, bad)
            yield from self._buffers(good, bad)
            yield from self._random(good, bad)
            if not self.only_begins:
                yield from self._losses(good, bad, place)
            yield from self._gradients(good, bad, place)
            yield from self._settings(good, bad)
            yield from self._updates(good, bad, place)

    # What each moment is asked.

    def _setup(self, step: Step) -> Iterator[Parting]:
        for name, (trains, tied, _) in self.good.about.items():
            also, other, _ = self.bad.about[name]
            if tied != other:
                said = f"in GOOD it is the tensor {tied}, in BAD {other}"
                yield Parting(step.number, "before it", (name,), said, rules.TIED)
            if trains != also:
                said = f"requires_grad is {trains}, then {also}"
                yield Parting(step.number, "before it", (name,), said, rules.FROZEN)

    def _beginning(self, good: Step, bad: Step) -> Iterator[Parting]:
        (apart, ranks), is_start = _apart(good, bad, "before"), good.number == 1
        if apart:
            said = f"{ranks} have other bits in {len(apart)} tensors, before {'any' if is_start else 'its'} update"
            why = rules.UNEQUAL_START if is_start else rules.EARLIER
            yield Parting(good.number, "parameters before it", apart, said, why)
        ours, theirs = good.whole("before"), bad.whole("before")
        both = [name for name in ours if name in theirs]
        # DeepSpeed makes its fp32 masters of weights that it has rounded first.
        rounded = self.epsilon if any(_coarse(found) > 0.9 for found in (ours, theirs)) else 0.0
        far = []
        for name in both:
            one, two = ours[name], theirs[name]
            allowed = max(rounded, 4 * _rounding(one, two))
            # Rounding makes no inf or NaN of a beginning, such as a mask's: other bits are other numbers.
            if not close(one, two, allowed, infinite=one.dtype != two.dtype):
                far.append(name)
        if far:
            by = distance(ours[far[0]], theirs[far[0]]) / max(ours[far[0]].size, 1e-300)
            much = f"; this one by {by:.2g} of its length" if math.isfinite(by) else ""
            said = f"{len(far)} of {len(both)} tensors differ{much}"
            why = rules.OTHER_START if is_start else rules.EARLIER
            yield Parting(good.number, "parameters before it", tuple(far), said, why)
        counts, also = good.counters(), bad.counters()
        for name in sorted((counts.keys() | also.keys()) & {*ours, *theirs}):
            done, other = counts.get(name, 0), also.get(name, 0)
            if done != other:
                said = f"the optimizer has counted {done:g} updates in GOOD, {other:g} in BAD"
                yield Parting(good.number, "optimizer state before it", (name,), said, rules.STATE, bad.line("update"))

    def _batches(self, good: Step, bad: Step) -> Iterator[Parting]:
        ours, theirs = good.all_rows, bad.all_rows
        if ours.same(theirs) or not good.has_rows_beside(bad):
            return
        said = f"GOOD's ranks have {ours.count} rows together, BAD's {theirs.count}; "
        if ours.are_listed and theirs.are_listed:
            said += f"{(Counter(ours.hashes) & Counter(theirs.hashes)).total()} are the same"
        else:
            said += "not all are the same"
        meaning = rules.batches(self.good, self.bad, good, bad)
        yield Parting(good.number, "batches", (), said, meaning, bad.line("forward"))

    @staticmethod
    def _overflow(good: Step, bad: Step) -> Iterator[Parting]:
        if good.skipped != bad.skipped:
            one, two = ("BAD", "GOOD") if bad.skipped else ("GOOD", "BAD")
            said = f"{one}'s scaler left the update out, at a scale of {max(good.scale, bad.scale):g}; {two} made it"
            yield Parting(good.number, "overflow", (), said, rules.OVERFLOW, bad.line("backward"))

    def _buffers(self, good: Step, bad: Step) -> Iterator[Parting]:
        apart, ranks = _apart(good, bad, "buffers")
        if apart:
            said = f"{ranks} have other values, and all of GOOD's the same"
            yield Parting(good.number, "buffers", apart, said, rules.BUFFERS, bad.line("forward"))

    def _random(self, good: Step, bad: Step) -> Iterator[Parting]:
        one, two = ([step.ranks[rank]["random"] for rank in step.served] for step in (good, bad))
        if len(two) > 1 and len(set(map(str, two))) < len(two) and len(set(map(str, one))) == len(one) > 1:
            said = "the states of the random generators of BAD's ranks are the same, those of GOOD's are not"
            yield Parting(good.number, "random numbers", (), said, rules.SEEDS, bad.line("forward"))
        if len(one) == len(two) and one != two:
            said = "the states of the random generators before the forward differ, and there is dropout"
            yield Parting(good.number, "random numbers", (), said, rules.OTHER_SEEDS, bad.line("forward"))

    def _losses(self, good: Step, bad: Step, place: int) -> Iterator[Parting]:
        one, two, allowed = good.loss, bad.loss, self._tolerance(good, place)
        if one is None or two is None or within(abs(one - two), allowed * max(abs(one), abs(two)), one, two):
            return
        said = f"{rules.beside(one, two)}; rounding explains {allowed:.2g} of it"
        same_rows = good.has_rows_beside(bad) and good.saw_batch and bad.saw_batch
        meaning = rules.loss(one, two, bad, same_rows=same_rows)
        yield Parting(good.number, "loss", (), said, meaning, bad.line("backward"))

    def _gradients(self, good: Step, bad: Step, place: int) -> Iterator[Parting]:
        ours, theirs, line = good.whole("read"), bad.whole("read"), bad.line("update")
        allowed = self._slack(good, place)
        hidden = {name for name in self.good.about if good.hides(name) or bad.hides(name)}
        trained = {name for name, (_, tied, _) in self.good.about.items() if tied == name} - hidden
        absent = [name for name in ours if name in trained and name not in theirs and ours[name].size]
        if absent:
            outside = [name for name in absent if name not in bad.settings()]
            said = f"{len(absent)} of {len(ours)} gradients that GOOD's optimizer reads are not there in BAD"
            meaning = rules.NOT_HELD if outside else rules.NO_GRADIENT
            yield Parting(good.number, READS, tuple(outside or absent), said, meaning, line)
        more = [name for name in theirs if name in trained and name not in ours and theirs[name].size]
        if more:
            said = f"BAD's optimizer reads {len(more)} gradients that GOOD's does not"
            yield Parting(good.number, READS, tuple(more), said, rules.MORE, line)
        apart, ranks = _apart(good, bad, "read")
        if apart:
            said = f"{ranks} read other bits in {len(apart)} tensors of {len(theirs)}"
            meaning = rules.apart(good, bad, sorted(apart), allowed)
            yield Parting(good.number, READS, apart, said, meaning, line)
        yield from self._finite(good, bad, "read", READS, rules.BROKEN_GRADIENT)
        if self.only_begins:
            return
        usual = _usual(ours)
        far = [n for n in ours if n in theirs and not close(ours[n], theirs[n], allowed, usual[n])]
        if far:
            name = max(far, key=lambda n: distance(ours[n], theirs[n]))
            by = distance(ours[name], theirs[name]) / max(ours[name].size, 1e-300)
            said = f"{len(far)} of {len(ours)} differ; {name} by {by:.3g} of its length"
            said += f", rounding explains {allowed:.2g}"
            meaning = rules.gradient(good, bad, self.bad.steps.get(good.number - 1), far, allowed)
            yield Parting(good.number, READS, tuple(far), said, meaning, line)

    def _settings(self, good: Step, bad: Step) -> Iterator[Parting]:
        ours, theirs, line = good.settings(), bad.settings(), bad.line("update")
        for name, settings in ours.items():
            for key in sorted(settings.keys() & theirs.get(name, {}).keys()):
                mine, other = settings[key], theirs[name][key]
                if not alike(mine, other):
                    said = f"{key} is {mine} in GOOD, {other} in BAD"
                    meaning = rules.setting(self.good, good, name, key, other)
                    yield Parting(good.number, "settings of the optimizer", (name,), said, meaning, line)

    def _updates(self, good: Step, bad: Step, place: int) -> Iterator[Parting]:
        line = bad.line("update")
        apart, ranks = _apart(good, bad, "end")
        if apart:
            said = f"after the update {ranks} have other bits in {len(apart)} tensors"
            yield Parting(good.number, "update", apart, said, rules.copies(bad), line)
        ends = good.whole("end"), bad.whole("end")
        coarse = [_coarse(end) for end in ends]
        if coarse[1] > 0.9 and coarse[0] < 0.5:
            mine, other = (f"{100 * part:.0f} %" for part in coarse)
            said = f"{other} of BAD's numbers after the update are ones that bf16 has, {mine} of GOOD's"
            kinds = [{each.dtype for each in end.values()} for end in ends]
            meaning = rules.NO_MASTER if kinds[1] != kinds[0] else rules.ROUNDED
            yield Parting(good.number, "update", tuple(ends[1]), said, meaning, line)
        yield from self._finite(good, bad, "end", "update", rules.BROKEN_UPDATE)
        if self.only_begins:
            return
        adapts = any(key in ADAPTIVE for rank in good.ranks for key in rank["state"])
        adapts |= any("betas" in each for each in good.settings().values())
        allowed, before = self._slack(good, place), good.whole("before")
        ours, theirs = moves = [rules.moves(step) for step in (good, bad)]
        noise = self._noise(good, place) if adapts else set()
        names = [name for name in ours if name in theirs and name not in noise]
        apart_by = {name: length(minus(theirs[name], ours[name])) for name in names}
        far = []
        for name in names:
            may = max(self._slack(good, place, name), _flips(allowed, before[name].numel) if adapts else 0.0)
            rounds = 4 * _rounding(before[name]) * before[name].size
            if apart_by[name] > may * max(length(ours[name]), length(theirs[name])) + rounds:
                far.append(name)
        if far:
            name = max(far, key=apart_by.__getitem__)
            by = apart_by[name] / max(length(ours[name]), 1e-300)
            said = f"{len(far)} of {len(names)} moved otherwise; {name} by {by:.3g} of its step in GOOD"
            meaning = rules.update(bad, far, moves, allowed)
            yield Parting(good.number, "update", tuple(far), said, meaning, line)

    @staticmethod
    def _finite(good: Step, bad: Step, moment: str, phase: str, meaning: str) -> Iterator[Parting]:
        ours, theirs = good.whole(moment), bad.whole(moment)
        far = tuple(name for name in ours if name in theirs and ours[name].is_finite != theirs[name].is_finite)
        if far:
            whose = "BAD" if ours[far[0]].is_finite else "GOOD"
            said = f"{len(far)} of {len(ours)} tensors have inf or NaN in {whose} alone"
            yield Parting(good.number, phase, far, said, meaning, bad.line("update"))

    # What rounding explains.

    def _tolerance(self, step: Step, place: int, name: str = "") -> float:
        rows, muon = step.all_rows.count, step.by_muon()
        epsilon = max(self.epsilon, EPSILON["bfloat16"] if name in muon or (place and muon) else 0.0)
        accumulated = EPSILON["float32"] * math.sqrt(max(1, rows))
        return (place + 1) * (2 * epsilon * math.sqrt(self.depth) + 8 * accumulated)

    def _slack(self, step: Step, place: int, name: str = "") -> float:
        return 4 * self._tolerance(step, place, name)

    def _noise(self, step: Step, place: int) -> set[str]:
        """Tensors whose gradient is no more than rounding: an adaptive optimizer makes whole steps of it."""
        found, limit = step.whole("read"), math.sqrt(self._slack(step, place))
        usual = _usual(found)
        return {name for name, each in found.items() if each.size < limit * usual[name]}


def _rounding(*found: Print) -> float:
    return max(EPSILON.get(each.dtype, 0.0) for each in found)


def _coarse(found: dict[str, Print]) -> float:
    """The part of the numbers that bf16 has."""
    return sum(each.coarse for each in found.values()) / max(1, sum(each.numel for each in found.values()))


def _flips(part: float, numel: int) -> float:
    """How far a step of Adam may differ, of its length, where this part of its elements may go the other way.

    Each that does differs by two steps; three standard deviations more of them, and half again, for it is estimated.
    """
    most = part * numel + 3 * math.sqrt(part * numel)
    return 1.5 * math.sqrt(4 * most / max(1, numel))


def _apart(good: Step, bad: Step, moment: str) -> tuple[tuple[str, ...], str]:
    """The tensors of which ranks have unequal copies in BAD alone, and the first such two ranks in words."""
    known = good.apart(moment)
    found = {name: ranks for name, ranks in bad.apart(moment).items() if name not in known}
    return tuple(found), "".join(f"ranks {one} and {two} of BAD" for one, two in [*found.values()][:1])


def _usual(found: dict[str, Print]) -> dict[str, float]:
    """The length that each tensor would have with the mean square of all that have no inf or NaN."""
    finite = [each for each in found.values() if each.is_finite]
    mean = sum(each.squares for each in finite) / max(1, sum(each.numel for each in finite))
    return {name: math.sqrt(mean * each.numel) for name, each in found.items()}
