"""The schema of a recording: what an event is, and the words it may use.

Everything that the recorder writes and everything that a picture reads goes through these few types; they hold
plain values only, so that a recording is JSON and loads without executing anything.
"""

from dataclasses import dataclass, field
from typing import Literal

Category = Literal["parameters", "gradients", "optimizer_state", "activations", "communication", "other"]
Phase = Literal["setup", "forward", "backward", "reduce", "step", "gather"]
Kind = Literal["module", "collective", "wait", "optimizer", "memory", "note"]

CATEGORIES: tuple[Category, ...] = (
    "parameters",
    "gradients",
    "optimizer_state",
    "activations",
    "communication",
    "other",
)
PHASES: tuple[Phase, ...] = ("setup", "forward", "backward", "reduce", "step", "gather")
KINDS: tuple[Kind, ...] = ("module", "collective", "wait", "optimizer", "memory", "note")

Spans = tuple[tuple[int, int], ...]
"""Half-open ranges of elements within a unit's flat, for example `((0, 128), (256, 384))`."""


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
    order in which they started; `live` holds the live bytes of every category just after the event has ended.
    `number` counts a rank's collectives from 0, so that the same one can be found on every rank. `parent` is the `seq`
    of the collective that a send or a receive belongs to, or that a wait waits for; a send or a receive with a parent
    carries no bytes of its own. A `memory` event with op `peak` is a step's highest moment so far: `live` is what was
    live at that moment, and `text` the operation that made it.
    A change of ownership is an event of kind `memory` with op `hold`: from then on this rank holds exactly `spans`
    of `category` of `unit`; no spans means nothing of it.
    """

    rank: int
    seq: int
    t_start: int
    t_end: int
    step: int  # the training step, counted from 1; 0 outside of steps: before the first, between two, and in checks
    phase: Phase
    kind: Kind
    op: str  # module: "forward" or "backward"; collective: "all_gather", ...; memory: "hold", "peak"; ...
    unit: str | None = None
    group: tuple[int, ...] | None = None  # the ranks that take part; None for all
    dtype: str | None = None
    numel: int = 0  # elements of the whole buffer that the event is about
    logical_bytes: int = 0  # what the algorithm must send from this rank
    live: dict[str, int] = field(default_factory=dict)
    source: SourceLine | None = None
    number: int | None = None
    parent: int | None = None
    peer: int | None = None
    category: Category | None = None
    spans: Spans | None = None
    text: str | None = None  # a note in words


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


@dataclass(frozen=True, slots=True)
class RankRecording:
    """What one rank's recorder hands over: its events in order, and what they refer to."""

    rank: int
    world_size: int
    events: tuple[Event, ...]
    sources: dict[str, Source]
    units: tuple[UnitInfo, ...]
    meta: dict[str, object]  # stage, num_params, precision, backend, device, wire_bytes per step, allocator figures ...
    complete: bool = True  # False if the rank died or raised before its function returned
