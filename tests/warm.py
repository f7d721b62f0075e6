"""Scripts on forked ranks: torch is imported once for all of them, which under torchrun is most of a script's time.

`launch` is for tests that ask what a script does. What torchrun does is asked under torchrun.

Run as a program it is the process that forks. It gets a line of JSON for each launch and answers with the exit code. A
rank has the variables that torchrun sets, and ends as Python ends: a child goes back to the main program.
"""

import argparse
import atexit
import functools
import gc
import importlib
import json
import os
import signal
import subprocess
import sys
import tempfile
import time
from pathlib import Path

GRACE = 30.0  # seconds that the other ranks have once one has failed, as under torchrun


@functools.cache
def _server():
    """One for all tests of a process."""
    environment = {**os.environ, "OMP_NUM_THREADS": "1"}
    started = subprocess.Popen(
        [sys.executable, __file__], env=environment, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    )
    atexit.register(started.communicate)
    return started


def launch(command, *, ranks=2, environment=None, cwd=None, timeout=120, imports=()):
    """Runs a script's path, or `-m` and a module's name, with its arguments; returns it as `subprocess.run` would.

    Without `ranks` it is one process that knows of none. `imports` are modules that what the script imports will
    import, imported once for all ranks from now on: none that is watched or patched while a script is recorded.
    """
    server = _server()
    with tempfile.TemporaryDirectory() as folder:
        output, errors = Path(folder, "output"), Path(folder, "errors")
        asked = {
            "command": [*map(str, command)], "ranks": ranks, "environment": environment or {},
            "cwd": str(cwd or Path.cwd()), "output": str(output), "errors": str(errors), "timeout": timeout,
            "imports": imports,
        }  # fmt: skip
        server.stdin.write(json.dumps(asked) + "\n")
        server.stdin.flush()
        code = json.loads(server.stdout.readline())
        done = subprocess.CompletedProcess(command, code, output.read_text(), errors.read_text())
    if code is None:
        raise subprocess.TimeoutExpired(command, timeout, done.stdout, done.stderr)
    return done


# --- the process that forks --------------------------------------------------------------------------------------


def preload(more=()):
    """Imports what scripts import of torch, and marks it as lasting: taking it apart takes longer than a script."""
    for name in ("torch._dynamo", "torch.distributed.run", "torch.distributed.fsdp", "torch.utils.data", *more):
        importlib.import_module(name)
    gc.collect()
    gc.freeze()


def variables(rank, ranks, port, nodes=1):
    """What torchrun says to a rank, but that rank 0 holds the store, as it does without torchrun."""
    local = ranks // nodes
    return {
        "RANK": str(rank), "LOCAL_RANK": str(rank % local), "GROUP_RANK": str(rank // local), "ROLE_RANK": str(rank),
        "WORLD_SIZE": str(ranks), "LOCAL_WORLD_SIZE": str(local), "GROUP_WORLD_SIZE": str(nodes),
        "ROLE_WORLD_SIZE": str(ranks), "ROLE_NAME": "default", "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(port),
        "TORCHELASTIC_RESTART_COUNT": "0", "TORCHELASTIC_MAX_RESTARTS": "0", "TORCHELASTIC_RUN_ID": "none",
    }  # fmt: skip


def free_port():
    """A port that nobody listens at."""
    from torch.distributed import TCPStore

    return TCPStore("127.0.0.1", 0, 1, is_master=True).port


def serve():
    """Answers until nobody asks any more; in a forked child, returns the command that it is to run."""
    for line in sys.stdin:
        asked = json.loads(line)
        ranks, port = asked["ranks"], free_port() if asked["ranks"] else 0
        if not sys.modules.keys() >= set(asked["imports"]):
            preload(asked["imports"])
        living = []
        for rank in range(ranks or 1):
            pid = os.fork()
            if pid == 0:
                os.environ |= asked["environment"] | (variables(rank, ranks, port) if ranks else {})
                return become(asked)
            living.append(pid)
        print(json.dumps(wait(living, asked["timeout"])), flush=True)
    return None


def become(asked):
    """Makes a child look as if Python had just been started with the command; returns the command."""
    os.setpgid(0, 0)  # with the workers of its data loaders
    os.chdir(asked["cwd"])
    for number, path in enumerate((os.devnull, asked["output"], asked["errors"])):
        file = os.open(path, os.O_RDWR | os.O_CREAT | os.O_APPEND)
        os.dup2(file, number)
        os.close(file)
    return asked["command"]


def wait(living, timeout):
    """Waits for all; ends the others when one fails. The exit code as torchrun has it, or None if it took too long."""
    code, until = 0, time.monotonic() + timeout
    while living and time.monotonic() < until:
        for pid in living[:]:
            ended, status = os.waitpid(pid, os.WNOHANG)
            if not ended:
                continue
            living.remove(pid)
            if status and not code:
                code, until = os.waitstatus_to_exitcode(status), min(until, time.monotonic() + GRACE)
                for other in living:
                    os.kill(other, signal.SIGTERM)
        time.sleep(0.01)
    for pid in living:
        os.killpg(pid, signal.SIGKILL)
        os.waitpid(pid, 0)
    return code if code or not living else None


def execute(script, *arguments):
    """The command, as Python runs it, but that gloo's threads cannot abort its end."""
    from zerolab.runtime.script import run

    is_module = script == "-m"
    if is_module:
        sys.path[0] = os.getcwd()  # noqa: PTH109  (a name, as Python has it)
        script, *arguments = arguments
    run(argparse.Namespace(module=is_module, script=script, arguments=arguments))


if __name__ == "__main__":
    preload()
    command = serve()
    if command:
        execute(*command)
