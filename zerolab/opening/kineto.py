"""A trace of torch.profiler (Kineto): its steps, updates, passes and collectives, as events.

A collective is an operator `c10d::...` on the host. Depending on the backend, it comes with `record_param_comms`, which
has its sizes and ranks (NCCL), the kernels that executed it (by their External id), or `gloo:...` on the thread that
carried it out. Its size is in one of these, or else in the shapes that record_shapes=True adds. Sources:
torch/csrc/distributed/c10d/ParamCommsUtils.hpp, torch/csrc/profiler/util.h; traces of real runs.
"""

import re
from bisect import bisect_left, bisect_right
from collections import defaultdict, deque
from collections.abc import Iterable, Iterator
from itertools import groupby, pairwise, zip_longest
from math import isfinite
from typing import Any, NamedTuple, TypeGuard

from zerolab.names import ROOT
from zerolab.opening import found, sizes
from zerolab.opening.contents import Stream
from zerolab.opening.found import Foreign, Found
from zerolab.opening.scan import Object, Scan, text
from zerolab.recording import operations
from zerolab.recording.events import COMMUNICATION, Event, Interval, Phase
from zerolab.recording.operations import PHASES_OF, module_of

WANTED = re.compile(
    rb'"name"\s*:\s*"(?:c10d::|record_param_comms"|gloo:|nccl|FSDP::|ProfilerStep#|Optimizer\.step#|'
    rb'autograd::engine::evaluate|DistributedDataParallel\.forward"|FullyShardedDataParallel\.forward")'
)
_KINDS = ("cpu_op", "user_annotation", "kernel")
_PASS = re.compile(r"FSDP::(pre_forward|post_forward|pre_backward|post_backward_\w+)(?: \((.*)\))?")
_TORCH = ("torch", "torch_version", "pytorch", "pytorch_version")
_VERSIONS = ("schemaVersion", "cupti_version", "cuda_runtime_version", "cuda_driver_version")
_BACKENDS = ("gloo:", "nccl:")
_SETTINGS = ("wait", "init", "start_coalescing", "end_coalescing")  # record_param_comms of what is no collective
_DEEP = 16  # labels that can lie in one another
_TOGETHER = 1_000_000  # nanoseconds within which backward's operators follow one another


class Bar(NamedTuple):
    """One entry of the trace: when, on which thread, what."""

    start: int
    end: int
    thread: tuple[Any, Any]
    name: str
    kind: str
    args: Object


def read(stream: Stream) -> Found:
    """Reads a trace. Raises Foreign if it is another tool's, damaged, or has nothing of what zerolab shows."""
    scan = Scan(stream)
    raw = [event for event in scan.events(WANTED) if event.get("ph") == "X" and event.get("cat") in _KINDS]
    if "schemaVersion" not in scan.about:  # which may stand behind the events
        raise Foreign(f"{stream.name!r} is a Chrome trace, but not of torch.profiler: {_whose(scan.about)}")
    base = scan.about.get("baseTimeNanoseconds", 0)
    if type(base) is not int or not 0 <= base < 1 << 62:
        raise Foreign(f"{stream.name!r} is damaged: its baseTimeNanoseconds is {found.short(base)}; export it again")
    bars = [_bar(event, base, stream.name) for event in raw]
    bars.sort(key=lambda bar: (bar.start, -bar.end))  # an enclosing bar before those inside it
    twice = next((one for one, other in pairwise(bars) if one == other), None)
    if twice is not None:
        said = f"{stream.name!r} has some of its events twice, such as {twice.name[:60]!r}"
        raise Foreign(f"{said}: give the trace as export_chrome_trace() wrote it")
    return _Trace(stream.name, scan.about, bars).found()


def _whose(about: Object) -> str:
    title = about.get("otherData")
    if isinstance(title, dict) and "simulated" in title:
        return "zerolab made it of a recording, so play the recording"
    remedy = "record with torch.profiler and export_chrome_trace()"
    return f"it has no schemaVersion, as torch.profiler writes it; {remedy}"


def _bar(event: Object, base: int, name: str) -> Bar:
    start, length, args = event.get("ts"), event.get("dur", 0), event.get("args") or {}
    if not (_is_time(start) and _is_time(length) and length >= 0 and isinstance(args, dict)):
        raise Foreign(
            f"{name!r} is damaged: {text(event.get('name'))[:60]!r} began at {found.short(start)}; export it again"
        )
    begun = base + round(start * 1000)
    thread = str(event.get("pid")), str(event.get("tid"))
    return Bar(begun, begun + round(length * 1000), thread, text(event["name"]), text(event["cat"]), args)


def _is_time(value: Any) -> TypeGuard[float]:
    return type(value) in (int, float) and isfinite(value) and abs(value) < 1e17


class _Trace:
    """The bars of one rank, and what they amount to."""

    def __init__(self, name: str, about: Object, bars: list[Bar]) -> None:
        self.name, self.about, self.bars = name, about, bars
        shared = about.get("distributedInfo")
        self.shared: Object = shared if isinstance(shared, dict) else {}
        self.groups = self._groups()
        self.marks = [bar for bar in bars if bar.kind == "user_annotation"]
        self.updates = [bar for bar in self.marks if bar.name.startswith("Optimizer.step#")]
        self.backward = _joined(
            bar for bar in bars if bar.name.startswith(("autograd::engine::evaluate", "Optimizer.")) or _is_forward(bar)
        )
        self.numbers, self.windows = self._steps()
        self._labels = self._by_thread()
        self._carried = self._by_thread_pool()
        self._comms = [bar for bar in bars if bar.name == "record_param_comms"]
        self._starts = [bar.start for bar in self._comms]
        kernels = [bar for bar in bars if bar.kind == "kernel" and "External id" in bar.args]
        self._kernels = {str(bar.args["External id"]): bar for bar in kernels}

    def found(self) -> Found:
        """The events, and what is missing."""
        updates = [self._event("optimizer", "step", bar[:2], "step") for bar in self.updates]
        events = [*self._passes(), *updates, *self._collectives()]
        if not events:
            raise Foreign(
                f"{self.name!r} is a trace of torch.profiler with neither collectives nor updates in it: record "
                "whole training steps, on the CPU too (ProfilerActivity.CPU)"
            )
        said = Found(self.name, found.KINETO, events=events)
        said.rank, said.world_size = self._count("rank"), self._count("world_size")
        said.host = text(self.about["host_name"]) if "host_name" in self.about else None
        versions = {name: self.about.get(name) for name in _VERSIONS} | {"NCCL": self.shared.get("nccl_version")}
        said.versions = {name: found.word(value) for name, value in versions.items() if value is not None}
        said.groups, said.steps = self.groups, self.numbers
        carriers = {bar.name.partition(":")[0] for bar in self.marks if bar.name.startswith(_BACKENDS)}
        told = found.word(self.shared["backend"]) if self.shared.get("backend") is not None else None
        said.backend = told or (carriers.pop() if len(carriers) == 1 else None)
        said.device = "cuda" if self.about.get("deviceProperties") or self._kernels else "cpu"
        said.optimizer = self.updates[0].name.split("#")[1].split(".")[0] if self.updates else None
        said.torch = next((found.word(value) for key, value in self.about.items() if key.lower() in _TORCH), None)
        said.lacks = self._lacks(events)
        return said

    def _lacks(self, events: list[Event]) -> list[str]:
        sent = [event for event in events if event.kind == "collective" and event.op != "barrier"]
        lacks = [found.NO_MEMORY]
        lacks += [found.NO_COLLECTIVES] * (not sent)
        lacks += [found.NO_UNITS] * (bool(sent) and not any(event.unit for event in sent))
        lacks += [found.NO_STEPS] * (not self.windows)
        passes = {event.op for event in events if event.kind == "module"}
        lacks += [found.NO_FORWARD if passes else found.NO_MODULES] * ("forward" not in passes)
        return [*lacks, found.NO_WAITS, found.NO_SOURCE]

    def _count(self, name: str) -> int | None:
        value = self.shared.get(name)
        return value if type(value) is int and value >= 0 else None

    def _groups(self) -> dict[str, tuple[int, ...]]:
        """The ranks of each process group that the trace lists, by its name."""
        listed = self.shared.get("pg_config")
        groups = [one for one in listed if isinstance(one, dict)] if isinstance(listed, list) else []
        return {str(one.get("pg_name")): ranks for one in groups if (ranks := sizes.numbers(one.get("ranks")))}

    # When.

    def _steps(self) -> tuple[list[int], list[Interval]]:
        """The numbers and the times of the steps: those that the loop says, or else from one update to the next."""
        said = [bar for bar in self.marks if re.fullmatch(r"ProfilerStep#\d{1,9}", bar.name)]
        if said:
            return [int(bar.name.split("#")[1]) for bar in said], [(bar.start, bar.end) for bar in said]
        windows: list[Interval] = []
        begun = self.bars[0].start if self.bars else 0
        for update, following in zip_longest(self.updates, self.updates[1:]):
            # Two optimizers after one backward end the same step.
            if following is None or any(update.end <= start < following.start for start, _ in self.backward):
                windows.append((begun, update.end))
                begun = update.end
        return [], windows

    def _step(self, time: int) -> int:
        place = bisect_right(self.windows, (time, 1 << 62)) - 1
        return place + 1 if place >= 0 and time < self.windows[place][1] else 0

    def _phase(self, time: int) -> Phase:
        if not self._step(time):
            return "setup"
        if any(bar.start <= time <= bar.end for bar in self.updates):
            return "step"
        return "backward" if self._in_backward(time) else "forward"

    def _in_backward(self, time: int) -> bool:
        place = bisect_right(self.backward, (time, 1 << 62)) - 1
        return place >= 0 and time <= self.backward[place][1]

    def _event(self, kind: Any, op: str, bar: Interval, phase: Phase | None = None, **more: Any) -> Event:
        phase = phase if phase and self._step(bar[0]) else self._phase(bar[0])
        return Event(0, 0, bar[0], bar[1], self._step(bar[0]), phase, kind, op, **more)

    # What.

    def _passes(self) -> Iterator[Event]:
        """Forwards and backwards: of each module that FSDP2 names, or else of the model."""
        labels = [(bar, match) for bar in self.marks if (match := _PASS.fullmatch(bar.name))]
        if labels:
            yield from self._of_modules(labels)
            return
        begun = [start for start, _ in self.windows]
        last = 0
        for bar in filter(_is_forward, self.marks):
            if bar.start >= last:  # FSDP1's lie in one another
                last = bar.end
                begun += [bar.start] * (not self._in_backward(bar.start))  # there, a checkpoint recomputes
                yield self._event("module", "forward", bar[:2], "forward", unit=ROOT)
        begun.sort()
        # Between two of these it is one backward, whatever it waits for.
        in_steps = (one for one in self.backward if self._step(one[0]))
        for _, run in groupby(in_steps, lambda one: bisect_right(begun, one[0])):
            times = list(run)
            yield self._event("module", "backward", (times[0][0], times[-1][1]), "backward", unit=ROOT)

    def _of_modules(self, labels: list[tuple[Bar, re.Match[str]]]) -> Iterator[Event]:
        """A module's pass lasts from what FSDP2 does before it to what it does after it."""
        passes: dict[tuple[Phase, str], list[tuple[int, ...]]] = defaultdict(list)  # start, and end if there is one
        for bar, match in labels:
            moment, _, name = match[1].partition("_")
            way: Phase = "forward" if name.startswith("forward") else "backward"
            mine = passes[way, match[2] or ROOT]
            if moment == "pre":
                mine.append((bar.start,))
            elif mine:
                mine[-1] = mine[-1][0], bar.end
        for (way, unit), times in passes.items():
            for start, *ends in times:
                for end in ends:
                    yield self._event("module", way, (start, end), way, unit=unit)

    def _collectives(self) -> Iterator[Event]:
        outermost: dict[tuple[Any, Any], int] = {}
        for bar in self.bars:
            if not bar.name.startswith("c10d::") or bar.start < outermost.get(bar.thread, 0):
                continue
            op = operations.operation(bar.name.removeprefix("c10d::"))
            if op not in sizes.OPERATIONS:
                continue
            outermost[bar.thread] = bar.end
            comms = self._said_of(bar)
            carried = self._carrier(op, bar)
            said_by_backend = carried.args if carried else {}
            message = sizes.read(op, bar.args, comms, said_by_backend, self.groups, rank=self._count("rank"))
            kernel = next((one for comm in comms if (one := self._kernels.get(str(comm.get("External id"))))), None)
            more: dict[str, Any] = {}
            if kernel is not None:
                more = {"stream": COMMUNICATION, "device_start": kernel.start, "device_end": kernel.end}
            unit = self._unit(bar)
            times = bar.start, max(bar.end, carried.end) if carried else bar.end
            yield self._event("collective", op, times, PHASES_OF.get(op), unit=unit, **message._asdict(), **more)

    def _said_of(self, bar: Bar) -> list[Object]:
        """What `record_param_comms` within an operator says."""
        first, last = bisect_left(self._starts, bar.start), bisect_right(self._starts, bar.end)
        inside = [one.args for one in self._comms[first:last] if one.thread == bar.thread]
        return [args for args in inside if str(args.get("Collective name")) not in _SETTINGS]

    def _by_thread(self) -> dict[Any, list[tuple[int, int, str]]]:
        """What FSDP2 says that it sends for, by thread."""
        labels: dict[Any, list[tuple[int, int, str]]] = defaultdict(list)
        for bar in self.marks:
            if (unit := module_of(bar.name)) is not None:
                labels[bar.thread].append((bar.start, bar.end, unit))
        return labels

    def _unit(self, bar: Bar) -> str | None:
        """The module that the innermost label around a bar names."""
        labels = self._labels.get(bar.thread, [])
        last = bisect_right(labels, (bar.start, 1 << 62))
        return next((unit for _, end, unit in reversed(labels[max(0, last - _DEEP) : last]) if bar.end <= end), None)

    def _by_thread_pool(self) -> dict[str, deque[Bar]]:
        """What the backend itself says, by its own name for it, in order: gloo's threads take the oldest first."""
        pools: dict[str, deque[Bar]] = defaultdict(deque)
        for bar in self.marks:
            backend, _, name = bar.name.partition(":")
            if bar.name.startswith(_BACKENDS):
                pools[f"{backend}:{sizes.word(name)}"].append(bar)
        return pools

    def _carrier(self, op: str, bar: Bar) -> Bar | None:
        """The bar in which a backend carries an operator out."""
        words = [f"nccl:{op}", f"gloo:{op}", *(["gloo:all_reduce"] if op == "reduce_scatter" else [])]
        for word in words:
            pool = self._carried.get(word, deque())
            while pool and pool[0].start < bar.start:  # asked for before the trace began
                pool.popleft()
            if pool and (word.startswith("gloo") or pool[0].start <= bar.end):
                return pool.popleft()
        return None


def _is_forward(bar: Bar) -> bool:
    """Whether it is a model's."""
    return bar.kind == "user_annotation" and bar.name.endswith("DataParallel.forward")


def _joined(bars: Iterable[Bar]) -> list[Interval]:
    """The times in which backward ran: its operators follow one another closely, no update or forward between them."""
    joined: list[Interval] = []
    is_over = True
    for bar in bars:
        if bar.kind == "user_annotation":
            is_over = is_over or bar.start >= joined[-1][1]
        elif not is_over and bar.start - joined[-1][1] < _TOGETHER:
            joined[-1] = (joined[-1][0], max(joined[-1][1], bar.end))
        else:
            joined.append((bar.start, bar.end))
            is_over = False
    return joined
