"""A recording as the page reads it: columns of small numbers in base64, and the few tables they point into.

A JSON list of events costs 400 bytes an event. Here every field is one column over all events, rank by rank in the
order of `seq`; a column holds the differences from one event to the next (or the plain values, where differences say
nothing), runs of zeros are counted instead of repeated, and the numbers are written in as few bytes as they need.
What repeats (words, sources, spans) stands in a table once and is pointed to from 1; 0 means "nothing".
"""

import base64
from collections import defaultdict
from collections.abc import Callable, Hashable, Iterable
from dataclasses import asdict
from typing import TYPE_CHECKING, Any, TypeVar, get_type_hints

from zerolab.player.difference import first_difference, in_one_line
from zerolab.player.owners import Held, held_by, owners
from zerolab.recording.events import (
    CATEGORIES,
    KINDS,
    PHASES,
    Category,
    Event,
    Kind,
    Phase,
    RankRecording,
    Source,
    Spans,
    UnitInfo,
    count,
)
from zerolab.recording.memory import terms_on_card

if TYPE_CHECKING:
    from zerolab.recording.recording import Recording

# Not the recording's own version: the two formats change at different times, and a page outlives both.
VERSION = 2

T = TypeVar("T", bound=Hashable)


class Table(dict[T, int]):
    """Values that events point into, each stored once with its place, counted from 1."""

    def index(self, value: T | None) -> int:
        """The place of `value`, which is appended if it is new; 0 for None."""
        return 0 if value is None else self.setdefault(value, len(self) + 1)


_JOINERS = "\u200c\u200d"  # of letters in Persian and Hindi, and of pictures


def readable(text: str) -> str:
    """A text with what nobody sees, or what turns the text around it, escaped as in Python; spaces and lines stay."""
    return "".join(
        c if c.isprintable() or c.isspace() or c in _JOINERS else c.encode("unicode_escape").decode() for c in text
    )


def varint(value: int) -> bytes:
    """An unsigned number in groups of seven bits, lowest first; the high bit says that more follow."""
    out = bytearray()
    while value > 127:
        out.append(value & 127 | 128)
        value >>= 7
    out.append(value)
    return bytes(out)


def encode(values: Iterable[int]) -> str:
    """Numbers as base64 text: zigzag varints (0, -1, 1, -2 as 0, 1, 2, 3); a zero is followed by how many more come."""
    out = bytearray()
    zeros = 0
    # Runs are counted because most fields say nothing for most events. `None` at the end closes the last run.
    for value in [*values, None]:
        if value == 0:
            zeros += 1
            continue
        if zeros:
            out += b"\0" + varint(zeros - 1)
            zeros = 0
        if value is not None:
            # Two's complement would make -1 the largest number there is, and half of all differences are negative.
            out += varint(2 * value if value > 0 else -2 * value - 1)
    return base64.b64encode(bytes(out)).decode()


def column(values: list[int], *, delta: bool) -> dict[str, object]:
    """One column of the payload: its text, and whether it holds differences."""
    steps = [b - a for a, b in zip([0, *values], values, strict=False)] if delta else values
    return {"delta": delta, "data": encode(steps)}


Tables = defaultdict[str, Table[Any]]
"""All tables of a payload, by name, filled while the columns are written."""

Encoder = Callable[[Any], int]
# These change little from one event to the next; of the others a difference says nothing.
_DELTA = {
    "t_start", "step", "phase", "unit", "group", "dtype", "numel", "source", "line", "from_autograd",
}  # fmt: skip
_APART = {"rank", "seq", "parent", "live", "host"}  # written by `_columns`


def _encoders(tables: Tables) -> dict[Any, Encoder]:
    """How a value becomes a number, by the type that `Event` declares; 0 stands for None."""

    def code(words: tuple[str, ...]) -> Encoder:
        return lambda word: 0 if word is None else words.index(word) + 1

    return {
        int: int,
        int | None: lambda number: 0 if number is None else number + 1,
        str: tables["words"].index,
        str | None: tables["words"].index,
        Phase: code(PHASES),
        Kind: code(KINDS),
        Category | None: code(CATEGORIES),
        tuple[int, ...] | None: tables["groups"].index,
        Spans | None: tables["spans"].index,
        tuple[float, ...] | None: tables["numbers"].index,
    }


def _fields(tables: Tables) -> dict[str, Callable[[Event], int]]:
    """Every column that is one field's, or of two one: by its name its value for an event."""
    encoders = _encoders(tables)

    def of(name: str, encode: Encoder) -> Callable[[Event], int]:
        return lambda event: encode(getattr(event, name))

    columns: dict[str, Callable[[Event], int]] = {}
    for name, hint in get_type_hints(Event).items():
        if name == "t_end":  # as a length: an end has as many digits as a start, a length has few
            columns["duration"] = lambda e: e.t_end - e.t_start
        elif name == "device_start":  # likewise, and behind the host's start
            columns[name] = lambda e: e.interval[0] - e.t_start if e.stream else 0
        elif name == "device_end":
            columns["device_duration"] = lambda e: e.interval[1] - e.interval[0] if e.stream else 0
        elif name == "unit":
            columns[name] = of(name, tables["units"].index)
        elif name == "source":
            columns[name] = lambda e: tables["sources"].index(e.source.id if e.source else None)
            columns["line"] = lambda e: e.source.line if e.source else 0
            columns["from_autograd"] = lambda e: int(bool(e.source and e.source.from_autograd))
        elif name not in _APART:
            columns[name] = of(name, encoders[hint])
    return columns


def _levels(events: list[Event], field: str) -> dict[str, list[int]]:
    """`live` or `host` per category after each event; an event without any repeats its rank's last ones."""
    # Repeating instead of leaving out costs nothing: as differences, repetitions are runs of zeros.
    out: dict[str, list[int]] = {category: [] for category in CATEGORIES}
    last: dict[int, dict[str, int]] = {}
    for event in events:
        levels = last[event.rank] = getattr(event, field) or last.get(event.rank, {})
        for category, values in out.items():
            values.append(levels.get(category, 0))
    return out


def _columns(events: list[Event], tables: Tables) -> dict[str, object]:
    """All columns over all events."""
    columns: dict[str, object] = {
        "rank": column([e.rank for e in events], delta=True),
        # Within a rank `seq` counts up by one, so what is left after subtracting the place is a run of zeros.
        "seq": column([e.seq - place for place, e in enumerate(events)], delta=True),
        "parent": column([0 if e.parent is None else e.seq - e.parent for e in events], delta=False),
    }
    for name, value in _fields(tables).items():
        columns[name] = column([value(e) for e in events], delta=name in _DELTA)
    for field in ("live", "host") if any(event.host for event in events) else ("live",):
        for category, values in _levels(events, field).items():
            columns[f"{field}.{category}"] = column(values, delta=True)
    return columns


def _rank(recording: RankRecording) -> dict[str, object]:
    """What is to be said of a rank apart from its events; of one on a GPU also what its card held in each step."""
    shared = {"rank": recording.rank, "complete": recording.complete, "events": len(recording.events)}
    shared |= {} if recording.info.cut_ns is None else {"cut": recording.info.cut_ns}
    cards = [{"terms": terms_on_card(figures), "total": figures["total"]} for figures in recording.info.card]
    return shared | ({"cards": cards} if cards else {})


def _units(recording: "Recording", tables: Tables, held: Held) -> list[dict[str, object]]:
    """The units in the order of the model; a unit that only events name is listed without a size."""
    known = {unit.name: unit for unit in recording.units}
    out: list[dict[str, object]] = []
    for name in tables["units"]:
        unit = known.get(name, UnitInfo(name, 0, 0, "", ()))
        found = owners(recording, unit, held) if unit.padded else None
        told = {"name": readable(name), "parameters": len(unit.parameters), "owners": found}
        out.append(asdict(unit) | told)
    return out


def describe(recording: "Recording") -> str:
    """The recording in one sentence that is the same on every machine: it names no times and counts no waits."""
    what = f"{recording.title}, {'simulated' if recording.info.simulated else 'recorded'}"
    first = recording.ranks[0].events if recording.ranks else ()
    saves = sum(event.op in ("save", "copy") for event in first if event.kind == "save")
    saved = f", {count(saves, 'save')}" if saves else ""
    return f"{what}: {_steps(recording)}, {recording.counted}, {len(recording.units)} units{saved}"


def _steps(recording: "Recording") -> str:
    """How many training steps there are; of a run that broke off how many were done, and in which one it did."""
    begun = max((e.step for rank in recording.ranks for e in rank.events), default=0)
    if all(rank.complete for rank in recording.ranks):
        return count(begun, "training step")
    done = min(recording.info.steps, begun)
    broken = f", cut off in step {done + 1}" if done < begun else ""
    return f"{count(done, 'training step')}{broken}"


def payload(recording: "Recording") -> dict[str, object]:
    """The whole recording as plain JSON values for the player; at most about 60 bytes an event, tables apart."""
    # Rank by rank, not in the order of time: differences within a rank are small, and the page sorts once by itself.
    ranks = sorted(recording.ranks, key=lambda rank: rank.rank)
    events = [event for rank in ranks for event in sorted(rank.events, key=lambda e: e.seq)]
    tables = Tables(Table)
    # In the model's order, whatever order events name them in: it is the order in which panes draw them.
    tables["units"].update({unit.name: place for place, unit in enumerate(recording.units, start=1)})
    columns = _columns(events, tables)
    # A recording made elsewhere may lack the text of a source; its events still name the line.
    missing = Source("source not recorded", "")
    sources = [recording.sources.get(key, missing) for key in tables["sources"]]
    return {
        "format": "zerolab-player",
        "version": VERSION,
        "title": describe(recording),
        "world_size": recording.world_size,
        "meta": asdict(recording.info),
        "ranks": [_rank(rank) for rank in ranks],
        "phases": PHASES,
        "kinds": KINDS,
        "categories": CATEGORIES,
        "words": [readable(word) for word in tables["words"]],
        "groups": list(tables["groups"]),
        # Flat instead of pairs: as JSON that saves two brackets a span, and the page walks them two by two anyway.
        "spans": [[edge for span in spans for edge in span] for spans in tables["spans"]],
        "numbers": list(tables["numbers"]),
        "units": _units(recording, tables, held_by(events)),
        "sources": [{name: readable(text) for name, text in asdict(source).items()} for source in sources],
        "count": len(events),
        "columns": columns,
    }


def pair_payload(first: "Recording", second: "Recording") -> dict[str, object]:
    """Two recordings for the player to show side by side, and where they part."""
    return {
        "format": "zerolab-player",
        "version": VERSION,
        "title": f"{describe(first)}; beside it {describe(second)}",
        "first": payload(first),
        "second": payload(second),
        "difference": first_difference(first, second),
        "said": in_one_line(first, second),
    }
