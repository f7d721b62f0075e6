"""When the device did what the host had asked for: marks in its streams, read on the host's clock at the end.

A call hands the GPU its work and returns, so the host's times say only when something was asked for. Marks are handed
over with the work: before and after a unit's pass, an update and a wait, on the stream that runs them; and behind a
collective in flight, on a separate stream, so that neither the host nor the compute stream waits for it. Nothing is
synchronised while the recording goes on. At its start and end we make a mark whose time on the host's clock is known,
and assume that the device's clock runs evenly between the two.
"""

import inspect
import os
from collections.abc import Callable, Hashable
from dataclasses import dataclass, field
from functools import partial
from typing import Any, NamedTuple, Protocol
from weakref import ref

import torch
import torch.distributed as dist

from zerolab.recording.events import COMMUNICATION, COMPUTE

# Enough that some are not interrupted: only the fastest counts.
ROUNDS = 16
# torch gives milliseconds as a float of 24 bits: within a second it is right to 0.1 microseconds.
REACH = 1e9

Mark = Any
"""A place in a stream; the timer knows its time once everything before it is done."""


class Timer(Protocol):
    """A device whose streams execute what they are handed later, and can say when."""

    kind: str
    """torch's name for it: it does not watch a model on another device."""

    def mark(self) -> Mark:
        """A mark on the current stream."""

    def mark_end(self, work: Any, communicator: str, tensors: list[torch.Tensor]) -> Mark:
        """A mark behind a collective that is under way; neither the host nor the current stream waits for it."""

    def waited(self, work: Any) -> None:
        """Whoever started it has waited for it: its tensors may be freed."""

    def stream(self) -> Hashable:
        """The current stream."""

    def carries(self, group: dist.ProcessGroup, tensors: list[torch.Tensor]) -> bool:
        """Whether a collective is handed to the device; the host itself executes gloo's."""

    def synchronize(self) -> None:
        """Waits until everything that was handed over is done. Raises what went wrong."""

    def nanoseconds(self, earlier: Mark, later: Mark) -> float:
        """From one mark to another, both done; negative if they came the other way round."""


class Gpu:
    """This process's current GPU, by torch's events."""

    kind = "cuda"

    def __init__(self) -> None:
        # A side stream each, or a collective that waits for its ranks would hide when another group's ended.
        self._sides: dict[str, torch.cuda.Stream] = {}
        self._kept: list[tuple[Any, Any, list[torch.Tensor]]] = []

    def mark(self) -> Any:
        """An event on the current stream."""
        event = torch.cuda.Event(enable_timing=True)
        event.record()
        return event

    def mark_end(self, work: Any, communicator: str, tensors: list[torch.Tensor]) -> Any:
        """An event on a side stream that waits for the Work.

        A Work lets go of its tensors at its first `wait()`, because from there on the stream that waits owns them
        again (`WorkNCCL::synchronizeStream`). The side stream owns nothing, so they are kept here instead, until their
        owner has waited or the collective is over.
        """
        if communicator not in self._sides:
            self._sides[communicator] = torch.cuda.Stream()
        with torch.cuda.stream(self._sides[communicator]):
            inspect.unwrap(dist.Work.wait)(work)  # torch's own: nobody is to note this wait
            end = self.mark()
        self._kept = [kept for kept in self._kept if not kept[0].query()]
        self._kept.append((end, ref(work), tensors))
        return end

    def waited(self, work: Any) -> None:
        """Lets go of the tensors."""
        self._kept = [kept for kept in self._kept if kept[1]() is not work]

    def stream(self) -> Hashable:
        """Its number."""
        return torch.cuda.current_stream().stream_id

    def carries(self, group: dist.ProcessGroup, tensors: list[torch.Tensor]) -> bool:
        """Whether it is NCCL's; not if a variable has the host wait for each of its collectives."""
        if not tensors or not tensors[0].is_cuda or os.environ.get("TORCH_NCCL_BLOCKING_WAIT", "0") != "0":
            return False
        return bool(group._get_backend(tensors[0].device).name() == "nccl")

    def synchronize(self) -> None:
        """Waits for all streams."""
        torch.cuda.synchronize()

    def nanoseconds(self, earlier: Any, later: Any) -> float:
        """By the GPU's clock."""
        return float(earlier.elapsed_time(later)) * 1e6


def find_timer() -> Timer | None:
    """The device of this rank, if it has streams; None on the CPU."""
    # Not whether there is a GPU: asking for that would keep a kernel from forking ranks that use it.
    return Gpu() if torch.cuda.is_initialized() else None


class OnDevice(NamedTuple):
    """Where an event was executed, and when, in nanoseconds on the host's clock."""

    stream: str
    start: int
    end: int


@dataclass(slots=True)
class _Span:
    """One event's marks: it began when its first mark was reached and the collective before it had ended."""

    stream: str
    begin: Mark
    before: "_Span | None" = None
    ends: list[Mark] = field(default_factory=list)  # one for each part of a collective


class Streams:
    """The marks of one recording, by the number of the event in the log."""

    def __init__(self, timer: Timer, clock: Callable[[], int]) -> None:
        self._timer, self._clock, self.kind = timer, clock, timer.kind
        self._spans: dict[int, _Span] = {}
        self._names: dict[Hashable, str] = {timer.stream(): COMPUTE}
        self._last: dict[str, _Span] = {}  # the latest collective of each communicator: it executes them in order
        self._first = self._anchor()

    def begin(self, seq: int, kind: str = COMPUTE) -> None:
        """Event `seq` begins on the current stream, which is called `kind` if it was not used before."""
        self._spans[seq] = _Span(self._name(self._timer.stream(), kind), self._timer.mark())

    def computes_here(self, stream: Any) -> bool:
        """Whether a stream of torch's (None: the current one) is both the current one and the compute stream."""
        current = self._timer.stream()
        return self._names.get(current) == COMPUTE and (stream is None or stream.stream_id == current)

    def end(self, seq: int) -> None:
        """It ends there, unless it is a collective, whose end is marked where it was handed over."""
        span = self._spans.get(seq)
        if span is not None and not span.ends:
            span.ends.append(self._timer.mark())

    def has(self, seq: int) -> bool:
        """Whether event `seq` is executed by the device."""
        return seq in self._spans

    def launch(self, seq: int, group: dist.ProcessGroup, tensors: list[torch.Tensor]) -> Callable[[Any], None] | None:
        """Collective `seq`, or a part of it, is about to be handed over; what to call with its Work, or with None.

        None if the device does not execute it.
        """
        if not self._timer.carries(group, tensors):
            return None
        return partial(self._handed_over, seq, self._timer.mark(), group, tensors)

    def _handed_over(
        self, seq: int, launch: Mark, group: dist.ProcessGroup, tensors: list[torch.Tensor], work: Any
    ) -> None:
        """It is on the device; without a Work, on the current stream."""
        if work is None:
            span = self._spans.setdefault(seq, _Span(self._name(self._timer.stream(), COMMUNICATION), launch))
            span.ends.append(self._timer.mark())
            return
        communicator = group.group_name
        name, before = self._name(communicator, COMMUNICATION), self._last.get(communicator)
        span = self._spans.setdefault(seq, _Span(name, launch, before))
        span.ends.append(self._timer.mark_end(work, communicator, tensors))
        self._last[communicator] = span

    def waited(self, work: Any) -> None:
        """A Work was waited for by whoever started it."""
        self._timer.waited(work)

    def times(self) -> dict[int, OnDevice]:
        """Waits until the device is done, and reads all marks, once. Raises what went wrong on the device."""
        ruler, last = _Ruler(self._timer, self._first.mark), self._anchor()
        ended: dict[int, float] = {}  # by the span's id: a collective asks for the one before it
        raw = {}
        for seq, span in self._spans.items():
            begin, ends = ruler.at(span.begin), [ruler.at(mark) for mark in span.ends or [span.begin]]
            begin = max(begin, ended.get(id(span.before), begin))
            ended[id(span)] = max(begin, *ends)
            raw[seq] = span.stream, begin, ended[id(span)]
        rate = (last.time - self._first.time) / (ruler.at(last.mark) or 1.0)

        def time(at: float) -> int:
            return self._first.time + round(at * rate)

        return {seq: OnDevice(stream, time(begin), time(end)) for seq, (stream, begin, end) in raw.items()}

    def _name(self, stream: Hashable, kind: str) -> str:
        """What a stream is called: by what it was first used for, and a number from the second such on."""
        if stream not in self._names:
            like = sum(name.split()[0] == kind for name in self._names.values())
            self._names[stream] = f"{kind} {like + 1}" if like else kind
        return self._names[stream]

    def _anchor(self) -> "_Anchor":
        return min((self._try_anchor() for _ in range(ROUNDS)), key=lambda anchor: anchor.uncertainty)

    def _try_anchor(self) -> "_Anchor":
        self._timer.synchronize()
        before = self._clock()
        mark = self._timer.mark()
        self._timer.synchronize()
        after = self._clock()
        return _Anchor(mark, (before + after) // 2, (after - before) // 2)


class _Anchor(NamedTuple):
    """A mark whose time on the host's clock is known."""

    mark: Mark
    time: int
    uncertainty: int  # the mark was reached within this of `time`, in nanoseconds


class _Ruler:
    """Nanoseconds since the first mark, each measured from one that is near."""

    def __init__(self, timer: Timer, first: Mark) -> None:
        self._timer, self._near, self._near_at = timer, first, 0.0

    def at(self, mark: Mark) -> float:
        at = self._near_at + self._timer.nanoseconds(self._near, mark)
        if at - self._near_at > REACH:
            self._near, self._near_at = mark, at
        return at
