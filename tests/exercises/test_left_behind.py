"""What an answer leaves changed is not counted against it, and what is run after it says so."""

import torch
import torch.distributed as dist

from zerolab import check
from zerolab.exercises.harness.checking import OURS_FAILED
from zerolab.exercises.harness.plain import plain


def test_a_right_answer_that_leaves_torch_patched_passes_without_ours_beside_it(capsys):
    def product(number):
        dist.all_reduce(number, op=dist.ReduceOp.PRODUCT)
        dist.all_reduce = None
        return number

    attempt = check("product", product, seed=1)
    assert attempt.passed, str(attempt)
    assert attempt.ours is None
    assert OURS_FAILED in capsys.readouterr().out


def test_settings_of_torch_are_as_before_for_ours():
    def product(number):
        dist.all_reduce(number, op=dist.ReduceOp.PRODUCT)
        torch.set_default_device("meta")
        torch.set_default_dtype(torch.float64)
        return number

    attempt = check("product", product, seed=1)
    assert attempt.passed, str(attempt)
    assert attempt.ours is not None


def test_a_tensor_is_read_in_any_layout_or_named_where_it_has_no_values():
    assert plain(torch.tensor([1.0, 0.0]).to_sparse()).tolist() == [1.0, 0.0]
    assert plain(torch.ones(2, device="meta")) == "<a tensor of torch.float32 on meta, whose values cannot be read>"
