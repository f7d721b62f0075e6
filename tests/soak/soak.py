"""A classroom in fast motion: a thousand runs on one cluster, one in twenty of which goes wrong on purpose.

    make soak                                        1,000 runs, a new seed, figures into tests/soak/results/
    .venv/bin/python tests/soak/soak.py --runs 300 --seed 7

Every fault must be reported as itself, every other result must be right, and at the end file descriptors, memory of
the kernel, processes, threads and temporary files must be where they were after the first twenty runs.
"""

import argparse
import contextlib
import ctypes
import datetime as dt
import gc
import io
import json
import os
import random
import sys
import tempfile
import threading
import time
from collections import Counter
from pathlib import Path
from statistics import median

import psutil
import torch
import torch.distributed as dist

from zerolab import Cluster, CollectiveHang, RankError, Zero3, models
from zerolab.recording.recording import Recording

sys.path.insert(0, str(Path(__file__).parent.parent / "bench"))
from measuring import machine

RESULTS = Path(__file__).parent / "results"
WORLD_SIZE, TIMEOUT, WARM_UP = 4, 2.0, 20
FAULT_RATE = 0.05
MEMORY_ALLOWED = 4_000_000  # bytes by which the kernel may grow; a leak of 4 kB a run would be found
TO_REPORT = 4.0  # seconds after which a report is late: the promise of 2, on a machine that does other things, too


# --- what ranks do -------------------------------------------------------------------------------------------------


def add_up(numbers):
    """Right or wrong to the last digit: sums of whole numbers over all ranks, and what each rank was sent."""
    mine = numbers * (dist.get_rank() + 1)
    dist.all_reduce(mine)
    return mine, numbers.sum().item(), dist.get_rank()


def train(seed):
    """Two steps of ZeRO-3 on a small model; every rank returns the whole model."""
    engine = Zero3(models.build("mlp-odd", seed=seed), torch.optim.AdamW, lr=1e-2)
    for batch in models.batches("mlp-odd", dist.get_world_size(), dist.get_rank(), 2, seed=seed):
        engine.training_step(*batch, models.loss)
    return torch.cat([value.flatten() for value in engine.state_dict().values()])


def shout(lines):
    """Prints so much that a pipe would be full."""
    print("\n".join(f"line {number}" for number in range(lines)))
    return lines


def go_wrong(kind, guilty, late):
    """One rank, `guilty`, misbehaves: before the first collective, or after it if `late`."""
    if late:
        dist.barrier()
    if dist.get_rank() == guilty:
        misbehave(kind)
    dist.all_reduce(torch.ones(1))
    dist.barrier()


def misbehave(kind):
    if kind == "raise":
        raise ValueError("the batch is empty")
    if kind == "sys.exit":
        sys.exit(3)
    if kind == "os._exit":
        os._exit(7)
    if kind.startswith("SIG"):
        import signal

        os.kill(os.getpid(), getattr(signal, kind))
    if kind == "hang":
        time.sleep(1000)


EXPECTED = {  # what the error must say of itself
    "raise": {"exception": "ValueError"},
    "sys.exit": {"exception": "SystemExit"},
    "os._exit": {"exitcode": 7},
    "SIGSEGV": {"signal": "SIGSEGV"},
    "SIGKILL": {"signal": "SIGKILL"},
    "SIGABRT": {"signal": "SIGABRT"},
    "hang": {},
}


# --- one run after another -----------------------------------------------------------------------------------------


class Soak:
    """The runs, and what came of them."""

    def __init__(self, cluster, seed, folder):
        self.cluster, self.folder = cluster, folder
        self.choose = random.Random(seed)
        self.expected = {}  # by seed, the model that the first run trained: later ones must equal it to the bit
        self.wrong, self.faults, self.detection = [], Counter(), []

    def run(self, number):
        """One run, right or wrong."""
        if self.choose.random() < FAULT_RATE:
            self.fault(number)
            return
        kind = self.choose.choices(("add", "train", "record", "print", "cell"), (60, 15, 10, 5, 10))[0]
        try:
            right = getattr(self, f"_{kind}")()
        except Exception as error:  # noqa: BLE001  (whatever it is, it is a finding)
            self.wrong.append(f"run {number}, {kind}: {type(error).__name__}: {str(error)[:300]}")
            return
        if not right:
            self.wrong.append(f"run {number}, {kind}: a wrong result")

    def fault(self, number):
        """A fault that must be reported as itself."""
        kind = self.choose.choice(sorted(EXPECTED))
        guilty, late = self.choose.randrange(WORLD_SIZE), self.choose.random() < 0.5
        self.faults[kind] += 1
        started = time.monotonic()
        try:
            self.cluster.run(go_wrong, kind, guilty, late)
        except RankError as error:
            took = time.monotonic() - started - TIMEOUT * (kind == "hang")
            self.detection.append(took)
            self._judge(f"run {number}, {kind} on rank {guilty}", kind, guilty, error, took)
        else:
            self.wrong.append(f"run {number}, {kind} on rank {guilty}: nothing was reported")

    def _judge(self, name, kind, guilty, error, took):
        """Notes what the report of a fault got wrong, or that it came late."""
        told = {key: getattr(error, key) for key in EXPECTED[kind]}
        if (kind == "hang") != isinstance(error, CollectiveHang):
            self.wrong.append(f"{name}: reported as {type(error).__name__}: {str(error)[:300]}")
        elif kind == "hang" and f"\n  {guilty} " not in str(error):
            self.wrong.append(f"{name}: the report does not show rank {guilty}")
        elif kind != "hang" and error.rank != guilty:
            self.wrong.append(f"{name}: blamed on rank {error.rank}: {str(error)[:300]}")
        elif told != EXPECTED[kind]:
            self.wrong.append(f"{name}: told as {told}")
        if took > TO_REPORT:
            self.wrong.append(f"{name}: reported after {took:.1f} s")

    def _add(self):
        numbers = torch.randint(1000, (self.choose.choice((1, 1000, 100_000)),))
        everyone = self.cluster.run(add_up, numbers)
        factor = WORLD_SIZE * (WORLD_SIZE + 1) // 2
        return all(
            torch.equal(summed, numbers * factor) and total == numbers.sum().item() and rank == place
            for place, (summed, total, rank) in enumerate(everyone)
        )

    def _train(self):
        seed = self.choose.randrange(3)
        answers = self.cluster.run(train, seed)
        self.expected.setdefault(seed, answers[0])
        return all(torch.equal(answer, self.expected[seed]) for answer in answers)

    def _record(self):
        recording = self.cluster.record(train, 0)
        path = self.folder / "run.json"
        recording.save(path)
        loaded = Recording.load(path)
        path.unlink()
        return len(loaded.events) == len(recording.events) > 100 and len(loaded.ranks) == WORLD_SIZE

    def _print(self):
        with contextlib.redirect_stdout(io.StringIO()) as shown:
            self.cluster.run(shout, 5000)
        return shown.getvalue().count("line 4999") >= 1

    def _cell(self):
        scope = {}
        exec("def answer(x):\n    class Box:\n        value = x\n    return Box", scope)  # noqa: S102  (as a cell does)
        return all(box.value == 42 for box in self.cluster.run(scope["answer"], 42))


# --- what is held --------------------------------------------------------------------------------------------------


def held(folder):
    """What this process holds: descriptors, memory of its own, threads, descendants, and files that it left."""
    gc.collect()
    with contextlib.suppress(AttributeError):  # not glibc
        ctypes.CDLL(None).malloc_trim(0)  # what the allocator keeps for later is no leak: give it back before counting
    process = psutil.Process()
    family = [child for child in process.children(recursive=True) if child.status() != psutil.STATUS_ZOMBIE]
    return {
        "descriptors": process.num_fds(),
        "memory": process.memory_full_info().uss,
        "threads": threading.active_count(),
        "processes": len(family),
        "zombies": len(process.children(recursive=True)) - len(family),
        "temporary files": sum(1 for _ in folder.rglob("*")),
        "shared memory": sum(1 for _ in Path("/dev/shm").iterdir()),  # noqa: S108  (looked at, never written)
    }


def settle(cluster, folder):
    """What is held once the last fault's ranks have been replaced."""
    cluster.run(dist.get_rank)
    deadline = time.monotonic() + 5
    while (now := held(folder))["processes"] > WORLD_SIZE + 1 and time.monotonic() < deadline:
        time.sleep(0.1)
    return now


@contextlib.contextmanager
def folder_of_ones_own():
    """A folder for every temporary file of this process and of its ranks, so that what is left can be counted."""
    before = os.environ.get("TMPDIR")
    with tempfile.TemporaryDirectory(prefix="soak") as folder:
        os.environ["TMPDIR"] = tempfile.tempdir = folder
        try:
            yield Path(folder)
        finally:
            tempfile.tempdir = None
            os.environ.pop("TMPDIR")
            os.environ |= {} if before is None else {"TMPDIR": before}


def soak(runs, seed, *, say=print):
    """All of it; the figures, whose `wrong` is empty if nothing was."""
    started, durations = time.monotonic(), []
    with folder_of_ones_own() as folder, Cluster(WORLD_SIZE, device="cpu", timeout=TIMEOUT) as cluster:
        soak = Soak(cluster, seed, folder)
        for kind in sorted(EXPECTED):  # each kind once, so that what is made at first use is there before we count
            with contextlib.suppress(RankError):
                cluster.run(go_wrong, kind, 0, late=False)
        for number in range(WARM_UP):
            soak.run(-number)
        before = settle(cluster, folder)
        middle = before
        for number in range(1, runs + 1):
            begun = time.monotonic()
            soak.run(number)
            durations.append(time.monotonic() - begun)
            if number == runs // 2:
                middle = settle(cluster, folder)
            if number % 100 == 0:
                say(f"{number} runs, {sum(soak.faults.values())} faults, {len(soak.wrong)} wrong", flush=True)
        after = settle(cluster, folder)
    seconds = soak.detection or [0.0]
    return {
        "date": dt.datetime.now(dt.UTC).date().isoformat(),
        "machine": machine(),
        "seed": seed,
        "runs": runs,
        "seconds": round(time.monotonic() - started, 1),
        "median_run_ms": round(1000 * median(durations), 2),
        "faults": dict(sorted(soak.faults.items())),
        "report_seconds": {"median": round(median(seconds), 3), "most": round(max(seconds), 3)},
        "held": {"before": before, "middle": middle, "after": after},
        "wrong": soak.wrong + grown(before, after),
    }


def grown(before, after):
    """What is not where it was at the start."""
    found = []
    for name in before:
        allowed = MEMORY_ALLOWED if name == "memory" else 0
        if after[name] > before[name] + allowed:
            found.append(f"{name} grew from {before[name]:,} to {after[name]:,}")
    return found


def as_text(figures):
    """The figures for a person."""
    held_at, box, report = figures["held"], figures["machine"], figures["report_seconds"]
    where = f"{box['processor']}, {box['cores']} cores, load before {box['load_before']}, torch {box['torch']}"
    rows = ["| held by the kernel | after the warm-up | half way | at the end |", "|---|---:|---:|---:|"]
    for name in held_at["before"]:
        values = " | ".join(f"{held_at[moment][name]:,}" for moment in ("before", "middle", "after"))
        rows.append(f"| {name} | {values} |")
    lines = [
        f"# {figures['runs']:,} runs, {sum(figures['faults'].values())} of them with a fault",
        "",
        f"{figures['date']}, {where}, seed {figures['seed']}, {figures['seconds']:.0f} s.",
        f"Median run {figures['median_run_ms']} ms. Reports after a median of {report['median']} s, at most",
        f"{report['most']} s (of a hang: beyond its timeout of {TIMEOUT:g} s).",
        f"Faults: {', '.join(f'{count} {kind}' for kind, count in figures['faults'].items())}.",
        f"Not as it should be: {len(figures['wrong'])}.",
        *(f"* {line}" for line in figures["wrong"]),
        "",
        *rows,
    ]
    return "\n".join(lines) + "\n"


def main():
    """Runs it, prints, saves, and ends with status 1 if anything was wrong."""
    parser = argparse.ArgumentParser(description="Runs on one cluster, some with faults; what is left behind.")
    parser.add_argument("--runs", type=int, default=1000)
    parser.add_argument("--seed", type=int, default=None, help="printed, so that a run can be repeated")
    parser.add_argument("--results", type=Path, default=RESULTS, help="the folder for the figures")
    chosen = parser.parse_args()
    seed = random.SystemRandom().randrange(10**6) if chosen.seed is None else chosen.seed
    print(f"{chosen.runs} runs, seed {seed}", flush=True)
    figures = soak(chosen.runs, seed)
    chosen.results.mkdir(exist_ok=True)
    (chosen.results / f"soak_{chosen.runs}.json").write_text(json.dumps(figures, indent=1) + "\n")
    (chosen.results / f"soak_{chosen.runs}.md").write_text(as_text(figures))
    print(as_text(figures))
    sys.exit(1 if figures["wrong"] else 0)


if __name__ == "__main__":
    main()
