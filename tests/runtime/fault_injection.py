"""Every way for a rank to fail, at every moment of a call: functions that the fault matrix sends to ranks."""

import ctypes
import os
import resource
import signal
import sys
import threading
import time
from pathlib import Path

import torch
import torch.distributed as dist


def raise_an_error():
    raise ValueError("the batch is empty")


def exit_python():
    sys.exit(5)


def abort():
    os.abort()


def leave():
    os._exit(3)


def read_null():
    ctypes.string_at(0)


def be_killed():
    os.kill(os.getpid(), signal.SIGKILL)


def leave_room(nbytes):
    """Lets this process allocate so many bytes more than it has."""
    status = dict(line.split(":", 1) for line in Path("/proc/self/status").read_text().splitlines())
    limit = int(status["VmData"].split()[0]) * 1024 + nbytes
    resource.setrlimit(resource.RLIMIT_DATA, (limit, resource.RLIM_INFINITY))


def run_out_of_memory():
    leave_room(32 << 20)
    kept = []
    while True:
        kept.append(torch.ones(1 << 20))


FAULTS = {
    "exception": raise_an_error,
    "sys.exit": exit_python,
    "os._exit": leave,
    "SIGSEGV": read_null,
    "SIGABRT": abort,
    "SIGKILL": be_killed,
    "out of memory": run_out_of_memory,
}
DEADLY = ("os._exit", "SIGSEGV", "SIGABRT", "SIGKILL")  # whichever thread does it
WHO = {"one rank": (1,), "two at once": (1, 2), "all ranks": (0, 1, 2)}


class Injection:
    """Which fault happens on which ranks; each notes the time just before it, in a file of its own."""

    def __init__(self, fault, who, folder):
        self.fault, self.who, self.folder = fault, who, str(folder)

    def inject(self):
        if dist.get_rank() in self.who:
            Path(self.folder, str(dist.get_rank())).write_text(str(time.monotonic_ns()))
            FAULTS[self.fault]()

    def since(self):
        """Seconds since it happened first."""
        return (time.monotonic_ns() - min(int(path.read_text()) for path in Path(self.folder).iterdir())) / 1e9


class FailsWhenUnpickled:
    def __init__(self, injection):
        self.injection = injection

    def __reduce__(self):
        return _unpickled, (self.injection,)


class FailsWhenPickled:
    def __init__(self, injection):
        self.injection = injection

    def __reduce__(self):
        self.injection.inject()
        return str, ("harmless",)


def _unpickled(injection):
    injection.inject()
    return injection


def limit(cluster):
    """Two seconds as the contract says, and what a busy box may add: many times what it now takes to do nothing."""
    started = time.monotonic()
    cluster.run(os.getpid)
    return 2 + 50 * (time.monotonic() - started)


def while_the_function_is_unpickled(carried):
    dist.barrier()


def before_the_first_collective(injection):
    injection.inject()
    dist.barrier()


def inside_a_collective(injection):
    dist.all_reduce(torch.ones(1))
    dist.all_gather_object([None] * dist.get_world_size(), FailsWhenPickled(injection))


def between_two(injection):
    dist.all_reduce(torch.ones(1))
    injection.inject()
    dist.barrier()


def while_the_result_is_pickled(injection):
    dist.barrier()
    return FailsWhenPickled(injection)


def while_idle(injection):
    # The rank may have survived an earlier injection, with that one's limit: a thread needs room for its stack.
    resource.setrlimit(resource.RLIMIT_DATA, (resource.RLIM_INFINITY, resource.RLIM_INFINITY))
    dist.barrier()
    threading.Timer(0.05, injection.inject).start()


MOMENTS = {
    # what is called, the phase that is named, the last collective, where the other ranks are
    while_the_function_is_unpickled: ("unpickling", "", "barrier #0"),
    before_the_first_collective: ("running", "", "barrier #0"),
    inside_a_collective: ("running", "all_gather_object #1", "all_gather_object #1"),
    between_two: ("running", "all_reduce #0", "barrier #1"),
    while_the_result_is_pickled: ("pickling", "barrier #0", "finished, after barrier #0"),
    while_idle: ("idle", "barrier #0", "(idle, after barrier #0|finished)"),
}


def call(cluster, moment, injection):
    """The call in which it happens, or for `while_idle` the one that finds out."""
    if moment is while_the_function_is_unpickled:
        return cluster.run(moment, FailsWhenUnpickled(injection))
    if moment is not while_idle:
        return cluster.run(moment, injection)
    ranks = cluster.run(os.getpid)
    cluster.run(moment, injection)
    wait_until_injected(injection, ranks)
    return cluster.run(dist.get_rank)


def wait_until_injected(injection, ranks):
    deadline = time.monotonic() + 5
    while time.monotonic() < deadline:
        injected = len(list(Path(injection.folder).iterdir())) == len(injection.who)
        if injected and not (injection.fault in DEADLY and any(is_alive(ranks[rank]) for rank in injection.who)):
            return
        time.sleep(0.01)
    raise TimeoutError(f"{injection.fault} did not happen")


def is_alive(pid):
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except OSError:
        return False
