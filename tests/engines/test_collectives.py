"""The three collectives, on real ranks over gloo: the right numbers, the fewest bytes, never mixed up."""

import os
import signal
import threading
import time
from datetime import timedelta

import pytest
import torch
import torch.distributed as dist
import warm

from zerolab.engines.collectives import all_gather, all_reduce, reduce_scatter

SIZES = [1, 2, 3, 4]


def _flat(rank, world_size, part):
    """Different numbers on every rank, so that a part in the wrong place shows."""
    return torch.arange(world_size * part, dtype=torch.float32) + 1000.0 * rank


@pytest.mark.parametrize("world_size", SIZES)
def test_reduce_scatter_leaves_the_sum_in_the_own_part_and_the_rest_alone(clusters, world_size):
    def work(rank):
        flat = _flat(rank, world_size, 5)
        reduce_scatter(flat).wait()
        return flat

    total = sum(_flat(rank, world_size, 5) for rank in range(world_size))
    for rank, flat in enumerate(clusters(world_size).run(_with_rank(work))):
        own = slice(5 * rank, 5 * rank + 5)
        expected = _flat(rank, world_size, 5)
        expected[own] = total[own]
        assert torch.equal(flat, expected)


@pytest.mark.parametrize("world_size", SIZES)
def test_all_gather_brings_every_part_to_every_rank(clusters, world_size):
    def work(rank):
        flat = _flat(rank, world_size, 5)
        all_gather(flat).wait()
        return flat

    expected = torch.cat([_flat(rank, world_size, 5)[5 * rank : 5 * rank + 5] for rank in range(world_size)])
    assert all(torch.equal(flat, expected) for flat in clusters(world_size).run(_with_rank(work)))


@pytest.mark.parametrize("world_size", SIZES)
def test_all_reduce_adds_up_everything_on_every_rank(clusters, world_size):
    def work(rank):
        flat = _flat(rank, world_size, 5)
        all_reduce(flat).wait()
        return flat

    expected = sum(_flat(rank, world_size, 5) for rank in range(world_size))
    assert all(torch.equal(flat, expected) for flat in clusters(world_size).run(_with_rank(work)))


@pytest.mark.parametrize("numel", [1, 4, 5])
def test_a_flat_that_ranks_do_not_divide_has_parts_that_differ_by_an_element(clusters, numel):
    def work(rank):
        summed, gathered = (torch.arange(numel) + 10.0 * rank for _ in range(2))
        all_reduce(summed).wait()
        all_gather(gathered).wait()
        return summed, gathered

    own = {1: [0], 4: [0, 1, 12, 23], 5: [0, 1, 12, 13, 24]}[numel]
    for summed, gathered in clusters(3).run(_with_rank(work)):
        assert summed.tolist() == [3 * index + 30 for index in range(numel)]
        assert gathered.tolist() == own


def test_all_ranks_agree_to_the_last_bit_because_the_order_of_addition_is_fixed(clusters):
    def work(rank):
        flat = torch.randn(4 * 1001, generator=torch.Generator().manual_seed(rank)) * 10.0**rank
        all_reduce(flat).wait()
        return flat

    results = clusters(4).run(_with_rank(work))
    addends = [torch.randn(4 * 1001, generator=torch.Generator().manual_seed(rank)) * 10.0**rank for rank in range(4)]
    assert torch.equal(results[0], ((addends[0] + addends[1]) + addends[2]) + addends[3])
    assert all(torch.equal(result, results[0]) for result in results)


def test_exchanges_that_overlap_do_not_mix_whatever_order_they_are_waited_for(clusters):
    def work(rank):
        first, second = _flat(rank, 3, 4), _flat(rank, 3, 4) * -1
        exchanges = [all_gather(first), all_gather(second)]
        for exchange in reversed(exchanges) if rank == 1 else exchanges:
            exchange.wait()
        return first, second

    for first, second in clusters(3).run(_with_rank(work)):
        assert torch.equal(first, -second)


def test_waiting_twice_changes_nothing(clusters):
    def work(rank):
        flat = torch.ones(4)
        exchange = all_reduce(flat)
        exchange.wait()
        exchange.wait()
        return flat

    assert all(torch.equal(flat, torch.full((4,), 2.0)) for flat in clusters(2).run(_with_rank(work)))


def test_waiting_again_for_an_exchange_that_failed_fails_at_once(clusters):
    limit = 60

    def work(rank):
        group = dist.new_group(timeout=timedelta(seconds=limit))
        all_gather(_flat(rank, 3, 4), group).wait()
        flat, failures = _flat(rank, 3, 4), []
        exchange = None if rank == 2 else all_gather(flat, group)
        dist.barrier()
        if exchange is None:
            dist.destroy_process_group(group)
            del group  # closes its connections, as a rank that dies does
            dist.barrier()
            return None
        for _ in range(3):
            start = time.monotonic()
            with pytest.raises(RuntimeError):  # in the words of gloo, which has several
                exchange.wait()
            failures.append(time.monotonic() - start)
        dist.barrier()
        return failures

    *survivors, _ = clusters(3).run(_with_rank(work))
    for first, *again in survivors:
        assert max(first, *again) < limit / 2, "what it waits for comes no more"


def test_an_exchange_whose_wait_was_interrupted_can_be_waited_for_again(clusters):
    def work(rank):
        flat = _flat(rank, 2, 4)
        all_gather(flat).wait()
        if rank == 1:
            time.sleep(1)
            all_gather(flat).wait()
            return flat
        before = signal.signal(signal.SIGINT, signal.default_int_handler)
        exchange = all_gather(flat)
        threading.Timer(0.3, os.kill, (os.getpid(), signal.SIGINT)).start()
        try:
            with pytest.raises(KeyboardInterrupt):
                exchange.wait()
        finally:
            signal.signal(signal.SIGINT, before)
        exchange.wait()
        return flat

    one, other = clusters(2).run(_with_rank(work))
    assert torch.equal(one, other)


def _with_rank(work):
    def run():
        return work(dist.get_rank())

    return run


UNNAMED = """
import sys
import torch
import torch.distributed as dist
from zerolab.engines.collectives import granule, has_streams, reduce_scatter

dist.init_process_group(*sys.argv[1:])
flat = torch.ones(8)
exchange = reduce_scatter(flat)
messages = len(exchange._works)
exchange.wait()
if dist.get_rank() == 0:
    print(has_streams(flat.device), granule(torch.nn.Linear(3, 3)), messages, flat[:4].tolist())
dist.barrier()
dist.destroy_process_group()
"""


@pytest.mark.parametrize("named", [["gloo"], [], ["cpu:gloo"]])
def test_a_group_that_is_made_without_a_backends_name_sends_from_the_cpu_as_gloo_does(named, tmp_path):
    (tmp_path / "unnamed.py").write_text(UNNAMED)
    done = warm.launch([tmp_path / "unnamed.py", *named])
    # One message to the other rank and one from it; gloo's own would be one call, that sends twice as much.
    assert done.stdout == "False 1 2 [2.0, 2.0, 2.0, 2.0]\n", done.stdout + done.stderr
