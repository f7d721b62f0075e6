"""What the planner says to try where nothing fits: that it helps, in which order, and what it costs."""

import re

import pytest

from zerolab import catalog, theory


def test_fewer_rows_are_advised_with_the_micro_batches_that_they_need_and_fit_so():
    plan = theory.plan("llama3-8b", 8, rows=8)
    assert "With rows=1, micro_batches=8 it needs 72.0 GB, and fits." in plan.answer
    followed = theory.plan("llama3-8b", 8, rows=1, micro_batches=8)
    assert followed[-1]["fits"]
    assert followed[-1]["needs GB"] > theory.plan("llama3-8b", 8)[-1]["needs GB"] + 1.9
    assert followed.settings("zero3")["deepspeed"]["gradient_accumulation_steps"] == 8
    # Each micro-batch is gathered and reduced again.
    assert followed[-1]["communication_seconds"] == pytest.approx(8 * plan[-1]["communication_seconds"])


def test_remedies_stand_in_the_order_in_which_people_try_them_and_each_says_what_it_saves_and_costs():
    plan = theory.plan("llama3-8b", 8, rows=8)
    tried = [row["try"] for row in plan.remedies]
    assert tried == [
        "checkpointing='selective'",
        "checkpointing='block'",
        tried[2],
        "logits='fused'",
        "moments='8-bit'",
        "offload=True",
        "tensor=2",
        "tensor=4",
        "tensor=8",
        "context=2",
        "context=4",
        "context=8",
        "world_size=16",
    ]
    assert tried[2].startswith("rows=")
    for row in plan.remedies:
        again = theory.plan(**{"model": "llama3-8b", "world_size": 8, "rows": 8} | eval(f"dict({row['try']})"))[-1]  # noqa: S307
        assert row["needs GB"] == again["needs GB"]
        assert row["saves GB"] == pytest.approx(plan[-1]["needs GB"] - again["needs GB"])
        assert row["fits"] is again["fits"]
    times = {row["try"]: row["GPU time a token"] for row in plan.remedies}
    assert times["logits='fused'"] == times["moments='8-bit'"] == "+0%"
    assert int(times["checkpointing='block'"].rstrip("%")) > 15


def test_of_norms_in_several_kernels_the_first_thing_that_fits_has_them_in_one():
    few = {"model": "llama2-7b", "world_size": 8, "rows": 16, "logits": "fused", "memory": 9e9}
    fused, unfused = (theory.plan(**few, norms=norms).answer.rpartition("With ")[2] for norms in ("fused", "unfused"))
    assert unfused.replace("norms='fused', ", "") == fused
    assert "norms='fused'" in unfused


def test_what_a_remedy_costs_is_computed_even_where_a_utilisation_was_quoted():
    quoted, computed = (theory.plan("7b", 8, memory=20e9, rows=4, utilisation=part) for part in (0.4, None))
    assert quoted.remedies.rows == computed.remedies.rows
    assert quoted.remedies.title == f"{computed.remedies.title}; times without the quoted utilisation"


def test_a_kernel_in_place_of_attentions_matrix_is_tried():
    long = {"rows": 2, "length": 8192, "checkpointing": "block"}
    plan = theory.plan("llama-7b", 8, memory=26e9, attention="math", **long)
    assert "attention='fused'" in [row["try"] for row in plan.remedies]
    assert plan.answer.endswith("With attention='fused' it needs 21.9 GB, and fits.")
    assert theory.plan("llama-7b", 8, memory=26e9, **long).fitting == ["zero3"]


@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        ({"model": "llama3-8b", "world_size": 8, "rows": 4}, "With checkpointing='block' it needs"),
        ({"model": "llama3-8b", "world_size": 8, "rows": 8}, "With rows=1, micro_batches=8 it needs"),
        ({"model": "llama2-13b", "world_size": 2}, "With checkpointing='block', offload=True it needs"),
        ({"model": "llama3-70b", "world_size": 64, "length": 131072}, "With checkpointing='block', tensor=8 it needs"),
        ({"model": "llama3-8b", "world_size": 8, "length": 16384}, "With checkpointing='selective' it needs"),
        ({"model": "llama3-8b", "world_size": 8, "length": 49152}, "With checkpointing='block' it needs"),
        (
            {"model": "1t", "world_size": 8, "memory": 4e9},
            "Nothing that is tried here helps, on up to 1,048,576 GPUs: with world_size=1048576, checkpointing='block'",
        ),
    ],
)
def test_a_no_says_what_would_help_in_the_order_in_which_it_would_be_tried(arguments, says):
    answer = theory.plan(**arguments).answer
    assert answer.startswith("No: even zero3 needs")
    assert says in answer


def test_what_would_help_helps():
    plan = theory.plan("gpt3-175b", 8)
    assert "With world_size=64, checkpointing='block' it needs 65.7 GB, and fits." in plan.answer
    assert theory.plan("gpt3-175b", 64, checkpointing="block")[3]["needs GB"] == pytest.approx(65.7, abs=0.05)


@pytest.mark.parametrize(
    ("model", "options", "says"),
    [
        ("llama3-8b", {"rows": 7}, "With rows=1, micro_batches=7 it needs"),
        ("llama3-8b", {"rows": 6, "micro_batches": 3, "memory": 70e9}, "With rows=3, micro_batches=6 it needs"),
        ("gpt2", {"rows": 64, "scheme": "megatron", "memory": 20e9}, "With rows=32, micro_batches=2 it needs"),
    ],
)
def test_rows_are_divided_only_into_micro_batches_that_are_as_many_together(model, options, says):
    assert says in theory.plan(model, 8, checkpointing="block", **options).answer


@pytest.mark.parametrize(
    "options",
    [
        {"model": "llama3-8b", "scheme": "megatron", "precision": "fp32", "checkpointing": "block", "memory": 80e9},
        {"model": "llama3-8b", "scheme": "megatron", "rows": 8},
        {"model": "llama3-8b", "scheme": "fsdp2", "length": 2048},
        {"model": "gpt2-xl", "scheme": "fsdp2", "rows": 4, "logits": "flash", "memory": 3e9},
    ],
)
def test_no_remedy_needs_as_much_or_is_one_that_megatron_does_not_have(options):
    plan = theory.plan(world_size=8, **options)
    assert all(row["saves GB"] > 0 for row in plan.remedies)
    tried = {row["try"] for row in plan.remedies}
    if options["scheme"] == "megatron":
        assert not tried & {"checkpointing='selective'", "logits='fused'"}
    # Of 2048 tokens all logits together are less than what a fused loss makes of the weight's gradient.
    assert ("logits='fused'" in tried) is ("logits" in options)


DEEP = catalog.Architecture("deep", "gpt", 4096, 32, 20_000, 2048, 50_257, "a test")


@pytest.mark.parametrize(("model", "few", "many", "memory"), [(DEEP, 1, 4, 8e9), ("llama3-405b", 1, 512, 6e9)])
def test_as_many_gpus_are_tried_from_few_as_from_many(model, few, many, memory):
    """The doublings ended after twelve, at 4096 GPUs for who has one, and more were said not to help."""
    answers = [theory.plan(model, count, memory=memory, length=64).answer for count in (few, many)]
    with_these = [answer[answer.index("With world_size=") :] for answer in answers]
    assert with_these[0] == with_these[1]
    count = int(with_these[0].removeprefix("With world_size=").split(",")[0])
    assert theory.plan(model, count, memory=memory, length=64, checkpointing="block", tensor=8).fitting == ["zero3"]


def test_if_nothing_helps_the_least_that_was_found_is_named():
    answer = theory.plan("gpt2", 8, memory=6e8).answer
    found = re.search(
        r"on up to 1,048,576 GPUs: with (.*) it needs (.*) GB\. Take larger GPUs or shorter rows\.$", answer
    )
    options = eval(f"dict({found[1]})")  # noqa: S307
    least = theory.plan(**{"model": "gpt2", "world_size": 8, "memory": 6e8} | options)[-1]
    assert f"{least['needs GB']:.1f}" == found[2]
    assert not least["fits"]


def test_a_unit_of_measure_that_was_taken_for_rows_is_answered_at_once():
    """All that divide a thousand million million rows would be tried for days."""
    plan = theory.plan("7b", 8, rows=10**15)
    assert "With rows=8, micro_batches=125000000000000 it needs" in plan.answer
    assert "rows=8, micro_batches=125000000000000" in [row["try"] for row in plan.remedies]


def test_norms_in_one_kernel_are_tried_where_they_are_computed_one_operation_after_the_other():
    plan = theory.plan("llama2-7b", 8, norms="unfused", memory=36e9)
    assert plan.remedies[0]["try"] == "norms='fused'"
    assert plan.answer.endswith("With norms='fused' it needs 33.9 GB, and fits.")
