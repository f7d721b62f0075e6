"""What may go to the ranks and what may not, said before anything is sent."""

import dataclasses
import functools
import io
import os
import subprocess
import sys
import threading
import types

import cloudpickle
import numpy as np
import pytest
import torch
import torch.distributed as dist
from torch._subclasses.fake_tensor import FakeTensorMode

from zerolab import DDP, RankError
from zerolab.runtime import travel

OPEN = io.StringIO("this may go")
LOCK = threading.Lock()


@pytest.fixture
def gpu_tensor():
    """A tensor that is on a GPU as far as anyone can tell; a box without one can have no other."""
    with FakeTensorMode(allow_non_fake_inputs=True):
        return torch.empty(4, device="cuda")


def test_a_function_arrives_with_the_file_of_its_lines_whatever_cloudpickle_makes_of_it(one, monkeypatch):
    table, code = cloudpickle.Pickler.dispatch_table, types.CodeType
    reduce = table[code]  # that of 3.1.3 puts "<dynamic-code>" in its place
    monkeypatch.setitem(table, code, lambda given: reduce(given.replace(co_filename="<dynamic-code>")))

    def files():
        inner = lambda: None  # noqa: E731  (in a code object of its own)
        return [function.__code__.co_filename for function in (files, inner)]

    assert one.run(files) == [[__file__, __file__]]


def refused(fn, *args, **kwargs):
    with pytest.raises((TypeError, ValueError)) as caught:
        travel.pack_call(fn, args, kwargs)
    assert "\n" not in str(caught.value)
    return str(caught.value)


def train(*args, **kwargs):
    return len(args) + len(kwargs)


@dataclasses.dataclass
class Settings:
    rate: float
    parts: dict


def test_a_tensor_on_a_gpu_is_refused_by_the_name_of_the_variable(gpu_tensor):
    assert refused(train, gpu_tensor) == (
        "train cannot be sent to the ranks because of argument 1. It is a tensor on cuda:0, in the kernel's own "
        "part of that GPU's memory. Make it inside the function, or send a copy in main memory: .cpu()"
    )
    assert "because of argument batch['x']. " in refused(train, batch={"y": 1, "x": gpu_tensor})


def test_an_open_file_is_refused_wherever_it_is(tmp_path):
    path = tmp_path / "log.txt"
    with path.open("w") as log, path.open() as text, path.open("rb") as data:
        for file in (log, text, data):
            settings = Settings(0.1, {"log": [1, file]})
            message = refused(lambda: settings.rate)  # noqa: B023
            assert message.startswith(
                "<lambda> cannot be sent to the ranks because of settings.parts['log'][1], which <lambda> uses. "
            )
            assert "It is an open file" in message
            assert message.endswith("Open it inside the function, by its path.")


def test_a_global_that_a_function_uses_is_named():
    def work():
        with LOCK:
            return 1

    assert refused(work) == (
        "work cannot be sent to the ranks because of LOCK, which work uses. It is a lock, which works within one "
        "process only. Make it inside the function instead."
    )


def test_functions_that_a_function_uses_are_looked_into():
    lock = threading.Lock()

    def inner():
        return lock

    def outer():
        return inner()

    assert "because of lock, which inner uses. " in refused(outer)
    assert "because of lock, which inner uses. " in refused(functools.partial(outer))


def test_a_generator_is_refused_with_the_remedy():
    assert "because of argument batches. It is a generator, which can run in one process only. Make a list" in (
        refused(train, batches=(x for x in range(3)))
    )


def test_a_process_group_is_refused_with_the_remedy():
    dist.init_process_group("gloo", store=dist.HashStore(), rank=0, world_size=1)
    try:
        message = refused(train, group=dist.group.WORLD)
    finally:
        dist.destroy_process_group()
    assert "because of argument group. It is a ProcessGroup of this process, and the ranks have their" in message
    assert message.endswith("dist.new_group([0, 1])")


def test_a_default_and_the_object_of_a_method_are_named():
    lock = threading.Lock()

    class Trainer:
        def __init__(self):
            self.steps, self.lock = 3, threading.Lock()

        def train(self):
            return self.steps

    def work(guard=lock):
        return guard

    assert "because of the default of guard. " in refused(work)
    assert "because of self of train.lock. " in refused(Trainer().train)


def test_more_than_256_mb_is_refused_and_the_largest_part_named():
    data = torch.zeros(65_000_000)
    small = np.zeros(1000)

    def work(number):
        return data.sum() + small.sum() + number

    assert refused(work, 3) == (
        "work carries 260.0 MB to each rank, most of it in data with 260.0 MB; the limit is "
        "256.0 MB. Create or load it inside the function instead: then each rank has its own copy and nothing is sent."
    )
    assert "most of it in argument 1 with 300.0 MB" in refused(train, np.zeros(300_000_000, dtype=np.uint8))
    assert len(travel.pack_call(train, (data[:1000],), {})) < 10_000, "a view travels as its own elements"


@pytest.mark.parametrize(
    ("value", "sentence"),
    [
        (None, "the first argument is None, not a function; give the function itself, without calling it: "),
        (
            (x for x in "ab"),
            "the first argument is <generator object .*, a generator, not a function; give the function",
        ),
        (5, "the first argument is 5, an int, which cannot be called; give a function: cluster.run"),
        ("train", "the first argument is 'train', a str, which cannot be called"),
    ],
)
def test_what_is_no_function_is_refused(one, value, sentence):
    with pytest.raises(TypeError, match=f"^{sentence}"):
        one.run(value)
    with pytest.raises(TypeError, match=f"^{sentence}"):
        one.record(value)


def test_nothing_of_a_refused_call_reaches_the_ranks(one):
    before = one.run(os.getpid)
    for _ in range(2):
        with pytest.raises(TypeError):
            one.run(train, threading.Lock())
    assert one.run(os.getpid) == before


COLLECTED = """
import gc, threading, torch
from zerolab.runtime import travel

gc.disable()


class Aged:
    def __reduce__(self):  # makes the pickler older than what it makes for the tensor that comes next
        if not gc.get_count()[2]:
            gc.collect(1)
        return Aged, ()


gc.collect()
try:
    travel.pack_call(print, (Aged(), torch.ones(4), threading.Lock()), {})
except TypeError as error:
    error.itself = error
gc.freeze(), gc.unfreeze()  # now the youngest come first
gc.collect()
"""


def test_what_is_left_of_a_refused_call_can_be_collected_in_any_order():
    # A memoryview that a PickleBuffer is of crashes CPython where the collector clears it first.
    result = subprocess.run([sys.executable, "-c", COLLECTED], capture_output=True, text=True, check=False)
    assert (result.returncode, result.stderr) == (0, "")


def test_what_may_be_sent_is_sent(one):
    class Named(tuple):
        __slots__ = ()

    things = [OPEN, io.BytesIO(b"x"), np.arange(3), torch.ones(2, device="meta"), Named((1, 2)), {1, 2}, print, torch]
    back = one.run(lambda *values: [type(value).__name__ for value in values], *things)[0]
    assert back == [type(thing).__name__ for thing in things]


@pytest.mark.parametrize(
    ("make", "sentence"),
    [
        (threading.Lock, "the result, a lock, cannot be sent back: .*Return plain values or tensors."),
        (lambda: (x for x in "ab"), "the result, a generator, cannot be sent back"),
        (lambda: DDP(torch.nn.Linear(2, 2), torch.optim.SGD), "the result, a DDP, cannot be sent back: an engine's"),
        (
            lambda: bytearray(257_000_000),
            "the result, a bytearray, has 257.0 MB, more than the 256.0 MB that a rank may",
        ),
        (
            lambda: torch.zeros(65_000_000),
            "the result, a Tensor, has 260.0 MB, more than the 256.0 MB .* return a part",
        ),
    ],
)
def test_a_result_that_cannot_come_back_is_named_with_its_size_or_reason(one, make, sentence):
    with pytest.raises(RankError, match=sentence) as caught:
        one.run(make)
    assert caught.value.phase == "pickling"
    assert one.run(lambda: 1) == [1]
