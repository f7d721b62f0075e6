import ctypes
import os
import signal
import subprocess
import sys
import threading
import time
import types
from pathlib import Path

import pytest
import torch
import torch.distributed as dist

from zerolab.runtime import board, hang
from zerolab.runtime.board import DONE, IN_FLIGHT, INSIDE, KEPT, Position
from zerolab.runtime.faults import Standing
from zerolab.runtime.mismatch import mismatches


def position():
    """This rank's own page, read in the rank."""
    from zerolab.runtime.counter import _counter

    return _counter.page.read()


def test_a_page_is_read_as_it_was_written():
    fd = os.memfd_create("board")
    os.truncate(fd, board.size(2))
    ours, theirs = board.pages(fd, 2), board.pages(fd, 2)
    ours[1].write(Position(INSIDE, "reduce_scatter", 17, 123))
    assert theirs[1].read() == Position(INSIDE, "reduce_scatter", 17, 123)
    ours[1].write(Position(DONE, "recv", None, 5, numel=0, itemsize=2, members=0b110, peer=0))
    assert theirs[1].read() == Position(DONE, "recv", None, 5, numel=0, itemsize=2, members=0b110, peer=0)
    assert theirs[0].read() == Position()
    ours[0].write(Position(DONE, "irecv", None, 5))
    assert theirs[0].read().label == "irecv"


WRITE_FOR_EVER = """
import sys
from zerolab.runtime.board import DONE, INSIDE, Position, pages
(page,) = pages(int(sys.argv[1]), 1)
print("begins", flush=True)
while True:
    page.write(Position(INSIDE, "all_reduce", 1, since=10**15, numel=3))
    page.write(Position(DONE, "barrier", 2, since=0, numel=-1))
"""

ENTER_FOR_EVER = """
import itertools, sys
from zerolab.runtime.board import INSIDE, Position, pages
(page,) = pages(int(sys.argv[1]), 1)
for number in itertools.count():
    page.enter(Position(INSIDE, "all_reduce", number, numel=number))
    if number == 200:
        print("begun", flush=True)
"""


def test_a_position_is_never_seen_half_written_though_its_rank_writes_all_the_time():
    fd = os.memfd_create("board")
    os.truncate(fd, board.size(1))
    (page,) = board.pages(fd, 1)
    command = [sys.executable, "-c", WRITE_FOR_EVER, str(fd)]
    with subprocess.Popen(command, pass_fds=[fd], stdout=subprocess.PIPE) as writer:
        writer.stdout.readline()
        while page.read() == Position():
            pass
        seen = {page.read() for _ in range(50_000)}
        writer.kill()
    assert seen <= {Position(INSIDE, "all_reduce", 1, 10**15, numel=3), Position(DONE, "barrier", 2)}


def test_a_collective_in_a_ranks_history_is_never_seen_half_overwritten():
    fd = os.memfd_create("board")
    os.truncate(fd, board.size(1))
    (page,) = board.pages(fd, 1)
    command = [sys.executable, "-c", ENTER_FOR_EVER, str(fd)]
    with subprocess.Popen(command, pass_fds=[fd], stdout=subprocess.PIPE) as writer:
        writer.stdout.readline()
        seen = {(call.number, call.numel) for _ in range(3000) for call in page.history()}
        writer.kill()
    assert {number - numel for number, numel in seen} == {0}


def test_of_a_ranks_history_the_last_collectives_are_kept_and_a_new_run_begins_without_one():
    fd = os.memfd_create("board")
    os.truncate(fd, board.size(2))
    ours, theirs = board.pages(fd, 2), board.pages(fd, 2)
    for number in range(KEPT + 3):
        ours[1].enter(Position(INSIDE, "barrier", number))
    assert [call.number for call in theirs[1].history()] == list(range(3, KEPT + 3))
    assert theirs[0].history() == []
    ours[1].write_place("backward", "/a/cell.py", 7)
    assert theirs[1].read_place()[1:] == ("backward", "/a/cell.py", 7)
    ours[1].write_place("", "/" + "x" * 1000, 7)
    assert theirs[1].read_place()[1:] == ("", "", 7)
    not_unicode = os.fsdecode(b"/caf\xe9/cell.py")
    ours[1].write_place("", not_unicode, 7)
    assert theirs[1].read_place().filename == not_unicode
    ours[1].reset()
    assert (theirs[1].history(), theirs[1].read()) == ([], Position())


def test_each_collective_of_a_run_counts_once_whatever_it_is_made_of(cluster):
    def count():
        from zerolab.engines import collectives

        dist.barrier()
        dist.all_reduce(torch.ones(1))
        collectives.all_reduce(torch.ones(2)).wait()
        return position()

    for _ in range(2):  # each run counts from 0
        assert {(p.name, p.number, p.state) for p in cluster.run(count)} == {("all_reduce", 2, DONE)}


def test_an_engine_is_counted_although_it_imported_the_collectives_by_name(cluster):
    def train():
        from zerolab import Zero1

        engine = Zero1(torch.nn.Linear(3, 3), torch.optim.SGD, lr=0.1)
        engine.training_step(torch.ones(1, 3), torch.ones(1, 3), torch.nn.functional.mse_loss)
        return position().label

    first, second = cluster.run(train)
    assert first == second != ""


def test_sends_and_receives_have_no_number_so_that_ranks_stay_comparable(cluster):
    def exchange():
        if dist.get_rank() == 0:
            for _ in range(3):
                dist.send(torch.ones(1), dst=1)
        else:
            for _ in range(3):
                dist.recv(torch.ones(1), src=0)
        sent = position()
        dist.barrier()
        return sent.label, position().label

    assert cluster.run(exchange) == [("send", "barrier #0"), ("recv", "barrier #0")]


def test_an_asynchronous_collective_is_waited_in_by_its_own_name(cluster):
    def overlap():
        work = dist.all_reduce(torch.ones(1), async_op=True)
        other = dist.all_reduce(torch.ones(1), async_op=True)
        dist.barrier()
        work.wait()
        label = position().label
        other.wait()
        return label, position().label

    assert cluster.run(overlap) == [("all_reduce #0", "all_reduce #1")] * 2


def test_recording_sees_each_collective_once_and_counting_goes_on_after_it(cluster):
    def train():
        from zerolab.engines import collectives

        dist.all_reduce(torch.ones(1))
        collectives.all_gather(torch.ones(2)).wait()
        return position().label

    recording = cluster.record(train)
    assert recording.results == ["all_gather #1"] * 2
    numbered = [(e.rank, e.op, e.number) for e in recording.events if e.kind == "collective" and e.parent is None]
    assert sorted(numbered) == [(r, op, n) for r in (0, 1) for op, n in (("all_gather", 1), ("all_reduce", 0))]
    assert cluster.run(train) == ["all_gather #1"] * 2


def test_collectives_that_native_code_starts_are_counted_and_so_is_their_end(cluster):
    def train():
        model = torch.nn.parallel.DistributedDataParallel(torch.nn.Linear(3, 3))
        model(torch.ones(1, 3)).sum().backward()
        before = position()
        dist.all_reduce(torch.ones(1))
        patience = time.monotonic() + 5  # a thread of the backend's tells of the end, when it comes to it
        while (after := position()).state == IN_FLIGHT and time.monotonic() < patience:
            time.sleep(0.001)
        return before, after

    for before, after in cluster.run(train):
        assert (before.name, before.numel) == ("all_reduce", 12)
        assert before.number > 0, "DDP compares and broadcasts parameters when it is made"
        assert (after.name, after.number, after.state) == ("all_reduce", before.number + 1, DONE)


def test_the_end_of_a_collective_of_native_code_does_not_hide_one_that_was_asked_for_after_it(cluster, tmp_path):
    def overlap():
        own = dist.new_group([dist.get_rank()])
        while dist.get_rank() == 1 and not (tmp_path / "seen").exists():
            time.sleep(0.01)
        work = dist.group.WORLD.allreduce([torch.ones(2)])  # as native code does, by no function of dist's
        dist.all_reduce(torch.ones(5), group=own)
        during = position()
        (tmp_path / "seen").touch()
        work.wait()
        patience = time.monotonic() + 5  # as above
        while (after := position()).state == IN_FLIGHT and time.monotonic() < patience:
            time.sleep(0.001)
        return during, after

    (during, after), (_, other) = cluster.run(overlap)
    assert (during.label, during.numel, during.state) == ("all_reduce #1", 2, IN_FLIGHT)
    assert (after.label, after.numel, after.state) == ("all_reduce #0 of ranks 0", 5, DONE)
    assert (other.label, other.numel, other.state) == ("all_reduce #0 of ranks 1", 5, DONE)


def test_functional_collectives_are_counted_with_the_others_and_their_wait_is_one(cluster):
    def gather():
        from torch.distributed import _functional_collectives as functional

        dist.all_reduce(torch.ones(1))
        if dist.get_rank() == 1:
            time.sleep(0.5)  # so that rank 0 waits: torch keeps Python's lock meanwhile
        arriving = functional.all_reduce(torch.full((3,), 2.0), "sum", dist.group.WORLD)
        started = position()
        arrived = functional.wait_tensor(arriving)
        alone = functional.wait_tensor(functional.all_reduce(torch.ones(2), "sum", dist.new_group([dist.get_rank()])))
        return started, arrived.tolist(), alone.tolist(), position()

    for rank, (started, arrived, alone, last) in enumerate(cluster.run(gather)):
        assert (started.label, started.numel, started.itemsize, started.state) == ("all_reduce #1", 3, 4, DONE)
        assert (arrived, alone) == ([4.0] * 3, [1.0] * 2)
        assert (last.label, last.state) == (f"all_reduce #0 of ranks {rank}", DONE)


@pytest.mark.parametrize("async_ops", [False, True])
def test_what_torch_collects_in_a_block_and_sends_as_one_is_counted_once(cluster, async_ops):
    def coalesce():
        gather = getattr(dist, "all_gather_single", None) or dist.all_gather_into_tensor
        scatter = getattr(dist, "reduce_scatter_single", None) or dist.reduce_scatter_tensor
        own, one, two, seen = dist.new_group(), torch.ones(1), torch.ones(2), []
        with dist._coalescing_manager(async_ops=async_ops) as manager:
            dist.all_reduce(one)
            dist.all_reduce(two)
            seen.append(position())
            dist.all_reduce(two, group=own)  # its group collects nothing
            seen.append(position())
        seen.append(position())
        manager.wait()
        for function, others in ((gather, [2, 4]), (scatter, [2, 4])):
            pairs = [(torch.ones(size), own) for size, own in zip(others, (one, two), strict=True)]
            with dist._coalescing_manager(async_ops=async_ops) as manager:
                for whole, part in pairs:
                    function(*((whole, part) if function is gather else (part, whole)))
            manager.wait()
            seen.append(position())
        return [(each.label.split(" of ")[0], each.numel) for each in seen]

    expected = [("new_group #0", -1), ("all_reduce #0", 2), ("all_reduce #1", 3), ("all_gather #2", 3)]
    assert cluster.run(coalesce) == [[*expected, ("reduce_scatter_tensor #3", 6)]] * 2


def test_a_functional_broadcast_has_one_root_whether_it_is_compiled_or_not(cluster):
    def send():
        from torch.distributed import _functional_collectives as functional

        group = [dist.new_group([rank]) for rank in range(2)][dist.get_rank()]

        def broadcast(x):
            return functional.broadcast(x * 2, 0, group) + 1

        broadcast(torch.ones(2))
        eager = position()
        torch.compile(broadcast, backend="aot_eager", fullgraph=True)(torch.ones(2))
        return eager.peer, position().peer

    assert cluster.run(send) == [(0, 0), (1, 1)]


def test_collectives_in_one_compiled_graph_are_counted_as_they_run_the_first_time_too(cluster):
    def compute():
        from torch.distributed import _functional_collectives as functional

        def in_place(tensor):
            doubled = tensor * 2
            dist.all_reduce(doubled)
            return doubled + 1

        def gathered(tensor):
            return functional.all_gather_single(tensor * 2, 0, dist.group.WORLD) + 1

        def scattered(tensor):
            return functional.reduce_scatter_single(tensor * 2, "sum", 0, dist.group.WORLD) + 1

        seen = []
        for function in (in_place, gathered, scattered):
            compiled = torch.compile(function, backend="aot_eager", fullgraph=True)
            for _ in range(2):
                result = compiled(torch.ones(2))
                seen.append((position().label, position().numel, result.tolist()))
        return seen

    for seen in cluster.run(compute):
        assert seen == [
            *(("all_reduce #0", 2, [5.0, 5.0]), ("all_reduce #1", 2, [5.0, 5.0])),
            *(("all_gather #2", 2, [3.0] * 4), ("all_gather #3", 2, [3.0] * 4)),
            *(("reduce_scatter_tensor #4", 2, [5.0]), ("reduce_scatter_tensor #5", 2, [5.0])),
        ]


def by_every_name(x):
    """Collectives that torch's compiler puts into its graphs, by torch's functions of other names for them."""
    from torch.distributed import _functional_collectives as functional

    gather = getattr(dist, "all_gather_single", None) or dist.all_gather_into_tensor
    scatter = getattr(dist, "reduce_scatter_single", None) or dist.reduce_scatter_tensor
    scatter_all = getattr(functional, "reduce_scatter_single_coalesced", None)
    scatter_all = scatter_all or functional.reduce_scatter_tensor_coalesced
    group, whole, half, same = dist.group.WORLD, torch.zeros(8), torch.zeros(2), torch.zeros(4)
    gather(whole, x * 2)
    scatter(half, x * 2)
    dist.all_to_all_single(same, x * 2)
    asked = [
        *functional.all_reduce_coalesced([x * 2, half], "sum", group),
        *scatter_all([x * 2, whole], "sum", [0, 0], group),
        functional.all_to_all_single(x * 2, None, None, group),
        functional.permute_tensor(x * 2, [1, 0], group),
        functional.broadcast(x * 2, 1, group),
    ]
    return sum(each.sum() for each in [whole, half, same, *asked])


def test_a_rank_whose_collectives_lie_in_a_compiled_graph_disagrees_with_no_other_rank(cluster):
    def train():
        from zerolab.runtime.counter import _counter

        compute = by_every_name
        if dist.get_rank() == 0:
            compute = torch.compile(compute, backend="aot_eager", fullgraph=True)
        return compute(torch.ones(4)).item(), _counter.page.history()

    (one, ours), (other, theirs) = cluster.run(train)
    assert one == other
    assert len(ours) == 8
    standings = [Standing(rank, "running", history[-1]) for rank, history in enumerate((ours, theirs))]
    assert mismatches(standings, {0: ours, 1: theirs}) == []


def test_a_functional_collective_of_a_fake_tensor_has_a_shape_and_nothing_to_wait_for(cluster):
    def fake():
        from torch._subclasses import FakeTensorMode
        from torch.distributed import _functional_collectives as functional

        with FakeTensorMode():
            return list(functional.wait_tensor(functional.all_reduce(torch.ones(3), "sum", dist.group.WORLD)).shape)

    assert cluster.run(fake) == [[3], [3]]


def test_a_group_of_its_own_has_a_count_of_its_own(cluster):
    def count():
        alone = dist.new_group([1])
        dist.all_reduce(torch.ones(1))
        if dist.get_rank() == 1:
            dist.all_reduce(torch.ones(1), group=alone)
        dist.all_reduce(torch.ones(1), group=alone)
        return position().label

    assert cluster.run(count) == ["all_reduce #1", "all_reduce #1 of ranks 1"]


def test_groups_of_the_same_ranks_count_each_for_itself(cluster):
    def count():
        beside = dist.new_group()
        dist.all_reduce(torch.ones(1), group=beside)
        other = position()
        dist.all_reduce(torch.ones(1))
        return other.label, other.group, position().label

    (label, group, own), same = cluster.run(count)
    assert (label, group, own) == same == (f"all_reduce #0 of group {group}", group, "all_reduce #1")
    assert group > 0


def beside():
    """The call that this rank's other threads are in."""
    from zerolab.runtime.counter import _counter

    return _counter.page.beside.read()


def test_what_another_thread_calls_does_not_hide_what_the_rank_waits_in(cluster, tmp_path):
    def wait():
        own, store = dist.new_group([dist.get_rank()]), dist.distributed_c10d._get_default_store()
        seen = []

        def call():
            while dist.get_rank() == 0 and (position().name, position().state) != ("barrier", INSIDE):
                time.sleep(0.001)
            store.set("key", "value")
            for step in (lambda: dist.all_reduce(torch.ones(1), group=own), lambda: store.get("key")):
                step()
                seen.append(position())
            (tmp_path / "seen").touch()

        thread = threading.Thread(target=call)
        if dist.get_rank() == 0:
            thread.start()
        while dist.get_rank() == 1 and not (tmp_path / "seen").exists():
            time.sleep(0.001)
        dist.barrier()
        if dist.get_rank() == 0:
            thread.join()
        return seen, position()

    (seen, last), _ = cluster.run(wait)
    assert [(each.label, each.state) for each in seen] == [("barrier #1", INSIDE)] * 2
    assert len(set(seen)) == 1, "nor since when"
    assert (last.label, last.state) == ("barrier #1", DONE)


def test_what_another_thread_is_in_is_seen_only_beside_the_rank(cluster, tmp_path):
    def save():
        own, rank = dist.new_group(), dist.get_rank()
        thread = threading.Thread(target=dist.barrier, args=[own])
        while rank == 1 and not (tmp_path / "seen").exists():
            time.sleep(0.001)
        thread.start()
        while rank == 0 and beside().state != IN_FLIGHT:
            time.sleep(0.001)
        during = position(), beside()
        (tmp_path / "seen").touch()
        thread.join()
        return during, position(), beside()

    ((own, other), last, after), _ = cluster.run(save)
    assert own == last
    assert (own.label, own.state) == ("new_group #0", DONE)
    assert (other.name, other.state, other.number, other.group > 0) == ("barrier", IN_FLIGHT, 0, True)
    assert after == Position()
    fd = os.memfd_create("board")
    os.truncate(fd, board.size(1))
    (page,) = board.pages(fd, 1)
    page.write(own)
    page.beside.write(other)
    assert board.positions({0: page}, [0]) == {0: other}
    assert board.positions({0: page}, []) == {0: own}, "it has returned"
    page.write(own._replace(state=INSIDE))
    assert board.positions({0: page}, [0]) == {0: own._replace(state=INSIDE)}


def test_a_thread_that_has_listened_for_long_is_no_hang_before_the_rank_has_stood_still_for_as_long():
    fd = os.memfd_create("board")
    os.truncate(fd, board.size(1))
    pages = board.pages(fd, 1)
    pages[0].beside.write(Position(IN_FLIGHT, "recv", None, time.monotonic_ns() - 10**11))
    ranks = types.SimpleNamespace(members=[types.SimpleNamespace(pid=0, seen=None)], board=pages, ask=lambda _: None)
    watch, began = hang.HangWatch(ranks, timeout=1.0, still=0.1, effort=lambda _: 0), time.monotonic()
    while (stuck := watch.look([0])) is None:
        time.sleep(0.05)
    assert stuck == 0
    assert time.monotonic() - began >= 1.0


def test_who_waits_for_a_rank_that_has_just_returned_gets_time_to_notice_that_it_came():
    fd = os.memfd_create("board")
    os.truncate(fd, board.size(2))
    pages = board.pages(fd, 2)
    pages[0].write(Position(INSIDE, "barrier", 1, time.monotonic_ns() - 10**10))
    members = [types.SimpleNamespace(pid=os.getpid(), seen=None)] * 2
    watch = hang.HangWatch(types.SimpleNamespace(members=members, board=pages, ask=lambda _: None), timeout=2.0)
    watch.look([0, 1])
    time.sleep(0.3)
    assert watch.look([0]) is None, "rank 1 has computed for ten seconds, come to the barrier, and returned"
    time.sleep(hang.STILL + 0.1)
    assert watch.look([0]) == 0, "it has not come"


def test_a_thread_whose_name_linux_has_cut_within_a_letter_is_looked_at_like_any_other():
    named, done = threading.Event(), threading.Event()

    def run():
        ctypes.CDLL(None).prctl(15, "reads letters ä".encode(), 0, 0, 0)  # PR_SET_NAME, of at most 15 bytes
        named.set()
        done.wait()

    thread = threading.Thread(target=run)
    thread.start()
    named.wait()
    try:
        assert len(hang.working_cpu(os.getpid())) == 1
        assert hang.Helpers().work(os.getpid(), time.monotonic())
    finally:
        done.set()
        thread.join()


SPIN = "while True: pass"
SPIN_IN_A_THREAD = "import threading\ndef spin():\n    while True: pass\nthreading.Thread(target=spin).start()"


@pytest.fixture
def starved(request):
    """A process that runs this program, and others on its core, which hardly let go of it."""
    processes = [subprocess.Popen([sys.executable, "-c", program]) for program in (request.param, *[SPIN] * 4)]
    time.sleep(0.5)  # until it has a thread
    for process in processes:
        for task in hang.threads(process.pid):
            os.sched_setaffinity(int(task.name), {min(os.sched_getaffinity(0))})
    for task in hang.threads(processes[0].pid):
        os.sched_setscheduler(int(task.name), os.SCHED_IDLE, os.sched_param(0))
    yield processes[0]
    for process in processes:
        process.kill()
        process.wait()


@pytest.mark.parametrize("starved", [SPIN, SPIN_IN_A_THREAD], ids=["in its main thread", "in another"], indirect=True)
def test_a_rank_that_computes_and_gets_no_core_does_not_stand_still(starved):
    fd = os.memfd_create("board")
    os.truncate(fd, board.size(2))
    pages = board.pages(fd, 2)
    pages[0].write(Position(INSIDE, "barrier", 0, time.monotonic_ns() - 10**10))
    members = [types.SimpleNamespace(pid=pid, seen=None) for pid in (os.getpid(), starved.pid)]
    ranks = types.SimpleNamespace(members=members, board=pages, ask=lambda _: None)
    watch, until = hang.HangWatch(ranks, timeout=1.0), time.monotonic() + 5.0
    while time.monotonic() < until:
        assert watch.look([0, 1]) is None, "it has waited for a core"
        time.sleep(0.05)
    starved.send_signal(signal.SIGSTOP)
    while watch.look([0, 1]) is None:
        time.sleep(0.05)


SENDS = """
import os, pathlib, sys, threading, time
def send():
    pathlib.Path("/proc/thread-self/comm").write_text("gloo_tcp_loop")
    receiving, sending = os.pipe()
    while True:
        for _ in range({}):
            os.write(sending, bytes(1 << 15))
            os.read(receiving, 1 << 15)
        time.sleep(0.05)
threading.Thread(target=send, daemon=True).start()
threading.Event().wait()
"""


@pytest.mark.parametrize(("messages", "moves"), [(5, True), (0, False)], ids=["that is sent", "that nobody sends"])
def test_ranks_that_wait_for_what_is_large_hang_only_once_nothing_of_it_is_sent(messages, moves):
    fd = os.memfd_create("board")
    os.truncate(fd, board.size(2))
    pages = board.pages(fd, 2)
    for page in pages:
        page.write(Position(INSIDE, "broadcast", 0, time.monotonic_ns() - 2 * 10**9))
    with subprocess.Popen([sys.executable, "-c", SENDS.format(messages)]) as process:
        time.sleep(0.5)  # until it has a thread
        members = [types.SimpleNamespace(pid=pid, seen=None) for pid in (os.getpid(), process.pid)]
        ranks = types.SimpleNamespace(members=members, board=pages, ask=lambda _: None)
        watch, until = hang.HangWatch(ranks, timeout=1.0, effort=lambda _: 0), time.monotonic() + 3.0
        looks = []
        while time.monotonic() < until:
            looks.append(watch.look([0, 1]))
            time.sleep(0.05)
        process.kill()
    assert (set(looks) == {None}) == moves


def test_what_a_group_beside_sends_now_and_then_excuses_no_hang_for_more_than_ten_timeouts():
    fd = os.memfd_create("board")
    os.truncate(fd, board.size(2))
    pages = board.pages(fd, 2)
    for page in pages:
        page.write(Position(INSIDE, "broadcast", 0, time.monotonic_ns() - 8 * 10**9))
    with subprocess.Popen([sys.executable, "-c", SENDS.format(10**9)]) as process:
        members = [types.SimpleNamespace(pid=pid, seen=None) for pid in (os.getpid(), process.pid)]
        ranks = types.SimpleNamespace(members=members, board=pages, ask=lambda _: None)
        watch, began = hang.HangWatch(ranks, timeout=1.0, effort=lambda _: 0), time.monotonic()
        while watch.look([0, 1]) is None:
            time.sleep(0.05)
        process.kill()
    assert time.monotonic() - began > 1.5


def test_a_thread_that_polls_on_a_busy_machine_works_no_more_than_on_an_idle_one():
    second, thread = 10**9, Path("/proc/1/task/1")
    polls = hang.share({thread: (second // 100, second * 8 // 10)}, {}, 1.0)
    computes = hang.share({thread: (second // 5, second * 8 // 10)}, {}, 1.0)
    assert polls == pytest.approx(0.05)
    assert computes == pytest.approx(1.0)
    assert hang.share({thread: (second, 5 * second)}, {}, 1.0) == 1.0, "it is told of a wait once that is over"
