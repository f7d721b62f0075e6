"""Runs that the package ships, so that `explore()` answers before any rank has started.

`python tools/explore_recordings.py` makes them anew, on real ranks; a test holds them against a fresh run.
"""

import gzip
import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from zerolab import theory
from zerolab.comparison import Comparison, record, row_of
from zerolab.recording import jsonfile
from zerolab.recording.recording import Recording

FOLDER = Path(__file__).resolve().parent.parent / "data" / "explore"
MODEL, STEPS, PRECISION = "gpt-tiny", 2, "fp32"
WORLD_SIZES = (2, 4)


def every() -> Iterator[tuple[str, int]]:
    """Stage and number of ranks of each run that is shipped; all else is the engines' default."""
    return ((stage, world_size) for world_size in WORLD_SIZES for stage in theory.STAGES)


def measure(stage: str, world_size: int) -> Comparison:
    """Makes such a run now, on real ranks; its row has no seconds, which are another machine's."""
    made = record(stage, world_size, MODEL, STEPS, precision=PRECISION, device="cpu")
    return Comparison([row_of(made, PRECISION, 0.0)], {stage: made})


def ship(stage: str, world_size: int) -> Path:
    """Makes a run and writes it where `shipped` finds it."""
    run = measure(stage, world_size)
    content = {"row": run.rows[0], "recording": jsonfile.text(run.recordings[stage])}
    path = _path(stage, world_size)
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(gzip.compress(json.dumps(content).encode(), 9, mtime=0))
    return path


def shipped(stage: str, world_size: int) -> Comparison | None:
    """The run of a stage that was made beforehand; None if there is none for so many ranks."""
    path = _path(stage, world_size)
    if not path.exists():
        return None
    content: dict[str, Any] = json.loads(gzip.decompress(path.read_bytes()))
    recording = Recording(**jsonfile.parse(content["recording"].encode(), path.name)._asdict())
    return Comparison([content["row"]], {stage: recording})


def _path(stage: str, world_size: int) -> Path:
    return FOLDER / f"{stage}-{world_size}.json.gz"
