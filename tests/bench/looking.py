"""What looking costs: a step that is recorded, against the same step that is not, in the same ranks, round by round.

Beside the recorder stand torch's own instruments: its MemTracker and its profiler with memory. And "a mode that does
nothing": an empty torch dispatch mode, the least that anything costs which sees every operation in Python.
"""

import contextlib
import ctypes
import random
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, nullcontext
from time import perf_counter, process_time
from typing import Any

import torch
import torch.distributed as dist
import workloads
from measuring import Figure
from torch.utils._python_dispatch import TorchDispatchMode

from zerolab import Cluster, models, theory
from zerolab.recording.recorder import Recorder

RANKS = 4
SHAPE = {"rows": 8, "length": 128}
BUDGET = 1.05
WARM_UP = 2
TRIM_THRESHOLD, MMAP_THRESHOLD = -1, -3  # of mallopt, glibc's malloc.h
LARGE = 32 << 20  # bytes; the most that glibc takes for the second, and more than any tensor of a step


class Nothing(TorchDispatchMode):
    """Sees every operation and does nothing but execute it."""

    @classmethod
    def _should_skip_dynamo(cls) -> bool:
        return False

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        return func(*args, **kwargs) if kwargs else func(*args)


def _mem_tracker(engine: Any) -> AbstractContextManager[Any]:
    from torch.distributed._tools.mem_tracker import MemTracker

    tracker = MemTracker()
    tracker.track_external(engine.model, engine.optimizer)
    return tracker


def _profiler(_: Any) -> AbstractContextManager[Any]:
    return torch.profiler.profile(activities=[torch.profiler.ProfilerActivity.CPU], profile_memory=True)


LOOKS: dict[str, Callable[[Any], AbstractContextManager[Any]]] = {
    "off": lambda _: nullcontext(),
    "recorded": lambda _: Recorder(),
    "a mode that does nothing": lambda _: Nothing(),
    "torch MemTracker": _mem_tracker,
    "torch profiler": _profiler,
}


def keep_freed_memory() -> None:
    """Has malloc keep what is freed, as it does for small things anyway.

    Else large tensors go back to the system and their pages are zeroed again for the next: 10,000 to 19,000 page faults
    a step under one look or another, by chance, which is 2 % of the step and hides what is to be measured.
    """
    with contextlib.suppress(AttributeError):  # no glibc
        libc = ctypes.CDLL(None)
        libc.mallopt(MMAP_THRESHOLD, LARGE)
        libc.mallopt(TRIM_THRESHOLD, 1 << 30)


def steps(stage: str, model: str, shape: dict[str, int], rounds: int, looks: list[str]) -> dict[str, list[Any]]:
    """On a rank: seconds of processor and of clock of one step under each look, a pair a round.

    The looks come in another order each round, the same on all ranks. Getting ready and tidying up (a recorder looks
    for what exists, a profiler makes its table) are not in the step.
    """
    keep_freed_memory()
    engine = workloads.engine(stage, models.build(model))
    batch = models.batches(model, dist.get_world_size(), dist.get_rank(), 1, **shape)[0]
    found: dict[str, list[Any]] = {look: [] for look in looks}
    shuffler = random.Random(0)
    for number in range(WARM_UP + rounds):
        for look in shuffler.sample(looks, len(looks)):
            with LOOKS[look](engine):
                dist.barrier()
                processor, clock = process_time(), perf_counter()
                engine.training_step(*batch, models.loss)
                pair = process_time() - processor, perf_counter() - clock
            if number >= WARM_UP:
                found[look].append(pair)
    return found


def recording(rounds: int) -> Iterator[Figure]:
    """A step of gpt-10m (8x128 tokens a rank) while somebody looks, in every stage.

    Processor time is all ranks' together: the clock shows the slowest rank's waiting for the others, too.
    """
    for stage in theory.STAGES:
        with Cluster(world_size=RANKS, device="cpu", timeout=120) as cluster:
            ranks = cluster.run(steps, stage, "gpt-10m", SHAPE, rounds, list(LOOKS))
        about = f"A step of gpt-10m, 8x128 tokens a rank, {RANKS} ranks, {stage}, while somebody looks"
        for place, what, join in ((0, "processor", sum), (1, "clock", max)):
            name = f"recording_{stage}" + "_clock" * (what == "clock")
            figure = Figure(name, f"{about}: {what} time", "seconds", "off", {"recorded": BUDGET})
            for look in LOOKS:
                for pairs in zip(*(rank[look] for rank in ranks), strict=True):
                    figure.add(look, join(pair[place] for pair in pairs))
            yield figure
