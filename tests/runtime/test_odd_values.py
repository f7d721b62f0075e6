"""Tensors and objects of unusual kinds, as arguments and as results: they travel, or one sentence says why not."""

import os
import sys
import threading
import warnings

import numpy as np
import pytest
import torch

from zerolab import Cluster, RankError
from zerolab.runtime import travel


@pytest.fixture(scope="module")
def two():
    with Cluster(2, device="cpu") as cluster:
        yield cluster


def conjugate():
    return torch.tensor([1 + 2j]).conj()


def nested():
    with warnings.catch_warnings(action="ignore"):
        return torch.nested.nested_tensor([torch.ones(2), torch.ones(3)])


def quantized(steps=3):
    with warnings.catch_warnings(action="ignore"):
        return torch.quantize_per_tensor(torch.arange(float(steps)), 0.5, 0, torch.quint8)


def marked():
    parameter = torch.nn.Parameter(torch.ones(2), requires_grad=False)
    parameter.no_decay = True
    return parameter


TENSORS = {
    "a conjugate": (conjugate, torch.tensor([1 - 2j])),
    "the negative half of a conjugate": (lambda: conjugate().imag, torch.tensor([-2.0])),
    "a negative": (lambda: torch._neg_view(torch.ones(3)), -torch.ones(3)),
    "one of every second": (lambda: torch.arange(4.0)[::2][1:], torch.tensor([2.0])),
    "one of a column": (lambda: torch.arange(4.0).view(2, 2)[:1, 1], torch.tensor([1.0])),
    "a sparse parameter": (lambda: torch.nn.Parameter(torch.eye(2).to_sparse(), False).to_dense(), torch.eye(2)),
    "nested": (lambda: nested().to_padded_tensor(0.0), torch.tensor([[1.0, 1.0, 0.0], [1.0, 1.0, 1.0]])),
    "quantized": (lambda: quantized().dequantize(), torch.tensor([0.0, 1.0, 2.0])),
}


@pytest.mark.filterwarnings("ignore:TypedStorage is deprecated")  # torch's own, when it pickles a quantized tensor
def test_tensors_of_every_kind_come_back_and_go_along_as_the_numbers_that_one_sees(two):
    made = [conjugate(), nested(), quantized(300)[:3]]
    there = two.run(lambda: [value.to_padded_tensor(0.0) if value.is_nested else value for value in made])[1]
    assert torch.equal(there[0], torch.tensor([1 - 2j]))
    assert torch.equal(there[1], torch.tensor([[1.0, 1.0, 0.0], [1.0, 1.0, 1.0]]))
    assert torch.equal(there[2].dequantize(), torch.tensor([0.0, 1.0, 2.0]))
    back = two.run(lambda: [conjugate(), nested(), quantized(), torch.nn.Parameter(torch.ones(2, device="meta"))])[0]
    assert torch.equal(back[0], torch.tensor([1 - 2j]))
    assert [len(part) for part in back[1].unbind()] == [2, 3]
    assert torch.equal(back[2].dequantize(), torch.tensor([0.0, 1.0, 2.0]))
    assert back[3].is_meta
    results = two.run(lambda: [make() for make, _ in TENSORS.values()])[1]
    for name, result in zip(TENSORS, results, strict=True):
        assert torch.equal(result, TENSORS[name][1]), name


def test_what_is_written_on_a_tensor_goes_along_and_comes_back(two):
    layer = torch.nn.Linear(2, 2)
    layer.weight.no_decay = True
    assert two.run(lambda: layer.weight.no_decay) == [True, True]
    assert two.run(marked)[1].no_decay is True


def test_a_hook_on_a_gradient_is_refused_because_without_it_the_ranks_would_train_otherwise(two):
    layer = torch.nn.Linear(2, 2)
    layer.weight.register_hook(lambda gradient: gradient * 0)
    with pytest.raises(TypeError, match=r"layer\._parameters\['weight'\], which <lambda> uses\. It has a hook on its"):
        two.run(lambda: layer)
    other = torch.nn.Linear(2, 2)
    other.bias.register_post_accumulate_grad_hook(print)
    with pytest.raises(TypeError, match=r"other\._parameters\['bias'\], which <lambda> uses\. .* Register it inside"):
        two.run(lambda: other)


@pytest.mark.filterwarnings("ignore:.torch.jit.script_method. is deprecated")  # torch's own, of its compiler
def test_a_function_that_torch_compiled_is_refused_by_its_name(two):
    @torch.compile
    def fused(value):
        return value

    sentence = "It was compiled by torch.compile for this process. Compile it inside the function"
    with pytest.raises(TypeError, match=f"because of fused, which <lambda> uses. {sentence}"):
        two.run(lambda: fused(1))
    with pytest.raises(TypeError, match=f"^fused cannot be sent to the ranks. {sentence}"):
        two.run(fused, 1)


def released():
    tensor = torch.ones(10)
    tensor.untyped_storage().resize_(0)
    return tensor


def test_a_tensor_that_was_released_is_refused_and_never_read(two):
    tensor = released()
    sentence = "it is a tensor that was released: it needs 40 bytes, and its storage has 0. Gather it first"
    with pytest.raises(TypeError, match=f"because of tensor, which <lambda> uses. I{sentence[1:]}"):
        two.run(lambda: tensor.shape)
    with pytest.raises(
        RankError, match=rf"a dict, cannot be sent back: result\['weights'\]\[1\], a Tensor: {sentence}"
    ):
        two.run(lambda: {"weights": [torch.ones(1), released()]})


@pytest.mark.parametrize(
    "make",
    [lambda: torch.zeros(1).expand(10**12), lambda: np.broadcast_to(np.zeros(1), 10**12)],
    ids=["torch", "numpy"],
)
def test_what_is_large_only_once_it_is_copied_is_refused_before_it_is_copied(two, make):
    value = make()
    with pytest.raises(ValueError, match=r"carries [48],000,000\.0 MB to each rank, most of it in argument 1 with"):
        two.run(len, value)
    with pytest.raises(RankError, match=r"has [48],000,000\.0 MB, more than the 256\.0 MB that a rank may send back"):
        two.run(make)


class NeedsTwo(Exception):  # an exception as learners write it: pickle remembers one argument
    def __init__(self, first, second):
        super().__init__(first)


class Ends:
    def __reduce__(self):
        return sys.exit, (3,)


def test_a_result_that_cannot_be_made_again_here_is_told_in_words_and_costs_no_rank(two):
    before = two.run(os.getpid)
    with pytest.raises(
        TypeError, match=r"^what rank 0 returned cannot be unpickled in this process: TypeError: .*__ini"
    ):
        two.run(lambda: NeedsTwo(1, 2))
    with pytest.raises(TypeError, match=r"in this process: SystemExit: 3\. Return plain values or tensors\.$"):
        two.record(Ends)
    assert two.run(os.getpid) == before


def test_of_a_large_result_the_part_that_cannot_come_back_is_named(two):
    with pytest.raises(RankError, match=r"a dict, cannot be sent back: result\['log'\]\[1\], a lock: cannot pickle"):
        two.run(lambda: {"log": [1, threading.Lock()]})


class Cryptic:
    def __init__(self):
        self.lock = threading.Lock()

    def __repr__(self):
        raise ValueError

    def __getattr__(self, name):
        raise KeyError(name)

    def __call__(self):
        return 7


class Callable:
    __call__ = Cryptic.__call__
    __getattr__ = Cryptic.__getattr__


def test_an_object_with_odd_attributes_is_called_or_refused_in_words(two):
    assert two.run(Callable()) == [7, 7]
    with pytest.raises(
        TypeError, match=r"Cryptic object at .* cannot be sent to the ranks: cannot pickle '_thread\.lock'"
    ):
        two.run(Cryptic())
    with pytest.raises(TypeError, match=r"because of argument 1\. It is a dict: cannot pickle '_thread\.lock'"):
        two.run(len, {Cryptic(): 1})


def test_a_property_that_keeps_a_lock_is_named_with_its_class():
    class Guarded:
        lock = threading.Lock()

    with pytest.raises(TypeError, match=r"because of Guarded\.lock, which <lambda> uses\. It is a lock"):
        travel.pack_call(lambda: Guarded, (), {})
