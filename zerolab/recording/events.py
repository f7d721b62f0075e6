"""The schema of a recording: what an event is, and which words it may use.

Everything the recorder writes and everything a picture reads goes through these few types; they hold only plain
values, so a recording is JSON and loads without executing anything.
"""

from collections.abc import Callable, Iterable
from dataclasses import dataclass, field, fields, replace
from typing import TYPE_CHECKING, Annotated, Any, Literal, get_args
from warnings import warn

if TYPE_CHECKING:
    from zerolab.engines.partition import FlatLayout

Category = Literal["parameters", "gradients", "optimizer_state", "activations", "communication", "other"]
Phase = Literal["setup", "forward", "backward", "reduce", "step", "gather"]
Kind = Literal["module", "collective", "wait", "optimizer", "memory", "note", "save"]

CATEGORIES: tuple[Category, ...] = get_args(Category)
STATE = CATEGORIES[:3]  # what the formulas speak of
PHASES: tuple[Phase, ...] = get_args(Phase)
KINDS: tuple[Kind, ...] = get_args(Kind)
COMPUTE, COMMUNICATION = "compute", "communication"  # the names of streams; numbers tell several of a kind apart

Spans = tuple[tuple[int, int], ...]
"""Half-open ranges of elements within a unit's flat, for example `((0, 128), (256, 384))`."""

Interval = tuple[int, int]
"""A start and an end, in nanoseconds."""

ByCategory = Annotated[dict[str, int], CATEGORIES]
"""Bytes of each category."""

State = Annotated[dict[str, int], STATE]
"""Bytes of model state: of parameters, gradients and optimizer state."""

CARD_FIGURES = ("ledger", "older", "requested", "allocated", "reserved", "process", "used", "total")

CardFigures = dict[str, int | None]
"""Bytes on a GPU in a step, None where unknown: `ledger`, at its peak; `older`, tensors from before the recording;
`requested`, `allocated` and `reserved`, of torch's allocator at its peak; `process`, as the driver counts it; `used`,
by all processes on the card; `total`, its size. `zerolab.recording.memory` names the differences between them."""


@dataclass(frozen=True, slots=True)
class SourceLine:
    """The line of source that caused an event: a key of `Recording.sources` and a line counted from 1."""

    id: str
    line: int
    from_autograd: bool = False


@dataclass(frozen=True, slots=True)
class Event:
    """One entry of a recording.

    Times are nanoseconds on one clock, counted from the start of the recording. `seq` counts a rank's events in the
    order in which they started; `live` holds the live bytes of every category just after the event ended, on the
    device where the rank computes; if that is a GPU, `host` holds those in main memory.
    `number` counts the collectives of a `group` from 0, so that the same one can be found on each of its ranks; those
    that other threads or callbacks of torch's futures ask for have none.
    `parent` is the `seq` of the collective that a send or a receive belongs to, or that a wait waits for; a send or a
    receive with a parent carries no bytes of its own. A `memory` event with op `peak` is a step's peak so far: `live`
    is what was live at that moment, and `text` the operation that caused it; `host peak` is the same for `host`.
    `device_start` and `device_end` say when `stream` executed the event, or when a wait blocked the compute stream, on
    the same clock; `t_start` and `t_end` then say when the host asked for it.
    A change of ownership is an event of kind `memory` with op `hold`: from then on this rank holds exactly `spans`
    of `category` of `unit`; no spans means nothing of it.
    A `save` is a rank's part of a checkpoint: `copy` and `save` while the training waits, `write` in a thread beside.
    Without a model, a collective over a small tensor has the `numbers` that this rank gave, and its wait those that it
    received.
    """

    rank: int
    seq: int
    t_start: int
    t_end: int
    step: int  # the training step, counted from 1; 0 outside of steps: before the first, between two, and in checks
    phase: Phase
    kind: Kind
    op: str  # module: "forward" or "backward"; collective: "all_gather", ...; memory: "hold", "peak", "host peak"; ...
    unit: str | None = None
    group: tuple[int, ...] | None = None  # the ranks that take part; None for all
    dtype: str | None = None  # of what is sent, or of what is held from now on
    numel: int = 0  # elements of the whole buffer that the event is about
    logical_bytes: int = 0  # what the algorithm must send from this rank
    live: dict[str, int] = field(default_factory=dict)
    host: dict[str, int] = field(default_factory=dict)
    source: SourceLine | None = None
    number: int | None = None
    parent: int | None = None
    peer: int | None = None
    category: Category | None = None
    spans: Spans | None = None
    text: str | None = None  # a note in words
    numbers: tuple[float, ...] | None = None
    stream: str | None = None  # "compute", "communication", ...; None if the host itself did it
    device_start: int | None = None
    device_end: int | None = None

    @property
    def interval(self) -> Interval:
        """Its start and end: on the device, if that executed it."""
        if self.device_start is None or self.device_end is None:
            return self.t_start, self.t_end
        return self.device_start, self.device_end

    @property
    def is_sized(self) -> bool:
        """Whether its number of elements is known: other tools do not record that for every collective."""
        return self.dtype is not None or self.numel > 0 or self.kind != "collective" or self.op == "barrier"

    @property
    def held(self) -> int:
        """The number of elements in its spans."""
        return sum(stop - start for start, stop in self.spans or ())

    def moved(self, move: Callable[[int], int]) -> "Event":
        """The same event with its times on another clock."""
        names = ("t_start", "t_end") + ("device_start", "device_end") * (self.stream is not None)
        times: dict[str, Any] = {name: move(getattr(self, name)) for name in names}
        return replace(self, **times)


@dataclass(frozen=True, slots=True)
class Source:
    """A text that events point into. The label is `zerolab/engines/zero2.py` or `cell [3]`, never an absolute path."""

    label: str
    text: str


@dataclass(frozen=True, slots=True)
class UnitInfo:
    """A unit's flat as the recording knows it: its name, elements with and without padding, dtype and parameters."""

    name: str
    numel: int
    padded: int
    dtype: str
    parameters: tuple[str, ...]
    frozen: bool = False
    replicated: bool = False


def unit_of(layout: "FlatLayout") -> UnitInfo:
    """What a recording knows of a flat."""
    return UnitInfo(
        name=layout.name,
        numel=layout.numel,
        padded=layout.padded,
        dtype=str(layout.dtype).removeprefix("torch."),
        parameters=tuple(slot.name for slot in layout.slots),
        frozen=layout.frozen,
        replicated=layout.replicated,
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class RunInfo:
    """What a recording says of the whole run: the same on every rank, or measured on the first.

    All of it ends up in pages that people pass on, so nothing that identifies a machine or a person belongs here.
    """

    stage: str | None = None  # None for a hand-written loop
    num_params: int | None = None
    optimizer: str | None = None  # its class; of several, as "Muon+AdamW"
    precision: str | None = None  # "fp32", "bf16", ...; joined by "+" where a model mixes them
    matrices: int = 0  # elements of the matrices that Muon updates
    moments: str = "fp32"  # in what Adam's moments lie, as `theory.state_bytes` takes it
    offload: bool = False
    reduce_dtype: str | None = None  # in which gradients are added up; None for the precision's own
    amsgrad: list[str] = field(default_factory=list)  # flats of which Adam keeps the largest second moments
    backend: str | None = None
    device: str | None = None
    simulated: bool = False
    formula: State | None = None  # on one rank; None if no closed form covers the run
    torch: str | None = None  # its version
    steps: int = 0  # those that all ranks have finished
    first_step: int | None = None  # of a resumed run: the number of the first recorded step
    clocks: str | None = None  # of a run on several nodes: how closely their clocks agree, in words
    times_only: bool = False  # neither bytes of memory nor who holds what was recorded
    origin: str | None = None  # the tool whose files it was made from; None if zerolab recorded it
    lacks: list[str] = field(default_factory=list)  # what those files do not say
    total_only: bool = False  # bytes of memory are known, but not what they are for
    costs: dict[str, Any] | None = None  # of a simulation: seconds, the work of a step, the assumptions

    def check_bytes(self) -> None:
        """Raises ValueError if no bytes of memory were recorded."""
        if self.times_only:
            raise ValueError(
                "bytes of memory were not recorded: this recording has times only, so record the run without times_only"
            )

    def as_meta(self) -> dict[str, Any]:
        """`meta` as in the first edition, with a warning that names `info`; it will be removed in the next edition."""
        text = 'meta["..."] is now the attribute info; the old form will be removed in the next edition'
        warn(text, FutureWarning, stacklevel=3)
        return {field.name: getattr(self, field.name) for field in fields(self)}


@dataclass(frozen=True, slots=True, kw_only=True)
class RankInfo(RunInfo):
    """What one rank measured in addition, in bytes; `state` and the peaks are those of its last step.

    `state` is the whole state, wherever it lies; the peaks are those of the device where the rank computes. If that is
    a GPU, `host_state` is the part of `state` in main memory, and the host has a peak of its own.
    """

    started_ns: int | None = None  # when it began to record
    cut_ns: int | None = None  # when it was cut off; what was under way lasts until then. None if it was not
    state: State | None = None  # at the optimizer's update; None before step 2
    step_counters: int = 0  # bytes of it that are step counters of optimizers outside engines
    masters: int = 0  # bytes of it that are fp32 copies, which optimizers outside engines update in place of parameters
    peak: ByCategory | None = None
    peak_total: int | None = None
    peaks: dict[str, ByCategory] = field(default_factory=dict)  # of each phase
    host_state: State | None = None
    host_peak: ByCategory | None = None
    # One number per step each.
    logical_bytes: list[int] = field(default_factory=list)
    wire_bytes: list[int | None] = field(default_factory=list)  # None where the system does not count them
    operations: list[int] = field(default_factory=list)
    card: list[Annotated[CardFigures, CARD_FIGURES]] = field(default_factory=list)  # empty on a CPU
    losses: list[float | None] = field(default_factory=list)  # None in a file for one that is not a number
    # By flat, for flats that were updated only in part: the elements of each tensor that was updated.
    updated: dict[str, list[int]] = field(default_factory=dict)
    clock: dict[str, float] | None = None  # how its times were corrected: `offset_ns`, `drift_ppm`, `uncertainty_ns`
    derived: bool = False  # it did not run: a simulation derived it from rank 0

    @property
    def for_terms(self) -> dict[str, Any]:
        """What `theory.terms` needs to know about a rank, as its keywords."""
        known = {"offload": self.offload, "on_gpu": self.host_state is not None, "updated": self.updated}
        return known | {"moments": self.moments, "reduce_dtype": self.reduce_dtype, "amsgrad": self.amsgrad}


def merge_spans(spans: Iterable[tuple[int, int]]) -> Spans:
    """The same elements in as few spans as possible, in order: `(0, 4), (2, 6), (8, 9)` become `(0, 6), (8, 9)`."""
    merged: list[tuple[int, int]] = []
    for start, stop in sorted(spans):
        if merged and start <= merged[-1][1]:
            merged[-1] = merged[-1][0], max(stop, merged[-1][1])
        else:
            merged.append((start, stop))
    return tuple(merged)


def count(number: int, thing: str) -> str:
    """For example `1 rank` or `4 ranks`."""
    return f"{number} {thing}{'s' * (number != 1)}"


@dataclass(frozen=True, slots=True)
class RankRecording:
    """What one rank's recorder hands over: its events in order, and what they refer to."""

    rank: int
    world_size: int
    events: tuple[Event, ...]
    sources: dict[str, Source]
    units: tuple[UnitInfo, ...]
    info: RankInfo
    complete: bool = True  # False if the rank died or raised before its function returned

    def moved(self, move: Callable[[int], int]) -> "RankRecording":
        """The same recording with its times on another clock."""
        known = {name: getattr(self.info, name) for name in ("started_ns", "cut_ns")}
        times: dict[str, Any] = {name: move(time) for name, time in known.items() if time is not None}
        return replace(self, events=tuple(event.moved(move) for event in self.events), info=replace(self.info, **times))

    @property
    def state(self) -> State:
        """Bytes of model state at the last update. Raises ValueError before the second step, which completes it."""
        self.info.check_bytes()
        if self.info.state is None:
            raise ValueError(
                f"no state after {count(self.info.steps, 'step')}: "
                "Adam makes its moments in the first, so record two or more"
            )
        return self.info.state

    @property
    def meta(self) -> dict[str, Any]:
        """`info` in the form of the first edition."""
        return self.info.as_meta()
