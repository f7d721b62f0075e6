"""What recording one's own script costs: a step of a plain loop under DDP and FSDP2, recorded, against the same not.

Beside seconds stand the calls of Python functions in a step, which a busy machine does not change.
"""

import cProfile
import gc
import random
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, nullcontext
from functools import partial
from time import perf_counter, process_time
from typing import Any

import torch
import torch.distributed as dist
from looking import RANKS, SHAPE, Nothing, keep_freed_memory
from measuring import Figure
from torch import nn
from torch.distributed.fsdp import fully_shard
from torch.nn.parallel import DistributedDataParallel

from zerolab import Cluster, models
from zerolab.trace.window import Window

MODEL = "gpt-10m"
FAR = 10**6  # a step that is never reached
BUDGETS = {"outside of the window": 1.01, "times only": 1.02, "recorded": 1.10}
READY, MEASURED = 1, 2  # steps of a visit: in the first a recorder gets ready, which is not in the figure


def _window(first: int, *, times_only: bool = False) -> AbstractContextManager[Any]:
    """What `zerolab.recording` enters; the recording is dropped, as writing it comes after the steps."""
    return Window(first, FAR, lambda _: None, times_only=times_only)


WAYS: dict[str, Callable[[], AbstractContextManager[Any]]] = {
    "off": nullcontext,
    "outside of the window": partial(_window, FAR),
    "a mode that does nothing": Nothing,
    "times only": partial(_window, 1, times_only=True),
    "recorded": partial(_window, 1),
}


def _sharded(model: Any) -> nn.Module:
    for block in model.blocks:
        fully_shard(block)
    return fully_shard(model)


SYSTEMS: dict[str, Callable[[nn.Module], nn.Module]] = {"ddp": DistributedDataParallel, "fsdp2": _sharded}


def _step(system: str) -> Callable[[], None]:
    """A step of a loop of one's own, always on the same batch."""
    net = SYSTEMS[system](models.build(MODEL))
    optimizer = torch.optim.AdamW(net.parameters(), lr=1e-3)
    inputs, targets = models.batches(MODEL, dist.get_world_size(), dist.get_rank(), 1, **SHAPE)[0]

    def step() -> None:
        models.loss(net(inputs), targets).backward()
        optimizer.step()
        optimizer.zero_grad()

    return step


def steps(system: str, rounds: int) -> tuple[dict[str, list[tuple[float, float]]], dict[str, int]]:
    """On a rank: seconds of processor and clock of a step in each way, a pair a round; calls of Python in a step."""
    keep_freed_memory()
    step = _step(system)
    step()  # AdamW makes its state
    found: dict[str, list[tuple[float, float]]] = {way: [] for way in WAYS}
    shuffler = random.Random(0)
    for _ in range(rounds):
        for way in shuffler.sample(list(WAYS), len(WAYS)):
            with WAYS[way]():
                for _ in range(READY):
                    step()
                gc.collect()  # a collector that is due runs in one way or another by chance
                dist.barrier()
                processor, clock = process_time(), perf_counter()
                for _ in range(MEASURED):
                    step()
                pair = process_time() - processor, perf_counter() - clock
            found[way].append((pair[0] / MEASURED, pair[1] / MEASURED))
    return found, {way: _calls(way, step) for way in WAYS}


def _calls(way: str, step: Callable[[], None]) -> int:
    profile = cProfile.Profile(builtins=False)
    with WAYS[way]():
        step()
        profile.runcall(step)
    return sum(entry.callcount for entry in profile.getstats())


def tracing(rounds: int) -> Iterator[Figure]:
    """A step of one's own loop, gpt-10m with 8x128 tokens a rank under DDP and FSDP2: off, outside, times only, full.

    Processor time is all ranks' together, as in `recording`.
    """
    for system in SYSTEMS:
        with Cluster(world_size=RANKS, device="cpu", timeout=120) as cluster:
            ranks = cluster.run(steps, system, rounds)
        about = f"A step of one's own loop, {MODEL}, 8x128 tokens a rank, {RANKS} ranks, {system}, that zerolab records"
        for place, what, join in ((0, "processor", sum), (1, "clock", max)):
            name = f"tracing_{system}" + "_clock" * (what == "clock")
            figure = Figure(name, f"{about}: {what} time", "seconds", "off", BUDGETS)
            for way in WAYS:
                for pairs in zip(*(found[way] for found, _ in ranks), strict=True):
                    figure.add(way, join(pair[place] for pair in pairs))
            yield figure
        counted = {way: [float(calls)] for way, calls in ranks[0][1].items()}
        title, unit = f"{about}: calls of Python on rank 0", "calls"
        yield Figure(f"tracing_{system}_calls", title, unit, "off", {}, counted)
