"""What a check of a training loop says of common mistakes, and that its recording counts whole steps."""

import os
import signal
from dataclasses import replace
from itertools import product

import pytest
import torch
import torch.distributed as dist
from answered import said_on_ranks

from zerolab import Cluster, check, exercises
from zerolab.engines.collectives import all_gather, all_reduce, reduce_scatter
from zerolab.exercises.harness import checking, rungs
from zerolab.exercises.harness.recorded import FP32, Budget
from zerolab.exercises.harness.score import score

RANKS = 2


@pytest.fixture(autouse=True)
def _two_ranks(monkeypatch):
    """Has `check` try two ranks only: what differs between numbers of ranks is tested with the solutions."""

    def load(exercise_id):
        exercise = exercises.load(exercise_id)
        return replace(exercise, targets=replace(exercise.targets, world_sizes=(RANKS,)))

    monkeypatch.setattr(checking, "load", load)


def answered(exercise_id, *edits, seed=1):
    """The attempt with the solution, of which each edit (text, new text) has changed one place."""
    exercise = exercises.load(exercise_id)
    source = exercise.solution_source()
    for old, new in edits:
        assert source.count(old) == 1, old
        source = source.replace(old, new)
    return check(exercise_id, exercise.compile(source), seed=seed)


def refused(exercise_id, *edits, seed=1):
    attempt = answered(exercise_id, *edits, seed=seed)
    assert attempt.ran
    assert not attempt.passed
    return str(attempt)


@pytest.mark.parametrize("exercise_id", ["zero1-average", "zero2-free", "zero3-train"])
def test_each_step_of_a_right_answer_shows_all_that_the_target_sends(exercise_id):
    attempt = answered(exercise_id)
    assert attempt.passed, str(attempt)
    collectives, recording = exercises.load(exercise_id).targets.collectives, attempt.recording
    units = len(recording.units)
    # Of the last step alone: a gather that is booked to the step before is missing here.
    rows = {row["op"]: row["count"] for row in recording.traffic()}
    assert {op: rows[op] for op in collectives} == {op: units * collectives.count(op) for op in collectives}
    made = [event for event in recording.rank(0).events if event.kind == "collective" and event.parent is None]
    assert [sum(event.step == step for event in made) for step in (0, 1, 2)] == [0, *[units * len(collectives)] * 2]
    assert "setup" not in {event.phase for event in made}


STEP_FOR_EACH = ("            del gradient\n", "            del gradient\n            optimizer.step()\n")
GATHER = "all_gather(unit.parameters)"
RELEASE = ("        unit.release()\n", "")
NO_DEL = ("            del gradient\n", "")


@pytest.mark.parametrize("seed", [1, 3])
def test_a_whole_gradient_that_a_variable_keeps_is_told_as_what_it_is(seed):
    said = refused("zero2-free", NO_DEL, seed=seed)
    assert "as much as one unit's whole gradient" in said
    assert "a `for` variable too: `del gradient`" in said


def test_whatever_is_drawn_a_whole_gradient_or_a_third_whole_unit_weighs_more_than_what_is_free():
    targets = exercises.load("zero3-train").targets
    for seed, world_size in product(range(100), (2, 3, 4)):
        plan = targets.setup(seed, world_size)
        padded = [layout.padded for layout in plan.layouts(plan.build(), world_size)]
        budget = Budget(padded, world_size, targets.shards, targets.scratch_shards, 0)
        assert min(padded) * FP32 > budget.beside("gradients"), f"seed {seed}, {world_size} ranks"
        three = max(map(sum, zip(padded, padded[1:], padded[2:], strict=False)))
        assert three * FP32 > budget.peak("parameters") - budget.state("parameters"), f"seed {seed}, {world_size} ranks"


@pytest.mark.parametrize(
    ("exercise_id", "edit", "remedy"),
    [
        (
            "zero3-forward",
            RELEASE,
            "Release a unit before you gather the one after the next.",
        ),
        (
            "zero2-free",
            ("in backward:", "in list(backward):"),
            "Reduce each gradient before the next backward but one.",
        ),
    ],
)
def test_too_many_whole_units_are_answered_with_what_to_do(exercise_id, edit, remedy):
    assert remedy in refused(exercise_id, edit)


def test_a_gather_that_nobody_waited_for_is_named_before_it_can_crash_the_rank():
    said = refused("zero3-forward", (GATHER + ".wait()", GATHER))
    assert "while its all_gather was still under way: call wait() on every all_gather before the unit is used" in said


def test_a_reduction_that_nobody_waited_for_is_named():
    said = refused("zero3-backward", ("reduce_scatter(gradient).wait()", "reduce_scatter(gradient)"))
    assert "never waited for its reduce_scatter" in said


@pytest.mark.parametrize("signal_name", ["SIGSEGV", "SIGABRT"])
def test_whatever_signal_ends_a_rank_that_touched_foreign_memory_it_is_told_where_to_look(signal_name):
    def zero3(units, batches, optimizer_cls, forward, backward):
        os.kill(os.getpid(), getattr(signal, signal_name))

    said = str(check("zero3-train", zero3, seed=1))
    assert f"was killed by {signal_name}" in said
    assert "used after release" in said
    assert "Call `wait()` on every exchange before its result is used" in said
    assert "a view of what was released" in said


def test_sizes_that_differ_between_ranks_are_told_and_not_taken_for_memory_that_was_given_back():
    def zero3(units, batches, optimizer_cls, forward, backward):
        all_reduce(torch.ones(4 if dist.get_rank() else 4000)).wait()

    said = str(check("zero3-train", zero3, seed=1))
    assert "gloo received" in said
    assert "tensors of different sizes" in said
    assert "is in all_reduce #0 with 4 elements" in said
    assert "used after release" not in said


def test_a_part_that_is_a_view_of_the_flat_is_named():
    said = refused("zero3-train", ("[rank].clone()", "[rank]"))
    assert "the optimizer's tensor for unit 0 lies in the flat, which is released" in said


WHOLE_FLATS = ("[unit.mine for unit in units]", "[unit.parameters for unit in units]")


def test_an_optimizer_over_flats_that_are_released_is_named():
    assert "the optimizer updates whole flats, and that of unit 0 is released" in refused("zero3-train", WHOLE_FLATS)


def test_an_optimizer_over_flats_that_are_whole_at_the_update_is_named():
    def zero3(units, batches, optimizer_cls, forward, backward):
        optimizer = optimizer_cls([unit.parameters for unit in units])
        for inputs, loss_gradient in batches:
            outputs = inputs
            for unit in units:
                outputs = unit.forward(outputs)
            output_gradient = loss_gradient(outputs)
            for unit in reversed(units):
                output_gradient, gradient = unit.backward(output_gradient)
                all_reduce(gradient).wait()
                unit.parameters.grad = gradient / dist.get_world_size()
            optimizer.step()
        return optimizer

    said = str(check("zero3-train", zero3, seed=1))
    assert "unit 0: the optimizer updates the whole flat; it must update your copy of shard 0" in said


def test_a_unit_that_stays_whole_between_two_steps_can_still_be_released():
    """What the check reads of a unit must not keep its memory from being given back in the next step."""
    said = refused("zero3-backward", RELEASE)
    assert "parameters at the update" in said
    assert "units are still whole. Release each when it has been used" in said
    assert "resizable" not in said


def test_parts_that_are_new_beside_whole_gradients_are_answered_with_what_to_do():
    said = refused("clinic-too-fast", ("[rank].div_(world_size)", "[rank] / world_size"))
    assert "bytes of gradients at the update" in said
    assert "Work in place (`/` makes a new tensor, `div_` does not)" in said


def test_a_keyword_that_the_optimizer_does_not_take_is_told_by_the_name_that_the_answer_knows():
    said = refused("zero2-free", ("optimizer_cls(mine)", "optimizer_cls(mine, lr=0.1)"))
    assert "TypeError: optimizer_cls() got an unexpected keyword argument 'lr'" in said


def three_quarters_divided(gradient, world_size):
    all_reduce(gradient).wait()
    gradient[: 3 * len(gradient) // 4] /= world_size


def one_number_lost(gradient, world_size):
    all_reduce(gradient).wait()
    gradient /= world_size
    gradient[-1] = 0.5


def zeros_behind_the_first_shard(gradient, world_size):
    all_reduce(gradient).wait()
    gradient /= world_size
    gradient[len(gradient) // world_size :] = 0


def gathered_but_for_one_number(gradient, world_size):
    reduce_scatter(gradient).wait()
    all_gather(gradient).wait()
    gradient /= world_size
    gradient[-1] = 0.5


def reduced_and_not_gathered(gradient, world_size):
    reduce_scatter(gradient).wait()
    gradient /= world_size


@pytest.fixture(scope="module")
def four_ranks():
    with Cluster(world_size=4, device="cpu", timeout=5) as cluster:
        yield cluster


@pytest.mark.parametrize(
    ("reduce", "alone"),
    [
        (three_quarters_divided, False),
        (one_number_lost, False),
        (zeros_behind_the_first_shard, False),
        (gathered_but_for_one_number, False),
        (reduced_and_not_gathered, True),
    ],
)
def test_a_mean_in_one_shard_alone_is_told_only_where_a_reduce_scatter_has_left_it_there(reduce, alone, four_ranks):
    def my_ddp(parameters, gradients, optimizer_cls, rank, world_size):
        optimizer = optimizer_cls([parameters])
        for gradient in gradients:
            reduce(gradient, world_size)
            parameters.grad = gradient
            optimizer.step()
        return optimizer

    said = said_on_ranks(exercises.load("ddp-average"), my_ddp, four_ranks)
    assert said.startswith("rank 0, step 1: the optimizer got ")
    assert ("the mean in shard 0 alone: after `reduce_scatter` no other shard" in said) == alone, said
    assert ("a gradient that differs from the mean over all ranks by up to" in said) != alone, said


def test_an_update_for_each_unit_is_told_as_such():
    said = refused("zero2-free", ("        optimizer.step()\n", ""), STEP_FOR_EACH)
    assert "step 1: optimizer.step() was called 6 times; once is due in a step" in said


def test_a_loop_that_gathers_one_unit_ahead_and_waits_late_for_a_reduction_passes():
    def zero3(units, batches, optimizer_cls, forward, backward):
        rank, world_size = dist.get_rank(), dist.get_world_size()
        mine = [unit.parameters.chunk(world_size)[rank].clone() for unit in units]
        for unit in units:
            unit.release()
        optimizer = optimizer_cls(mine)
        last = len(units) - 1

        def start(number):
            units[number].allocate()
            units[number].parameters.chunk(world_size)[rank].copy_(mine[number])
            return all_gather(units[number].parameters)

        def keep(number, gradient, exchange):
            exchange.wait()
            mine[number].grad = gradient.chunk(world_size)[rank] / world_size

        for inputs, loss_gradient in batches:
            outputs, coming, reducing = inputs, start(0), ()
            for number, unit in enumerate(units):
                coming, arriving = start(number + 1) if number < last else None, coming
                arriving.wait()
                outputs = unit.forward(outputs)
                unit.release()
            output_gradient, coming = loss_gradient(outputs), start(last)
            for number in range(last, -1, -1):
                coming, arriving = start(number - 1) if number else None, coming
                arriving.wait()
                output_gradient, gradient = units[number].backward(output_gradient)
                units[number].release()
                if reducing:
                    keep(*reducing)
                reducing = (number, gradient, reduce_scatter(gradient))
                del gradient
            keep(*reducing)
            del reducing
            optimizer.step()
        return optimizer

    attempt = check("zero3-train", zero3, seed=1)
    assert attempt.passed, str(attempt)


def does(rank):
    """What a rank does in the second step, unit by unit: `gather 0`, `forward 0`, ..., `update`."""
    verbs = {"all_gather": "gather", "reduce_scatter": "reduce", "forward": "forward", "backward": "backward"}
    whole = {}
    for event in (event for event in rank.events if event.step == 2):
        if event.kind == "optimizer":
            yield "update"
        elif event.op == "hold" and event.category == "parameters":
            if event.held < whole.setdefault(event.unit, event.held):
                yield f"release {event.unit}"
            whole[event.unit] = event.held
        elif event.op in verbs and event.parent is None and event.unit != "root":
            yield f"{verbs[event.op]} {event.unit}"


FORWARDS = [f"{verb} {unit}" for unit in range(6) for verb in ("gather", "forward", "release")]
BACKWARDS = [f"{verb} {unit}" for unit in range(5, -1, -1) for verb in ("gather", "backward", "release", "reduce")]


def test_what_a_rungs_statement_says_of_ours_is_what_was_recorded():
    done = list(does(answered("zero3-train").recording.rank(1)))
    assert done == [*FORWARDS, *BACKWARDS, "update"]
    for exercise_id, part in (("zero3-forward", FORWARDS[:6]), ("zero3-backward", BACKWARDS[:8])):
        assert f"    {', '.join(part)}, ...\n" in exercises.load(exercise_id).statement
    used = [each for each in done if each.split()[0] in ("forward", "backward", "update")]
    said = [*used[:2], "...", *used[5:7], "...", *used[-3:]]
    assert f"    {', '.join(said)}\n" in exercises.load("zero3-train").statement


@pytest.fixture
def _nothing_passed(monkeypatch):
    monkeypatch.setattr(rungs, "_passed", {})


@pytest.mark.slow
@pytest.mark.usefixtures("_nothing_passed")
def test_a_rung_runs_with_the_learners_own_ones_below_it_once_they_have_passed():
    assert "It ran with our zero3-forward and our zero3-backward." in str(answered("zero3-train"))
    refused("zero3-forward", RELEASE)
    assert "It ran with our zero3-forward and our zero3-train." in str(answered("zero3-backward"))
    answered("zero3-forward")
    attempt = answered("zero3-train")
    assert "It ran with your zero3-forward and your zero3-backward." in str(attempt)
    assert attempt.passed
    assert "It ran with our zero3-backward and our zero3-train." in str(answered("zero3-forward"))


@pytest.mark.slow
def test_a_passed_answer_that_keeps_more_and_sends_the_same_is_scored_beside_ours():
    attempt = answered("zero3-backward", ("        del gradient  # or the next unit's would come beside it\n", ""))
    assert attempt.passed, str(attempt)
    rows = {row["of a step, on the rank with the most"]: row for row in score(attempt.recording, attempt.ours)}
    padded = [unit.padded for unit in attempt.recording.units]
    more = rows["peak bytes but for the update"]["yours"] - rows["peak bytes but for the update"]["ours"]
    assert min(padded) * FP32 // 2 < more <= max(padded) * FP32  # a second whole gradient was there
    sent = 3 * sum(padded) * FP32 // RANKS  # three passes, of which a rank sends a half
    assert rows["bytes sent"]["yours"] == rows["bytes sent"]["ours"] == sent
    assert rows["exchanges"]["yours"] == rows["exchanges"]["ours"] == 18
    assert f"{rows['peak bytes but for the update']['yours']:,}" in str(attempt)
    assert "bytes sent" in str(attempt)


@pytest.mark.slow
def test_a_passed_answer_is_played_beside_ours_and_one_that_did_not_pass_by_itself(capsys):
    attempt = answered("zero2-free")
    assert "; beside it zero2 on 2 ranks" in repr(attempt.play())
    assert "\nThe first is yours, the second ours.\n" in capsys.readouterr().out
    texts = {source.label: source.text for source in attempt.ours.sources.values()}
    assert texts["our zero2-free"] == exercises.load("zero2-free").ours.text
    attempt = answered("zero2-free", NO_DEL)
    assert attempt.ours is None
    assert "beside it" not in repr(attempt.play())
    assert "peak bytes" not in str(attempt)
