"""Exercises of every kind: whatever a learner writes is answered in words, and what is only luck does not pass."""

import contextlib
import ctypes
import inspect
import os
import signal
import sys
import time
from dataclasses import replace

import numpy as np
import pytest
import torch
import torch.distributed as dist

from zerolab import check, theory
from zerolab.engines.collectives import all_gather, all_reduce, reduce_scatter
from zerolab.engines.engine import Engine
from zerolab.exercises import FunctionTargets, RankTargets, TrainingTargets, hole
from zerolab.exercises.harness import checking
from zerolab.exercises.harness.exercise import Exercise
from zerolab.exercises.harness.plain import describe, first_difference, plain, same

# --- one small exercise of each kind, from which the tests take what they need -------------------------------------


def double(number):
    return 2 * number


def mean_of_all(flat):
    all_reduce(flat).wait()
    return flat / dist.get_world_size()


def by_units(units, backwards, optimizer_cls, rank, world_size):
    shards = [unit.chunk(world_size)[rank] for unit in units]
    optimizer = optimizer_cls(shards)
    for backward in backwards:
        for number, gradient in backward:
            reduce_scatter(gradient).wait()
            shards[number].grad = gradient.chunk(world_size)[rank] / world_size
            del gradient
        optimizer.step()
        for shard in shards:
            shard.grad = None
        for unit in units:
            all_gather(unit).wait()
    return optimizer


def gathered_units(units, batches, optimizer_cls, rank, world_size):
    shards = [unit.parameters.chunk(world_size)[rank].clone() for unit in units]
    optimizer = optimizer_cls(shards)
    for inputs, loss_gradient in batches:
        outputs = inputs
        for unit in units:
            outputs = unit.forward(outputs)
            unit.release()
        output_gradient = loss_gradient(outputs)
        for unit in reversed(units):
            output_gradient, _ = unit.backward(output_gradient)
    return optimizer


class OwnStage(Engine):
    stage = "zero1"

    def own(self, flat):
        return flat.part(flat.whole)

    def reduce(self, flat, gradient):
        return reduce_scatter(gradient, name=flat.layout.name)

    def keep(self, flat, gradient):
        flat.mean = flat.part(gradient).div_(self.world_size)

    def publish(self):
        for exchange in [all_gather(flat.whole, name=flat.layout.name) for flat in self.trainable]:
            exchange.wait()


def draw_flats(dice, world_size):
    numbers = np.random.default_rng(dice.randrange(1000))
    return [(numbers.standard_normal(100 * world_size).astype(np.float32),) for _ in range(world_size)]


GIVEN = """import torch
import torch.distributed as dist
from zerolab.engines.collectives import all_gather, all_reduce, reduce_scatter
from zerolab.engines.engine import Engine"""
STAGE = {"returns": "the optimizer", "collectives": ("reduce_scatter", "all_gather"), "world_sizes": (2,)}
TWO_AND_THREE = {**STAGE, "world_sizes": (2, 3)}
KINDS = {
    "function": (double, "double it", FunctionTargets(draw=lambda dice: {"number": dice.randrange(1, 99)}, edges=())),
    "ranks": (
        mean_of_all,
        "take the mean",
        RankTargets(
            draw=draw_flats,
            wanted=lambda arguments, _rank: torch.from_numpy(sum(flat for (flat,) in arguments)) / len(arguments),
            scratch=lambda arguments, _world_size: arguments[0].nbytes,
            world_sizes=(2,),
        ),
    ),
    "backward": (
        by_units,
        "reduce each unit",
        TrainingTargets(stage="zero2", shape="backward", shards=("gradients", "optimizer_state"), **TWO_AND_THREE),
    ),
    "units": (
        gathered_units,
        "gather each unit",
        TrainingTargets(stage="zero3", shape="units", shards=("parameters", "gradients", "optimizer_state"), **STAGE),
    ),
    "engine": (
        OwnStage,
        {"own": "a", "reduce": "b", "keep": "c", "publish": "d"},
        TrainingTargets(stage="zero1", shape="engine", shards=("optimizer_state",), **STAGE),
    ),
}
every_kind = pytest.mark.parametrize("kind", KINDS)


@pytest.fixture(autouse=True)
def _exercises(monkeypatch):
    """Has `check` know the exercises above, each by the name of its kind."""

    def load(kind):
        solution, what, targets = KINDS[kind]
        return Exercise(kind, kind, "", what, GIVEN, "", solution, (), targets, ())

    monkeypatch.setattr(checking, "load", load)


def answer_of(kind, body):
    """An answer that fits the kind's signature and does what `body` does; of a class its method `own`."""
    if kind == "engine":
        return type("Own", (OwnStage,), {"own": lambda self, flat: body()})  # noqa: ARG005
    arguments = {"function": "number", "ranks": "flat"}.get(kind, "a, b, c, d, e")
    return eval(f"lambda {arguments}: body()", {"body": body})  # noqa: S307  (the text is this line's)


# --- what is right -------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("kind", [kind for kind in KINDS if kind != "units"])
def test_a_right_answer_passes(kind):
    attempt = check(kind, KINDS[kind][0], seed=1)
    assert attempt.passed, str(attempt)


def test_what_a_plain_function_gave_is_shown_in_a_table():
    attempt = check("function", double, seed=1)
    table = attempt.play()
    assert all(row["yours"] == row["right"] == 2 * row["number"] for row in table)
    assert len(table) == 12


# --- what is not ---------------------------------------------------------------------------------------------------


@every_kind
def test_what_raises_is_told_with_its_words(kind):
    def broken():
        raise KeyError("no such thing here")

    assert "no such thing here" in refused(kind, answer_of(kind, broken))


@every_kind
def test_what_kills_its_process_is_told(kind):
    assert "ended with exit code 3" in refused(kind, answer_of(kind, lambda: os._exit(3)))


@every_kind
def test_what_never_ends_is_ended_and_told(kind, monkeypatch):
    monkeypatch.setattr(checking, "ANSWER_SECONDS", 1.0)

    def forever():
        while True:
            pass

    assert "did not finish in 1 seconds" in refused(kind, answer_of(kind, forever))


@pytest.mark.slow
@every_kind
def test_what_catches_every_exception_and_goes_on_is_ended_and_told(kind, monkeypatch):
    monkeypatch.setattr(checking, "ANSWER_SECONDS", 1.0)

    def deaf():
        while True:
            with contextlib.suppress(BaseException):  # one around the other: the request may come between two steps
                while True:
                    with contextlib.suppress(BaseException):
                        time.sleep(0.01)

    said = refused(kind, answer_of(kind, deaf))
    assert "did not finish in time on rank" in said
    assert "`except:` catches everything" in said


@every_kind
def test_what_ends_python_itself_is_told(kind):
    assert "ended with exit code 5" in refused(kind, answer_of(kind, lambda: sys.exit(5)))


@every_kind
def test_what_touches_released_memory_is_told(kind):
    assert "used after release" in refused(kind, answer_of(kind, lambda: ctypes.string_at(0)))


@every_kind
def test_the_next_check_works_after_a_rank_was_killed(kind):
    refused(kind, answer_of(kind, lambda: os.kill(os.getpid(), signal.SIGKILL)))
    right = "function" if kind == "units" else kind  # the answer for units above is wrong on purpose
    assert check(right, KINDS[right][0], seed=1).passed


@pytest.mark.parametrize("kind", [kind for kind in KINDS if kind != "engine"])
@pytest.mark.parametrize("answer", [lambda: None, lambda *, number: number, lambda *_, more: more])
def test_a_signature_that_does_not_fit_is_told_before_anything_runs(kind, answer, capsys):
    assert not check(kind, answer).ran
    assert "which its definition does not fit" in capsys.readouterr().out


def test_a_built_in_function_without_a_signature_is_run_and_judged():
    with pytest.raises(ValueError, match="no signature"):
        inspect.signature(max)
    assert "not iterable" in refused("function", max)


def test_where_two_lists_part_is_told():
    steps = [f"step {number}" for number in range(40)]
    assert first_difference([*steps[:30], "jump", *steps[31:]], steps, 0.0) == (
        "at place 30 stands 'jump', and 'step 30' belongs there"
    )
    assert first_difference(steps[:-1], steps, 0.0) == "it has 39 items where 40 belong"
    assert first_difference(steps, list(steps), 0.0) == first_difference(3, 4, 0.0) == ""


@pytest.mark.parametrize("kind", ["function", "ranks"])
def test_a_function_that_returns_nothing_is_told(kind):
    assert f"`{KINDS[kind][0].__name__}` returned nothing" in refused(kind, answer_of(kind, lambda: None))


@every_kind
def test_what_cannot_be_called_is_told_before_anything_runs(kind, capsys):
    attempt = check(kind, 7)
    assert not attempt.ran
    expected = "the class `OwnStage` itself" if kind == "engine" else "the function `"
    assert expected in capsys.readouterr().out


@every_kind
def test_an_open_hole_runs_nothing(kind, capsys):
    def body():
        return hole("write this")

    answer = type("Own", (OwnStage,), {"own": body}) if kind == "engine" else body
    assert not check(kind, answer).ran
    assert capsys.readouterr().out == 'The hole "write this" is still open: nothing was run.\n'


def test_a_method_that_is_missing_or_does_not_fit_is_named(capsys):
    fewer = type("Own", (), {"own": OwnStage.own, "reduce": OwnStage.reduce, "keep": lambda _self: None})
    assert not check("engine", fewer).ran
    assert "`OwnStage.keep` is called as keep(self, flat, gradient)" in capsys.readouterr().out
    del fewer.keep
    # What `Engine` has under that name is not written either.
    for incomplete in (fewer, type("Own", (Engine,), dict(vars(fewer)))):
        assert not check("engine", incomplete).ran
        assert "`OwnStage` has no method keep(self, flat, gradient)" in capsys.readouterr().out


def test_a_class_of_ones_own_may_derive_from_engine_but_not_from_a_finished_stage():
    from zerolab import Zero1

    assert "Zero1 is a finished answer" in refused("engine", type("Own", (Zero1,), {}))


def test_a_borrowed_method_is_refused():
    from zerolab import Zero1

    borrowed = type("Own", (OwnStage,), {"publish": lambda self: (None, Zero1.publish(self))})
    assert "Zero1 is a finished answer" in refused("engine", borrowed)


def test_a_function_that_asks_for_the_answer_is_refused(monkeypatch):
    forbids = ("zerolab.theory:state_bytes",)
    asks = FunctionTargets(draw=lambda dice: {"number": dice.randrange(9)}, edges=(), forbids=forbids)
    monkeypatch.setitem(KINDS, "function", (double, "double it", asks))
    said = refused("function", lambda number: theory.state_bytes("ddp", number, 1))
    assert said.startswith("state_bytes is a finished answer: write the function yourself\nfunction: not yet")


def test_the_word_that_all_wrong_inputs_share_is_told_and_how_all_numbers_are_wrong(monkeypatch):
    def bytes_of(precision, number):
        return number * (4 if precision == "fp32" else 2)

    targets = FunctionTargets(
        draw=lambda dice: {"precision": dice.choice(["fp32", "bf16"]), "number": dice.randrange(1, 99)}, edges=()
    )
    monkeypatch.setitem(KINDS, "function", (bytes_of, "count bytes", targets))
    said = refused("function", lambda precision, number: 4 * number)  # noqa: ARG005
    assert " went wrong: each with precision='bf16'.\n" in said
    said = refused("function", lambda precision, number: 8 * bytes_of(precision, number))
    assert " Of 12 inputs 12 went wrong. Each number is 8 times the right one.\n" in said


def test_what_is_added_to_all_wrong_numbers_is_told_and_that_lists_are_in_another_order(monkeypatch):
    def shards(number):
        return [number, 2 * number, 3 * number]

    inputs = FunctionTargets(draw=lambda dice: {"number": dice.randrange(1, 10**6)}, edges=())
    monkeypatch.setitem(KINDS, "function", (double, "double it", inputs))
    assert "12 went wrong. Each number is 24 more than the right one.\n" in refused("function", lambda n: 2 * n + 24)
    said = refused("function", lambda n: 2 * n + 24 * (n % 2 == 0))
    assert " went wrong. Each wrong number is 24 more than the right one.\n" in said
    monkeypatch.setitem(KINDS, "function", (shards, "list them", inputs))
    said = refused("function", lambda number: shards(number)[::-1])
    assert "12 went wrong. The lists have the right items, in another order.\n" in said


def test_whose_a_wrong_value_is_or_what_it_was_before_is_told(monkeypatch):
    solution, what, targets = KINDS["ranks"]

    def neighbours(flat):
        whole = [torch.empty_like(flat) for _ in range(dist.get_world_size())]
        dist.all_gather(whole, flat)
        return whole[dist.get_rank() - 1]

    own = replace(targets, wanted=lambda arguments, rank: torch.from_numpy(arguments[rank - 1][0]))
    monkeypatch.setitem(KINDS, "ranks", (neighbours, what, own))
    assert check("ranks", neighbours, seed=1).passed
    assert "It is what rank 1 should get.\n" in refused("ranks", lambda flat: flat.clone())
    monkeypatch.setitem(KINDS, "ranks", (solution, what, targets))
    assert "It is `flat` as your function got it.\n" in refused("ranks", lambda flat: flat)
    monkeypatch.setitem(KINDS, "ranks", (solution, what, replace(targets, in_place=0)))
    said = refused("ranks", lambda flat: all_reduce(flat.clone()).wait())
    assert "It is `flat` as your function got it: the result has to be written into it.\n" in said


@pytest.mark.parametrize(("left", "kind"), [(0.0, "a float"), ([1.0], "a list")])
def test_what_an_engine_leaves_in_place_of_a_mean_is_told_by_its_kind(left, kind):
    class LeavesSomethingElse(OwnStage):
        def keep(self, flat, gradient):
            flat.mean = left

    said = refused("engine", LeavesSomethingElse)
    assert f"`keep` left {kind} in `flat.mean`; the mean gradient of the tensor that `own` returned" in said


def test_an_exchange_in_another_group_than_is_due_is_told(monkeypatch):
    def within_pairs(flat):
        pairs, _ = dist.new_subgroups_by_enumeration([[0, 1], [2, 3]])
        dist.all_reduce(flat, group=pairs)
        return flat

    def across_pairs(flat):
        pairs, _ = dist.new_subgroups_by_enumeration([[0, 2], [1, 3]])
        dist.all_reduce(flat, group=pairs)
        return flat

    _, what, targets = KINDS["ranks"]
    targets = replace(
        targets,
        draw=lambda _dice, world_size: [(np.ones(8, np.float32),)] * world_size,
        wanted=lambda _arguments, _rank: torch.full((8,), 2.0),
        groups=lambda _arguments, rank, _world_size: {"all_reduce": (0, 1) if rank < 2 else (2, 3)},
        world_sizes=(4,),
    )
    monkeypatch.setitem(KINDS, "ranks", (within_pairs, what, targets))
    assert check("ranks", within_pairs, seed=1).passed
    assert "rank 0 started all_reduce in the group [0, 2]; it is due in [0, 1]." in refused("ranks", across_pairs)


def test_a_unit_that_is_used_after_release_is_named():
    said = refused("units", gathered_units)
    assert "the backward of unit 5 was used after release" in said


def test_a_forgotten_wait_does_not_pass_by_luck():
    def lucky(flat):
        exchange = all_reduce(flat.clone())
        dist.barrier()
        total = flat.clone()
        dist.all_reduce(total)
        del exchange
        return total / dist.get_world_size()

    assert "never waited for its all_reduce" in refused("ranks", lucky)


def test_what_is_right_is_computed_on_one_thread(monkeypatch):
    solution, what, targets = KINDS["ranks"]
    threads = []

    def wanted(arguments, rank):
        threads.append(torch.get_num_threads())
        return targets.wanted(arguments, rank)

    monkeypatch.setitem(KINDS, "ranks", (solution, what, replace(targets, wanted=wanted)))
    before = torch.get_num_threads()
    torch.set_num_threads(2)
    try:
        assert check("ranks", solution, seed=1).passed
        assert torch.get_num_threads() == 2
    finally:
        torch.set_num_threads(before)
    assert set(threads) == {1}


def test_scratch_beside_the_arguments_is_counted():
    def wasteful(flat):
        copies = [torch.cat([flat] * 20) for _ in range(5)]
        all_reduce(flat).wait()
        return flat / dist.get_world_size() + 0 * copies[0][0]

    assert "bytes beside its arguments" in refused("ranks", wasteful)


def test_gradients_that_are_all_whole_at_a_time_are_refused():
    def collected(backward):
        everything = list(backward)
        while everything:
            yield everything.pop(0)

    def hoarder(units, backwards, optimizer_cls, rank, world_size):
        return by_units(units, map(collected, backwards), optimizer_cls, rank, world_size)

    assert "too many units were whole at a time" in refused("backward", hoarder)


def test_a_view_that_keeps_a_whole_gradient_alive_is_refused():
    def viewer(units, backwards, optimizer_cls, rank, world_size):
        shards = [unit.chunk(world_size)[rank] for unit in units]
        optimizer = optimizer_cls(shards)
        for backward in backwards:
            for number, gradient in backward:
                reduce_scatter(gradient).wait()
                shards[number].grad = gradient.chunk(world_size)[rank].div_(world_size)
            optimizer.step()
            for unit in units:
                all_gather(unit).wait()
        return optimizer

    assert "gradients at the update" in refused("backward", viewer)


# --- values --------------------------------------------------------------------------------------------------------


def test_values_are_compared_as_plain_data():
    assert same(plain((1, torch.tensor([1.0, 2.0]))), plain([1.0, np.array([1.0, 2.0])]), 1e-9)
    assert same(plain({"a": 10**12}), plain({"a": 10**12 + 1}), 1e-9)
    assert not same(plain({"a": 10**12}), plain({"a": 10**12 + 1}), 0.0)
    assert not same(plain([1, 2]), plain([1]), 1.0)
    assert not same(plain(None), plain(0), 1.0)
    assert not same(plain(True), plain(1), 1.0)
    assert not same(plain(torch.tensor([float("nan")])), plain(torch.tensor([1.0])), 1.0)
    assert plain(object()) == "<object>"
    assert describe(plain(torch.arange(1000.0))).startswith("1,000 numbers, the first 0")


def test_inputs_differ_from_check_to_check_and_repeat_with_a_seed():
    targets = KINDS["function"][2]
    exercise = checking.load("function")
    (first,) = targets.runs(exercise, 1, 5, 1.0)
    (again,) = targets.runs(exercise, 1, 5, 1.0)
    (other,) = targets.runs(exercise, 1, 6, 1.0)
    assert first.arguments == again.arguments != other.arguments


def refused(kind, answer):
    attempt = check(kind, answer, seed=1)
    assert attempt.ran
    assert not attempt.passed
    return str(attempt)


def test_a_host_that_allows_too_few_ranks_is_named_and_nothing_is_run(monkeypatch):
    monkeypatch.setenv("ZEROLAB_MAX_RANKS", "1")
    attempt = check("ranks", KINDS["ranks"][0])
    assert str(attempt) == (
        "This check needs 2 ranks, and ZEROLAB_MAX_RANKS allows 1 on this machine: nothing was run. Ask whoever set it "
        "for 2."
    )
    assert not attempt.ran
    monkeypatch.setenv("ZEROLAB_MAX_RANKS", "some")
    assert "which cannot start here: ZEROLAB_MAX_RANKS is 'some'; give a number" in str(
        check("ranks", KINDS["ranks"][0])
    )
