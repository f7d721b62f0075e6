"""How soon a rank that fails is named, and how soon the next run has done a training step.

The faults are those of the tests: every one, at every moment of a call, on one, two and all of three ranks.
"""

import io
import sys
import tempfile
from contextlib import redirect_stdout
from pathlib import Path
from time import perf_counter

import workloads
from measuring import Figure, interleaved

from zerolab import Cluster, RankError

sys.path.append(str(Path(__file__).parents[1] / "runtime"))
import fault_injection

CELLS = {
    f"{fault}, {moment.__name__.replace('_', ' ')}": (fault, moment)
    for fault in fault_injection.FAULTS
    for moment in fault_injection.MOMENTS
    if moment is not fault_injection.while_idle or fault in fault_injection.DEADLY  # else no rank is lost
}
ALL = "all of them"


def faults(rounds: int) -> list[Figure]:
    """Seconds from a fault to the error that names it, and from there to a finished first AdamW step on fresh ranks."""
    budgets = dict.fromkeys(CELLS, 2.0) | {ALL: 0.3}
    detection = Figure("faults_detection", "From a fault on a rank to its RankError, 3 ranks", "seconds", None, budgets)
    detection.note = "While idle, it is the next run that finds out: it starts as soon as the process has gone."
    title = "From the RankError to a finished first AdamW step on 3 fresh ranks"
    recovery = Figure("faults_recovery", title, "seconds", None, {"warm": 0.5})
    with Cluster(world_size=3, device="cpu") as cluster:
        cluster.run(workloads.first_step)

        def measure(cell: str) -> float:
            fault, moment = CELLS[cell]
            taken = [_taken(cluster, fault, moment, who, recovery) for who in fault_injection.WHO.values()]
            for seconds in taken:
                detection.add(ALL, seconds)
            return max(taken)

        for cell, seconds in interleaved(list(CELLS), rounds, measure):
            detection.add(cell, seconds)
    return [detection, recovery]


def _taken(cluster: Cluster, fault: str, moment: object, who: tuple[int, ...], recovery: Figure) -> float:
    with tempfile.TemporaryDirectory() as folder, redirect_stdout(io.StringIO()):  # the note on fresh ranks
        trouble = fault_injection.Injection(fault, who, folder)
        try:
            fault_injection.call(cluster, moment, trouble)
        except RankError:
            seconds = trouble.since()
        else:
            raise RuntimeError(f"{fault} {moment} on ranks {who} was not noticed")
        started = perf_counter()
        cluster.run(workloads.first_step)
        recovery.add("warm", perf_counter() - started)
        return seconds
