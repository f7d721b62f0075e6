"""Which of a rank's threads its page follows: the main one where it calls anything, and autograd's own within it."""

import _thread
import threading
import time
from unittest import mock

import torch
import torch.distributed as dist

from zerolab.runtime.board import DONE, FAILED, IN_FLIGHT, INSIDE, Position


def pages():
    """Where this rank stands, and what its other threads are in, read in the rank."""
    from zerolab.runtime.counter import _counter

    return _counter.page.read(), _counter.page.beside.read()


def test_a_rank_whose_training_runs_in_a_thread_stands_where_that_is(cluster):
    def train():
        own, seen = dist.new_group(), []

        def step():
            dist.all_reduce(torch.ones(1))
            dist.all_reduce(torch.ones(1), group=own)
            seen.append(pages())

        thread = threading.Thread(target=step)
        thread.start()
        thread.join()
        return seen

    for ((own, beside),) in cluster.run(train):
        assert (own.name, own.group > 0, own.number, own.state, beside) == ("all_reduce", True, 0, DONE, Position())


def test_the_main_thread_stands_for_its_rank_again_with_whatever_it_calls(cluster, tmp_path):
    def call(kind):
        own, store = dist.new_group([dist.get_rank()]), dist.distributed_c10d._get_default_store()
        calls = {"subgroup": lambda: dist.all_reduce(torch.ones(5), group=own), "store": lambda: store.get("key")}
        store.set("key", "value")
        thread = threading.Thread(target=dist.barrier)
        if dist.get_rank() == 0:
            thread.start()
            while pages()[0][:2] != (INSIDE, "barrier"):
                time.sleep(0.001)
            calls[kind]()
            during = pages()
            (tmp_path / kind).touch()
        else:
            while not (tmp_path / kind).exists():
                time.sleep(0.001)
            during = None
            thread.start()
        thread.join()
        return during, pages()

    for kind, name in [("subgroup", "all_reduce"), ("store", "store.get")]:
        ((own, beside), (last, after)), _ = cluster.run(call, kind)
        assert (own.name, own.state, beside.name, beside.state) == (name, DONE, "barrier", IN_FLIGHT)
        assert (last, after) == (own, Position())


def test_once_the_main_thread_has_called_something_what_another_asks_of_all_ranks_is_beside_it(cluster):
    def save():
        dist.all_reduce(torch.ones(1))
        thread = threading.Thread(target=dist.all_gather_object, args=([None] * 2, "saved"))
        thread.start()
        thread.join()
        return pages()[0].label

    assert cluster.run(save) == ["all_reduce #0"] * 2


def test_what_hooks_call_in_a_thread_of_autograds_is_the_ranks_own(cluster):
    def train():
        own, done, seen = dist.new_group(), threading.Event(), []
        dist.all_reduce(torch.ones(1))
        weight = torch.ones(1, requires_grad=True)

        def hook(gradient):
            dist.all_reduce(gradient.clone(), group=own)
            seen.append(pages())
            try:
                dist.all_reduce("no tensor", group=own)
            except TypeError:
                seen.append(pages())

        weight.register_hook(hook)

        def backward():  # as in one of the engine's: a thread that Python has not started, within a backward
            try:
                weight.sum().backward()
            finally:
                done.set()

        _thread.start_new_thread(backward, ())
        done.wait()
        dist.barrier(own)
        return [*seen, pages()]

    for (own, beside), (failed, _), (last, _) in cluster.run(train):
        assert (own.name, own.group > 0, own.state, beside) == ("all_reduce", True, DONE, Position())
        assert (failed.name, failed.number, failed.state) == ("all_reduce", 1, FAILED)
        assert (last.name, last.number, last.state) == ("barrier", 2, DONE)


def test_two_threads_that_call_in_one_group_at_one_time_have_numbers_of_their_own(cluster):
    def call():
        from zerolab.runtime import stack
        from zerolab.runtime.counter import _counter

        own, both, locate = dist.new_group([dist.get_rank()]), threading.Barrier(2), stack.locate

        def together(frame):
            both.wait()
            return locate(frame)

        with mock.patch.object(stack, "locate", together):
            threads = [threading.Thread(target=dist.barrier, args=[own]) for _ in range(2)]
            for thread in threads:
                thread.start()
            for thread in threads:
                thread.join()
        return [each.number for each in _counter.page.history() if each.members]

    assert cluster.run(call) == [[0, 1]] * 2
