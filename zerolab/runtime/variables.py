"""zerolab's own environment variables, which README lists, and the one place that reads them.

They are read whenever they matter and never cached, because a cell may set them in the middle of a session. The first
three are limits that a host sets.
"""

import os
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path


def devices() -> tuple[int, ...] | None:
    """The GPUs that ranks may use, by torch's numbers; () for `cpu`, None if it is not set.

    Raises ValueError for anything else.
    """
    value = _read("ZEROLAB_DEVICES")
    if not value:
        return None
    if value == "cpu":
        return ()
    parts = [part.strip() for part in value.split(",")]
    if not all(part.isdigit() for part in parts):
        raise ValueError(f"ZEROLAB_DEVICES is {value!r}; give numbers of visible GPUs such as 0,1, or cpu, or unset it")
    return tuple(dict.fromkeys(map(int, parts)))


@contextmanager
def devices_limited_to(numbers: Iterable[int]) -> Iterator[None]:
    """Within it ranks use these GPUs, by torch's numbers, whatever the variable says."""
    name, before = "ZEROLAB_DEVICES", os.environ.get("ZEROLAB_DEVICES")
    os.environ[name] = ",".join(map(str, numbers))
    try:
        yield
    finally:
        os.environ.pop(name)
        if before is not None:
            os.environ[name] = before


def max_ranks() -> int | None:
    """The most ranks of a cluster; None for no limit. Raises ValueError unless it is a whole number above 0."""
    value = _read("ZEROLAB_MAX_RANKS")
    if value and not (value.isdigit() and int(value)):
        raise ValueError(f"ZEROLAB_MAX_RANKS is {value!r}; give a number of ranks, such as 8, or unset it")
    return int(value) if value else None


def idle_seconds() -> float:
    """Seconds after which idle ranks end, 20 minutes by default; 0 for never.

    Raises ValueError if it is no number from 0 up.
    """
    value = _read("ZEROLAB_IDLE_MINUTES") or "20"
    try:
        minutes = float(value)
    except ValueError:
        minutes = -1.0
    if not 0 <= minutes < float("inf"):  # nor nan, with which comparisons are false
        raise ValueError(f"ZEROLAB_IDLE_MINUTES is {value!r}; give minutes such as 20, or 0 to keep idle ranks")
    return 60 * minutes


def progress() -> str:
    """The progress file, `off`, or empty for the usual one."""
    return _read("ZEROLAB_PROGRESS")


def player_in_a_frame() -> bool:
    """Whether a player is shown as a page in an iframe, and not as a widget."""
    return _read("ZEROLAB_PLAYER") == "iframe"


def chromium() -> Path | None:
    """The browser that is named, None if none is. Raises FileNotFoundError for a file that is not there."""
    value = _read("ZEROLAB_CHROMIUM")
    if value and not Path(value).is_file():
        raise FileNotFoundError(f"ZEROLAB_CHROMIUM is {value!r}, which is no file; correct it or unset it")
    return Path(value) if value else None


def static() -> bool:
    """Whether outputs are stored and compared: then nothing may differ from run to run."""
    return _read("ZEROLAB_STATIC") == "1"


def stills() -> bool:
    """Whether figures keep their data where outputs are stored, so that a picture can be taken of them."""
    return _read("ZEROLAB_STILLS") == "1"


def _read(name: str) -> str:
    return os.environ.get(name, "").strip()
