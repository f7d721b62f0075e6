"""Real trainings, profiled and recorded at once; made when first asked for, and kept for all tests of a session."""

from functools import cache
from pathlib import Path

import pytest
import warm

PROFILED = Path(__file__).parent / "profiled.py"


@pytest.fixture(scope="session", name="profiled")
def give_profiled(tmp_path_factory):
    """`profiled(system, world_size, *options)`: the folder with the files of a run, and zerolab's recording of it."""

    @cache
    def profiled(system, world_size, *options):
        folder = tmp_path_factory.mktemp(f"{system}-{world_size}")
        recorder = ["-m", "zerolab.trace", "--steps", "2:4", "--out", folder / "own.json"]
        command = [*recorder, PROFILED, system, folder, *options]
        environment = {"OMP_NUM_THREADS": "1", "TORCH_FR_BUFFER_SIZE": "2000"}
        done = warm.launch(command, ranks=world_size, environment=environment)
        assert done.returncode == 0, done.stderr
        return folder

    return profiled
