"""The simulation's own cost, the ZeRO paper's whole table out of it, and how well its seconds fit this machine.

The last is a calibration: the cost model's five constants are fitted to steps of GPTs of other sizes, and then the step
of gpt-10m is predicted. On processors that the ranks share, each world size has constants of its own: four ranks on two
cores have half the rate each, and what is sent is sent by the cores that compute, so nothing runs beside anything.
"""

import json
import subprocess
import sys
from collections.abc import Iterable, Iterator
from functools import partial
from itertools import combinations
from pathlib import Path
from statistics import median
from time import perf_counter
from typing import Any, NamedTuple

import numpy as np
import torch
import torch.distributed as dist
from measuring import Figure, interleaved

from zerolab import Cluster, models, simulate
from zerolab.catalog import Gpu, Link
from zerolab.engines import ENGINES
from zerolab.simulation.costs import Hardware

sys.path.append(str(Path(__file__).parents[1]))  # where the paper's table lies, beside the tests
from zero_paper import CELLS, DEGREES, NAMES, off_by

FRESH = """
import resource, sys
from time import perf_counter
start = perf_counter()
from zerolab import simulate
simulate(world_size=int(sys.argv[2]), model=sys.argv[1])
peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024  # Linux counts in KiB
import json
print(json.dumps({"seconds": perf_counter() - start, "gigabytes": peak / 1e9}))
"""
SIZES = {"7b on 8 ranks": ("7b", 8), "gpt3-175b on 1024 ranks": ("gpt3-175b", 1024)}


def simulation(rounds: int) -> Iterator[Figure]:
    """All four stages of a published model in a fresh interpreter, import of torch included; and its memory."""
    seconds = Figure(
        "simulation",
        "Simulating four stages in a fresh interpreter",
        "seconds",
        None,
        {"7b on 8 ranks": 10.0, "gpt3-175b on 1024 ranks": 60.0},
    )
    memory = Figure(
        "simulation_memory", "Highest memory of such a simulation", "GB (1e9 bytes)", None, dict.fromkeys(SIZES, 2.0)
    )

    def measure(variant: str) -> float:
        model, world_size = SIZES[variant]
        command = [sys.executable, "-c", FRESH, model, str(world_size)]
        done = subprocess.run(command, capture_output=True, text=True, check=True)
        found: dict[str, float] = json.loads(done.stdout.splitlines()[-1])
        memory.add(variant, found["gigabytes"])
        return found["seconds"]

    for variant, value in interleaved(list(SIZES), rounds, measure):
        seconds.add(variant, value)
    yield seconds
    yield memory


def table1(_: int) -> list[Figure]:
    """All 54 cells of the ZeRO paper's table 1 from executed engines. Once, because it comes out the same each time."""
    title = "ZeRO table 1 from executed engines: largest distance of a cell, in units of its last printed digit"
    figure = Figure("table1", title, "units of the last digit", None)
    for num_params, name in NAMES.items():
        for degree in DEGREES:
            cells = {stage: cell for stage, size, n, cell in CELLS if (size, n) == (num_params, degree)}
            for row in simulate(tuple(cells), degree, name, precision="bf16", length=16).rows:
                held = sum(row["state"].values()) - sum(row["terms"].values())
                figure.add(f"{name}, {row['stage']}", off_by(held, cells[row["stage"]]))
    largest = {variant: [max(values)] for variant, values in figure.samples.items()}
    figure.note = f"{sum(len(values) for values in figure.samples.values())} cells."
    figure.samples, figure.budgets = largest, dict.fromkeys(largest, 1.0)
    return [figure]


class Size(NamedTuple):
    """A GPT of heads of 64, and a rank's batch."""

    width: int
    depth: int
    rows: int
    length: int

    def build(self) -> torch.nn.Module:
        """The model, with the same weights on every rank."""
        torch.manual_seed(0)
        return models.GPT(self.width, self.width // 64, self.depth, context=128)


WORLD_SIZES = (1, 2, 4)
STAGES = ("ddp", "zero3")
TARGET = Size(384, 6, 8, 128)  # gpt-10m
# Others: wider and narrower, deeper and flatter, with fewer and with as many tokens. What makes a step long without
# telling more is kept low: the depth of those with many tokens, whose blocks are all alike.
FITTED = (
    Size(256, 4, 8, 128),
    Size(512, 3, 8, 128),
    Size(320, 6, 4, 128),
    Size(448, 4, 8, 64),
    Size(512, 6, 2, 64),
    Size(256, 8, 2, 64),
    Size(192, 6, 8, 128),
)
SECONDS = 60  # for the rounds of each world size: no round begins later, so that all takes five minutes on two cores
QUANTITIES = ("flops", "moved_bytes", "operations", "messages", "sent_bytes")
_kept: dict[Any, Any] = {}  # in a rank: engines, so that a step is not its first


def step_seconds(stage: str, size: Size) -> float:
    """Runs in a rank: seconds of a step, all ranks beginning together; the engine lives as long as the ranks."""
    engine = _kept.get((stage, size))
    count = 1
    if engine is None:
        engine = _kept[stage, size] = ENGINES[stage](size.build(), torch.optim.AdamW, lr=1e-3)
        count = 2  # AdamW makes its state in the first, and torch chooses its kernels
    shape = {"rows": size.rows, "length": size.length}
    for inputs, targets in models.batches("gpt-10m", dist.get_world_size(), dist.get_rank(), count, **shape):
        dist.barrier()
        start = perf_counter()
        engine.training_step(inputs, targets, models.loss)
        seconds = perf_counter() - start
    return seconds


def calibration(rounds: int) -> Iterator[Figure]:
    """The predicted step of gpt-10m, 8x128 tokens a rank, at N = 1, 2, 4, after fitting to GPTs of other sizes."""
    title = "Predicted step of gpt-10m, 8x128 tokens a rank: distance from the measured one"
    figure = Figure("calibration", title, "parts of the measured step", None)
    notes = []
    for world_size in WORLD_SIZES:
        measured, counted = _measured(world_size, rounds)
        hardware = fit(world_size, measured)
        for stage in STAGES:
            predicted, found = _predicted(world_size, stage, TARGET, hardware)["seconds"], measured[stage, TARGET]
            variant = f"{stage}, N={world_size}"
            figure.add(variant, abs(predicted / found - 1))
            figure.budgets[variant] = 0.15
            notes.append(f"{variant}: predicted {1000 * predicted:.0f} ms, measured {1000 * found:.0f} ms.")
        notes.append(f"Fitted at N={world_size} to medians of {counted} rounds: {_described(hardware)}.")
    figure.note = "\n".join(notes)
    yield figure


def _measured(world_size: int, rounds: int) -> tuple[dict[tuple[str, Size], float], int]:
    """Median seconds of a step, the slowest rank's, of every stage and size, all measured once a round; the rounds."""
    names = {f"{stage}, {size}": (stage, size) for stage in STAGES for size in (*FITTED, TARGET)}
    samples: dict[str, list[float]] = {}
    with Cluster(world_size=world_size, device="cpu", timeout=120) as cluster:
        for place in names.values():
            cluster.run(step_seconds, *place)  # makes the engine
        start = perf_counter()
        each = interleaved(list(names), rounds, lambda name: max(cluster.run(step_seconds, *names[name])))
        for count, (name, seconds) in enumerate(each, start=1):
            samples.setdefault(name, []).append(seconds)
            # Whole rounds only, so that a busy minute is in the steps of every size alike.
            if count % len(names) == 0 and perf_counter() - start > SECONDS:
                break
    return {names[name]: median(values) for name, values in samples.items()}, count // len(names)


def fit(world_size: int, measured: dict[tuple[str, Size], float]) -> Hardware:
    """The constants, none below zero, that bring the steps of the fitted sizes closest to the measured ones.

    A step is the sum of its quantities, each at its own cost; distances count in parts of the measured step.
    """
    idle = _hardware([0.0] * len(QUANTITIES))
    places = [(stage, size) for stage in STAGES for size in FITTED]
    work = [_predicted(world_size, stage, size, idle) for stage, size in places]
    counted = np.array([[step[name] for name in QUANTITIES] for step in work])
    return _hardware(_smallest_distance(counted / np.array([[measured[place]] for place in places])))


def _smallest_distance(parts: "np.ndarray[Any, Any]") -> list[float]:
    """Non-negative x for which `parts @ x` is nearest to ones: of all choices of columns, the best that has one."""
    best, found = float("inf"), [0.0] * parts.shape[1]
    ones, scale = np.ones(len(parts)), parts.max(axis=0)
    usable = [column for column in range(parts.shape[1]) if scale[column] > 0]
    for count in range(1, len(usable) + 1):
        for columns in combinations(usable, count):
            chosen = list(columns)
            x, *_ = np.linalg.lstsq(parts[:, chosen] / scale[chosen], ones, rcond=None)
            distance = float(np.square(parts[:, chosen] / scale[chosen] @ x - ones).sum())
            if (x >= 0).all() and distance < best:
                best, found = distance, [0.0] * parts.shape[1]
                for column, value in zip(chosen, x, strict=True):
                    found[column] = float(value / scale[column])
    return found


def _hardware(costs: Iterable[float]) -> Hardware:
    """Seconds for one of each quantity -> the cost model's constants; what costs nothing has a rate beyond reach."""
    flop, byte, operation, message, sent = costs
    flops = 1 / flop if flop else 1e30
    box = Gpu("this machine", 1e9, {"fp32": flops}, 1 / byte if byte else 1e30, "nvlink5", "fitted")
    link = Link("loopback", 1 / sent if sent else 1e30, message, "fitted")
    return Hardware(
        box,
        link,
        gpus_per_node=1,
        utilisation=1.0,
        memory_utilisation=1.0,
        operation_seconds=operation,
        overlap=False,
        on_gpu=False,
    )


def _predicted(world_size: int, stage: str, size: Size, hardware: Hardware) -> dict[str, float]:
    tokens = torch.zeros(size.rows, size.length, dtype=torch.int64)
    options: Any = {"batches": [(tokens, tokens)], "hardware": hardware}
    costs: Any = simulate(stage, world_size, partial(Size.build, size), **options).recordings[stage].info.costs
    return dict(costs)


def _described(hardware: Hardware) -> str:
    gpu, link = hardware.gpu, hardware.network
    return (
        f"{gpu.flops['fp32'] / 1e9:.3g} GFLOP/s and {gpu.memory_bytes_per_second / 1e9:.3g} GB/s a rank, "
        f"{1e6 * hardware.operation_seconds:.3g} us an operation, {1e6 * link.latency_seconds:.3g} us a message, "
        f"{link.bytes_per_second / 1e9:.3g} GB/s sent"
    )
