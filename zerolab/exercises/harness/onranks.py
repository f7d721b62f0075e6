"""Exercises whose answer is a function on every rank: judged by what each rank gets, and by what the ranks sent."""

import os
import random
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass, replace
from functools import partial
from itertools import repeat
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
import torch.distributed as dist

from zerolab.exercises.harness.guard import finished_answers_out_of_reach
from zerolab.exercises.harness.kept import nothing_lost
from zerolab.exercises.harness.limit import at_most
from zerolab.exercises.harness.outside import memory_outside_of_torch
from zerolab.exercises.harness.plain import FEW, describe, displaced, first_difference, likeness, plain, same
from zerolab.exercises.harness.recorded import SLACK, judge_waits, outside_in_words, started
from zerolab.exercises.harness.settings import settings_restored
from zerolab.exercises.harness.targets import Judgement, Run, Targets
from zerolab.recording.events import Event, RankRecording
from zerolab.runtime.observers import tell

if TYPE_CHECKING:
    from zerolab.exercises.harness.exercise import Exercise
    from zerolab.recording.recording import Recording

Guarded = Callable[[Callable[..., Any]], AbstractContextManager[None]]
Arguments = list[tuple[Any, ...]]
"""One tuple of arguments for each rank; numpy arrays in it reach the answer as tensors, files as their paths."""


@dataclass(frozen=True, kw_only=True)
class RankTargets(Targets):
    """What a function on every rank must reach.

    Args:
        draw: of a `random.Random` and the number of ranks, the arguments of each rank.
        wanted: of all ranks' arguments and a rank, what that rank must get.
        reads: what is judged of what the answer returns, taken on every rank; None takes all.
        in_place: the number of the argument that holds the result afterwards; None judges what is returned.
        collectives: of the number of ranks, the words of the exchanges that a rank starts, as a recording says them.
            Their order is free (a wrong one shows in the value); None allows any. A rank alone may leave them out.
        peers: of a rank and the number of ranks, whom it may send to; None allows everybody.
        groups: of one rank's arguments, the rank, and the number of ranks, the ranks among which each kind of exchange
            is due, by its word; None allows any.
        sent: of one rank's arguments and the number of ranks, the elements that it sends; None allows any.
        scratch: of the same, the bytes that it may hold beside its arguments; None allows any.
        seen: what else is read off a recording, of it and all ranks' arguments, before the value is judged.
        looks_outside: whether `seen` asks what a rank held outside of torch; `scratch` does in any case.
        tolerance: of numbers, relative to those above 1.
    """

    draw: Callable[[random.Random, int], Arguments]
    wanted: Callable[[Arguments, int], Any]
    reads: Callable[[Any], Any] | None = None
    in_place: int | None = None
    collectives: Callable[[int], tuple[str, ...]] | None = None
    peers: Callable[[int, int], tuple[int, ...]] | None = None
    groups: Callable[[tuple[Any, ...], int, int], dict[str, tuple[int, ...]]] | None = None
    sent: Callable[[tuple[Any, ...], int], float] | None = None
    scratch: Callable[[tuple[Any, ...], int], int] | None = None
    seen: Callable[["Recording", Arguments], Iterator[Judgement]] | None = None
    looks_outside: bool = False
    tolerance: float = 1e-6

    def runs(self, exercise: "Exercise", world_size: int, seed: int, seconds: float) -> Iterator[Run]:
        """One run on drawn arguments."""
        arguments = self.draw(random.Random(f"{seed} {world_size}"), world_size)

        def judge(recording: "Recording") -> Iterator[Judgement]:
            # First, because a result that nobody waited for is right or wrong by luck.
            yield "waits", _first(judge_waits(rank) for rank in recording.ranks)
            if self.seen is not None:
                yield from self.seen(recording, arguments)
            given, outside = zip(*recording.results or [], strict=True)
            yield "value", self._judge_value(exercise, arguments, given)
            made = _first(map(self._judge_exchanges, recording.ranks, arguments))
            yield "collectives", made or self._judge_sent(exercise, recording, arguments)
            if self.scratch is not None:
                free = [self._free(arguments, rank) for rank in range(world_size)]
                yield "scratch", _first(map(judge_scratch, recording.ranks, free, outside))

        ours = self.config(seconds)
        yours = replace(ours, looks_outside=self.looks_outside or self.scratch is not None)
        yield Run(trial, (arguments, yours), judge, ours=(arguments, ours))

    def config(self, seconds: float) -> "RunConfig":
        """How an answer is run."""
        guarded = partial(finished_answers_out_of_reach, also=self.forbids, allows=self.allows)
        return RunConfig(self.reads or self.in_place, guarded, seconds)

    def _free(self, arguments: Arguments, rank: int) -> int:
        """The bytes beside a rank's arguments: scratch, and what it returns."""
        returned = 0 if self.in_place is not None else self.wanted(arguments, rank).nbytes
        return returned + (self.scratch(arguments[rank], len(arguments)) if self.scratch is not None else 0)

    def _judge_value(self, exercise: "Exercise", arguments: Arguments, given: Sequence[Any]) -> str:
        ranks = range(len(arguments))
        right = [plain(self.wanted(arguments, rank)) for rank in ranks]
        misses = [rank for rank in ranks if not same(given[rank], right[rank], self.tolerance)]
        if not misses:
            return ""
        # Told before what another rank got, which may be for want of it; but a mistake that has a name is told by that.
        silent = next((rank for rank in misses if given[rank] is None), None)
        why = self._explain_miss(misses[0], given[misses[0]], right[misses[0]])
        for wrong in exercise.wrong:
            # Wrong answers on ranks are not run here; they say in closed form what they would give.
            if wrong.gives is not None:
                # Rank by rank, because each may be a training: most mistakes are told apart on the first one.
                mistaken = (plain(wrong.gives(arguments, rank)) for rank in ranks)
                if silent != misses[0] and all(map(same, given, mistaken, repeat(self.tolerance))):
                    return f"{why}. Your function {wrong.says}."
        if silent is not None:
            # Where `reads` makes something else of what is returned, that is not what the answer should return.
            missing = ". Is a `return` missing?" if self.reads else f"; it should return {describe(right[silent])}."
            return f"`{exercise.name}` returned nothing on rank {silent}{missing}"
        return f"{why}. {self._related(exercise, arguments, given[misses[0]], right, misses[0])}".rstrip()

    def _related(self, exercise: "Exercise", arguments: Arguments, given: Any, right: list[Any], rank: int) -> str:
        """What a rank's wrong value is otherwise, in sentences; empty if that is not known."""
        if isinstance(given, np.ndarray) and given.size >= FEW:
            for other, wanted in enumerate(right):
                if same(given, wanted, self.tolerance) and not same(right[rank], wanted, self.tolerance):
                    return f"It is what rank {other} should get."
            for name, argument in zip(exercise.arguments, arguments[rank], strict=True):
                if isinstance(argument, np.ndarray) and same(given, plain(argument), self.tolerance):
                    missing = "." if self.in_place is None else ": the result has to be written into it."
                    return f"It is `{name}` as your function got it{missing}"
        alike = likeness(given, right[rank], self.tolerance), displaced(given, right[rank], self.tolerance)
        return " ".join(filter(None, alike))

    def _explain_miss(self, rank: int, given: Any, right: Any) -> str:
        part = ""
        if isinstance(given, dict) and isinstance(right, dict) and given.keys() == right.keys():
            part = next(key for key in right if not same(given[key], right[key], self.tolerance))
            given, right = given[part], right[part]
        why = f"rank {rank} got {describe(given)}{f' for `{part}`' if part else ''}; right is {describe(right)}"
        where = first_difference(given, right, self.tolerance)
        return f"{why}: {where}" if where else why

    def _judge_exchanges(self, rank: RankRecording, arguments: tuple[Any, ...]) -> str:
        made = _exchanges(rank)
        names = [event.op for event in made]
        if self.collectives is not None and (made or rank.world_size > 1):  # alone there is nobody to send to
            wanted = self.collectives(rank.world_size)
            if Counter(names) != Counter(wanted):
                return f"rank {rank.rank} started {_list(names)}; the target is {_list(wanted)}."
        if self.peers is not None and rank.world_size > 1:
            allowed = self.peers(rank.rank, rank.world_size)
            for event in made:
                if event.op == "send" and event.peer not in allowed:
                    only = " and ".join(map(str, allowed))
                    return f"rank {rank.rank} sent to rank {event.peer}; it may send to rank {only} only."
        due = self.groups(arguments, rank.rank, rank.world_size) if self.groups is not None else {}
        for event in made:
            among = event.group or tuple(range(rank.world_size))
            right = due.get(event.op, among)
            if set(among) != set(right):
                return f"rank {rank.rank} started {event.op} in the group {list(among)}; it is due in {list(right)}."
        return ""

    def _judge_sent(self, exercise: "Exercise", recording: "Recording", arguments: Arguments) -> str:
        if self.sent is None:
            return ""

        def in_bytes(elements: Callable[[tuple[Any, ...], int], float]) -> list[int]:
            return [round(elements(each, len(arguments)) * _element_size(each)) for each in arguments]

        sent, target = [sum(_bytes_sent(rank).values()) for rank in recording.ranks], in_bytes(self.sent)
        if sent == target:
            return ""
        rank = next(rank for rank, wanted in enumerate(target) if sent[rank] != wanted)
        size = "1 byte" if sent[rank] == 1 else f"{sent[rank]:,} bytes"
        parts = ", ".join(f"{size:,} by {op}" for op, size in _bytes_sent(recording.ranks[rank]).items() if size)
        why = f"rank {rank} sent {size}; the target is {target[rank]:,}." + (f" It sent {parts}." if parts else "")
        named = (wrong.says for wrong in exercise.wrong if wrong.sends is not None and in_bytes(wrong.sends) == sent)
        return next((f"{why} Your function {says}." for says in named), why)


def _exchanges(rank: RankRecording) -> list[Event]:
    """Those that carry something; the trial itself has two barriers."""
    return [event for event in started(rank) if event.op != "barrier"]


def _bytes_sent(rank: RankRecording) -> Counter[str]:
    """What a rank sent by each kind of exchange."""
    sent: Counter[str] = Counter()
    for event in _exchanges(rank):
        sent[event.op] += event.logical_bytes
    return sent


def judge_scratch(rank: RankRecording, allowed: int, outside: int) -> str:
    """Empty if the rank held no more than `allowed` bytes beside its arguments and the buffers of collectives.

    `outside` are the bytes that it held outside of torch.
    """
    others = [event.live.get("other", 0) for event in rank.events if event.op != "before recording"]
    # The first event is the trial's barrier: by then there are the arguments, and no more.
    held = max(others) - others[0]
    if max(held, outside) <= allowed + SLACK:
        return ""
    if outside > held:
        return outside_in_words(rank.rank, outside, allowed)
    return f"rank {rank.rank} held {held:,} bytes beside its arguments; {allowed:,} are enough."


@dataclass(frozen=True, slots=True)
class RunConfig:
    """How a function on ranks is run.

    Attributes:
        judged: the number of an argument, or a function of what is returned; None takes all of that.
        guarded: what keeps finished answers out of the reach of an answer, but for those that it may use.
        seconds: after how many it is ended.
        looks_outside: whether what a rank holds outside of torch is looked at. That takes as long as the answer itself.
    """

    judged: int | Callable[[Any], Any] | None
    guarded: Guarded
    seconds: float
    looks_outside: bool = False


def trial(answer: Callable[..., Any], arguments: Arguments, config: RunConfig) -> Any:
    """What this rank gets from the answer, as plain data, and the most bytes that it was seen to hold outside of torch.

    Raises OutOfTime.
    """
    judged = config.judged
    mine = [_as_the_answer_gets_it(item) for item in arguments[dist.get_rank()]]
    # The memory: an answer may give the tensor another one, `tensor.data = ...`, and whoever shares it sees nothing.
    in_place = mine[judged].detach() if isinstance(judged, int) else None
    dist.barrier()  # all ranks begin at once, and the recording tells what is there before the answer runs
    # Within a step the recording tells the highest moment, whether or not there is an event.
    tell(lambda observer: observer.beginning())
    with (
        settings_restored(),
        config.guarded(answer),
        nothing_lost(),
        at_most(config.seconds),
        memory_outside_of_torch(answer, config.looks_outside) as outside,
    ):
        returned = answer(*mine)
        returned = judged(returned) if callable(judged) else returned
        dist.barrier()  # what an answer did not wait for may still come in: until then nothing of it is freed
    # Below the last event: what this copies is not the answer's.
    return plain(returned if in_place is None else in_place), outside.highest


def _as_the_answer_gets_it(item: Any) -> Any:
    if isinstance(item, np.ndarray):
        return torch.tensor(item)
    return os.fspath(item) if isinstance(item, os.PathLike) else item


def _list(names: list[str] | tuple[str, ...]) -> str:
    counts = Counter(names)
    return ", ".join(name if count == 1 else f"{count} {name}" for name, count in counts.items()) or "nothing"


def _element_size(arguments: tuple[Any, ...]) -> int:
    return next((item.itemsize for item in arguments if isinstance(item, np.ndarray)), 1)


def _first(sentences: Iterator[str]) -> str:
    return next(filter(None, sentences), "")
