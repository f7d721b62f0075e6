"""What a process takes of main memory: what it allocates and what it maps are told apart, and no moment is missed."""

import mmap
import threading
from pathlib import Path

import pytest
import torch

from zerolab import host_memory

MB = 2**20
SIZE = 40 * MB


@pytest.fixture(autouse=True)
def kernel(require):
    require(Path("/proc/self/clear_refs").exists(), "the kernel's mark of a process's memory", "take Linux")
    torch.ones(MB, dtype=torch.uint8)  # brings in the pages of torch's own files


def test_memory_that_is_gone_at_the_end_was_seen():
    with host_memory() as host:
        block = torch.ones(SIZE, dtype=torch.uint8)
        del block
    assert SIZE - MB <= host.peak <= SIZE + 2 * MB
    assert host.mapped <= MB


def test_memory_that_malloc_has_kept_is_seen_when_it_is_used_again():
    small = [bytearray(100_000) for _ in range(2 * SIZE // 100_000)]  # too small for a mapping of their own
    last = small.pop()
    small.clear()  # below `last`, so malloc keeps it
    with host_memory() as host:
        block = torch.ones(SIZE, dtype=torch.uint8)
    assert host.peak >= SIZE - MB
    del block, last


def test_memory_that_stays_is_allocated():
    with host_memory() as host:
        block = torch.ones(SIZE, dtype=torch.uint8)
    assert SIZE - MB <= host.allocated <= SIZE + 2 * MB
    assert abs(host.allocated - host.peak) <= 2 * MB
    del block


def test_memory_that_nobody_writes_to_takes_none():
    with host_memory() as host:
        block = torch.empty(SIZE, dtype=torch.uint8)
    assert block.nbytes == SIZE
    assert host.peak <= MB


def test_pages_of_a_file_count_as_mapped(tmp_path):
    (tmp_path / "file").write_bytes(bytes(SIZE))
    with host_memory() as host, (tmp_path / "file").open("rb") as file:
        mapped = mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ)
        sum(mapped[:: mmap.PAGESIZE])
    assert SIZE - MB <= host.mapped <= SIZE + 2 * MB
    assert host.allocated <= 2 * MB


def failing():
    torch.ones(SIZE, dtype=torch.uint8)
    raise ZeroDivisionError


def test_an_error_in_the_block_comes_out_and_ends_the_watching():
    threads = threading.active_count()
    with pytest.raises(ZeroDivisionError), host_memory() as host:
        failing()
    assert host.peak >= SIZE - MB
    assert threading.active_count() == threads
