"""Runs scripts on ranks, as they are or recorded; the losses that they print; what a recording has of a step."""

import os
import re
import subprocess
import sys
from pathlib import Path

import warm

SCRIPTS = Path(__file__).parent / "scripts"
TORCHRUN = [sys.executable, "-m", "torch.distributed.run", "--standalone"]
IMPORTS = {"ds.py": ["torch._inductor.compile_fx"]}  # DeepSpeed's Muon imports it, and nothing of it is called
LOSS = re.compile(r"^(?:rank \d+ )?step \d+ .*$", re.MULTILINE)


def launch(*command, ranks=2, torchrun=False):
    """Runs a script, or what records it; returns the finished process. Without `torchrun` its ranks are forked."""
    added = {"OMP_NUM_THREADS": "1", "DS_ACCELERATOR": "cpu"}
    if not torchrun:
        imports = [name for script in command for name in IMPORTS.get(Path(str(script)).name, ())]
        return warm.launch(command, ranks=ranks, environment=added, imports=imports)
    start = [*TORCHRUN, f"--nproc-per-node={ranks}", *map(str, command)]
    return subprocess.run(start, env=os.environ | added, capture_output=True, text=True, check=False, timeout=120)


def traced(out, script, *arguments, ranks=2, options=(), torchrun=False):
    """Runs a script of ours, recorded."""
    command = ["-m", "zerolab.trace", "--out", out, *options, SCRIPTS / script, *arguments]
    return launch(*command, ranks=ranks, torchrun=torchrun)


def run_alone(folder, script):
    """Runs a text as a script in a folder, in one process."""
    (folder / "own.py").write_text(script)
    return warm.launch(["own.py"], ranks=0, cwd=folder)


def losses(done):
    """What each rank said of each step, in an order that does not depend on who was first."""
    return sorted(LOSS.findall(done.stdout))


def passes(recording, step, rank=0):
    """What a rank did in a step: (phase, operation, unit) of modules, collectives and updates, in order."""
    events = [event for event in recording.ranks[rank].events if event.step == step]
    return [(e.phase, e.op, e.unit) for e in events if e.kind in ("module", "collective", "optimizer")]
