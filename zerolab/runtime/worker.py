"""The rank's side: joins the process group, then runs one function after another for the kernel.

A rank lives exactly as long as the kernel holds the other end of its lifeline. It has a session of its own, so the
stop button does not reach it, and everything it writes, native output included, goes to one pipe.
"""

import contextlib
import faulthandler
import functools
import gc
import os
import pickle
import resource
import signal
import sys
import threading
import time
import traceback
import types
from collections.abc import Iterator, Mapping
from datetime import timedelta
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist

from zerolab import models
from zerolab.runtime import counter, drivers, hang, report, stack, surroundings, travel
from zerolab.runtime.board import JOINING, PACKING, RUNNING, UNPACKING, Page, pages
from zerolab.runtime.devices import NCCL
from zerolab.runtime.enqueued import Gpu
from zerolab.runtime.handover import CRASH, NO_ROOM, OWN_END, RECORDED, Fds, Setup

NCCL_WATCHDOG = ("TORCH_NCCL_RETHROW_CUDA_ERRORS", "TORCH_NCCL_ASYNC_ERROR_HANDLING", "TORCH_NCCL_ENABLE_MONITORING")
"""With these at 0, the threads of torch's NCCL groups never abort the process: an error on a GPU is raised in Python,
where it has a line, and the cluster finds the hangs."""
LONGEST_WAIT = timedelta(days=24)
"""After which torch ends a wait for other ranks. As milliseconds, it still fits into 32 bits."""
_REMEDIES = {
    "Unable to find address": "the network interface {0}, over which the ranks of one machine talk, has no address "
    "here; `ip link set {0} up` brings it up",
    "Resource temporarily unavailable": f"no thread can be started for this rank; {NO_ROOM}",
}
"""What torch says where the ranks cannot be joined, and what that means."""
_exit = os._exit  # as it was before `_dump_stack_at_exit`
_recorder: list[Any] = []  # of the current or the last call; at most one


def main(inherited: Fds) -> None:
    """Be a rank until the kernel closes the pipes. Never returns."""
    commands, lifeline, pid = Connection(inherited.commands), Connection(inherited.lifeline), os.getpid()
    try:
        _isolate(inherited)
        side = (lifeline, threading.get_ident(), inherited.crash)
        threading.Thread(target=_answer_questions, args=side, name="zerolab-lifeline", daemon=True).start()
        setup: Setup = pickle.loads(commands.recv_bytes())
        others = dict(enumerate(pages(inherited.board, setup.world_size)))
        page = others.pop(setup.rank)
        shares = 0 < len(setup.gpus) < setup.world_size
        commands.send_bytes(_attempt(lambda: _join(setup, inherited.store, page, others), pid, page))
        while True:
            message = commands.recv_bytes()
            counter.reset()
            surroundings.restore_streams(inherited.output)
            commands.send_bytes(_attempt(functools.partial(_perform, message, page, shares), pid, page))
    except BaseException as error:  # noqa: BLE001  # usually the kernel has closed its end; the reason is always kept
        _write_reason(inherited.crash, error)
        _exit(1)


def _write_reason(crash: int, error: BaseException) -> None:
    """Write one line that says why this rank ends itself, for the kernel to read once it has ended."""
    where = traceback.extract_tb(error.__traceback__)[-1]
    text = report.text_of(error)[: report.LONGEST_MESSAGE]
    words = f"{OWN_END}{report.name_of(error)}: {text} ({stack.label(where.filename)}, line {where.lineno})\n"
    os.write(crash, words.encode(errors="backslashreplace"))


def _isolate(inherited: Fds) -> None:
    signal.pthread_sigmask(signal.SIG_SETMASK, ())  # the kernel may block some; the fork server has unblocked its own
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # a stopped run ends its ranks anyway
    resource.setrlimit(resource.RLIMIT_CORE, (0, resource.getrlimit(resource.RLIMIT_CORE)[1]))
    surroundings.set_up(inherited.output)
    # It writes from a signal handler, so that even a segmentation fault shows the learner's line.
    faulthandler.enable(inherited.crash, all_threads=False)
    CRASH.append(inherited.crash)
    _dump_stack_at_exit(inherited.crash)
    sys.modules["__main__"] = types.ModuleType("__main__")  # not the server's


def _dump_stack_at_exit(crash: int) -> None:
    """Have `os._exit`, which ends a rank without any exception, write the stack first, as a crash does."""
    rank = os.getpid()

    def dump_and_exit(status: int) -> None:
        if os.getpid() == rank:  # and not a process that it has forked
            faulthandler.dump_traceback(crash, all_threads=False)
        _exit(status)

    for module in (os, sys.modules[_exit.__module__]):
        module.__dict__["_exit"] = dump_and_exit


def _answer_questions(lifeline: Connection, watched: int, crash: int) -> None:
    """Side thread: say where the main thread is when asked; end the rank when the kernel is gone."""
    with contextlib.suppress(OSError):  # elsewhere there is no /proc
        Path("/proc/thread-self/comm").write_text(hang.LIFELINE)  # so that its work does not count as the learner's
    try:
        while True:
            question = lifeline.recv_bytes()
            lifeline.send_bytes(_recorded() if question == RECORDED else pickle.dumps(_standing(watched)))
    except BaseException as error:  # noqa: BLE001  # as in `main`
        _write_reason(crash, error)
    finally:
        os.killpg(os.getpgrp(), signal.SIGKILL)  # itself, and what the learner's function has started


def _standing(watched: int) -> tuple[int, int, str, str]:
    """When a thread was looked at, the fingerprint of its stack, and its phase and line."""
    # A thread that cannot be seen counts as moving, or a rank at work would be reported as hanging.
    when = number = time.monotonic_ns()
    phase = where = ""
    with contextlib.suppress(Exception):  # being asked must not end a rank
        number, lines = stack.look(watched)
        phase, where = stack.describe(lines)  # which may read files, while the thread goes on
    with contextlib.suppress(Exception):
        if counter.look():  # the rank's device is computing
            number = when
    return when, number, phase, where


def _recorded() -> bytes:
    """What the current or the last call has recorded so far, pickled; None if it is not recorded."""
    try:
        return pickle.dumps(_recorder[-1].so_far() if _recorder else None)
    except Exception:  # noqa: BLE001  # the main thread is still recording, and being asked must not end a rank
        return pickle.dumps(None)


def _join(setup: Setup, store: int, page: Page, others: Mapping[int, Page]) -> None:
    """Take over the kernel's environment and join the process group, up to and including a first all_reduce."""
    page.write_stage(JOINING)
    os.environ.clear()  # the fork server's is from when it was started; a cell may have set variables since
    os.environ.update(setup.environment)
    loopback = "lo" if sys.platform == "linux" else "lo0"
    os.environ.update(GLOO_SOCKET_IFNAME=loopback, NCCL_SOCKET_IFNAME=loopback)
    gpu = setup.gpus[setup.rank % len(setup.gpus)] if setup.gpus else None
    # What torchrun scripts and DeepSpeed pass to set_device: a GPU's number, which is not the rank's if ranks share.
    local_rank = setup.rank if gpu is None else gpu
    os.environ.update(RANK=str(setup.rank), WORLD_SIZE=str(setup.world_size), LOCAL_RANK=str(local_rank))
    for name in NCCL_WATCHDOG:
        os.environ.setdefault(name, "0")
    os.chdir(setup.folder)
    sys.path[:] = setup.path
    torch.set_num_threads(max(1, setup.cores // setup.world_size))
    if "numpy.random" in sys.modules:
        sys.modules["numpy.random"].seed()  # forked ranks would all draw the same numbers
    counter.install(page, others)
    device = None if gpu is None else _take(gpu, in_order=setup.backend == NCCL)
    if setup.backend != NCCL:
        _let_each_other_finish()
    files = dist.FileStore(_path_of(store), setup.world_size)
    _leave_hangs_to_the_kernel(files)
    try:
        dist.init_process_group(setup.backend, store=files, rank=setup.rank, world_size=setup.world_size)
    except RuntimeError as error:
        remedy = next((remedy for said, remedy in _REMEDIES.items() if said in str(error)), None)
        raise error if remedy is None else RuntimeError(remedy.format(loopback)) from None
    with _explained("the ranks on GPUs cannot reach each other") if device else contextlib.nullcontext():
        dist.all_reduce(torch.ones(1, device=device))  # connections are made by the first collective, not by joining
    surroundings.protect_process_group()


def _let_each_other_finish() -> None:
    """Keep Linux from interrupting one of this rank's threads for another that has just been woken.

    A thread that sends over gloo holds a lock, and wakes a thread that wants it: that one would spin until its turn is
    over. `make bench` measures what it costs (`collectives`).
    """
    with contextlib.suppress(AttributeError, OSError):  # macOS has no such call, and a container may forbid it
        os.sched_setscheduler(0, os.SCHED_BATCH, os.sched_param(0))  # of this thread and of those that it will start


def _leave_hangs_to_the_kernel(store: dist.Store) -> None:
    """Let no wait end by the clock, in any group: torch's limit is half an hour, and a rank may compute for longer."""
    # `init_process_group(timeout=...)` would reach neither `new_group` nor a device mesh.
    dist.distributed_c10d.default_pg_timeout = LONGEST_WAIT
    dist.distributed_c10d.default_pg_nccl_timeout = LONGEST_WAIT
    store.set_timeout(LONGEST_WAIT)


def _take(gpu: int, *, in_order: bool) -> torch.device:
    """Make a GPU this rank's. RuntimeError with the remedy if it is full, lost, taken or too old."""
    device = torch.device("cuda", gpu)
    with _explained(f"GPU {gpu} cannot be used"):
        torch.cuda.set_device(device)
        torch.ones(1, device=device)  # runs a kernel
    models.train_on(device)
    counter.follow(Gpu(device), in_order)
    return device


@contextlib.contextmanager
def _explained(what: str) -> Iterator[None]:
    """Explain an error of CUDA's in words."""
    try:
        yield
    except RuntimeError as error:
        raise RuntimeError(f"{what}: {drivers.explained(str(error))}") from None


def _path_of(fd: int) -> str:
    if sys.platform == "linux":
        path = Path(f"/proc/self/fd/{fd}")
        if not path.exists():  # for which torch would wait five minutes
            raise RuntimeError("ranks find each other through /proc, which is not mounted here")
        return str(path)
    import fcntl

    return fcntl.fcntl(fd, fcntl.F_GETPATH, bytes(1024)).rstrip(b"\0").decode()


def _perform(message: bytes, page: Page, shares: bool) -> bytes:
    page.write_stage(UNPACKING)
    _recorder.clear()
    page.write_place("", "", 0)
    task, news, call = pickle.loads(message)
    news.learn()
    function, args, kwargs = pickle.loads(call)
    page.write_place("", *_first_line(function))
    page.write_stage(RUNNING)
    result = _call(function, args, kwargs) if task == "run" else _record(task, function, args, kwargs)
    page.write_place("", *_first_line(function))  # the line it noted last has nothing to do with pickling its result
    page.write_stage(PACKING)
    packed = travel.pack_result(result, travel.LIMIT * (1 if task == "run" else 4))  # a recording cannot be cut short
    del result
    if shares:
        torch.cuda.empty_cache()  # the other ranks on its GPU cannot use what this one has cached
    return packed


def _first_line(function: Any) -> tuple[str, int]:
    """Where a function begins: a rank counts as being at that line until it notes a more precise one."""
    while isinstance(function, functools.partial):
        function = function.func
    if not isinstance(function, types.FunctionType | types.MethodType):  # elsewhere `__code__` may be anything
        return "", 0
    return function.__code__.co_filename, function.__code__.co_firstlineno


def _record(task: str, function: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    from zerolab.recording.recorder import Recorder

    gc.collect()  # engines of earlier runs are in reference cycles, and would be counted
    with Recorder(times_only=task == "record times") as recorder:
        _recorder.append(recorder)  # the kernel asks for it even after an error
        result = _call(function, args, kwargs)
    return result, recorder.finish()


def _call(function: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    """The result of a function, once the rank's device is done, too: only then is it known to have succeeded."""
    result = function(*args, **kwargs)
    counter.finish()
    return result


def _attempt(action: Any, pid: int, page: Page) -> bytes:
    """Call `action` and return its outcome, pickled for the kernel, once everything printed has been written.

    `pid` is the rank's: a learner's `os.fork` may bring a second process back here.
    """
    failure = None
    try:
        answer = ("done", action())
    except BaseException as error:  # noqa: BLE001  # whatever a learner's function raises is the kernel's to report
        answer, failure = ("raised", report.of(error, page.read_stage())), error
    if os.getpid() != pid:
        surroundings.end_forked_process(failure)
    surroundings.flush()
    return pickle.dumps(answer)
