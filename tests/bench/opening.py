"""How long a trace of a gigabyte takes to open, and how much memory: one that torch.profiler has really written.

Two gloo ranks train under FSDP2 and the profiler, with shapes and stacks; the steps of rank 0's trace are then
repeated, each later than the one before, until the file is as large as asked for.
"""

import gzip
import json
import os
import re
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from tempfile import TemporaryDirectory

from measuring import Figure

SCRIPT = Path(__file__).parents[1] / "opening" / "profiled.py"
SIZE = 1 << 30
FRESH = """
import json, resource, sys
from time import perf_counter
start = perf_counter()
from zerolab import Recording
recording = Recording.open(sys.argv[1])
peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024  # Linux counts in KiB
found = {"steps": recording.info.steps, "collectives": len(recording.collectives)}
print(json.dumps({"seconds": perf_counter() - start, "gigabytes": peak / 1e9} | found))
"""
_TIME = re.compile(r'"ts": ([\d.]+)')


def opening(rounds: int) -> Iterator[Figure]:
    """A trace of 1 GB, as it is and packed by gzip, in a fresh interpreter, import of torch included."""
    budgets = {"1 GB": 30.0, "1 GB, by gzip": 30.0}
    seconds = Figure("opening", "Opening a trace of torch.profiler in a fresh interpreter", "seconds", None, budgets)
    limits = dict.fromkeys(budgets, 4.0)
    memory = Figure("opening_memory", "Highest memory of such an opening", "GB (1e9 bytes)", None, limits)
    with TemporaryDirectory() as folder:
        large = Path(folder, "large-rank0.json")
        steps = make(profiled(Path(folder)), large, SIZE)
        packed = Path(folder, "packed-rank0.json.gz")
        with large.open("rb") as source, gzip.open(packed, "wb", compresslevel=5) as target:
            while piece := source.read(1 << 22):
                target.write(piece)
        for _ in range(rounds):
            for variant, path in zip(budgets, (large, packed), strict=True):
                found = opened(path)
                assert found["steps"] == steps, found
                seconds.add(variant, found["seconds"])
                memory.add(variant, found["gigabytes"])
        seconds.note = f"{large.stat().st_size:,} bytes, {steps:,} steps, {found['collectives']:,} collectives."
    yield seconds
    yield memory


def opened(path: Path) -> dict[str, float]:
    """Opens a file in a fresh interpreter: what it took, and what was found."""
    done = subprocess.run([sys.executable, "-c", FRESH, str(path)], capture_output=True, text=True, check=True)
    return json.loads(done.stdout)


def profiled(folder: Path) -> Path:
    """Rank 0's trace of a small training, with shapes and stacks."""
    command = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node=2"]
    environment = {**os.environ, "OMP_NUM_THREADS": "1"}
    arguments = [str(SCRIPT), "fsdp2", str(folder), "stack"]
    subprocess.run([*command, *arguments], env=environment, capture_output=True, check=True)
    return folder / "trace-rank0.json"


def make(trace: Path, large: Path, size: int) -> int:
    """Writes a trace with the same events again and again, `size` bytes or more; returns how many steps it has."""
    text = trace.read_text()
    start = text.index('"traceEvents": [') + len('"traceEvents": [')
    end = text.rindex("]")
    events = text[start:end].rstrip()
    times = [float(time) for time in _TIME.findall(events)]
    lasts = max(times) - min(times) + 1_000_000  # microseconds
    pieces = re.split(r'("ts": [\d.]+|ProfilerStep#\d+)', events)
    first = min(int(name) for name in re.findall(r"ProfilerStep#(\d+)", events))
    steps = len(set(re.findall(r"ProfilerStep#\d+", events)))
    copies = 0
    with large.open("w") as file:
        file.write(text[:start])
        while file.tell() < size:
            file.write("," * bool(copies))
            file.write("".join(_moved(pieces, copies * lasts, first + copies * steps)))
            copies += 1
        file.write(text[end:])
    return copies * steps


def _moved(pieces: list[str], by: float, first: int) -> Iterator[str]:
    numbers: dict[str, int] = {}
    for piece in pieces:
        if piece.startswith('"ts": '):
            yield f'"ts": {float(piece[6:]) + by:.3f}'
        elif piece.startswith("ProfilerStep#"):
            yield f"ProfilerStep#{numbers.setdefault(piece, first + len(numbers))}"
        else:
            yield piece
