"""Tensors in safetensors files, of which a reader takes the elements that it needs and no others.

A checkpoint is one file, or several with an index that says which tensor is in which, as Hugging Face writes them. A
reader's memory is what it asked for: safetensors maps the file, and of a mapped file only what is read comes in.
"""

import json
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError, safe_open

from zerolab.engines.boxes import boxes

NAMES = ("model.safetensors.index.json", "model.safetensors")  # what a folder of Hugging Face's has


class Weights:
    """The tensors of a checkpoint by name; nothing of them is read yet.

    Args:
        path: a safetensors file, an index of several, or the folder that has them.

    Raises:
        ValueError: a file is missing or damaged, or has not what the index says.
    """

    def __init__(self, path: str | Path) -> None:
        self.path = _find(Path(path))
        self.files = _indexed(self.path) if self.path.suffix == ".json" else {}
        self.shapes: dict[str, tuple[int, ...]] = {}
        self.dtypes: dict[str, torch.dtype] = {}
        for place in dict.fromkeys(self.files.values()) or [self.path]:
            with _opened(place) as file:
                for key in file.keys():  # noqa: SIM118  (it is no mapping)
                    piece = file.get_slice(key)
                    self.files.setdefault(key, place)
                    self.shapes[key] = tuple(piece.get_shape())
                    # Of no elements of it: safetensors has names of its own for dtypes.
                    self.dtypes[key] = (piece[:0] if self.shapes[key] else file.get_tensor(key)).dtype
        if missing := sorted(self.files.keys() - self.shapes.keys()):
            place = self.files[missing[0]]
            raise ValueError(f"{self.path.name} says that {missing[0]!r} is in {place.name}, and it is not: save anew")

    def read(self, key: str, start: int, stop: int) -> Iterator[torch.Tensor]:
        """The elements `[start, stop)` of a tensor laid end to end, in pieces of one dimension, in order.

        A piece is a view of the mapped file, and must not outlive the loop: its memory is the file's.
        """
        if start >= stop:
            return
        # Opened anew for each tensor: as long as a file is open, all that was read of it stays mapped.
        with _opened(self.files[key]) as file:
            piece = file.get_slice(key) if self.shapes[key] else {(): file.get_tensor(key)}
            for offsets, sizes in boxes(self.shapes[key], start, stop):
                box = tuple(slice(first, first + size) for first, size in zip(offsets, sizes, strict=True))
                yield piece[box].reshape(-1)


def _find(path: Path) -> Path:
    """The file itself, or the one to begin with in a folder."""
    if not path.is_dir():
        return path
    found = [path / name for name in NAMES if (path / name).exists()]
    if not found:
        raise ValueError(f"{path.name!r} is a folder without {' or '.join(NAMES)}: name the file in it")
    return found[0]


def _indexed(index: Path) -> dict[str, Path]:
    """The file of each tensor, as an index says."""
    try:
        return {key: index.parent / name for key, name in json.loads(index.read_text("utf-8"))["weight_map"].items()}
    except (OSError, ValueError, KeyError, TypeError, AttributeError) as error:
        raise ValueError(
            f"{index.name} cannot be read as an index of safetensors files ({type(error).__name__}: {error}): "
            "it should have a 'weight_map' from tensors to files"
        ) from None


@contextmanager
def _opened(place: Path) -> Iterator[Any]:
    try:
        with safe_open(place, framework="pt") as file:
            yield file
    except (OSError, SafetensorError) as error:
        raise ValueError(
            f"{place.name} cannot be read as safetensors ({error}): it is missing or damaged, so copy it again"
        ) from None
