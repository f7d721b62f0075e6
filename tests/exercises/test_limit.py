"""An answer that never ends is ended, whatever it is in, and one that takes too much memory gets no more.

In both cases the rank is named whose answer it is.
"""

import itertools
import resource

import numpy as np
import pytest
import torch
import torch.distributed as dist

from zerolab import check
from zerolab.exercises.harness import checking
from zerolab.exercises.harness.limit import at_most


@pytest.fixture
def _short(monkeypatch):
    monkeypatch.setattr(checking, "ANSWER_SECONDS", 2.0)


def never_ends_in_c():
    sum(itertools.repeat(0))  # Python handles no signal in it


def never_ends_in_python():
    while True:
        pass


def never_ends_in_torch():
    matrix = torch.ones(4000, 4000)
    torch.linalg.matrix_power(matrix, 2**62 - 1)  # other threads run meanwhile, and signals are still not handled


@pytest.mark.usefixtures("_short")
def test_a_plain_function_that_is_in_a_call_into_c_is_ended():
    def state_bytes(num_params, moments, precision):
        never_ends_in_c()

    said = str(check("state-bytes", state_bytes, seed=1))
    assert "`state_bytes` did not finish in time on rank 0, and could not be interrupted." in said
    assert said.index(", in state_bytes") < said.index(", in never_ends_in_c")
    assert "threading.py" not in said


@pytest.mark.slow
@pytest.mark.usefixtures("_short")
@pytest.mark.parametrize("never_ends", [never_ends_in_c, never_ends_in_python, never_ends_in_torch])
def test_of_ranks_that_wait_for_one_that_never_ends_none_is_named(never_ends):
    def product(number):
        if dist.get_rank() == 2:
            never_ends()
        dist.all_reduce(number, op=dist.ReduceOp.PRODUCT)
        return number

    said = str(check("product", product, seed=1))
    assert "on rank 2" in said
    assert f", in {never_ends.__name__}" in said
    assert "all_reduce" not in said


@pytest.mark.parametrize("gigabyte", [lambda: np.empty(2**30, np.uint8), lambda: torch.empty(2**30, dtype=torch.uint8)])
def test_a_plain_function_that_fills_the_memory_is_refused_more(gigabyte):
    def state_bytes(num_params, moments, precision):
        return [gigabyte() for _ in range(4)]

    said = str(check("state-bytes", state_bytes, seed=1))
    assert "`state_bytes` asked for more memory on rank 0 than there is for an answer, 2 GB" in said
    assert ", in state_bytes" in said


def test_a_rank_that_fills_the_memory_is_named_and_those_that_wait_for_it_are_not():
    def product(number):
        if dist.get_rank() == 2:
            kept = [bytearray(2**30) for _ in range(4)]
        dist.all_reduce(number, op=dist.ReduceOp.PRODUCT)
        return number, kept

    said = str(check("product", product, seed=1))
    assert "`product` asked for more memory on rank 2 than there is for an answer, 2 GB" in said
    assert "all_reduce" not in said


def test_after_an_answer_a_rank_gets_as_much_memory_as_before():
    before = resource.getrlimit(resource.RLIMIT_DATA)
    with at_most(60):
        assert resource.getrlimit(resource.RLIMIT_DATA)[0] > 0
    assert resource.getrlimit(resource.RLIMIT_DATA) == before
