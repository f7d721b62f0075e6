"""What a promise about GPUs is, and the process in which one is tried."""

import faulthandler
import importlib
import json
import sys
import traceback
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

KEPT, BROKEN, NOT_TESTABLE, NOT_REACHED = "kept", "broken", "not testable", "not reached"
NOT_RUN = "not run"  # of a report that says so


class NotTestable(Exception):
    """This box lacks what the promise is about; the message says what."""


@dataclass(frozen=True)
class Promise:
    """A sentence, and the function that tries it on `cuda` or `cpu`.

    The function returns what it measured, by name; it raises NotTestable, or anything else if the promise is broken.
    """

    name: str
    sentence: str
    limit: float  # seconds after which it counts as hanging
    attempt: Callable[[str], dict[str, Any] | None]


def promise(sentence: str, limit: float = 60.0) -> Callable[[Callable[[str], dict[str, Any] | None]], Promise]:
    """Makes a promise of the function below it."""
    return lambda attempt: Promise(attempt.__name__, sentence, limit, attempt)


def load(file: Path) -> dict[str, Promise]:
    """The promises that a file makes, by name, in its order."""
    if str(file.parent) not in sys.path:  # by name, so that ranks can import it, too
        sys.path.insert(0, str(file.parent))
    module = importlib.import_module(file.stem)
    return {each.name: each for each in vars(module).values() if isinstance(each, Promise)}


def attempt(tried: Promise, device: str, answer: Path) -> None:
    """Tries one promise in this process, and writes what came of it to `answer`, whole or not at all."""
    faulthandler.enable()
    faulthandler.dump_traceback_later(max(tried.limit - 2, 0.5))  # where it hangs stands in its log
    try:
        found = {"verdict": KEPT, "figures": tried.attempt(device) or {}}
    except NotTestable as reason:
        found = {"verdict": NOT_TESTABLE, "reason": str(reason)}
    except BaseException as error:  # noqa: BLE001  (whatever it raises, the promise is broken)
        traceback.print_exc()
        found = {"verdict": BROKEN, "reason": f"{type(error).__name__}: {error}".split("\n", 1)[0]}
    partial = answer.with_suffix(".part")
    partial.write_text(json.dumps(found))
    partial.rename(answer)
