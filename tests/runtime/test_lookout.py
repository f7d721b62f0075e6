"""A rank is asked where it stands while its garbage collector runs, and whoever ends a rank says why."""

import gc
import os
import sys
import threading
import time

import pytest
import torch.distributed as dist

from zerolab import Cluster, RankError
from zerolab.runtime import call, worker
from zerolab.runtime.launch import nameless_file
from zerolab.runtime.lookout import Lookout


def go_deep_while_the_collector_lets_others_run(seconds):
    """Frames come and go, and each collection in another thread lets go of the interpreter, as torch's garbage does."""
    main, end = threading.main_thread(), time.monotonic() + seconds

    def let_go(phase, info):
        if threading.current_thread() is not main:
            time.sleep(0.003)

    def climb(n):
        return climb(n - 1) if n else time.sleep(0.001)

    def count(n):
        a = b = c = d = e = f = g = h = n
        return count(n - 1) if n else (time.sleep(0.001), a, b, c, d, e, f, g, h)

    gc.callbacks.append(let_go)
    gc.set_threshold(10)
    while time.monotonic() < end:
        climb(60)
        count(60)
    gc.callbacks.remove(let_go)
    gc.set_threshold(700)
    return os.getpid()


def hold_every_object(seconds, depth=40):
    """What the recorder does as it begins, for longer: nobody else can resize a tuple meanwhile."""
    if depth:
        return hold_every_object(seconds, depth - 1)
    sys.setswitchinterval(1e-5)
    end = time.monotonic() + seconds
    while time.monotonic() < end:
        for thing in gc.get_objects():
            type(thing)
    sys.setswitchinterval(5e-3)
    return os.getpid()


def spoil(which, guilty):
    """Has the rank's own pipe to the notebook fail where the rank reads it next."""
    if dist.get_rank() == guilty:
        frame = sys._getframe()
        while frame.f_code is not worker.main.__code__:
            frame = frame.f_back
        os.set_blocking(frame.f_locals[which].fileno(), False)


def spoil_and_wait(which, guilty):
    spoil(which, guilty)
    dist.barrier()
    time.sleep(60)


def test_no_rank_ends_because_it_was_asked_where_it_stands(monkeypatch):
    monkeypatch.setattr(call, "TICK", 0.001)  # asked all the time, and not five times a second
    with Cluster(2, device="cpu") as cluster:
        before = cluster.run(os.getpid)
        assert cluster.run(go_deep_while_the_collector_lets_others_run, 3.0) == before
        assert cluster.run(hold_every_object, 1.5) == before


def test_a_rank_that_ends_itself_says_why(three):
    with pytest.raises(RankError, match=r"rank 1 \(pid \d+\) ended itself: BlockingIOError") as raised:
        three.run(spoil_and_wait, "lifeline", 1)
    assert raised.value.signal == "SIGKILL"
    assert "memory ran out" not in str(raised.value)
    assert "ended itself" not in raised.value.traceback

    three.run(spoil, "commands", 2)  # it fails as the rank waits for its next work
    with pytest.raises(RankError, match=r"rank 2 \(pid \d+\) ended itself: BlockingIOError") as raised:
        three.run(time.sleep, 60)
    assert raised.value.exitcode == 1


@pytest.fixture(scope="module")
def three():
    with Cluster(3, device="cpu") as cluster:
        yield cluster


@pytest.fixture
def file():
    with nameless_file(0) as file:
        yield file


class Sleeper:
    """A thread that stands where it is told to, in code of any name, with frames above it."""

    def __init__(self, filename, name="wait", depth=3):
        self.go, self._there = threading.Event(), threading.Event()
        source = f"def {name}(there, go):\n    there()\n    go()\n    there()\n    go()\n"
        scope = {}
        exec(compile(source, filename, "exec"), scope)  # noqa: S102  # as a cell does
        self.thread = threading.Thread(target=self._climb, args=(depth, scope[name]))
        self.thread.start()
        assert self._there.wait(10)

    def _climb(self, depth, wait):
        if depth:
            self._climb(depth - 1, wait)
        else:
            wait(self._there.set, self._wait)

    def _wait(self):
        self.go.wait()

    def move(self):
        self._there.clear()
        first, self.go = self.go, threading.Event()
        first.set()
        assert self._there.wait(10)

    def __enter__(self):
        return self

    def __exit__(self, *_):
        while self.thread.is_alive():
            self.go.set()
            time.sleep(0.001)


def settled(lookout, line):
    """What is seen once the thread waits at that line."""
    deadline = time.monotonic() + 10
    while time.monotonic() < deadline:
        number, lines = lookout.look()
        if any(at == line and name == "wait_ü" for _, at, name in lines):
            return number, lines
    return pytest.fail(f"never at line {line}")


def test_a_stack_is_seen_from_outside_with_every_name_as_it_is_and_a_number_that_changes_with_the_line(file):
    with Sleeper("/Übungen/\N{SNOWMAN} \U0001f980.py", "wait_ü") as sleeper:
        lookout = Lookout(sleeper.thread.ident, file)
        number, lines = settled(lookout, 3)
        assert ("/Übungen/\N{SNOWMAN} \U0001f980.py", 3, "wait_ü") in lines
        assert [name for _, _, name in lines][-3:] == ["run", "_bootstrap_inner", "_bootstrap"]  # the outermost last
        assert settled(lookout, 3)[0] == number
        sleeper.move()
        assert settled(lookout, 5)[0] != number
    with pytest.raises(LookupError, match="no stack of thread 0x"):
        lookout.look()  # the thread has ended


def test_of_a_deep_stack_the_innermost_frames_are_seen(file):
    with Sleeper("deep.py", "wait_ü", depth=500) as sleeper:
        lines = settled(Lookout(sleeper.thread.ident, file), 3)[1]
        assert len(lines) == 100
        assert lines[-1][2] == "_climb"


def test_a_thread_that_cannot_be_seen_counts_as_one_that_moves(file):
    lookout = Lookout(threading.get_ident(), file)
    assert worker._standing(lookout)[3].startswith("test_lookout.py, line ")
    file.close()  # as somebody's os.closerange does
    first, second = worker._standing(lookout), worker._standing(lookout)
    assert first[1] != second[1]
    assert first[2:] == second[2:] == ("", "")
