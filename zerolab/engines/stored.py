"""A sharded checkpoint on disk, ours or FSDP2's by `torch.distributed.checkpoint`, and how it is read.

Which rank wrote an element does not matter: the table of contents says which file has which box of which tensor, and
a rank reads what overlaps with its own piece. So any number of ranks can go on where any other has stopped.
"""

import enum
import io
import pickle
import re
from collections import defaultdict
from collections.abc import Collection
from pathlib import Path
from typing import Any
from zipfile import BadZipFile, ZipFile

import torch
from torch.distributed.checkpoint import DefaultLoadPlanner, FileSystemReader, LoadPlan
from torch.distributed.checkpoint._nested_dict import unflatten_state_dict
from torch.distributed.checkpoint.metadata import Metadata, MetadataIndex, TensorStorageMetadata
from torch.distributed.checkpoint.planner import LoadItemType, ReadItem
from torch.distributed.checkpoint.planner_helpers import create_read_items_for_chunk_list

from zerolab.engines.boxes import Elements, Place

STEP = "step-"
CONTENTS = ".metadata"
EARLIER = "copy it again, or load an earlier checkpoint"


def latest_checkpoint(run: str | Path) -> Path:
    """The checkpoint of the last step in a run's folder, as `engine.save_sharded` left it; always a whole one.

    Raises:
        ValueError: there is none.
    """
    folder = Path(run)
    found = {
        int(match[1]): path
        for path in (folder.iterdir() if folder.is_dir() else ())
        if (match := re.fullmatch(rf"{STEP}(\d+)", path.name)) and (path / CONTENTS).is_file()
    }
    if not found:
        half = any(folder.glob(f".{STEP}*.part"))
        why = "only one that was never finished" if half else f"no {STEP}N with a {CONTENTS}"
        raise ValueError(f"{folder} has no whole checkpoint, {why}: give the folder that engine.save_sharded was given")
    return found[max(found)]


class Stored:
    """A checkpoint's contents; ValueError if there are none, or damaged ones, or a file is missing or too short."""

    def __init__(self, directory: str | Path) -> None:
        self.directory = Path(directory)
        self._contents = read_contents(self.directory)
        self._tensors: dict[str, Any] = self._contents.state_dict_metadata
        self._reader = FileSystemReader(self.directory)
        self._reader.set_up_storage_reader(self._contents, is_coordinator=True)
        self._checked: set[tuple[str, int]] = set()
        self._check_files()

    def _check_files(self) -> None:
        ends: defaultdict[str, int] = defaultdict(int)
        for place in self._contents.storage_data.values():
            ends[place.relative_path] = max(ends[place.relative_path], place.offset + place.length)
        for name, end in sorted(ends.items()):
            file = self.directory / name
            if not file.is_file():
                raise ValueError(f"{name} is missing in {self.directory}: bring the files of all ranks into one folder")
            if (size := file.stat().st_size) < end:
                raise ValueError(f"{name} in {self.directory} has {size} bytes of {end}: {EARLIER}")

    def tree(self, trained: Collection[str]) -> dict[str, Any]:
        """Everything in its place, in nested dicts and lists; of tensors only numbers are read.

        Others are zeros of the right shape that take no memory: what a rank needs of them it asks `read` for. Of the
        model's parameters the optimizer's groups lack those that are not `trained` here, and have no state.
        """
        paths = self._contents.planner_data
        if not isinstance(paths, dict) or not {"model", "optim"} <= {path[0] for path in paths.values()}:
            there = sorted({key.split(".")[0] for key in self._tensors})
            raise ValueError(
                f"{self.directory} has {', '.join(there)}, and not both 'model' and 'optim': "
                'save them as dcp.save({"model": ..., "optim": ...}, ...)'
            )
        tree = unflatten_state_dict({key: self._value(key) for key in paths if key in self._tensors}, paths)
        if "param_groups" not in tree["optim"]:
            raise ValueError(
                f"{self.directory} has the optimizer's state flattened: save what get_optimizer_state_dict gives "
                "without flatten_optimizer_state_dict"
            )
        # A parameter that never had a gradient has no state, and without momentum none has.
        state, groups = tree["optim"].get("state", {}), tree["optim"]["param_groups"]
        for group in [*groups]:  # an optimizer that was given all parameters has the frozen ones, too
            names = group.get("params", ())
            group["params"] = [name for name in names if name in trained or name in state or name not in tree["model"]]
            if names and not group["params"]:  # an engine makes no group of them
                groups.remove(group)
        tree["optim"]["state"] = {name: {} for group in groups for name in group["params"]} | state
        return tree

    def _value(self, key: str) -> Any:
        about = self._tensors[key]
        if not isinstance(about, TensorStorageMetadata):
            place, nothing = MetadataIndex(key), torch.Size((0,))
            item = ReadItem(LoadItemType.BYTE_IO, place, nothing, place, nothing, nothing)
            planner = _Planner()
            self._fill(key, [item], planner)
            return planner.value
        if not about.size:
            return self.read((key,))
        return torch.zeros((), dtype=about.properties.dtype).expand(about.size)

    def has(self, path: Place) -> bool:
        """Whether there is something at that place."""
        return key_of(path) in self._tensors

    def read(self, path: Place) -> torch.Tensor:
        """A whole tensor. Raises ValueError as `fill`."""
        about = self._tensors[key_of(path)]
        whole = torch.empty(about.size, dtype=about.properties.dtype)
        self.fill(path, Elements(about.size, 0, whole.view(-1)))
        return whole

    def fill(self, path: Place, elements: Elements) -> None:
        """Reads a piece of a tensor into its place. Raises ValueError if what the files have of it is damaged."""
        key = key_of(path)
        items = create_read_items_for_chunk_list(key, self._tensors[key], elements.__create_chunk_list__())
        if sum(item.lengths.numel() for item in items) != elements.values.numel():
            raise ValueError(f"{self.directory} lacks elements of {key!r}: {EARLIER}")
        self._fill(key, items, _Planner(elements))

    def _fill(self, key: str, items: list[ReadItem], planner: "_Planner") -> None:
        try:
            for item in items:
                self._check_sum(item.storage_index)
            self._reader.read_data(LoadPlan(items), planner).wait()
        except pickle.UnpicklingError:  # the sums are right
            raise ValueError(
                f"{key!r} in {self.directory} is an object of a class that is not loaded from files, as loading it may "
                "call anything: save numbers, words and tensors alone"
            ) from None
        # Whatever torch and Python raise over bytes that are not what was written.
        except (RuntimeError, OSError, EOFError, ValueError, KeyError, BadZipFile):
            raise ValueError(f"{key!r} in {self.directory} is damaged: {EARLIER}") from None

    def _check_sum(self, index: MetadataIndex) -> None:
        """Raises BadZipFile unless a tensor's bytes are those that were written; torch does not look at the sums."""
        place = self._contents.storage_data[index]
        if (found := (place.relative_path, place.offset)) in self._checked:
            return
        with (self.directory / place.relative_path).open("rb") as file:
            file.seek(place.offset)
            with ZipFile(io.BytesIO(file.read(place.length))) as parts:  # torch.save writes zip files
                if parts.testzip() is not None:
                    raise BadZipFile(place.relative_path)
        self._checked.add(found)


def opened(directory: str | Path, trained: Collection[str]) -> tuple[Stored, dict[str, Any]]:
    """A checkpoint, and everything in it (see `Stored.tree`). Raises ValueError as `Stored`."""
    try:
        stored = Stored(directory)
        return stored, stored.tree(trained)
    except (AttributeError, KeyError, TypeError) as error:  # of a damaged table of contents that is a pickle still
        raise ValueError(f"{Path(directory) / CONTENTS} is damaged ({error}): {EARLIER}") from None


def key_of(path: Place) -> str:
    """The key that torch gives to a place."""
    return ".".join(map(str, path))


class _Planner(DefaultLoadPlanner):
    """torch's own, which puts boxes into a piece of a flat, and takes plain values without executing anything."""

    def __init__(self, elements: Elements | None = None) -> None:
        super().__init__()
        self._elements, self.value = elements, None

    def lookup_tensor(self, index: MetadataIndex) -> torch.Tensor:
        return self._elements.at(index.offset or ())  # type: ignore[union-attr]  # given with every tensor

    def load_bytes(self, read_item: ReadItem, value: io.BytesIO) -> None:
        self.value = torch.load(value, weights_only=True)


_NAMED = {
    ("torch", "Size"),
    ("torch.serialization", "_get_layout"),
    ("torch.distributed.checkpoint.filesystem", "_StorageInfo"),
    *(("torch.distributed.checkpoint.planner", name) for name in ("WriteItem", "WriteItemType", "TensorWriteData")),
    ("torch.distributed.checkpoint.storage", "WriteResult"),
    ("collections", "OrderedDict"),
}


class _Unpickler(pickle.Unpickler):
    """The table of contents is a pickle, which could call anything: only its own classes and torch's plain ones may."""

    def find_class(self, module: str, name: str) -> Any:
        if module == "pathlib._local":  # as Python 3.13 calls it, and no other; torch notes the folder's path
            module = "pathlib"
        if (module, name) in _NAMED or (module == "pathlib" and name.endswith("Path")):
            return super().find_class(module, name)
        if (module, name) == ("builtins", "getattr"):
            return _member
        its_own = Metadata.__module__
        found = super().find_class(module, name) if module in ("torch", its_own) and "." not in name else None
        if isinstance(found, torch.dtype) or (isinstance(found, type) and found.__module__ == its_own):
            return found
        raise pickle.UnpicklingError(f"it asks for {module}.{name}")


def _member(kind: Any, name: str) -> enum.Enum:
    """A member of an enumeration, which Python 3.11 wrote as a call of `getattr` until 3.11.5."""
    if not (isinstance(kind, type) and issubclass(kind, enum.Enum)):
        raise pickle.UnpicklingError(f"it asks for getattr of {kind!r}")
    return kind[name]


def read_note(path: Path) -> Any:
    """What a rank noted of its file, without executing anything of it."""
    return _Unpickler(io.BytesIO(path.read_bytes())).load()


def read_contents(directory: Path) -> Metadata:
    """A checkpoint's table of contents, without executing anything of it. Raises ValueError as `Stored`."""
    path = directory / CONTENTS
    if not path.is_file():
        raise ValueError(
            f"{directory} is no whole checkpoint, it has no {CONTENTS}: zerolab.latest_checkpoint(run) finds the last"
        )
    try:
        contents = read_note(path)
    except Exception as error:  # noqa: BLE001  (damaged bytes can make a pickle raise anything)
        raise ValueError(f"{path} is damaged or not torch's ({error}): {EARLIER}") from None
    if not isinstance(contents, Metadata) or not isinstance(contents.storage_data, dict):
        raise ValueError(f"{path} is not a checkpoint's table of contents: {EARLIER}")  # noqa: TRY004
    return contents
