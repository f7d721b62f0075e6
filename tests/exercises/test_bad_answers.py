"""Whatever a learner writes, `check` answers in words, and the next cell works."""

import inspect
import os
import threading

import pytest

from zerolab import check
from zerolab.engines.collectives import all_gather
from zerolab.exercises import OpenHole, hole, names

ID = "zero1-average"


def test_an_open_hole_starts_no_ranks_and_prints_one_fixed_line(capsys, monkeypatch):
    def no_ranks(*_, **__):
        raise RuntimeError("ranks were started")

    monkeypatch.setattr("zerolab.runtime.cluster.Cluster", no_ranks)

    def zero1(parameters, gradients, optimizer_cls, rank, world_size):
        return hole("average the gradients")

    attempt = check(ID, zero1)
    assert capsys.readouterr().out == 'The hole "average the gradients" is still open: nothing was run.\n'
    assert not attempt.passed
    assert attempt.play() is None
    assert capsys.readouterr().out == "Nothing ran yet, so there is no picture.\n"


def test_a_hole_that_is_reached_says_what_to_write():
    with pytest.raises(OpenHole, match="average the gradients"):
        hole("average the gradients")


@pytest.mark.parametrize(
    ("answer", "says"),
    [
        (None, "check() got nothing; give it the function `zero1` itself"),
        (lambda _: None, "is called as zero1(parameters, gradients, optimizer_cls, rank, world_size)"),
        (lambda *_: (yield), "contains `yield` or `async`"),
    ],
    ids=["no function", "wrong signature", "a generator"],
)
def test_what_cannot_be_called_is_said_before_any_rank_starts(answer, says, capsys):
    attempt = check(ID, answer)
    assert says in capsys.readouterr().out
    assert not attempt.ran


def test_what_uses_something_that_cannot_be_sent_is_said_before_any_rank_starts(capsys):
    lock = threading.Lock()

    def zero1(parameters, gradients, optimizer_cls, rank, world_size):
        with lock:
            return optimizer_cls([parameters])

    attempt = check(ID, zero1)
    assert capsys.readouterr().out.startswith("zero1 cannot be sent to the ranks because of lock, which zero1 uses. ")
    assert not attempt.ran


def test_an_unknown_exercise_is_answered_with_those_that_exist(capsys):
    assert not check("zero9", print).passed
    said = capsys.readouterr().out
    assert "unknown exercise 'zero9': choose one of " in said
    assert all(name in said for name in names())


def test_a_name_that_is_nearly_right_is_answered_with_a_question(capsys):
    check("Buckets", print)
    assert capsys.readouterr().out == "unknown exercise 'Buckets': did you mean 'buckets'?\n"


def test_an_exception_is_told_with_the_learners_own_line():
    def zero1(parameters, gradients, optimizer_cls, rank, world_size):
        return parameters.no_such_thing

    said = refused(zero1)
    assert "AttributeError" in said
    assert "parameters.no_such_thing" in said
    assert "harness" not in said
    assert "pid" not in said


def test_a_message_of_two_paragraphs_is_shown_whole_above_the_lines_of_the_answer():
    def zero1(parameters, gradients, optimizer_cls, rank, world_size):
        raise ValueError("no gradients\n\nhere: look again")

    said = refused(zero1)
    assert "raised ValueError: no gradients\n\nhere: look again\n    File" in said
    assert "harness" not in said


@pytest.mark.slow
def test_a_hang_is_told_within_seconds():
    def zero1(parameters, gradients, optimizer_cls, rank, world_size):
        from zerolab.engines.collectives import all_gather

        if rank == 0:
            all_gather(parameters).wait()

    said = refused(zero1)
    assert "`zero1` hangs" in said
    assert "all_gather" in said


@pytest.mark.slow
@pytest.mark.parametrize("stuck_ranks", [(0, 1), (0,)])
def test_a_loop_without_an_end_is_ended_and_told(monkeypatch, stuck_ranks):
    monkeypatch.setattr("zerolab.exercises.harness.checking.ANSWER_SECONDS", 3.0)

    def zero1(parameters, gradients, optimizer_cls, rank, world_size):
        while rank in stuck_ranks:
            pass
        all_gather(parameters).wait()

    said = refused(zero1)
    assert any(f"`zero1` did not finish in 3 seconds on rank {rank}" in said for rank in stuck_ranks)
    assert "while rank in stuck_ranks" in said or "pass" in said
    assert "harness" not in said


def test_a_function_that_returns_nothing_is_told_what_to_return():
    from zerolab.exercises import load

    exercise = load(ID)
    silent = exercise.solution_source().replace("    return optimizer\n", "")
    said = str(check(ID, exercise.compile(silent)))
    assert "`zero1` returned nothing on rank 0; it should return the optimizer" in said


def test_a_function_that_does_nothing_is_told_that_nothing_was_updated():
    def zero1(parameters, gradients, optimizer_cls, rank, world_size):
        return optimizer_cls([parameters])

    assert "made no update" in refused(zero1)


def test_a_rank_that_dies_is_told_how():
    def zero1(parameters, gradients, optimizer_cls, rank, world_size):
        os._exit(3)

    assert "ended with exit code 3" in refused(zero1)


def test_a_rank_that_touches_released_memory_is_told_so():
    def zero1(parameters, gradients, optimizer_cls, rank, world_size):
        import ctypes

        ctypes.string_at(0)

    assert "used after release" in refused(zero1)


def finished_class(parameters, gradients, optimizer_cls, rank, world_size):
    from zerolab import Zero1

    return Zero1


def finished_module(parameters, gradients, optimizer_cls, rank, world_size):
    import zerolab.engines.zero1

    return zerolab


def native_wrapper(parameters, gradients, optimizer_cls, rank, world_size):
    from torch.distributed.optim import ZeroRedundancyOptimizer

    return ZeroRedundancyOptimizer


def fully_sharded(parameters, gradients, optimizer_cls, rank, world_size):
    from torch.distributed.fsdp import fully_shard

    return fully_shard


def hidden_call(parameters, gradients, optimizer_cls, rank, world_size):
    import torch

    return torch.nn.parallel.DistributedDataParallel(torch.nn.Linear(2, 2))


@pytest.mark.parametrize("answer", [finished_class, finished_module, native_wrapper, fully_sharded, hidden_call])
def test_finished_engines_are_out_of_reach(answer):
    assert "write the step yourself" in refused(_as_in_a_cell(answer))


def test_the_guard_is_lifted_afterwards():
    import torch

    refused(_as_in_a_cell(hidden_call))
    assert "refused" not in torch.nn.parallel.DistributedDataParallel.__init__.__name__


def _as_in_a_cell(function):
    """The same function, defined in `__main__`, as a notebook's are."""
    namespace = {"__name__": "__main__"}
    exec(inspect.getsource(function), namespace)  # noqa: S102  (the text of a function above)
    return namespace[function.__name__]


def refused(answer):
    attempt = check(ID, answer)
    assert attempt.ran
    assert not attempt.passed
    return str(attempt)
