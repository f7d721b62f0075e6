"""Errors whose class does odd things: told like any other, and the rank that raised them goes on to its next run."""

import ctypes
import re
import sys
from dataclasses import dataclass

import pytest
import torch
import torch.distributed as dist

from zerolab import RankError
from zerolab.engines import Zero1
from zerolab.runtime import report


class Exits(Exception):
    def __str__(self):  # noqa: PLE0307  # it comes to no string
        sys.exit(1)


@dataclass
class Compares(Exception):
    values: torch.Tensor


class Hides(Exception):
    def __getattribute__(self, name):
        raise ValueError(name)


def raise_one_after_the_other():
    try:
        fail(Compares(torch.ones(2)))
    except Compares:
        raise Compares(torch.ones(2)) from None


def raise_a_syntax_error():
    raise SyntaxError("odd", (5, 6, 7, 8))


def raise_several():
    try:
        1 / 0  # noqa: B018
    except ZeroDivisionError as error:
        raise ExceptionGroup("both", [error]) from None


def fail(error):
    raise error


ODD = {
    "its text ends the process": (lambda: fail(Exits()), r"raised Exits: \(its __str__ raised SystemExit\)$"),
    "tensors are compared": (raise_one_after_the_other, r"raised Compares: tensor\(\[1\., 1\.\]\)$"),
    "nothing can be asked": (lambda: fail(Hides("so")), "raised Hides: so$"),
    "a syntax error without a text": (raise_a_syntax_error, r"raised SyntaxError: odd \(line 6\)$"),
    "half a character": (lambda: fail(ValueError("\ud800")), r"raised ValueError: \\ud800$"),
    "it would wipe the screen": (
        lambda: fail(ValueError("\x1b[2J\x1b[31mred")),
        "raised ValueError: \x1b\\[31mred\x1b\\[0m$",
    ),
}


@pytest.mark.parametrize(("function", "says"), ODD.values(), ids=ODD)
def test_an_error_of_an_odd_class_is_told_and_can_be_shown(cluster, function, says):
    with pytest.raises(RankError) as caught:
        cluster.run(function)
    assert re.search(says, str(caught.value).splitlines()[0]), str(caught.value)
    assert str(caught.value).encode(), "no lone surrogate"
    assert "\x1b[2J" not in str(caught.value)
    assert "test_report.py, line" in caught.value.where


def make_an_engine_that_is_refused(optimizer, lr):
    Zero1(torch.nn.Linear(2, 2), optimizer, lr=lr)


@pytest.mark.parametrize(
    ("optimizer", "lr", "says"), [("LBFGS", 1.0, "cannot run on shards"), ("SGD", -1.0, "learning")]
)
def test_what_an_engine_refuses_is_told_at_the_line_that_asked_for_it(cluster, optimizer, lr, says):
    with pytest.raises(RankError, match=says) as caught:
        cluster.run(make_an_engine_that_is_refused, getattr(torch.optim, optimizer), lr)
    assert re.fullmatch(r"test_report\.py, line \d+: Zero1\(.+lr=lr\)", caught.value.where), caught.value.where
    assert 'File "zerolab/engines/' in caught.value.traceback, "it shows the whole way"


def clip_by_torch():
    model = torch.nn.Linear(2, 2)
    engine = Zero1(model, torch.optim.SGD, lr=0.1)
    engine.backward(model(torch.ones(1, 2)).sum())
    torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)


def test_an_error_after_backward_is_not_told_as_one_of_backward(cluster):
    with pytest.raises(RankError, match=r"clip by engine\.clip_grad_norm_") as caught:
        cluster.run(clip_by_torch)
    assert caught.value.phase == "running"
    assert "torch.nn.utils.clip_grad_norm_" in caught.value.where


def test_the_errors_of_a_group_are_shown_with_the_same_labels(cluster):
    with pytest.raises(RankError) as caught:
        cluster.run(raise_several)
    assert 'File "test_report.py", line' in caught.value.traceback.partition("- 1 -")[2]
    assert 'File "/' not in caught.value.traceback


ADDRESS = "[enforce fail at gloo/transport/tcp/device.cc:84] ifa != nullptr. Unable to find address for: lo"
CLOSED = "[gloo/transport/tcp/pair.cc:547] Connection closed by peer [127.0.0.1]:3821"


def test_a_check_of_gloos_is_a_cause_and_a_closed_connection_a_consequence():
    assert not report.blames_a_peer(RuntimeError(ADDRESS))
    assert report.blames_a_peer(RuntimeError(CLOSED))
    assert report.blames_a_peer(RuntimeError(f"Gloo connectFullMesh failed with {CLOSED}"))
    wrapped = ValueError("while training")
    wrapped.__cause__ = RuntimeError(CLOSED)
    wrapped.__cause__.__cause__ = wrapped
    assert report.blames_a_peer(wrapped)
    assert not report.blames_a_peer(ValueError(CLOSED))


def send_more_than_there_is_room_for():
    if dist.get_rank() == 0:
        dist.send(torch.ones(10), 1)
    else:
        dist.recv(torch.ones(5), 0)
    dist.barrier()


def reduce_another_size():
    dist.all_reduce(torch.ones(1000 if dist.get_rank() == 1 else 100_000))


def test_sizes_that_differ_are_told_in_words_though_gloo_aborts_the_rank(cluster):
    with pytest.raises(RankError) as caught:
        cluster.run(reduce_another_size)
    error = caught.value
    # How much gloo sends at once is its own affair.
    said = r"was killed by SIGABRT: gloo received [\d,]+ bytes where it expected [\d,]+, so the ranks passed tensors of"
    assert re.search(said, str(error).splitlines()[0])
    assert (error.signal, error.native[:13]) == ("SIGABRT", "gloo received")
    assert error.mismatches == ["rank 1 is in all_reduce #0 with 1,000 elements, the others with 100,000"]
    assert f"\n\n{error.mismatches[0]}\n\n" in str(error)
    with pytest.raises(RankError, match="gloo received 40 bytes where it expected 20") as caught:
        cluster.run(send_more_than_there_is_room_for)
    assert caught.value.collective == "recv"


def test_an_abort_without_a_word_is_told_as_before(cluster):
    with pytest.raises(RankError, match=r"was killed by SIGABRT\n") as caught:
        cluster.run(lambda: ctypes.CDLL(None).abort())
    assert (caught.value.native, caught.value.mismatches) == ("", [])
