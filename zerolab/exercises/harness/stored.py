"""A safetensors file as an argument: it travels with it, and has a path on every rank, but no name in any folder."""

import os
import tempfile
from typing import IO, Any

import numpy as np
from safetensors.numpy import load, save


class StoredTensors(os.PathLike[str]):
    """Tensors by name, in a file that any reader can open: `safe_open(stored, framework="pt")`.

    The file is made where its path is first asked for, and goes with the process.
    """

    def __init__(self, tensors: dict[str, np.ndarray[Any, Any]]) -> None:
        self._content = save(tensors)
        self._file: IO[bytes] | None = None

    def __getstate__(self) -> dict[str, Any]:
        return {"_content": self._content, "_file": None}  # an open file stays where it is

    def __fspath__(self) -> str:
        if self._file is None:
            self._file = tempfile.TemporaryFile()  # noqa: SIM115  (open as long as this lives)
            self._file.write(self._content)
            self._file.flush()
        return f"/dev/fd/{self._file.fileno()}"

    def arrays(self) -> dict[str, np.ndarray[Any, Any]]:
        """What is in it."""
        return load(self._content)
