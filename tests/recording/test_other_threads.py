"""What other threads than the recorder's send is recorded, and neither its bytes nor its events get mixed up."""

import math
import threading
import weakref
from functools import partial
from unittest import mock

import pytest
import torch
import torch.distributed as dist

from zerolab import Cluster
from zerolab.engines import collectives
from zerolab.recording.others import ELSEWHERE
from zerolab.recording.recorder import Recorder


def sends(recording, rank):
    """The collectives of one rank that are part of no other: word, elements, bytes."""
    events = [event for event in recording.rank(rank).events if event.kind == "collective" and event.parent is None]
    return sorted((event.op, event.numel, event.logical_bytes) for event in events)


def test_a_collective_takes_its_usual_way_until_another_thread_can_communicate():
    def has_kernel():
        return torch._C._dispatch_has_kernel_for_dispatch_key("c10d::allreduce_", "ADInplaceOrView")

    def ask():
        with Recorder() as recorder:
            dist.all_reduce(torch.ones(4))
            found = [has_kernel()]
            threading.Thread(target=bool).start()
            found.append(has_kernel())
        return found, len([event for event in recorder.finish().events if event.kind == "collective"])

    with Cluster(1, device="cpu") as cluster:
        assert cluster.run(ask) == [([False, True], 1)]


def send_from_other_threads(mode):
    """One all_reduce of this thread's; on rank 0 another in gloo's, which completes the first; one in a thread.

    On rank 1 the first is complete already when the other is to follow, so that it does so in this thread.
    """
    store, key = dist.distributed_c10d._get_default_store(), f"the callback of {mode} is there"
    if dist.get_rank() == 1:
        store.wait([key])
    threads = []

    def go_on(future):
        threads.append(threading.current_thread() is threading.main_thread())
        return dist.all_reduce(future.value()[0].repeat(2), async_op=True).get_future().wait()[0]

    future = dist.all_reduce(torch.ones(4), async_op=True).get_future()
    if dist.get_rank() == 1:
        future.wait()
    future = future.then(go_on)
    store.set(key, "")
    results = [future.wait().tolist()]
    own = torch.ones(16)
    thread = threading.Thread(target=dist.all_reduce, args=(own,))
    thread.start()
    thread.join()
    return [*results, own.tolist()], threads


@pytest.mark.parametrize("mode", ["whole", "times"])
def test_a_collective_is_recorded_whichever_thread_asks_for_it(cluster, mode):
    recording = (cluster.record if mode == "whole" else cluster.record_times)(send_from_other_threads, mode)
    assert [result for result, _ in recording.results] == [[[4.0] * 8, [2.0] * 16]] * 2
    assert [where for _, where in recording.results] == [[False], [True]], "gloo's thread went on, on rank 0 only"
    pairs = [[(rank, event.numel) for rank, event in each.events.items()] for each in recording.collectives]
    assert pairs == [[(0, 4), (1, 4)]], "what chance decides the thread of pairs no ranks"
    for rank in recording.ranks:
        assert sends(recording, rank.rank) == [("all_reduce", size, 4 * size) for size in (4, 8, 16)]
        assert [event.seq for event in rank.events] == list(range(len(rank.events)))
        last = [event for event in rank.events if event.numel == 16]
        assert [(event.kind, event.parent) for event in last] == [("collective", None), ("wait", last[0].seq)]


def send_within_an_exchange():
    """In each half of an engine's all_reduce, another thread asks for one of its own, in a group of its own."""
    side, start = dist.new_group(), collectives._start

    def started(*arguments):
        thread = threading.Thread(target=dist.all_reduce, args=(torch.ones(8),), kwargs={"group": side})
        thread.start()
        thread.join()
        return start(*arguments)

    with mock.patch.object(collectives, "_start", started):
        collectives.all_reduce(torch.ones(6)).wait()


@pytest.mark.parametrize("mode", ["whole", "times"])
def test_what_another_thread_sends_meanwhile_is_no_part_of_an_engines_collective(cluster, mode):
    recording = (cluster.record if mode == "whole" else cluster.record_times)(send_within_an_exchange)
    for rank in (0, 1):
        assert sends(recording, rank) == [("all_reduce", 6, 24), *[("all_reduce", 8, 32)] * 2]


@pytest.mark.parametrize("mode", ["whole", "times"])
def test_what_other_threads_send_has_no_part_in_the_numbers_that_pair_the_ranks(cluster, mode):
    def send():
        side, rank = dist.new_group(), dist.get_rank()
        for turn in range(2):
            if turn == rank:  # one rank's before the thread's, the other's after it
                work = dist.all_reduce(torch.ones(4), async_op=True)
            if turn == 0:
                thread = threading.Thread(target=dist.all_gather_object, args=([None] * 2, rank, side))
                thread.start()
                thread.join()
        work.wait()

    recording = (cluster.record if mode == "whole" else cluster.record_times)(send)
    assert [(each.number, each.ops, len(each.events)) for each in recording.collectives] == [(0, ("all_reduce",), 2)]
    sent = {row["op"]: row["count"] for row in recording.traffic(step=0)}
    assert sent == {"all_gather": 2, "all_reduce": 1, "total": 3}


def test_what_torch_may_be_calling_in_another_threads_backward_outlives_the_recording_and_passes_on(cluster):
    def left_behind():
        def ask():
            tensor, leaf = torch.ones(4), torch.zeros(1, requires_grad=True)
            leaf.register_hook(lambda _: dist.all_reduce(tensor) and None)
            thread = threading.Thread(target=leaf.sum().backward)
            thread.start()
            thread.join()
            return tensor.tolist()

        with Recorder() as recorder:
            found = [ask()]
        recorded = [event for event in recorder.finish().events if event.kind == "collective"]
        stays = torch._C._dispatch_has_kernel_for_dispatch_key("c10d::allreduce_", "ADInplaceOrView")
        return [*found, ask()], len(recorded), stays

    assert cluster.run(left_behind) == [([[2.0] * 4] * 2, 1, True)] * 2


def test_recordings_within_each_other_see_the_same(cluster):
    def send():
        def ask():
            thread = threading.Thread(target=dist.all_reduce, args=(torch.ones(4),))
            thread.start()
            thread.join()

        counts = []
        for modes in [(False, False), (True, False), (False, True), (True, True)]:
            with Recorder(times_only=modes[0]) as outer:
                with Recorder(times_only=modes[1]) as inner:
                    dist.all_reduce(torch.ones(4))
                    ask()
                ask()
            recorded = [recorder.finish().events for recorder in (outer, inner)]
            counts.append([sum(event.kind == "collective" for event in events) for events in recorded])
        return counts

    assert cluster.run(send) == [[[3, 2]] * 4] * 2


def test_an_update_that_a_scaler_leaves_out_in_another_thread_ends_no_step(record):
    def train():
        model, other, scaler = torch.nn.Linear(2, 1), torch.zeros(1, requires_grad=True), torch.amp.GradScaler("cpu")
        scaler.scale(other * math.inf).backward()
        thread = threading.Thread(target=scaler.step, args=(torch.optim.SGD([other], lr=0.1),))
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
        model(torch.ones(1, 2)).sum().backward()
        thread.start()
        thread.join()
        model(torch.ones(1, 2)).sum().backward()
        optimizer.step()

    recording = record(train)
    assert recording.info.steps == 1
    assert [event.step for event in recording.events if event.op == "forward"] == [1, 1]


@pytest.mark.parametrize("times_only", [False, True])
def test_what_another_thread_never_waits_for_is_not_kept_alive_after_the_recording(cluster, times_only):
    def send():
        done = threading.Event()

        def ask(tensor):
            kept.append(weakref.ref(dist.all_reduce(tensor, async_op=True)))
            asked.set()
            done.wait()

        kept, asked = [], threading.Event()
        with Recorder(times_only=times_only) as recorder:
            thread = threading.Thread(target=ask, args=(torch.ones(4),))
            thread.start()
            asked.wait()
        alive = kept[0]() is not None
        done.set()
        thread.join()
        return alive, recorder.finish().complete

    assert cluster.run(send) == [(False, True)] * 2


def step_in_a_thread(also_here):
    """A model's step in a thread of its own, and first a forward in another; or the step here as well."""
    model = torch.nn.Linear(2, 1)

    def step():
        model(torch.ones(1, 2)).sum().backward()
        torch.optim.SGD(model.parameters()).step()

    for work, name in ((partial(model, torch.ones(1, 2)), "looks"), (step, "trains")):
        thread = threading.Thread(target=work, name=name)
        thread.start()
        thread.join()
    if also_here:
        step()


@pytest.mark.parametrize("also_here", [True, False])
@pytest.mark.parametrize("mode", ["whole", "times"])
def test_where_another_thread_trains_a_note_says_that_it_is_not_seen(cluster, mode, also_here):
    recording = (cluster.record if mode == "whole" else cluster.record_times)(step_in_a_thread, also_here)
    notes = [event.text for event in recording.rank(0).events if event.op == "another thread"]
    assert notes == [ELSEWHERE.format(name="trains")]
    assert recording.info.steps == also_here
