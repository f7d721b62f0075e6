"""The same for loops that belong to a library: one line more where its trainer is made.

Trainer(model, arguments, callbacks=[transformers_callback("run.json")])  # transformers
Trainer(callbacks=[lightning_callback("run.json")])  # Lightning
"""

import atexit
import os
import sys
from contextlib import ExitStack
from typing import Any

from zerolab.trace import recording


def transformers_callback(
    out: str | os.PathLike[str],
    steps: tuple[int, int] = (2, 4),
    *,
    times_only: bool = False,
    fingerprints: bool = False,
) -> Any:
    """A `TrainerCallback` for the `Trainer` of transformers, and those made of it: records steps of its training.

    Arguments as of `zerolab.recording`. Raises ImportError without transformers.
    """
    from transformers import TrainerCallback

    class Callback(TrainerCallback):
        def on_train_begin(self, *_: Any, **__: Any) -> None:
            block.begin()

        def on_train_end(self, *_: Any, **__: Any) -> None:
            block.end()

    block = _Block(out, steps, times_only=times_only, fingerprints=fingerprints)
    return Callback()


def lightning_callback(
    out: str | os.PathLike[str],
    steps: tuple[int, int] = (2, 4),
    *,
    times_only: bool = False,
    fingerprints: bool = False,
) -> Any:
    """A `Callback` for Lightning's `Trainer`: records steps of its `fit`.

    Arguments as of `zerolab.recording`. Raises ImportError without lightning or pytorch_lightning.
    """
    if "pytorch_lightning" in sys.modules and "lightning" not in sys.modules:  # its older name, with the same contents
        from pytorch_lightning import Callback as Base
    else:
        from lightning.pytorch import Callback as Base  # type: ignore[assignment]  # another class of the same contents

    class Callback(Base):
        def on_train_start(self, *_: Any) -> None:
            block.begin()

        def on_train_end(self, *_: Any) -> None:
            block.end()

        def on_exception(self, _: Any, __: Any, error: BaseException) -> None:
            block.end(error)

    block = _Block(out, steps, times_only=times_only, fingerprints=fingerprints)
    return Callback()


class _Block:
    """A `with` block in two calls; it ends at the latest with the process, as after an error nobody may call."""

    def __init__(self, *arguments: Any, **options: Any) -> None:
        self._arguments, self._options = arguments, options
        self._stack = ExitStack()

    def begin(self) -> None:
        self.end()  # of a training that is begun again, with another batch size, nobody tells the first end
        self._stack.enter_context(recording(*self._arguments, **self._options))
        atexit.register(self._left)

    def end(self, error: BaseException | None = None) -> None:
        atexit.unregister(self._left)
        kind, place = (None, None) if error is None else (type(error), error.__traceback__)
        self._stack.__exit__(kind, error, place)

    def _left(self) -> None:
        self.end(getattr(sys, "last_value", None))  # what ends the process, if something does
