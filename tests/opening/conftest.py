"""Real trainings, profiled and recorded at once; made when first asked for, and kept for all tests of a session."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

PROFILED = Path(__file__).parent / "profiled.py"


@pytest.fixture(scope="session", name="profiled")
def give_profiled(tmp_path_factory):
    """`profiled(system, world_size, *options)`: the folder with the files of a run, and zerolab's recording of it."""
    known = {}

    def profiled(system, world_size=2, *options):
        key = system, world_size, options
        if key not in known:
            known[key] = folder = tmp_path_factory.mktemp(f"{system}-{world_size}")
            launcher = ["-m", "torch.distributed.run", "--standalone", f"--nproc-per-node={world_size}"]
            recorder = ["-m", "zerolab.trace", "--steps", "2:4", "--out", str(folder / "own.json")]
            environment = {**os.environ, "OMP_NUM_THREADS": "1", "TORCH_FR_BUFFER_SIZE": "2000"}
            command = [sys.executable, *launcher, *recorder, str(PROFILED), system, str(folder), *options]
            done = subprocess.run(command, env=environment, capture_output=True, text=True, check=False, timeout=120)
            assert done.returncode == 0, done.stderr
        return known[key]

    return profiled
