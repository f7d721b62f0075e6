"""A process that the notebook forks, by itself or with `multiprocessing`: its copy of a cluster is none of its own."""

import os
import subprocess
import sys
import traceback

import pytest
import torch.distributed as dist

from zerolab import Cluster

SPAWNS = """
import multiprocessing
from zerolab import Cluster

class Batch:
    rows = 8

def load():
    return Batch()

def work():
    with Cluster(2, device="cpu") as cluster:
        print([type(batch) is Batch and batch.rows for batch in cluster.run(load)])

if __name__ == "__main__":
    child = multiprocessing.get_context("spawn").Process(target=work)
    child.start()
    child.join()
"""


def in_a_fork(action):
    """What a forked child says of an action: nothing if all is well."""
    reader, writer = os.pipe()
    child = os.fork()
    if child == 0:
        try:
            action()
        except BaseException:  # noqa: BLE001  # it must not come back into pytest
            os.write(writer, traceback.format_exc().encode())
        finally:
            os._exit(0)
    os.close(writer)
    with os.fdopen(reader) as file:
        said = file.read()
    os.waitpid(child, 0)
    return said


# Python 3.12 says that a fork of a process with threads may hang. The child does next to nothing.
@pytest.mark.filterwarnings("ignore:This process .* is multi-threaded, use of fork:DeprecationWarning")
def test_a_fork_can_neither_use_nor_end_the_ranks_of_its_parent():
    cluster = Cluster(2, device="cpu")
    before = cluster.run(os.getpid)
    said = in_a_fork(lambda: cluster.run(dist.get_rank))
    assert f"belongs to process {os.getpid()}, and this is " in said
    assert "make one of this process's own with Cluster()" in said
    assert cluster.run(os.getpid) == before
    assert in_a_fork(cluster.close) == ""
    assert cluster.run(os.getpid) == before
    assert in_a_fork(cluster._finalizer) == "", "as when the child forgets it"
    assert cluster.run(os.getpid) == before
    cluster.close()


@pytest.mark.slow
def test_what_a_script_defines_arrives_on_the_ranks_of_a_process_that_it_spawns(tmp_path):
    script = tmp_path / "script.py"
    script.write_text(SPAWNS)
    ended = subprocess.run([sys.executable, script], capture_output=True, text=True, timeout=120, check=False)
    assert ended.stdout == "[8, 8]\n", ended
