"""An answer that never ends is ended, whatever it is in, and the rank is named that does not end."""

import itertools

import pytest
import torch
import torch.distributed as dist

from zerolab import check
from zerolab.exercises.harness import checking


@pytest.fixture(autouse=True)
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


def test_a_plain_function_that_is_in_a_call_into_c_is_ended():
    def state_bytes(num_params, moments, precision):
        never_ends_in_c()

    said = str(check("state-bytes", state_bytes, seed=1))
    assert "`state_bytes` did not finish in time on rank 0, and could not be interrupted." in said
    assert said.index(", in state_bytes") < said.index(", in never_ends_in_c")
    assert "threading.py" not in said


@pytest.mark.slow
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
