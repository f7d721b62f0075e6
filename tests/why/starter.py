"""Starts ranks under zerolab.why, forked as `tests/warm.py` forks them, and ends them once something is said.

A line of JSON in, a line out: what is said of a script, and when.
"""

import json
import os
import signal
import sys
import time
from pathlib import Path

import torch
import torch._dynamo  # seconds, which a rank that compiles would take

sys.path.append(str(Path(__file__).parents[1]))
import warm

from zerolab.why import __main__ as entry
from zerolab.why.watch import HANG


def become_rank(asked, rank, where):
    """In a forked child: run the script under zerolab.why."""
    if asked["nodes"] == 1:
        os.setpgid(0, 0)
    output = os.open(asked["output"], os.O_WRONLY | os.O_CREAT | os.O_APPEND)
    os.dup2(output, 1)
    os.dup2(output, 2)
    os.environ |= warm.variables(rank, asked["ranks"], where, asked["nodes"])
    arguments = ["--timeout", str(asked["timeout"]), "--out", asked["folder"], *asked["options"], asked["script"]]
    sys.argv = ["zerolab.why", *arguments]
    entry.main(arguments)


def start(asked):
    """The children's numbers."""
    where, pids = warm.free_port(), []
    for rank in range(asked["ranks"]):
        pid = os.fork()
        if pid == 0:
            code = 1
            try:
                if asked["nodes"] > 1:  # a launcher of its own, between us and the rank
                    os.setpgid(0, 0)
                    if child := os.fork():
                        os._exit(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) & 255)
                become_rank(asked, rank, where)
                code = 0
            except SystemExit as error:
                code = error.code or 0
            except BaseException:  # noqa: BLE001  # as Python itself does at the end of a program
                sys.excepthook(*sys.exc_info())
            finally:
                sys.stderr.flush()
                os._exit(code)
        pids.append(pid)
    return pids


def follow(asked):
    """Waits until something is said, or all ranks have ended; then ends those that are left."""
    began, pids = time.monotonic(), start(asked)
    living, said = list(pids), Path(asked["folder"]) / HANG
    while living and (asked["whole"] or not said.exists()) and time.monotonic() - began < asked["limit"]:
        living = [pid for pid in living if os.waitpid(pid, os.WNOHANG)[0] == 0]
        time.sleep(0.02)
    until = time.monotonic() + 1.0  # of ranks that have ended it is said a little later
    while not said.exists() and time.monotonic() < until:
        time.sleep(0.02)
    seconds = time.monotonic() - began
    for pid in living:
        os.killpg(pid, signal.SIGKILL)
        os.waitpid(pid, 0)
    found = json.loads(said.read_text()) if said.exists() else {}
    return {"seconds": seconds, "left": len(living), "output": Path(asked["output"]).read_text(), **found}


if __name__ == "__main__":
    torch.set_num_threads(1)
    warm.preload()
    for line in sys.stdin:
        print(json.dumps(follow(json.loads(line))), flush=True)
