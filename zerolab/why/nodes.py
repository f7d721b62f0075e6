"""What nodes tell each other when ranks on one of them hang: one file per node, in a folder that all of them see."""

import contextlib
import json
import time
from collections.abc import Mapping, Sequence
from dataclasses import astuple
from pathlib import Path
from typing import Any

from zerolab import files
from zerolab.runtime.board import Position
from zerolab.runtime.faults import Standing
from zerolab.runtime.mismatch import Calls

PATIENCE = 3.0  # seconds in which another node answers
LARGEST = 1 << 24  # bytes of one node's file


class Nodes:
    """The files of a run's nodes; none of an earlier run, which were written before this began."""

    def __init__(self, folder: Path, job: str, run: str) -> None:
        self._folder, self._job, self._began = folder, job, time.time()
        self._own = folder / f"node-{run}.json"
        self.has_told = False

    def tell(self, standings: Sequence[Standing], calls: Calls) -> None:
        """Writes where the ranks of this node are, if they have made calls."""
        ranks = {rank: [astuple(standings[rank]), calls[rank]] for rank in calls}
        with contextlib.suppress(OSError, ValueError):  # the folder may be gone
            files.write_json(self._own, {"job": self._job, "time": time.time(), "ranks": ranks})
        self.has_told = True

    def forget(self) -> None:
        """Takes that back."""
        self._own.unlink(missing_ok=True)
        self.has_told = False

    def others(self) -> Mapping[int, tuple[Standing, list[Position]]]:
        """Where the ranks of those other nodes that have reported are, and their calls."""
        found: dict[int, tuple[Standing, list[Position]]] = {}
        for path in self._folder.glob("node-*.json"):
            if path != self._own and path.is_file():
                with contextlib.suppress(OSError, ValueError, TypeError, KeyError):
                    document = json.loads(path.read_bytes()[:LARGEST])
                    if document["job"] == self._job and document["time"] >= self._began:
                        found |= {int(rank): _read(said) for rank, said in document["ranks"].items()}
        return found

    def wait(self, missing: int) -> Mapping[int, tuple[Standing, list[Position]]]:
        """The same, once so many ranks have reported or no more reports arrive."""
        until = time.monotonic() + PATIENCE
        while len(found := self.others()) < missing and time.monotonic() < until:
            time.sleep(0.1)
        return found


def _read(said: Any) -> tuple[Standing, list[Position]]:
    (rank, state, position, *more), calls = said
    return Standing(rank, state, Position(*position), *more), [Position(*call) for call in calls]
