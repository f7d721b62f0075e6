"""A sharded checkpoint is written: each rank its own file, and whoever is last makes it whole.

The format is that of `torch.distributed.checkpoint`. The files are written into a folder with a name of its own; a rank
that is done leaves a note of what is in its file, and the rank that finds everybody's notes there writes the table of
contents and gives the folder its real name, in one step. So a folder under its real name is whole, whenever a rank was
killed; and no rank sends anything, so that all of this can go on in a thread while the training sends its own.
"""

import pickle
import shutil
from collections.abc import Callable
from contextlib import ExitStack
from dataclasses import replace
from pathlib import Path
from threading import Thread
from typing import Any

import torch
import torch.distributed as dist
from torch.distributed.checkpoint import DefaultSavePlanner, FileSystemWriter, SavePlan
from torch.distributed.checkpoint.default_planner import create_default_global_save_plan
from torch.distributed.checkpoint.metadata import MetadataIndex

from zerolab import files
from zerolab.engines.agreement import agree, check_same_on_all_ranks
from zerolab.engines.boxes import Elements, Place
from zerolab.engines.stored import STEP, key_of, read_note
from zerolab.runtime.observers import Within, within

CLAIM = ".finishing"


class Saving:
    """One save. `wait()` returns when the checkpoint is whole.

    Attributes:
        directory: where the checkpoint will be.
    """

    def __init__(self, run: str | Path, step: int, state: dict[Place, Any]) -> None:
        if isinstance(step, bool) or not isinstance(step, int) or step < 0:
            raise ValueError(f"step is {step!r}: give the number of steps that are done")
        self.directory = Path(run) / f"{STEP}{step}"
        self._whole = self.directory.absolute()  # a thread writes it, wherever the training goes meanwhile
        self._part = self._whole.with_name(f".{self.directory.name}.part")
        self._paths = {key_of(path): path for path in state}
        self._state = {key_of(path): value for path, value in state.items()}
        self._rank, self._world_size = dist.get_rank(), dist.get_world_size()
        self._thread: Thread | None = None
        self._error = ""
        self._is_over = False

    def start(self) -> None:
        """Copies what is to be saved, and writes it in a thread."""
        with within(lambda observer: observer.saving("copy", self._nbytes)):
            self._state = {key: _copy(value) for key, value in self._state.items()}
        writing = ExitStack()
        writing.enter_context(within(lambda observer: observer.saving("write", self._nbytes)))
        # No daemon: a script that ends here has still saved.
        self._thread = Thread(target=self._write_within, args=(writing,), name="zerolab-saving")
        self._thread.start()

    def write(self) -> None:
        """Writes it now."""
        self._write_within(within(lambda observer: observer.saving("save", self._nbytes)))

    def wait(self) -> None:
        """Returns when the checkpoint is whole; RuntimeError if a rank could not write its file. Collective."""
        if self._is_over:
            return
        if self._thread is not None:
            self._thread.join()
        self._is_over = True
        agree(self._error, RuntimeError)
        if self._rank == 0:  # a file system over a network may have shown the notes to nobody in time
            self._attempt(self._finish)
        agree(self._error, RuntimeError)  # and so nobody looks for the checkpoint before it is there

    @property
    def _nbytes(self) -> int:
        values = (value.values if isinstance(value, Elements) else value for value in self._state.values())
        return sum(value.nbytes for value in values if isinstance(value, torch.Tensor))

    def _write_within(self, writing: Within) -> None:
        with writing:
            self._attempt(self._write)
        self._state = {}

    def _attempt(self, action: Callable[[], None]) -> None:
        try:
            action()
        except Exception as error:  # noqa: BLE001  (it may be a thread's: `wait` raises it on all ranks)
            self._error = f"rank {self._rank} could not write its part of {self.directory.name} ({error})"

    def _write(self) -> None:
        writer = FileSystemWriter(self._part)
        planner = _Planner(flatten_state_dict=False, flatten_sharded_tensors=False)
        planner.set_up_planner(self._state, is_coordinator=self._rank == 0)
        mine = planner.create_local_plan()
        # The files of rank r are called __r_...: torch numbers plans by their place in the list.
        mine = writer.prepare_global_plan([*[SavePlan([])] * self._rank, mine])[-1]
        written = writer.write_data(mine, planner).wait()
        with files.replacing(self._note(self._rank)) as note:
            note.write_bytes(pickle.dumps((mine.items, self._paths, written)))
        self._finish()

    def _note(self, rank: int) -> Path:
        return self._part / f".{rank}.note"

    def _finish(self) -> None:
        """Makes the checkpoint whole, if all ranks have left their notes and no other rank is doing it."""
        notes = [self._note(rank) for rank in range(self._world_size)]
        try:
            if not all(note.exists() for note in notes):
                return
            (self._part / CLAIM).mkdir()
        except (FileExistsError, FileNotFoundError):  # another rank does it, or has done it
            return
        every = [read_note(note) for note in notes]
        _, contents = create_default_global_save_plan([SavePlan(items) for items, _, _ in every])
        paths = {key: path for _, mine, _ in every for key, path in mine.items()}
        FileSystemWriter(self._part).finish(replace(contents, planner_data=paths), [written for _, _, written in every])
        for note in notes:
            note.unlink()
        self._part.rename(self._whole)
        (self._whole / CLAIM).rmdir()  # not before: another rank could claim it now
        files.settle(self._whole.parent)

    def prepare(self) -> None:
        """Makes the folder to write to, and removes what saves that were killed have left. Collective.

        Raises ValueError if that step is saved already, or the run's folder cannot be written to.
        """
        check_same_on_all_ranks([self.directory.name], "the steps to be saved")
        error = ""
        if self._rank == 0:
            try:
                self._clear()
            except (OSError, ValueError) as problem:
                error = str(problem)
        agree(error, ValueError)

    def _clear(self) -> None:
        run = self.directory.parent
        if self.directory.exists():
            raise ValueError(f"{self.directory} is there already: remove it, or save into another folder")
        files.check_place(self.directory if run.is_dir() else run)
        run.mkdir(exist_ok=True)
        for left in run.glob(f".{STEP}*.part"):
            shutil.rmtree(left)
        self._part.mkdir()


class _Planner(DefaultSavePlanner):
    """torch's own, for which a piece of a flat is several boxes."""

    def lookup_object(self, index: MetadataIndex) -> Any:
        value = self.state_dict[index.fqn]
        return value.at(index.offset or ()) if isinstance(value, Elements) else value


def _copy(value: Any) -> Any:
    """A copy in main memory that training does not change."""
    if isinstance(value, Elements):
        return replace(value, values=_copy(value.values))
    return value.detach().to("cpu", copy=True) if isinstance(value, torch.Tensor) else value
