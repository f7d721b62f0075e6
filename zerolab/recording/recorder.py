"""Records what one rank does, from outside: the code that is recorded does not know.

Off means nothing is patched, hooked or watched; everything is put in place on entering and removed on leaving.
"""

import gc
from contextlib import ExitStack
from time import monotonic_ns
from types import TracebackType
from typing import Any, Self

import torch
import torch.distributed as dist

from zerolab.recording.dispatch import Watch
from zerolab.recording.events import CATEGORIES, RankRecording
from zerolab.recording.exchanges import Exchanges
from zerolab.recording.ledger import Ledger
from zerolab.recording.log import Log, StepFigures
from zerolab.recording.ownership import Ownership
from zerolab.recording.passes import Passes, engine_call
from zerolab.recording.patches import replace
from zerolab.recording.sources import Sources

STATE = ("parameters", "gradients", "optimizer_state")
_PRECISIONS = {"float32": "fp32", "bfloat16": "bf16", "float16": "fp16", "float64": "fp64"}

_recording: list["Recorder"] = []  # those that are on in this process


def announce(engine: Any) -> None:
    """Tells every recorder that is on of an engine of somebody's own; does nothing where none is."""
    for recorder in _recording:
        recorder.add_engine(engine)


class Recorder:
    """Records everything that happens within `with Recorder() as recorder:`; `finish()` gives it as plain data.

    It works with and without a process group. Storages that exist already are counted as `other` unless an engine
    holds them.
    """

    def __init__(self) -> None:
        self._ledger, self._sources = Ledger(), Sources()
        self._log = Log(self._ledger, self._sources)
        self._ownership = Ownership(self._log)
        self._passes = Passes(self._log, self._ownership)
        self._exchanges = Exchanges(self._log, self._ownership.sync)
        self._stack = ExitStack()
        self._started = 0
        self._complete = False
        self._meta: dict[str, object] = {}

    def add_engine(self, engine: Any) -> None:
        """Takes in what is no `Engine` but can say the same: `model`, `flats`, `optimizer`, `holdings()`."""
        self._passes.know(engine.model, [flat.layout.unit for flat in engine.flats if flat.layout.unit != "root"])
        self._passes.watch_gradients(engine.model)
        self._ownership.add_engine(engine)

    def __enter__(self) -> Self:
        if self._started:
            raise RuntimeError("this Recorder has been used already: make a new one for each recording")
        self._started = monotonic_ns()
        with ExitStack() as stack:  # what was put in place is removed if the rest fails
            from zerolab.engines.engine import Engine

            self._count_what_exists(Engine)
            self._passes.install(stack)
            if dist.is_available():
                self._exchanges.install(stack)
            stack.enter_context(replace(torch.UntypedStorage, "resize_", self._resize))
            for name, wrapper in engine_call(self._passes, self._log, self._ownership).items():
                stack.enter_context(replace(Engine, name, wrapper))
            stack.enter_context(Watch(self._log, self._exchanges.on_c10d))
            self._stack = stack.pop_all()
        _recording.append(self)
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self._stack.close()
        _recording.remove(self)
        self._complete = kind is None
        self._ownership.sync()
        self._log.end_step()
        self._meta = self._describe()  # now, while the engines are there
        self._ownership.engines.clear()
        self._ledger.close()

    def finish(self) -> RankRecording:
        """What was recorded, as plain values that can be pickled and written as JSON."""
        if not self._meta:
            raise RuntimeError("the recording is still going on: call finish() after the with block has ended")
        rank, world_size = _place()
        return RankRecording(
            rank=rank,
            world_size=world_size,
            events=tuple(self._log.events(rank)),
            sources=dict(self._sources.texts),
            units=tuple(self._ownership.units.values()),
            meta=self._meta,
            complete=self._complete,
        )

    def _count_what_exists(self, engine_class: type) -> None:
        """Seeds the ledger with every tensor and engine that Python knows: memory from before the recording."""
        engines = []
        for thing in gc.get_objects():
            kind = type(thing)
            if issubclass(kind, torch.Tensor):
                if kind in (torch.Tensor, torch.nn.Parameter) and thing.layout is torch.strided:
                    self._ledger.see(thing)
            elif issubclass(kind, engine_class) and hasattr(thing, "optimizer"):
                engines.append(thing)
        if self._ledger.total:
            self._log.add("note", "before recording", text=f"{self._ledger.total} bytes existed before the recording")
        for engine in engines:
            units = [flat.layout.unit for flat in engine.flats if flat.layout.unit != "root"]
            self._passes.know(engine.model, list(dict.fromkeys(units)))
            self._ownership.add_engine(engine)
        self._ledger.start_peak()

    def _resize(self, original: Any, storage: torch.UntypedStorage, size: int) -> Any:
        result = original(storage, size)
        self._ledger.resized(storage)
        if size == 0:
            self._ownership.sync()
        return result

    def _describe(self) -> dict[str, object]:
        steps = self._log.steps
        engine = self._ownership.engines[-1] if self._ownership.engines else None
        rank, world_size = _place()
        meta: dict[str, object] = {
            "stage": getattr(engine, "stage", None),
            "num_params": sum(unit.numel for unit in self._ownership.units.values()) or None,
            "optimizer": type(engine.optimizer).__name__ if engine is not None else None,
            "precision": _precision([unit.dtype for unit in self._ownership.units.values()]),
            "backend": dist.get_backend() if _in_group() else None,
            "device": _device(engine),
            "simulated": _in_group() and dist.get_backend() == "fake",
            "formula": None,
            "started_ns": self._started,
            **_figures(steps),
            "logical_bytes": [self._logical_bytes(step.number) for step in steps],
            "losses": self._log.losses,
            "torch": torch.__version__,
        }
        return meta | {"formula": _formula(meta, world_size)}

    def _logical_bytes(self, step: int) -> int:
        return sum(draft.get("logical_bytes", 0) for draft in self._log.drafts if draft["step"] == step)


def _figures(steps: list[StepFigures]) -> dict[str, object]:
    """What is measured of the steps; the state of the last one, if that is not the first (see DESIGN: state)."""
    last = steps[-1] if steps else None
    state = dict(zip(CATEGORIES, last.state, strict=True)) if last and last.state and last.number > 1 else None
    return {
        "steps": len(steps),
        "state": {category: state[category] for category in STATE} if state else None,
        "peak": dict(zip(CATEGORIES, last.peak, strict=True)) if last else None,
        "peak_total": sum(last.peak) if last else None,
        "wire_bytes": [step.wire_bytes for step in steps],
        "operations": [step.operations for step in steps],
    }


def _formula(meta: dict[str, object], world_size: int) -> dict[str, int] | None:
    """The closed form for this run, if it is one of the four stages in a precision that has one."""
    from zerolab import theory

    stage, num_params, precision = meta["stage"], meta["num_params"], meta["precision"]
    if stage not in theory.STAGES or precision not in theory.BYTES_PER_PARAMETER or not isinstance(num_params, int):
        return None
    return theory.state_bytes(str(stage), num_params, world_size, str(precision))


def _precision(dtypes: list[str]) -> str | None:
    names = {_PRECISIONS.get(dtype, dtype) for dtype in dtypes}
    return "+".join(sorted(names)) or None


def _device(engine: Any) -> str:
    if engine is not None and engine.flats:
        return str(engine.flats[0].whole.device.type)
    return "cpu"


def _in_group() -> bool:
    return dist.is_available() and dist.is_initialized()


def _place() -> tuple[int, int]:
    return (dist.get_rank(), dist.get_world_size()) if _in_group() else (0, 1)
