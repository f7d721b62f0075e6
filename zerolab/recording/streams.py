"""When the device did what the host had asked for: marks in its streams, read on the host's clock at the end.

A call hands the GPU its work and returns, so the host's times say only when something was asked for. Marks are handed
over with the work: around a pass, an update or a wait, on the stream that runs it; and behind a collective in flight,
on another stream, so that neither the host nor the compute stream waits for it. Nothing is synchronised but at the
start and end of a recording, for a mark each whose time is known; between them the device's clock should run evenly.
"""

import inspect
import os
from collections.abc import Callable, Hashable
from dataclasses import dataclass, field
from operator import itemgetter
from typing import Any, NamedTuple
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


class Gpu:
    """This process's current GPU, by torch's events: its streams execute later what they are handed, and say when."""

    kind = "cuda"  # a model on another device is not watched

    def __init__(self) -> None:
        # A side stream each, or a collective that waits for its ranks would hide when another group's ended.
        self._sides: dict[str, torch.cuda.Stream] = {}
        self._kept: list[tuple[Any, Any, list[torch.Tensor]]] = []

    def mark(self) -> Mark:
        """An event on the current stream."""
        event = torch.cuda.Event(enable_timing=True)
        event.record()
        return event

    def mark_end(self, work: Any, communicator: str, tensors: list[torch.Tensor]) -> Mark:
        """A mark behind a collective under way, on a side stream: neither the host nor the current stream waits for it.

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
        """Whoever started it has waited for it: its tensors may be freed."""
        self._kept = [kept for kept in self._kept if kept[1]() is not work]

    def is_capturing(self) -> bool:
        """Whether what is handed over now becomes part of a CUDA graph: a mark there has no time, and may spoil it."""
        return torch.cuda.is_current_stream_capturing()

    def stream(self) -> Hashable:
        """The current stream's number."""
        return torch.cuda.current_stream().stream_id

    def carries(self, group: dist.ProcessGroup, tensors: list[torch.Tensor]) -> bool:
        """Whether a collective is handed to the device: NCCL's, unless a variable has the host wait for each."""
        if not tensors or not tensors[0].is_cuda or os.environ.get("TORCH_NCCL_BLOCKING_WAIT", "0") != "0":
            return False
        return bool(group._get_backend(tensors[0].device).name() == "nccl")

    def synchronize(self) -> None:
        """Waits until everything that was handed over is done. Raises what went wrong."""
        torch.cuda.synchronize()

    def nanoseconds(self, earlier: Mark, later: Mark) -> float:
        """From one mark to another, both done; negative if they came the other way round."""
        return float(earlier.elapsed_time(later)) * 1e6


def find_timer() -> Gpu | None:
    """The device of this rank, if it has streams; None on the CPU."""
    # Not whether there is a GPU: asking for that would keep a kernel from forking ranks that use it.
    return Gpu() if torch.cuda.is_initialized() else None


class OnDevice(NamedTuple):
    """Where an event was executed, and when, in nanoseconds on the host's clock."""

    stream: str
    device_start: int
    device_end: int


@dataclass(slots=True)
class _Span:
    """One event's marks: it began when its first mark was reached and the collective before it had ended."""

    stream: str
    begin: Mark
    before: "_Span | None" = None
    ends: list[Mark] = field(default_factory=list)  # one for each part of a collective


class Streams:
    """The marks of one recording, by the number of the event in the log."""

    def __init__(self, timer: Gpu, clock: Callable[[], int]) -> None:
        self.timer, self._clock = timer, clock
        self._spans: dict[int, _Span] = {}
        self._names: dict[Hashable, str] = {timer.stream(): COMPUTE}
        self._last: dict[Hashable, _Span] = {}  # the latest collective of each communicator: it executes them in order
        # When the first mark was reached; a mark from which others are measured, and its distance from the first.
        self._started, self._near = self._anchor()
        self._near_at = 0.0

    def begin(self, seq: int, kind: str = COMPUTE) -> None:
        """Event `seq` begins on the current stream, which is called `kind` if it was not used before."""
        if not self.timer.is_capturing():
            self._spans[seq] = _Span(self._name(self.timer.stream(), kind), self.timer.mark())

    def computes_here(self, stream: Any) -> bool:
        """Whether a stream of torch's (None: the current one) is both the current one and the compute stream."""
        current = self.timer.stream()
        return self._names.get(current) == COMPUTE and (stream is None or stream.stream_id == current)

    def end(self, seq: int) -> None:
        """It ends there, unless it is a collective, whose end is marked where it was handed over."""
        span = self._spans.get(seq)
        if span is not None and not span.ends and not self.timer.is_capturing():
            span.ends.append(self.timer.mark())

    def has(self, seq: int) -> bool:
        """Whether event `seq` is executed by the device."""
        return seq in self._spans

    def launch(self, seq: int, group: dist.ProcessGroup, tensors: list[torch.Tensor]) -> Callable[[Any], None] | None:
        """Collective `seq`, or a part of it, is about to be handed over; what to call with its Work, or with None.

        None if the device does not execute it.
        """
        if self.timer.is_capturing() or not self.timer.carries(group, tensors):
            return None
        launched = self.timer.mark()

        def handed_over(work: Any) -> None:
            """It is on the device; without a Work, on the current stream."""
            stream = self.timer.stream() if work is None else group.group_name
            begun = _Span(self._name(stream, COMMUNICATION), launched, self._last.get(stream))
            span = self._spans.setdefault(seq, begun)
            if work is None:
                span.ends.append(self.timer.mark())
            else:
                span.ends.append(self.timer.mark_end(work, group.group_name, tensors))
                self._last[stream] = span

        return handed_over

    def times(self) -> dict[int, OnDevice]:
        """Waits until the device is done, and reads all marks, once. Raises what went wrong on the device."""
        now, last = self._anchor()
        ended: dict[int, float] = {}  # by the span's id: a collective asks for the one before it
        raw = {}
        for seq, span in self._spans.items():
            begin, ends = self._at(span.begin), [self._at(mark) for mark in span.ends or [span.begin]]
            begin = max(begin, ended.get(id(span.before), begin))
            ended[id(span)] = max(begin, *ends)
            raw[seq] = span.stream, begin, ended[id(span)]
        rate = (now - self._started) / (self._at(last) or 1.0)

        def time(at: float) -> int:
            return self._started + round(at * rate)

        return {seq: OnDevice(stream, time(begin), time(end)) for seq, (stream, begin, end) in raw.items()}

    def _name(self, stream: Hashable, kind: str) -> str:
        """What a stream is called: by what it was first used for, and a number from the second such on."""
        if stream not in self._names:
            like = sum(name.split()[0] == kind for name in self._names.values())
            self._names[stream] = f"{kind} {like + 1}" if like else kind
        return self._names[stream]

    def _anchor(self) -> tuple[int, Mark]:
        """A time on the host's clock, and a mark that was reached then: of all tries the one that is surest."""
        tries = []
        for _ in range(ROUNDS):
            self.timer.synchronize()
            before, mark = self._clock(), self.timer.mark()
            self.timer.synchronize()
            after = self._clock()
            tries.append((after - before, (before + after) // 2, mark))
        return min(tries, key=itemgetter(0))[1:]

    def _at(self, mark: Mark) -> float:
        """Nanoseconds since the first mark."""
        at = self._near_at + self.timer.nanoseconds(self._near, mark)
        if at - self._near_at > REACH:
            self._near, self._near_at = mark, at
        return at
