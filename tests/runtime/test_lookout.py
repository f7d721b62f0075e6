"""A rank is asked where it stands while its garbage collector runs, and whoever ends a rank says why."""

import gc
import os
import sys
import threading
import time
import weakref

import psutil
import pytest
import torch
import torch.distributed as dist

from zerolab import Cluster, RankError
from zerolab.runtime import call, stack, worker


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


def let_native_threads_come_and_go(seconds):
    """Those of gloo, each of which asks for the interpreter now and then, and is one more thread while it has it."""
    model, end = torch.nn.Linear(3, 2), time.monotonic() + seconds
    for parameter in model.parameters():
        parameter.register_hook(lambda gradient: (dist.all_reduce(gradient), gradient)[1])
    stop = torch.zeros(1)
    while not stop:
        model(torch.ones(1, 3)).sum().backward()
        stop += time.monotonic() > end
        dist.broadcast(stop, src=0)
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


@pytest.mark.slow
def test_no_rank_ends_because_it_was_asked_where_it_stands(monkeypatch):
    monkeypatch.setattr(call, "TICK", 0.001)  # asked all the time, and not five times a second
    with Cluster(2, device="cpu") as cluster:
        before = cluster.run(os.getpid)
        assert cluster.run(go_deep_while_the_collector_lets_others_run, 1.5) == before
        assert cluster.run(hold_every_object, 1.0) == before
        assert cluster.run(let_native_threads_come_and_go, 2.0) == before


def test_a_rank_that_ends_itself_says_why(three):
    with pytest.raises(RankError, match=r"rank 1 \(pid \d+\) ended itself: BlockingIOError") as raised:
        three.run(spoil_and_wait, "lifeline", 1)
    assert raised.value.signal == "SIGKILL"
    assert "memory ran out" not in str(raised.value)
    assert "ended itself" not in raised.value.traceback

    processes = [psutil.Process(pid) for pid in three.run(os.getpid)]
    three.run(spoil, "commands", 2)  # it fails as the rank waits for its next work, if that is not there yet
    psutil.wait_procs(processes[2:], timeout=60)
    with pytest.raises(RankError, match=r"rank 2 \(pid \d+\) ended itself: BlockingIOError") as raised:
        three.run(time.sleep, 60)
    assert raised.value.exitcode == 1


@pytest.fixture(scope="module")
def three():
    with Cluster(3, device="cpu") as cluster:
        yield cluster


def stand_still(first, second):
    first.acquire(), second.acquire()


def climb_and_stand_still(depth, *turns):
    if depth:
        climb_and_stand_still(depth - 1, *turns)
    else:
        stand_still(*turns)


def seen_at_rest(thread):
    """What is seen of a thread that will stand still in a moment, once it does."""
    deadline, last = time.monotonic() + 10, None
    while time.monotonic() < deadline:
        seen = stack.look(thread.ident)
        if seen == last and seen[1][0][2] == "stand_still":
            return seen
        last = seen
        time.sleep(0.05)
    return pytest.fail(f"still moving, {last}")


def test_a_stack_is_seen_whole_with_a_number_that_changes_with_the_instruction():
    turns = [threading.Lock(), threading.Lock()]
    for turn in turns:
        turn.acquire()
    thread = threading.Thread(target=climb_and_stand_still, args=(300, *turns))
    thread.start()
    number, lines = seen_at_rest(thread)
    assert lines[0] == (__file__, stand_still.__code__.co_firstlineno + 1, "stand_still")
    assert [name for _, _, name in lines[1:302]] == ["climb_and_stand_still"] * 301
    assert [name for _, _, name in lines[302:]] == ["run", "_bootstrap_inner", "_bootstrap"]
    turns[0].release()
    deadline = time.monotonic() + 10
    while (after := seen_at_rest(thread))[0] == number and time.monotonic() < deadline:
        pass
    assert after[0] != number
    assert after[1] == lines  # another instruction of the same line
    turns[1].release()
    thread.join()
    with pytest.raises(LookupError, match="no thread"):
        stack.look(thread.ident)


def test_looking_leaves_the_collector_as_it_was_and_keeps_nothing_that_a_frame_holds():
    held = []

    def hold(turn):
        tensor = torch.ones(1)
        held.append(weakref.ref(tensor))
        with turn:
            pass

    turn = threading.Lock()
    with turn:
        thread = threading.Thread(target=hold, args=(turn,))
        thread.start()
        while not held:
            time.sleep(0.001)
        seen = stack.look(thread.ident)
        assert gc.isenabled()
        gc.disable()
        try:
            assert stack.look(thread.ident)[1][-1] == seen[1][-1]
            assert not gc.isenabled()
        finally:
            gc.enable()
    thread.join()
    assert held[0]() is None


def test_a_thread_that_cannot_be_seen_counts_as_one_that_moves(monkeypatch):
    def fail(thread):
        raise SystemError("bad argument to internal function")

    assert worker._standing(threading.get_ident())[3].startswith("test_lookout.py, line ")
    monkeypatch.setattr(stack, "look", fail)
    first, second = (worker._standing(threading.get_ident()) for _ in range(2))
    assert first[1] != second[1]
    assert first[2:] == second[2:] == ("", "")
