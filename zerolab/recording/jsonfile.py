"""A recording as a JSON file: compact, readable line by line, and checked piece by piece on the way back in.

An event is one line: when it started and how long it took (nanoseconds), the step, phase, kind and op, the live bytes
in the order of `categories`, and then by name what only some events have. `at` is the source line, `id:line`, with a
`*` behind it if autograd was in between. Nothing of a file is ever executed.
"""

import json
import math
import os
from collections.abc import Callable, Iterator
from dataclasses import MISSING, asdict, fields
from pathlib import Path
from types import NoneType
from typing import Any, Literal, NamedTuple, get_args, get_origin, get_type_hints

from zerolab import files
from zerolab.recording import checks
from zerolab.recording.events import CATEGORIES, KINDS, PHASES, Event, RankRecording, Source, SourceLine, UnitInfo

FORMAT = "zerolab-recording"
# Goes up when an old reader would misread a new file; what it may ignore does not need it.
VERSION = 1


def _kind(hint: Any) -> type:
    """The type that a field has in JSON: of what may be None the other one, a list for a tuple, text for a word."""
    if NoneType in get_args(hint):
        (hint,) = (one for one in get_args(hint) if one is not NoneType)
    found: type = {tuple: list, Literal: str}.get(get_origin(hint), hint)
    return found


def _kinds(schema: type) -> dict[str, type]:
    """The types of a schema's fields in JSON, by name."""
    return {name: _kind(hint) for name, hint in get_type_hints(schema).items()}


# Most events have two or three of these: left out where they say nothing, a file is far shorter.
_DEFAULTS = {field.name: field.default for field in fields(Event) if field.default is not MISSING}
del _DEFAULTS["source"]  # which is written as `at`
_OPTIONAL = {name: kind for name, kind in _kinds(Event).items() if name in _DEFAULTS}
_OF_A_UNIT = _kinds(UnitInfo)


class Contents(NamedTuple):
    """What a file holds."""

    world_size: int
    meta: dict[str, object]
    units: tuple[UnitInfo, ...]
    sources: dict[str, Source]
    ranks: list[RankRecording]


def write(path: str | os.PathLike[str], contents: Contents) -> None:
    """Writes the file whole or not at all.

    Raises ValueError if the folder does not exist.
    """
    files.write_text(path, text(contents))


# Over a network JSON travels as well: whoever receives it checks it as it would a file.
def text(contents: Contents) -> str:
    """What `write` writes, as text, for a recording that travels."""
    return "".join(f"{line}\n" for line in _lines(contents))


def read(path: str | os.PathLike[str]) -> Contents:
    """Reads and checks a file.

    Raises:
        FileNotFoundError: there is no such file.
        ValueError: a folder, an empty, malformed or newer file.
    """
    source, name = Path(path), str(path)
    if source.is_dir():
        raise ValueError(f"{name!r} is a folder, not a recording: name the file that save() wrote, such as 'run.json'")
    if not source.exists():
        raise FileNotFoundError(f"{name!r} does not exist: check the name, or record one with `zerolab record`")
    return parse(source.read_bytes(), name)


def parse(data: bytes, name: str) -> Contents:
    """The reverse of `text`, from its UTF-8 bytes; `name` is what an error calls them.

    Raises:
        ValueError: they are no recording, a damaged or a newer one.
    """
    try:
        document = json.loads(data.decode())
    # A file of a million open brackets is refused like any other, not by a crash.
    except (UnicodeDecodeError, json.JSONDecodeError, RecursionError) as error:
        what = f"is not JSON ({error})" if data else "is empty"
        raise ValueError(f"{name!r} {what}, so it is no recording: record it again, or fetch the file again") from None
    try:
        if b"\\u" in data:  # we write none, and a large file need not be gone through for them
            _refuse_halves(document)
        return _document(document)
    except _Malformed as error:
        raise ValueError(f"{name!r} is no recording that can be read: {error}") from None


# Raised deep in the document, where nobody knows the file; `parse` adds the name.
class _Malformed(Exception):
    """What is wrong with a file, and what to do, without its name."""


def _dump(value: object) -> str:
    return json.dumps(_finite(value), separators=(",", ":"), ensure_ascii=False)


def _finite(value: object) -> object:
    """JSON knows neither infinity nor NaN, and a loss may be one: it becomes null."""
    if isinstance(value, float):
        return value if math.isfinite(value) else None
    if isinstance(value, dict):
        return {str(key): _finite(item) for key, item in value.items()}
    # A tuple becomes a list here as it would in JSON, so that what was saved equals what is loaded.
    return [_finite(item) for item in value] if isinstance(value, (list, tuple)) else value


def _lines(contents: Contents) -> Iterator[str]:
    """The file's text, one event a line."""
    yield "{"
    for key, value in {"format": FORMAT, "version": VERSION, "world_size": contents.world_size}.items():
        yield f'"{key}": {_dump(value)},'
    yield f'"meta": {_dump(contents.meta)},'
    yield f'"categories": {_dump(CATEGORIES)},'
    # One line an event: a diff of two recordings shows the events that differ, and `grep` finds one.
    yield from _listed('"units": [', (_dump(asdict(unit)) for unit in contents.units), "],")
    sources = ((key, {"label": source.label, "text": source.text}) for key, source in contents.sources.items())
    yield from _listed('"sources": {', (f"{_dump(key)}: {_dump(value)}" for key, value in sources), "},")
    yield '"ranks": ['
    for place, rank in enumerate(contents.ranks):
        head = {"rank": rank.rank, "complete": rank.complete, "meta": rank.meta}
        yield _dump(head)[:-1] + ',"events": ['
        yield from _listed("", (_dump(_row(event)) for event in rank.events), "]}")
        if place < len(contents.ranks) - 1:
            yield ","
    yield "]"
    yield "}"


def _listed(opening: str, items: Iterator[str], closing: str) -> Iterator[str]:
    """The items one a line, with commas between them."""
    if opening:
        yield opening
    # JSON allows no comma behind the last item, and an iterator does not say which one that is.
    before = None
    for item in items:
        if before is not None:
            yield before + ","
        before = item
    if before is not None:
        yield before
    yield closing


def _row(event: Event) -> list[object]:
    said = {name: getattr(event, name) for name in _OPTIONAL}
    more: dict[str, object] = {name: value for name, value in said.items() if value != _DEFAULTS[name]}
    if event.source is not None:
        more["at"] = f"{event.source.id}:{event.source.line}{'*' * event.source.from_autograd}"
    # A duration is a few digits, a second point in time would be ten.
    head = [event.t_start, event.t_end - event.t_start, event.step, event.phase, event.kind, event.op]
    live = [event.live.get(category, 0) for category in CATEGORIES] if event.live else []
    return [*head, live, more]


def _document(document: Any) -> Contents:
    found = document.get("format") if isinstance(document, dict) else type(document).__name__
    if found != FORMAT:
        raise _Malformed(f"its format is {found!r}, not {FORMAT!r}; name a file that save() wrote")
    version = _get(document, "version", int)
    # Before anything else is read: whatever is odd in a newer file is no damage.
    if version > VERSION:
        raise _Malformed(f"a newer zerolab wrote it (version {version}, this one reads {VERSION}); upgrade zerolab")
    # The live bytes of an event are a bare list, and mean something in this order only.
    if version < 1 or _get(document, "categories", list) != list(CATEGORIES):
        raise _Malformed(f"it says version {version} with other categories than that has; record it again")
    world_size = _get(document, "world_size", int)
    units = tuple(_each(document, "units", _unit))
    sources = {key: _source(value) for key, value in _get(document, "sources", dict).items()}
    ranks = _each(document, "ranks", lambda value: _rank(value, world_size, sources, units))
    numbers = [rank.rank for rank in ranks]
    # Ranks may be missing, they died; but none may be there twice or be none of this world.
    if not ranks or numbers != sorted(set(numbers)) or not 0 <= numbers[0] <= numbers[-1] < world_size:
        raise _Malformed(f"it has ranks {numbers} of a world of {world_size}; record it again")
    return Contents(world_size, _meta(document), units, sources, ranks)


def _refuse_halves(document: object) -> None:
    # Only an escape can name a lone surrogate. No file and no page could take it again.
    try:
        json.dumps(document, ensure_ascii=False).encode()
    except UnicodeEncodeError as error:
        half = error.object[error.start]
        raise _Malformed(f"it has {half!r}, half of a character; record it again, or fetch the file again") from None


def _meta(holder: Any) -> dict[str, object]:
    meta: dict[str, object] = _get(holder, "meta", dict)
    if (key := checks.wrong_key(meta)) is not None:
        raise _Malformed(f"{key!r} of a 'meta' is {_short(meta[key])}; record it again, or fetch the file again")
    return meta


def _get(holder: Any, key: str, kind: type | tuple[type, ...]) -> Any:
    """`holder[key]`, which must be of this kind."""
    value = holder.get(key) if isinstance(holder, dict) else None
    # In Python true is the number 1, and a step called true is a damaged file.
    if not isinstance(value, kind) or (isinstance(value, bool) and kind is int):
        wanted = getattr(kind, "__name__", kind)
        raise _Malformed(f"{key!r} is {_short(value)}, not of type {wanted}; record it again, or fetch the file again")
    return value


def _each(holder: Any, key: str, read_one: Callable[[Any], Any]) -> list[Any]:
    return [read_one(value) for value in _get(holder, key, list)]


def _short(value: object) -> str:
    text = repr(value)
    return text if len(text) <= 40 else f"{text[:37]}..."


def _unit(value: Any) -> UnitInfo:
    read = {key: _get(value, key, kind) for key, kind in _OF_A_UNIT.items()}
    parameters = tuple(read["parameters"])
    if not all(isinstance(name, str) for name in parameters):
        raise _Malformed(f"'parameters' of a unit are {_short(parameters)}, not names; record it again")
    return UnitInfo(**read | {"parameters": parameters})


def _source(value: Any) -> Source:
    return Source(_get(value, "label", str), _get(value, "text", str))


def _rank(value: Any, world_size: int, sources: dict[str, Source], units: tuple[UnitInfo, ...]) -> RankRecording:
    rank = _get(value, "rank", int)
    rows = _get(value, "events", list)
    # A row does not say its number: it is its place, so that it cannot be wrong.
    events = tuple(_event(row, rank, seq, sources) for seq, row in enumerate(rows))
    return RankRecording(rank, world_size, events, sources, units, _meta(value), _get(value, "complete", bool))


def _event(row: Any, rank: int, seq: int, sources: dict[str, Source]) -> Event:
    where = f"event {seq} of rank {rank}"
    if not isinstance(row, list) or len(row) != 8 or not all(type(value) is int for value in row[:3]):
        raise _Malformed(f"{where} is {_short(row)}; record it again, or fetch the file again")
    start, duration, step, phase, kind, op, live, more = row
    words_fit = phase in PHASES and kind in KINDS and isinstance(op, str) and isinstance(more, dict)
    # Pictures look words up and draw bars as long as durations: what is refused here need not be feared there.
    if not words_fit or not _are_numbers(live, (0, len(CATEGORIES))) or duration < 0:
        raise _Malformed(f"{where} is {_short(row)}; record it again, or fetch the file again")
    # What this version does not know it leaves aside: a later one may add to an event.
    said = {key: _get(more, key, _OPTIONAL[key]) for key in more if key in _OPTIONAL}
    if (category := said.get("category")) is not None and category not in CATEGORIES:
        raise _Malformed(f"{where} has the category {category!r}, not one of {', '.join(CATEGORIES)}; record it again")
    if "group" in said:
        if not _are_numbers(said["group"]):
            raise _Malformed(f"{where} has the group {_short(said['group'])}, not a list of ranks; record it again")
        said["group"] = tuple(said["group"])
    if "spans" in said:
        said["spans"] = _spans(said["spans"], where)
    at = _line(_get(more, "at", str), sources, where) if "at" in more else None
    bytes_by_category = dict(zip(CATEGORIES, live, strict=True)) if live else {}
    return Event(rank, seq, start, start + duration, step, phase, kind, op, live=bytes_by_category, source=at, **said)


def _are_numbers(value: object, lengths: tuple[int, ...] | None = None) -> bool:
    """Whether this is a list of whole numbers, and of one of these lengths."""
    if not isinstance(value, list) or (lengths is not None and len(value) not in lengths):
        return False
    return all(type(number) is int for number in value)


def _spans(value: list[Any], where: str) -> tuple[tuple[int, int], ...]:
    for span in value:
        if not _are_numbers(span, (2,)):
            raise _Malformed(f"{where} has the span {_short(span)}, not [start, stop]; record it again")
    return tuple((start, stop) for start, stop in value)


def _line(text: str, sources: dict[str, Source], where: str) -> SourceLine:
    # An event without its text would show a learner an empty pane, and no reason.
    key, _, line = text.rstrip("*").rpartition(":")
    if key not in sources or not line.isdigit():
        raise _Malformed(f"{where} points to the source {_short(text)}, which is not in the file; record it again")
    return SourceLine(key, int(line), text.endswith("*"))
