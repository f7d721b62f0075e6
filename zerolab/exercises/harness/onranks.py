"""Exercises whose answer is a function on every rank: judged by what each rank gets, and by what the ranks sent."""

import os
import random
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass
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
from zerolab.exercises.harness.plain import describe, first_difference, plain, same
from zerolab.exercises.harness.recorded import SLACK, judge_waits, outside_in_words, started
from zerolab.exercises.harness.settings import settings_restored
from zerolab.exercises.harness.targets import Judgement, Run, Targets
from zerolab.recording.events import RankRecording
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
        sent: of one rank's arguments and the number of ranks, the elements that it sends; None allows any.
        scratch: of the same, the bytes that it may hold beside its arguments; None allows any.
        seen: what else is read off a recording, of it and all ranks' arguments, before the value is judged.
        tolerance: of numbers, relative to those above 1.
    """

    draw: Callable[[random.Random, int], Arguments]
    wanted: Callable[[Arguments, int], Any]
    reads: Callable[[Any], Any] | None = None
    in_place: int | None = None
    collectives: Callable[[int], tuple[str, ...]] | None = None
    peers: Callable[[int, int], tuple[int, ...]] | None = None
    sent: Callable[[tuple[Any, ...], int], float] | None = None
    scratch: Callable[[tuple[Any, ...], int], int] | None = None
    seen: Callable[["Recording", Arguments], Iterator[Judgement]] | None = None
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
            yield "collectives", _first(self._judge_sent(rank, arguments[rank.rank]) for rank in recording.ranks)
            if self.scratch is not None:
                free = [self._free(arguments, rank) for rank in range(world_size)]
                yield "scratch", _first(map(judge_scratch, recording.ranks, free, outside))

        yield Run(trial, (arguments, self.reads or self.in_place, self.guarded, seconds), judge)

    @property
    def guarded(self) -> Guarded:
        """What keeps finished answers out of the reach of an answer, but for those that it may use."""
        return partial(finished_answers_out_of_reach, also=self.forbids, allows=self.allows)

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
        return f"{why}."

    def _explain_miss(self, rank: int, given: Any, right: Any) -> str:
        part = ""
        if isinstance(given, dict) and isinstance(right, dict) and given.keys() == right.keys():
            part = next(key for key in right if not same(given[key], right[key], self.tolerance))
            given, right = given[part], right[part]
        why = f"rank {rank} got {describe(given)}{f' for `{part}`' if part else ''}; right is {describe(right)}"
        where = first_difference(given, right, self.tolerance)
        return f"{why}: {where}" if where else why

    def _judge_sent(self, rank: RankRecording, arguments: tuple[Any, ...]) -> str:
        made = [event for event in started(rank) if event.op != "barrier"]  # it carries nothing; the trial has two
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
        if self.sent is None:
            return ""
        sent = sum(event.logical_bytes for event in made)
        target = round(self.sent(arguments, rank.world_size) * _element_size(arguments))
        size = "1 byte" if sent == 1 else f"{sent:,} bytes"
        return "" if sent == target else f"rank {rank.rank} sent {size}; the target is {target:,}."


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


def trial(
    answer: Callable[..., Any],
    arguments: Arguments,
    judged: int | Callable[[Any], Any] | None,
    guarded: Guarded,
    seconds: float,
) -> Any:
    """What this rank gets from the answer, as plain data, and the most bytes that it held outside of torch.

    `judged` is the number of an argument, or a function of what is returned; None takes all of that. Raises OutOfTime
    after so many seconds.
    """
    mine = [_as_the_answer_gets_it(item) for item in arguments[dist.get_rank()]]
    # The memory: an answer may give the tensor another one, `tensor.data = ...`, and whoever shares it sees nothing.
    in_place = mine[judged].detach() if isinstance(judged, int) else None
    dist.barrier()  # all ranks begin at once, and the recording tells what is there before the answer runs
    # Within a step the recording tells the highest moment, whether or not there is an event.
    tell(lambda observer: observer.beginning())
    with (
        settings_restored(),
        guarded(answer),
        nothing_lost(),
        at_most(seconds),
        memory_outside_of_torch(answer) as outside,
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
