"""Ranks keep the memory that they free, so that a step does not wait for Linux to clear the same pages again."""

import ctypes
import resource
from pathlib import Path

import pytest
import torch

from zerolab import Cluster, host_memory

MB = 2**20


def pages_of_each_turn():
    """On a rank: how many pages Linux brought in each time that 64 MiB were taken in eight blocks and freed."""
    pages = []
    for _ in range(9):
        before = resource.getrusage(resource.RUSAGE_SELF).ru_minflt
        blocks = [torch.ones(8 * MB, dtype=torch.uint8) for _ in range(8)]
        blocks.clear()
        pages.append(resource.getrusage(resource.RUSAGE_SELF).ru_minflt - before)
    return pages


@pytest.fixture(autouse=True)
def glibc(require):
    require(hasattr(ctypes.CDLL(None), "mallopt"), "a malloc that can be told", "take Linux with glibc")


def test_what_a_rank_has_freed_it_takes_again_without_a_new_page():
    with Cluster(world_size=2, device="cpu") as cluster:
        for first, *others in cluster.run(pages_of_each_turn):
            assert sum(others) < len(others) * first / 4  # a small block at the end of the heap may move one of these


def memory_of_two_blocks():
    """On a rank: the most that it took for 20 MB, freed, and then 24; for 40, freed, and then 48; pages after that."""
    with host_memory() as host:
        blocks = [torch.ones(20 * MB, dtype=torch.uint8)]
        last = [torch.ones(64 * 2**10, dtype=torch.uint8) for _ in range(16)]  # behind it, if it is in the heap
        blocks.clear()
        blocks = [torch.ones(24 * MB, dtype=torch.uint8)]
    del blocks, last
    libc, places = ctypes.CDLL(None), (ctypes.c_void_p * (40 * 16))()
    libc.malloc.restype = ctypes.c_void_p
    # By malloc itself: what Python or torch make beside a tensor may lie behind it, and then nothing can be given back.
    with host_memory() as small:
        for number in range(len(places)):
            places[number] = ctypes.memset(libc.malloc(64 * 2**10), 1, 64 * 2**10)
        for place in places:
            libc.free(ctypes.c_void_p(place))
        block = torch.ones(48 * MB, dtype=torch.uint8)
    del block
    return host.peak, small.peak, pages_of_each_turn()


def test_a_rank_that_counts_its_main_memory_gives_back_what_it_frees_and_later_keeps_it_again(require):
    require(Path("/proc/self/clear_refs").exists(), "the kernel's mark of a process's memory", "take Linux")
    with Cluster(world_size=2, device="cpu") as cluster:
        for peak, small, (first, *others) in cluster.run(memory_of_two_blocks):
            assert 24 * MB <= peak < 28 * MB
            assert 48 * MB <= small < 56 * MB
            assert sum(others) < len(others) * first / 4  # a small block at the end of the heap may move one of these
