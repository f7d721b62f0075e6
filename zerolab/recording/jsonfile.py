"""A recording as a JSON file: compact, readable line by line, and checked piece by piece on the way back in.

An event is one line: when it started and how long it took (nanoseconds), the step, phase, kind and op, the live bytes
in the order of `categories`, and then, by name, what only some events have. If a device executed it, that includes the
stream and when execution began and ended, in nanoseconds on the same clock. `at` is the source line, `id:line`, with a
`*` behind it if autograd was in between; `host` is the live bytes in main memory, for a rank on a GPU, if they differ
from the previous event's. Nothing in a file is ever executed.
"""

import itertools
import json
import os
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import MISSING, asdict, fields, replace
from operator import call
from pathlib import Path
from types import UnionType
from typing import TYPE_CHECKING, Annotated, Any, Literal, NamedTuple, TypeVar, Union, get_args, get_origin
from typing import get_type_hints as hints

from zerolab import files
from zerolab.recording import events
from zerolab.recording.events import CATEGORIES, Event, RankInfo, RankRecording, RunInfo, Source, SourceLine, UnitInfo

if TYPE_CHECKING:
    from zerolab.recording.recording import Recording

FORMAT = "zerolab-recording"
# Goes up when an old reader would misread a new file, but not for additions that it may ignore.
VERSION = 1

AGAIN = "record it again, or fetch the file again"
Fits = Callable[[Any], bool]
Schema = TypeVar("Schema")


def _fits(hint: Any) -> Fits:
    """Whether a value of a file is how JSON writes a field of this type: a list for a tuple, null for None."""
    origin, parts = get_origin(hint), get_args(hint)
    if origin is Literal:
        return lambda value: value in parts
    if origin in (Union, UnionType):
        choices = [_fits(part) for part in parts]
        return lambda value: any(fits(value) for fits in choices)
    if origin is Annotated:  # a dictionary and its keys, all of which sums and tables rely on
        of_dictionary, keys = _fits(parts[0]), set(parts[1])
        return lambda value: of_dictionary(value) and value.keys() == keys
    if origin is not None:
        return _fits_container(origin, parts)
    # By `type`, for in Python true is the number 1, and a step called true is a damaged file.
    return lambda value: hint is Any or type(value) is hint or (hint is float and type(value) is int)


def _fits_container(kind: Any, parts: tuple[Any, ...]) -> Fits:
    of_parts = [_fits(part) for part in parts if part is not ...]
    if kind is dict:  # whose keys are text, as in all JSON
        return lambda value: isinstance(value, dict) and all(map(of_parts[1], value.values()))
    if kind is list or parts[-1] is ...:
        return lambda value: isinstance(value, list) and all(map(of_parts[0], value))
    return lambda value: isinstance(value, list) and len(value) == len(parts) and all(map(call, of_parts, value))


_FITS: dict[type, dict[str, Fits]] = {
    schema: {name: _fits(hint) for name, hint in hints(schema, include_extras=True).items()}
    for schema in (Event, UnitInfo, Source, RunInfo, RankInfo)
}
_fits_row = _fits(tuple[int, int, int, events.Phase, events.Kind, str, list[int], dict[str, Any]])
_fits_levels = _fits(list[int])
# Most events have two or three of these: left out where they say nothing, a file is far shorter.
_DEFAULTS = {field.name: field.default for field in fields(Event) if field.default is not MISSING}
del _DEFAULTS["source"]  # which is written as `at`


class Contents(NamedTuple):
    """What a file holds."""

    world_size: int
    info: RunInfo
    units: tuple[UnitInfo, ...]
    sources: dict[str, Source]
    ranks: list[RankRecording]


def text(recording: "Recording | Contents") -> str:
    """The file of a recording, which is also the form in which it travels over a network and is checked on arrival."""
    head = {"format": FORMAT, "version": VERSION, "world_size": recording.world_size, "meta": _changed(recording.info)}
    sources = (f"{_dump(key)}: {_dump(asdict(source))}" for key, source in recording.sources.items())
    # One line an event: a diff of two recordings shows the events that differ, and `grep` finds one.
    lists = (
        _listed('"units": [', map(_dump, map(asdict, recording.units)), "]"),
        _listed('"sources": {', sources, "}"),
        _listed('"ranks": [', map(_text_of_rank, recording.ranks), "]"),
    )
    return ",\n".join([_dump(head | {"categories": CATEGORIES})[:-1], *lists]) + "\n}\n"


def _text_of_rank(rank: RankRecording) -> str:
    head = _dump({"rank": rank.rank, "complete": rank.complete, "meta": _changed(rank.info)})
    before = itertools.chain([None], rank.events)
    rows = (_dump(_row(event, last)) for last, event in zip(before, rank.events, strict=False))
    return _listed(head[:-1] + ',"events": [', rows, "]}")


def _listed(opening: str, items: Iterable[str], closing: str) -> str:
    """The items one a line."""
    return "\n".join([opening, ",\n".join(items), closing])


def read(path: str | os.PathLike[str]) -> Contents:
    """Reads and checks a file. Raises FileNotFoundError, or ValueError for what is no file, malformed or newer."""
    source, name = Path(path), str(path)
    if source.is_dir():
        raise ValueError(f"{name!r} is a folder, not a recording: name the file that save() wrote, such as 'run.json'")
    if not source.exists():
        raise FileNotFoundError(f"{name!r} does not exist: check the name, or record one with `zerolab record`")
    files.check_readable(source)
    with files.named(source):
        data = source.read_bytes()
    return parse(data, name)


def parse(data: bytes, name: str) -> Contents:
    """The reverse of `text`, from its UTF-8 bytes. Raises ValueError, with their `name`, for damaged or newer ones."""
    try:
        document = json.loads(data.decode())
    # A file of a million open brackets, or with a number of a million digits, is refused like any other malformed one.
    except (ValueError, RecursionError) as error:
        what = f"is not JSON ({error})" if data else "is empty"
        raise ValueError(f"{name!r} {what}, so it is no recording: record it again, or fetch the file again") from None
    try:
        if b"\\u" in data:  # we write none, and a large file need not be searched for them
            _refuse_lone_surrogates(document)
        return _document(document)
    except _Malformed as error:
        raise ValueError(f"{name!r} is no recording that can be read: {error}") from None


class _Malformed(Exception):
    """What is wrong with a file, and what to do; deep in the document its name is not known, so `parse` adds it."""


def _dump(value: object) -> str:
    return json.dumps(files.finite(value), separators=(",", ":"), ensure_ascii=False)


def _changed(info: RunInfo) -> dict[str, object]:
    """The fields that differ from their defaults."""
    silent, said = type(info)(), ((field.name, getattr(info, field.name)) for field in fields(info))
    return {name: value for name, value in said if value != getattr(silent, name)}


def _row(event: Event, last: Event | None) -> list[object]:
    said = ((name, getattr(event, name), default) for name, default in _DEFAULTS.items())
    more: dict[str, object] = {name: value for name, value, default in said if value != default}
    if event.source is not None:
        more["at"] = f"{event.source.id}:{event.source.line}{'*' * event.source.from_autograd}"
    if event.host and (last is None or event.host != last.host):
        more["host"] = _levels(event.host)
    # A duration is a few digits, a second point in time would be ten.
    head = [event.t_start, event.t_end - event.t_start, event.step, event.phase, event.kind, event.op]
    return [*head, _levels(event.live), more]


def _levels(by_category: dict[str, int]) -> list[int]:
    return [by_category.get(category, 0) for category in CATEGORIES] if by_category else []


def _document(document: Any) -> Contents:
    found = document.get("format") if isinstance(document, dict) else type(document).__name__
    if found != FORMAT:
        raise _Malformed(f"its format is {found!r}, not {FORMAT!r}; name a file that save() wrote")
    version = _get(document, "version", int)
    # Before anything else is read: oddities in a newer file are not damage.
    if version > VERSION:
        raise _Malformed(f"a newer zerolab wrote it (version {version}, this one reads {VERSION}); upgrade zerolab")
    # The live bytes of an event are a bare list, and mean something in this order only.
    if version < 1 or _get(document, "categories", list) != list(CATEGORIES):
        raise _Malformed(f"it says version {version} with other categories than that has; record it again")
    world_size = _get(document, "world_size", int)
    units = tuple(_complete(UnitInfo, value, "a unit") for value in _get(document, "units", list))
    sources = {key: _complete(Source, value, "a source") for key, value in _get(document, "sources", dict).items()}
    ranks = [_rank(value, world_size, sources, units) for value in _get(document, "ranks", list)]
    numbers = [rank.rank for rank in ranks]
    # Ranks may be missing (they died), but none may appear twice or lie outside the world.
    if not ranks or numbers != sorted(set(numbers)) or not 0 <= numbers[0] <= numbers[-1] < world_size:
        raise _Malformed(f"it has ranks {numbers} of a world of {world_size}; record it again")
    return Contents(world_size, _info(RunInfo, document), units, sources, ranks)


def _refuse_lone_surrogates(document: object) -> None:
    # Only an escape can name a lone surrogate, and no file or page that contains one can be written.
    try:
        json.dumps(document, ensure_ascii=False).encode()
    except UnicodeEncodeError as error:
        half = error.object[error.start]
        raise _Malformed(f"it has {half!r}, half of a character; {AGAIN}") from None


def _info(schema: type[Schema], holder: Any) -> Schema:
    given = _get(holder, "meta", dict)
    return schema(**_checked(schema, {key: value for key, value in given.items() if value is not None}, "a 'meta'"))


def _complete(schema: type[Schema], holder: Any, where: str) -> Schema:
    """A unit or a source, of which a file has every field; but older files lack those that came later."""
    given = {"replicated": False} | (holder if isinstance(holder, dict) else {})
    return schema(**_frozen(_checked(schema, {name: given.get(name) for name in _FITS[schema]}, where)))


def _checked(schema: type, given: Mapping[str, Any], where: str) -> dict[str, Any]:
    """The fields of a schema that are given. Unknown ones are ignored: a later version may add some."""
    known = {name: value for name, value in given.items() if name in _FITS[schema]}
    for name, value in known.items():
        if not _FITS[schema][name](value):
            raise _Malformed(f"{name!r} of {where} is {_short(value)}; {AGAIN}")
    return known


def _frozen(value: Any) -> Any:
    """Lists as the tuples that events and units have, also within a dictionary."""
    if isinstance(value, dict):
        return {name: _frozen(item) for name, item in value.items()}
    return tuple(map(_frozen, value)) if isinstance(value, list) else value


def _get(holder: Any, key: str, kind: type) -> Any:
    """`holder[key]`, which must be of this type."""
    value = holder.get(key) if isinstance(holder, dict) else None
    if type(value) is not kind:
        raise _Malformed(f"{key!r} is {_short(value)}, not of type {kind.__name__}; {AGAIN}")
    return value


def _short(value: object) -> str:
    text = repr(value)
    return text if len(text) <= 40 else f"{text[:37]}..."


def _rank(value: Any, world_size: int, sources: dict[str, Source], units: tuple[UnitInfo, ...]) -> RankRecording:
    rank = _get(value, "rank", int)
    events: list[Event] = []
    # A row does not state its number: its position is the number, so it cannot be wrong.
    for seq, row in enumerate(_get(value, "events", list)):
        events.append(_event(row, rank, seq, sources, events[-1].host if events else {}))
    info, complete = _info(RankInfo, value), _get(value, "complete", bool)
    if not complete and info.cut_ns is None and info.origin is None:  # an older file
        info = replace(info, cut_ns=_end_of_last_wait(events))
    return RankRecording(rank, world_size, tuple(events), sources, units, info, complete)


def _end_of_last_wait(events: Sequence[Event]) -> int | None:
    """When a recording was cut off within a wait; one that ends by itself ends a moment before its collective."""
    ends = {event.seq: event.t_end for event in events}
    last = max(ends.values(), default=None)
    waits = [event for event in events if event.kind == "wait" and event.t_end == last]
    return last if any(wait.parent in ends and ends[wait.parent] == last for wait in waits) else None


def _event(row: Any, rank: int, seq: int, sources: dict[str, Source], host: dict[str, int]) -> Event:
    where = f"event {seq} of rank {rank}"
    # Pictures look up words and draw bars as long as durations: what is refused here cannot hurt them there.
    if not _fits_row(row) or row[1] < 0 or len(row[6]) not in (0, len(CATEGORIES)):
        raise _Malformed(f"{where} is {_short(row)}; {AGAIN}")
    start, duration, step, phase, kind, op, live, more = row
    said = _frozen(_checked(Event, {name: value for name, value in more.items() if name in _DEFAULTS}, where))
    at = _line(_get(more, "at", str), sources, where) if "at" in more else None
    if not _fits_device(*(said.get(name) for name in ("stream", "device_start", "device_end"))):
        raise _Malformed(f"{where} was executed on a device at no time; {AGAIN}")
    said |= {"live": dict(zip(CATEGORIES, live, strict=True)) if live else {}, "source": at, "host": host}
    if "host" in more:
        if not _fits_levels(more["host"]) or len(more["host"]) != len(CATEGORIES):
            raise _Malformed(f"'host' of {where} is {_short(more['host'])}; {AGAIN}")
        said["host"] = dict(zip(CATEGORIES, more["host"], strict=True))
    return Event(rank, seq, start, start + duration, step, phase, kind, op, **said)


def _fits_device(stream: str | None, start: int | None, end: int | None) -> bool:
    """Whether a stream and its two times are all there, in order, or none of them is."""
    if stream is None or start is None or end is None:
        return (stream, start, end) == (None, None, None)
    return start <= end


def _line(text: str, sources: dict[str, Source], where: str) -> SourceLine:
    # An event without its text would show a learner an empty pane, and no reason.
    key, _, line = text.rstrip("*").rpartition(":")
    if key not in sources or not line.isdecimal() or len(line) > 9:  # a longer one is no line, and may be no number
        raise _Malformed(f"{where} points to the source {_short(text)}, which is not in the file; record it again")
    return SourceLine(key, int(line), text.endswith("*"))
