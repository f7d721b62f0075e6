"""Python's lock tells a loop in Python from native code, on a machine that has more to do than cores."""

import os
import subprocess
import sys

import pytest
import torch.utils.data

from zerolab.why.rank import _called, launched

LOOKS = 80
MPI, STEP = "OMPI_COMM_WORLD", "SLURM_STEP"


@pytest.mark.parametrize(
    ("said", "found"),
    [
        ("RANK=5 WORLD_SIZE=8 LOCAL_RANK=1 LOCAL_WORLD_SIZE=4 SLURM_PROCID=1 SLURM_LOCALID=0", (5, 8, 1, 4)),
        (f"{MPI}_RANK=5 {MPI}_SIZE=8 {MPI}_LOCAL_RANK=1 {MPI}_LOCAL_SIZE=4 SLURM_PROCID=0", (5, 8, 1, 4)),
        ("PMI_RANK=5 PMI_SIZE=8 MPI_LOCALRANKID=1 MPI_LOCALNRANKS=4", (5, 8, 1, 4)),
        (f"{STEP}_NUM_TASKS=8 {STEP}_TASKS_PER_NODE=4(x2) SLURM_PROCID=5 SLURM_LOCALID=1 SLURM_NODEID=1", (5, 8, 1, 4)),
        (f"{STEP}_NUM_TASKS=11 {STEP}_TASKS_PER_NODE=4(x2),3 SLURM_PROCID=8 SLURM_LOCALID=0 SLURM_NODEID=2",
         (8, 11, 0, 3)),
        (f"SLURM_PROCID=1 {STEP}_NUM_TASKS=2", (1, 2, 1, 2)),
        (f"RANK=5 WORLD_SIZE=8 SLURM_PROCID=5 {STEP}_NUM_TASKS=8 {STEP}_TASKS_PER_NODE=4(x2) SLURM_LOCALID=1",
         (5, 8, 1, 4)),
        (f"RANK=5 WORLD_SIZE=8 SLURM_PROCID=1 {STEP}_NUM_TASKS=2 {STEP}_TASKS_PER_NODE=1(x2) SLURM_LOCALID=0",
         (5, 8, 5, 8)),
        ("SLURM_PROCID=0 SLURM_NTASKS=8 SLURM_LOCALID=0 SLURM_NODEID=0", (0, 1, 0, 1)),  # in a batch script
        (f"RANK=0 SLURM_PROCID=1 {STEP}_NUM_TASKS=2 SLURM_LOCALID=1", (1, 2, 1, 2)),
        ("", (0, 1, 0, 1)),
    ],
)  # fmt: skip
def test_a_rank_knows_its_place_from_whichever_launcher_has_started_it(said, found):
    assert launched(dict(each.split("=") for each in said.split())) == found


LOOKING = """
import hashlib, os, sys, threading, time
from zerolab.why.rank import _is_free

def look():
    found = []
    for _ in range({looks}):
        found.append(_is_free())
        time.sleep(0.03)
    print(sum(found), flush=True)
    os._exit(0)

threading.Thread(target=look).start()
text, tries = bytes(1 << 24), 0
while True:
    {turn}
"""


@pytest.fixture(scope="module")
def busy_machine(require):
    require(hasattr(os, "sched_setaffinity"), "a process that can be kept on two cores", "take Linux")
    own = os.sched_getaffinity(0)
    os.sched_setaffinity(0, sorted(own)[:2])  # what is started from here on has these cores
    processes = [subprocess.Popen([sys.executable, "-c", "while True: pass"]) for _ in range(2)]
    yield
    os.sched_setaffinity(0, own)
    for process in processes:
        process.kill()
        process.wait()


def free(turn):
    """The part of the looks that find Python's lock free, while the main thread goes round a loop."""
    script = LOOKING.format(turn=turn, looks=LOOKS)
    return int(subprocess.check_output([sys.executable, "-c", script], timeout=120)) / LOOKS


@pytest.mark.slow
@pytest.mark.usefixtures("busy_machine")
def test_a_loop_in_python_has_the_lock_whenever_it_is_looked_at():
    assert free("tries = max(tries, 1)") <= 0.1


@pytest.mark.slow
@pytest.mark.usefixtures("busy_machine")
def test_native_code_that_waits_for_a_core_does_not_seem_to_have_the_lock():
    assert free("hashlib.sha256(text)") >= 0.75  # a quarter of the looks is enough for native code


LOADER, OTHER = torch.utils.data.dataloader.__file__, pytest.__file__


@pytest.mark.parametrize(
    ("frames", "said"),
    [
        ([("wait", os.__file__), ("_get_data", LOADER), ("evaluate", OTHER), ("train", OTHER)],
         "pytest/__init__.py, train > evaluate > torch/utils/data/dataloader.py, _get_data"),
        ([("_get_data", LOADER)], "torch/utils/data/dataloader.py, _get_data"),
        ([("wait", os.__file__)], "os.py, wait"),
        ([], ""),
    ],
)  # fmt: skip
def test_of_a_line_that_calls_a_library_it_is_said_how_deep_in_it_the_rank_is(frames, said):
    assert _called([(file, 1, name) for name, file in frames] + [(__file__, 1, "<module>")]) == said
