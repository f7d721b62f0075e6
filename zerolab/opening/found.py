"""What one file of another tool says of one rank, before the ranks' files are put together."""

import reprlib
from dataclasses import dataclass, field
from typing import Any

from zerolab.recording.events import Event, Source

KINETO = "trace of torch.profiler"
FLIGHT = "dump of the flight recorder"
SNAPSHOT = "memory snapshot"

NO_SIZES = "sizes of some collectives (torch.profiler notes those of gloo with record_shapes=True)"
NO_GROUPS = "the groups of some collectives, and so what they send (the flight recorder's dump would tell)"
UNLISTED = "the groups of some collectives, and so what they send: the dump does not list them, as over gloo"
NO_UNITS = "units: nobody tells which module a collective belongs to (FSDP2 does, in torch.profiler's traces)"
NO_STEPS = "training steps (torch.profiler marks them where prof.step() is called, or an optimizer is)"
NO_MODULES = "forward and backward"
NO_FORWARD = "forward (torch.profiler's traces name that of DDP and FSDP)"
NO_WAITS = "who waited for what"
NO_ENDS = "when some collectives ended"
NO_MEMORY = "bytes of memory, and who holds what"
NO_CATEGORIES = "what memory was used for: bytes are those of all tensors together"
NO_COLLECTIVES = "collectives"
NO_SCATTERS = "which all-reduces of gloo a reduce-scatter was asked for by: it carries both out alike"
NO_PIECES = "into which pieces an all-to-all was divided: they are taken for equal"
NO_SOURCE = "lines of source"


@dataclass
class Found:
    """One file's events, their times in nanoseconds since 1970, and what it says of its run."""

    name: str
    tool: str  # KINETO, FLIGHT or SNAPSHOT
    rank: int | None = None
    world_size: int | None = None
    host: str | None = None
    versions: dict[str, str] = field(default_factory=dict)
    groups: dict[str, tuple[int, ...]] = field(default_factory=dict)  # the ranks of process groups, by name
    events: list[Event] = field(default_factory=list)
    levels: list[tuple[int, int]] = field(default_factory=list)  # of a snapshot: times, and the live bytes from then on
    steps: list[int] = field(default_factory=list)  # as the file counts them, from 0; empty if it has none
    backend: str | None = None
    device: str | None = None
    optimizer: str | None = None
    torch: str | None = None
    sources: dict[str, Source] = field(default_factory=dict)
    lacks: list[str] = field(default_factory=list)
    document: dict[str, Any] | None = None  # of a dump, which a trace's groups say more of
    called: list[tuple[str, int]] = field(default_factory=list)  # of a dump's events: group, and torch's number in it

    @property
    def said(self) -> str:
        """How a sentence calls it."""
        return f"{self.name!r}, a {self.tool}"


def text(value: Any) -> str:
    """A text of a file; anything else in its place is told in few words: whole, it might be longer than all memory.

    Of half a character, which neither a name of a file nor a recording can hold, a question mark is left.
    """
    return value.encode("utf-8", "replace").decode() if isinstance(value, str) else reprlib.repr(value)


def short(value: Any) -> str:
    """A few words of a value that should not be there, for a sentence that says so."""
    return reprlib.repr(value)[:80]


def word(value: Any) -> str:
    """A version or another name, which lines for a person hold as it is: short, and nothing in it moves a cursor."""
    said = text(value)[:40]
    while len(repr(said)) > 42:  # 40 and two quotation marks
        said = said[:-1]
    return repr(said)[1:-1]


class Foreign(ValueError):
    """A file that cannot be opened: what it is, and what to do."""
