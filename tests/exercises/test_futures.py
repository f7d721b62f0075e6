"""Waiting for an exchange in another way than by `wait()` counts, and not waiting does not."""

import time

import pytest
import torch
import torch.distributed as dist
from answered import said_on_ranks

from zerolab.exercises import load


def started(number):
    return dist.all_reduce(number, op=dist.ReduceOp.PRODUCT, async_op=True)


def by_its_future(number):
    started(number).get_future().wait()
    return number


def by_what_follows_its_future(number):
    return started(number).get_future().then(lambda future: future.value()[0]).wait()


def by_all_futures(number):
    torch.futures.wait_all([started(number).get_future()])
    return number


def by_all_futures_collected(number):
    torch.futures.collect_all([started(number).get_future()]).wait()
    return number


def by_asking_until_it_is_over(number):
    work = started(number)
    while not work.is_completed():
        time.sleep(0.001)
    return number


def by_asking_its_future(number):
    future = started(number).get_future()
    while not future.done():
        time.sleep(0.001)
    return number


def after_a_barrier_that_waits_itself(number):
    dist.monitored_barrier()
    started(number).wait()
    return number


@pytest.mark.parametrize(
    "answer",
    [
        by_its_future,
        by_what_follows_its_future,
        by_all_futures,
        by_all_futures_collected,
        by_asking_until_it_is_over,
        by_asking_its_future,
        after_a_barrier_that_waits_itself,
    ],
)
def test_who_waits_in_another_way_than_by_wait_has_waited(answer, two_ranks):
    assert said_on_ranks(load("product"), answer, two_ranks) == ""


def a_future_that_nobody_waits_for(number):
    started(number).get_future().then(lambda future: future.value()[0])
    dist.barrier()
    return number


def test_who_only_asks_for_a_future_has_not_waited(two_ranks):
    said = said_on_ranks(load("product"), a_future_that_nobody_waits_for, two_ranks)
    assert said.startswith("rank 0 never waited for its all_reduce")
