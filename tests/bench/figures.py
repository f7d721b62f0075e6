"""The figures of `make bench`, each a function of the number of rounds; budgets as the design sets them."""

import json
import subprocess
import sys
from collections.abc import Callable, Iterable
from statistics import median
from time import perf_counter

import workloads
from faults import faults
from gpu import gpu
from growth import growth
from looking import recording
from measuring import Figure, interleaved
from opening import opening
from peaks import peaks
from player import player
from simulation import calibration, simulation, table1
from steps import steps_gpt, steps_mlp
from traced import tracing

from zerolab import Cluster

RANKS = 4

IMPORT_TORCH = """
from time import perf_counter
start = perf_counter()
import torch
print(perf_counter() - start)
"""

# A fresh interpreter, as a kernel is: the first cluster starts the fork server, the second finds it running.
FIRST_STEPS = """
import json
from time import perf_counter
start = perf_counter()

def first_step():
    import torch
    import torch.distributed as dist

    model = torch.nn.Linear(8, 8)
    optimizer = torch.optim.AdamW(model.parameters())
    model(torch.ones(2, 8)).sum().backward()
    optimizer.step()
    dist.barrier()

def until_first_step(since):
    from zerolab import Cluster

    with Cluster(world_size=4, device="cpu") as cluster:
        cluster.run(first_step)
        return perf_counter() - since

cold = until_first_step(start)
print(json.dumps({"cold": cold, "warm": until_first_step(perf_counter())}))
"""


def startup(rounds: int) -> list[Figure]:
    """The first AdamW step done on 4 fresh ranks, without and with a running fork server, against `import torch`."""
    title = f"First AdamW step done on {RANKS} fresh ranks"
    cold = Figure("startup_cold", title + ", cold", "seconds", "import torch", {"cold": 2.5})
    warm = Figure("startup_warm", title + ", warm", "seconds", None, {"warm": 0.5})

    def measure(variant: str) -> float:
        if variant == "import torch":
            return float(_python(IMPORT_TORCH))
        seconds: dict[str, float] = json.loads(_python(FIRST_STEPS))
        warm.add("warm", seconds["warm"])
        return seconds["cold"]

    for variant, seconds in interleaved(["import torch", "cold"], rounds, measure):
        cold.add(variant, seconds)
    return [cold, warm]


def roundtrip(rounds: int) -> list[Figure]:
    """A `run` that does nothing, on 4 ranks: each round's number is the median of 50."""
    figure = Figure("roundtrip", f"Round trip of a trivial run on {RANKS} ranks", "ms", None, {"run": 5.0})
    with Cluster(world_size=RANKS, device="cpu") as cluster:
        cluster.run(workloads.trivial)

        def measure(_: str) -> float:
            return 1000 * median(_seconds(lambda: cluster.run(workloads.trivial)) for _ in range(50))

        for variant, milliseconds in interleaved(["run"], rounds, measure):
            figure.add(variant, milliseconds)
    return [figure]


def collectives(rounds: int) -> list[Figure]:
    """An all_reduce of 4 kB over 4 ranks, against ranks whose threads interrupt each other as Linux lets them."""
    title = f"all_reduce of 4 kB over {RANKS} gloo ranks, by how Linux schedules their threads"
    figure = Figure("collectives", title, "ms", "as Linux does", {"as ranks are": 1.0})
    with Cluster(world_size=RANKS, device="cpu") as ranks, Cluster(world_size=RANKS, device="cpu") as interrupting:
        interrupting.run(workloads.interrupt)
        clusters = {"as ranks are": ranks, "as Linux does": interrupting}

        def measure(variant: str) -> float:
            return 1000 * max(clusters[variant].run(workloads.all_reduce_seconds))

        for variant, milliseconds in interleaved(list(clusters), rounds, measure):
            figure.add(variant, milliseconds)
    return [figure]


FIGURES: dict[str, Callable[[int], Iterable[Figure]]] = {
    "startup": startup,
    "roundtrip": roundtrip,
    "collectives": collectives,
    "faults": faults,
    "recording": recording,
    "tracing": tracing,
    "steps-mlp": steps_mlp,
    "steps-gpt": steps_gpt,
    "peaks": peaks,
    "growth": growth,
    "gpu": gpu,
    "player": player,
    "opening": opening,
    "simulation": simulation,
    "table1": table1,
    "calibration": calibration,
}


def _seconds(call: Callable[[], object]) -> float:
    start = perf_counter()
    call()
    return perf_counter() - start


def _python(code: str) -> str:
    """What a fresh interpreter prints last for `code`."""
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    return done.stdout.strip().splitlines()[-1]
