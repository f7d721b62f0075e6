"""The planner says which stages fit, no with the number that is missing and what would help, and the seconds."""

from dataclasses import replace
from functools import partial

import numpy as np
import pytest
import torch
from published_runs import published_utilisation

from zerolab import catalog, simulate, theory
from zerolab.simulation import architectures
from zerolab.theory import schemes, seconds

CONTEXT = catalog.CONTEXT_BYTES / 1e9


def test_seven_billion_parameters_fit_eight_gpus_only_when_sharded():
    rows = {row["stage"]: row for row in theory.plan("7b", 8, 80e9)}
    assert not rows["ddp"]["fits"]
    assert rows["ddp"]["missing GB"] == pytest.approx(rows["ddp"]["needs GB"] - 80 + CONTEXT)
    assert rows["zero3"]["fits"]
    assert rows["zero3"]["missing GB"] is None
    # ZeRO's table 1 for 7B, and on top the fp32 copy of the gradients that the update reads: 4 bytes a parameter.
    copies = [28, 3.5, 3.5, 3.5]
    formula = [112, 38.5, 26.25, 14]
    assert [row["state GB"] for row in rows.values()] == pytest.approx(
        [form + copy for form, copy in zip(formula, copies, strict=True)]
    )


def test_in_fp32_the_state_is_the_closed_form():
    assert [row["state GB"] for row in theory.plan("7b", 8, precision="fp32")] == [112, 63, 38.5, 14]


def test_what_is_needed_is_the_sum_of_the_parts_at_the_highest_moment():
    plan = theory.plan("gpt2-xl", 4, rows=2)
    for row in plan:
        parts = plan.parts[row["stage"]]
        assert row["needs GB"] == pytest.approx(sum(parts.values()) / 1e9)
        assert row["activations GB"] == parts["activations"] / 1e9
        assert row["buffers GB"] == parts["buffers"] / 1e9
    assert [row["highest at"] for row in plan] == ["update", "update", "loss", "loss"]


# Fewer blocks than published, which are faster to execute; the other numbers are theirs.
@pytest.mark.slow
@pytest.mark.parametrize(
    ("model", "gpus", "batch", "options"),
    [
        ("gpt2", 8, 1, {"precision": "fp32", "checkpointing": "none"}),
        ("gpt2", 8, 1, {"precision": "fp32", "checkpointing": "block"}),
        ("gpt2-xl", 8, 2, {"precision": "bf16", "checkpointing": "selective"}),
        ("llama-7b", 64, 1, {"precision": "bf16", "checkpointing": "none"}),
        ("llama-7b", 64, 1, {"precision": "bf16", "checkpointing": "block"}),
        ("llama3-8b", 8, 2, {"precision": "bf16", "checkpointing": "selective"}),
        ("gpt2-xl", 512, 1, {"precision": "bf16", "checkpointing": "block", "length": 16}),
        ("llama-7b", 64, 1, {"precision": "bf16", "checkpointing": "none", "length": 512}),  # two blocks' gradients
    ],
)
def test_it_needs_what_a_simulation_of_the_engines_needs_within_3_percent(model, gpus, batch, options):
    shape = replace(catalog.architecture(model), depth=8)
    plan = theory.plan(shape, gpus, rows=batch, **options)
    executed = dict(options)
    tokens = torch.zeros(batch, executed.pop("length", shape.context), dtype=torch.int64)
    build = partial(architectures.build, shape)
    simulated = simulate(world_size=gpus, model=build, batches=[(tokens, tokens)], **executed).rows
    for planned, row in zip(plan, simulated, strict=True):
        assert planned["stage"] == row["stage"]
        assert planned["needs GB"] * 1e9 == pytest.approx(sum(row["peak"].values()), rel=0.03), row["stage"]


def test_a_shape_of_ones_own_and_a_length_are_planned():
    shape = catalog.architecture("llama3-8b")
    named, own = theory.plan("llama3-8b", 8, length=4096), theory.plan(shape, 8, length=4096)
    assert [dict(row) for row in named] == [dict(row) for row in own]
    assert named.title == "llama3-8b on 8 h100, bf16, 84.94 GB each, length=4096"
    whole = theory.plan("llama3-8b", 8)[3]
    assert whole["activations GB"] > 1.9 * named[3]["activations GB"]


def test_a_longer_row_than_the_context_is_refused_where_positions_are_learned():
    with pytest.raises(ValueError, match="gpt2 takes 1 row or more of 1 to 1024 tokens"):
        theory.plan("gpt2", 8, length=2048)
    assert theory.plan("llama3-8b", 8, length=131_072, checkpointing="block").job.length == 131_072


# What others have published of memory and of what ran: torchtitan, docs/performance.md of mid-2024 and benchmarks/
# llama3_h100_202412_torchtitan.md. All of them with FSDP2 and its MixedPrecisionPolicy.
RAN = [
    ("llama2-13b", 64, 2, "none", True),
    ("llama2-13b", 64, 2, "selective", True),
    ("llama-70b", 64, 1, "selective", True),
    ("llama-70b", 64, 2, "selective", False),  # "will cause an OOM error"
    ("llama-70b", 64, 2, "block", True),
    ("llama3-70b", 64, 1, "block", True),
]


@pytest.mark.parametrize(("model", "gpus", "batch", "checkpointing", "ran"), RAN)
def test_what_ran_on_a100_fits_and_what_ran_out_of_memory_does_not(model, gpus, batch, checkpointing, ran):
    plan = theory.plan(model, gpus, gpu="a100", rows=batch, checkpointing=checkpointing, scheme="fsdp2")
    assert plan[-1]["fits"] is ran, plan.answer


@pytest.mark.parametrize(
    ("gpus", "batch", "length", "checkpointing", "gibibytes"),
    [(8, 2, 8192, "selective", 82.4), (128, 2, 8192, "selective", 67.0), (8, 1, 32768, "block", 83.9)],
)
def test_published_memory_of_llama_3_8b_comes_out_within_a_tenth(gpus, batch, length, checkpointing, gibibytes):
    options = {"rows": batch, "length": length, "checkpointing": checkpointing, "scheme": "fsdp2", "logits": "fp32"}
    row = theory.plan("llama3-8b", gpus, **options)[-1]
    assert row["needs GB"] * 1e9 / 2**30 == pytest.approx(gibibytes, rel=0.1)


def test_a_scheme_has_its_own_bytes_and_stages():
    for scheme, stages in schemes.STAGES.items():
        plan = theory.plan("llama2-13b", 8, scheme=scheme)
        assert tuple(row["stage"] for row in plan) == stages
    assert plan[-1]["state GB"] == pytest.approx(16 * 13.015864320 / 8)  # fsdp2; the engines here keep 20


def test_moments_in_8_bits_take_a_byte_each_and_a_scale_a_block():
    plain, bits = (theory.plan("llama3-8b", 8, moments=name)[-1]["state GB"] for name in theory.MOMENTS)
    numel = catalog.architecture("llama3-8b").num_params
    assert plain - bits == pytest.approx((8 - 2 * (1 + 4 / 256)) * numel / 8 / 1e9)
    for scheme, stages in schemes.STAGES.items():
        for stage in stages:
            owned = 1 if stage == "ddp" else 8
            held = [
                sum(schemes.scheme_bytes(scheme, stage, 2**20, 8, "bf16", moments=name).values())
                for name in theory.MOMENTS
            ]
            assert held[0] - held[1] == 2**20 // owned * (8 - 2 - 2 * 4 / 256)


def test_tensor_parallel_ranks_hold_as_much_state_and_a_part_of_the_activations():
    alone, divided = (theory.plan("llama3-70b", 64, tensor=ranks, scheme="fsdp2")[-1] for ranks in (1, 8))
    assert divided["state GB"] == pytest.approx(alone["state GB"], rel=1e-9)
    # Less than eightfold: the outputs of norms stay whole.
    assert 4.5 < alone["activations GB"] / divided["activations GB"] <= 8
    # Eight GPUs take one row together, so a step is shorter, but not eight times: nothing hides what they exchange.
    assert 3 < alone["compute_seconds"] / divided["compute_seconds"] <= 8
    assert alone["step_seconds"] / divided["step_seconds"] < 8


def test_with_the_optimizer_in_main_memory_its_state_is_not_on_the_gpu():
    for scheme, left in {"zerolab": 4 / 8, "deepspeed": 2 / 8, "megatron": 2 + 4, "fsdp2": 0}.items():
        row = theory.plan("7b", 8, scheme=scheme, offload=True)[-1]
        assert row["state GB"] == pytest.approx(7 * left)
    here, there = (theory.plan("7b", 8, offload=name).steps["zero3"] for name in (False, True))
    assert there.updating == pytest.approx(2 * 2 * 7e9 / 8 / seconds.HOST_BYTES_PER_SECOND)
    assert there.updating > here.updating


def test_two_plans_that_differ_have_two_titles():
    given = [
        {"network": "ethernet-100g"},
        {"bandwidth": 450e9},
        {"bandwidth": 12.5e9},
        {"kernels": "compiled"},
        {"utilisation": 0.4},
        {"gpus_per_node": 4},
        {"micro_batches": 2},
        {},
    ]
    titles = [theory.plan("7b", 16, **options).title for options in given]
    assert len(set(titles)) == len(given)
    assert titles[1] == "7b on 16 h100, bf16, 84.94 GB each, bandwidth=450e9"
    assert theory.plan("7b", 8.0).title == "7b on 8 h100, bf16, 84.94 GB each"


@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        ({"model": 7e9}, "the model is 7000000000.0: give a name of the catalog, such as '7b', or a shape"),
        ({"model": None}, "the model is None"),
        ({"memory": "80e9"}, "memory is '80e9': pass a number"),
        ({"memory": True}, "memory is True: pass a number"),
        ({"bandwidth": "x"}, "bandwidth is 'x'"),
        ({"utilisation": "0.4"}, "utilisation is '0.4'"),
        ({"length": "x"}, "length is 'x'"),
    ],
)
def test_what_is_no_model_or_no_number_is_told(arguments, says):
    with pytest.raises(TypeError, match=says):
        theory.plan(**{"model": "7b", "world_size": 8, **arguments})


def test_a_number_of_numpys_is_a_number():
    given = {
        name: np.float32(number) for name, number in {"memory": 80e9, "bandwidth": 4e11, "utilisation": 0.5}.items()
    }
    given["length"] = np.int64(16)
    assert theory.plan("7b", np.int64(8), **given).fitting == theory.plan("7b", 8, 80e9, length=16).fitting


def test_an_attention_matrix_and_fp32_logits_take_what_they_take():
    shape = catalog.architecture("gpt2-xl")
    plain, matrix, logits = (
        theory.plan("gpt2-xl", 8, **options)[3]["activations GB"]
        for options in ({"rows": 4}, {"rows": 4, "attention": "math"}, {"rows": 4, "logits": "fp32"})
    )
    tokens = 4 * 1024
    stored, kept = 2 * shape.heads * 1024 * tokens, 4 * shape.heads * tokens
    assert matrix - plain == pytest.approx(48 * (stored - kept) / 1e9)
    assert logits - plain == pytest.approx(4 * 2 * shape.vocabulary * tokens / 1e9)


def test_stage_3_sends_half_as_much_again():
    seconds = [row["communication_seconds"] for row in theory.plan("7b", 8, bandwidth=450e9)]
    assert seconds[3] == pytest.approx(1.5 * seconds[0])


def test_over_the_gpus_own_links_it_sends_as_nccl_does():
    """Between two nodes an all-reduce goes along a tree, and takes less than its two halves."""
    ddp, zero1, *_ = (row["communication_seconds"] for row in theory.plan("7b", 16))
    assert ddp < 0.8 * zero1


def test_a_quoted_utilisation_is_that_of_the_whole_step():
    slow, fast = (theory.plan("llama-7b", 8, utilisation=part)[3] for part in (0.2, 0.4))
    assert slow["compute_seconds"] == slow["step_seconds"] == pytest.approx(2 * fast["step_seconds"])
    assert slow["communication_seconds"] == fast["communication_seconds"]
    # 2048 tokens, 6 operations for each parameter that is multiplied with, and attention: 12 L d s.
    flops = 2048 * (6 * (6_738_415_616 - 32001 * 4096) + 12 * 32 * 4096 * 2048)
    assert fast["compute_seconds"] == pytest.approx(flops / (0.4 * 989.5e12), rel=1e-3)


def test_its_seconds_are_those_of_the_closed_form_and_it_says_what_they_owe_to_the_kernels():
    plan = theory.plan("7b", 8, 80e9)
    step, compiled = plan.steps["zero1"], theory.plan("7b", 8, 80e9, kernels="compiled").steps["zero1"]
    assert plan[1]["step_seconds"] == step.total
    low, high = seconds.PUBLISHED_UTILISATION["h100"]
    assert f"A step of zero1 takes {step.total:.3g} s" in plan.sensitivity
    assert f"published runs on H100 reach {low:.0%} to {high:.0%}" in plan.sensitivity
    assert plan.sensitivity.endswith(f"Compiled it would take {compiled.total:.3g} s.")
    assert "A step of zero3 takes" in theory.plan("gpt3-175b", 8, 80e9).sensitivity
    shorter, compiled = (theory.plan("llama3-8b", 8, length=4096, kernels=name) for name in ("eager", "compiled"))
    assert shorter.sensitivity.endswith(f"Compiled it would take {compiled.steps['zero1'].total:.3g} s.")
    assert " and sends nothing. It reaches " in theory.plan("gpt2", 1).sensitivity
    assert " s, and waits for " in theory.plan("gpt2", 2).sensitivity


def test_published_runs_are_said_to_be_of_the_chip_that_they_are_of():
    for gpu, chip in {"b200": "H100", "h200": "H100", "v100": "H100", "a100-40gb": "A100"}.items():
        assert f"published runs on {chip} reach" in theory.plan("gpt2", 8, gpu=gpu, precision="fp16").sensitivity


def test_nothing_is_computed_beside_a_quoted_utilisation():
    """The compiled step was that of the closed form, next to a step at the utilisation that was quoted."""
    assert theory.plan("7b", 8, utilisation=0.4).sensitivity.endswith("reach 27% to 49%.")


def test_published_utilisations_are_those_of_the_published_runs():
    """Up to 67 % (fms-fsdp's 7B on A100), and the one that claims more than the card can do is left out."""
    for chip, said in seconds.PUBLISHED_UTILISATION.items():
        assert said == pytest.approx(published_utilisation(chip), abs=0.0005)


def test_a_yes_names_the_stages_that_fit_and_what_the_others_lack():
    plan = theory.plan("7b", 8, 80e9)
    lacking = plan[0]["missing GB"]
    assert plan.fitting == ["zero1", "zero2", "zero3"]
    assert plan.answer == f"Fits: zero1, zero2, zero3. ddp lacks {lacking:.1f} GB."


def test_a_no_names_the_number_that_is_missing():
    plan = theory.plan("gpt3-175b", 8, 80e9)
    assert plan.fitting == []
    needs, usable = plan[3]["needs GB"], 80 - CONTEXT
    assert plan.answer.startswith(
        f"No: even zero3 needs {needs:.1f} GB of the {usable:.1f} GB that CUDA leaves of each GPU, "
        f"{needs - usable:.1f} GB are missing."
    )
    with pytest.raises(ValueError, match="No: even zero3"):
        plan.settings()


@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        ({"world_size": 0}, "the world size is 0"),
        ({"world_size": True}, "the world size is True"),
        ({"world_size": 8, "bandwidth": 0}, "bandwidth is 0"),
        (
            {"world_size": 8, "bandwidth": 50},
            "bandwidth is 50: it is in bytes a second, at least a million .50 GB/s is 50e9",
        ),
        ({"world_size": 8, "memory": -1}, "memory is -1"),
        (
            {"world_size": 8, "memory": 80},
            "memory is 80: it is in bytes, at least a million .80 GB is 80e9, 80 GiB is 80",
        ),
        ({"world_size": 8, "memory": float("nan")}, "memory is nan"),
        ({"world_size": 8, "memory": 1e8}, r"the memory is 0\.1 GB, and CUDA itself takes 0\.537 GB of it"),
        ({"world_size": 8, "offload": "no"}, "unknown offload 'no': choose one of False, True"),
        ({"world_size": 8, "micro_batches": 0}, "number of micro-batches is 0"),
        ({"world_size": 8, "rows": 0}, "number of rows is 0"),
        ({"world_size": 8, "rows": 1.5}, "number of rows is 1.5: it must be a whole number"),
        ({"world_size": 8, "length": 0}, "7b takes 1 row or more of 1 to 2048 tokens"),
        ({"world_size": 8, "precision": "fp8"}, "fp8"),
        (
            {"world_size": 8, "checkpointing": "full"},
            "unknown checkpointing 'full': choose one of none, selective, block",
        ),
        (
            {"world_size": 8, "scheme": "fsdp"},
            "unknown scheme 'fsdp': choose one of zerolab, deepspeed, megatron, fsdp2",
        ),
        (
            {"world_size": 8, "scheme": "megatron", "checkpointing": "selective"},
            "checkpointing is 'selective', which Megatron does not have: its own repeats core attention alone, which",
        ),
        (
            {"world_size": 8, "scheme": "megatron", "logits": "fused"},
            "logits is 'fused', which Megatron does not have: its own loss stores them",
        ),
        (
            {"world_size": 8, "scheme": "megatron", "norms": "unfused"},
            "norms is 'unfused', which Megatron does not have: its own are one kernel each",
        ),
        ({"world_size": 8, "attention": "flash"}, "unknown attention 'flash': choose one of fused, math"),
        ({"world_size": 8, "norms": "unfused"}, "norms is 'unfused', and 7b has layer norms: choose norms='fused'"),
        ({"world_size": 8, "logits": "bf16"}, "unknown logits 'bf16': choose one of own, fp32, flash, fused"),
        ({"world_size": 8, "utilisation": 0}, "utilisation is 0: it must be a fraction"),
        ({"world_size": 8, "utilisation": 40}, "utilisation is 40: it must be a fraction"),
        ({"world_size": 8, "gpu": "h10"}, "did you mean 'h100'"),
        ({"world_size": 8, "moments": "bf16"}, "unknown moments 'bf16': choose one of fp32, 8-bit"),
        ({"world_size": 8, "sharding": "half"}, "unknown sharding 'half': choose one of full, hybrid, hpz"),
        (
            {"world_size": 8, "sharding": "hpz"},
            "second shard in each node, and 8 GPUs are one node: choose sharding='full'",
        ),
        ({"world_size": 12, "sharding": "hpz"}, "number of GPUs in a node is 8, which does not divide 12 GPUs"),
        ({"world_size": 8, "context": 3}, "context is 3, which does not divide 8 GPUs"),
        ({"world_size": 8, "context": 0}, "number of ranks that divide each sequence .context. is 0"),
        ({"world_size": 8, "context": 8, "length": 100}, "context is 8, which does not divide 100 tokens"),
        ({"world_size": 8, "tensor": 3}, "tensor is 3, which does not divide 8 GPUs: choose a number that does"),
        ({"world_size": 64, "tensor": 16}, "tensor is 16, which does not divide 8 GPUs of a node"),
        ({"world_size": 8, "tensor": 0}, "number of ranks that divide each matrix .tensor. is 0"),
    ],
)
def test_bad_input_gets_a_sentence(arguments, says):
    with pytest.raises(ValueError, match=says):
        theory.plan("7b", **arguments)


def test_the_plans_settings_are_those_of_the_first_stage_that_fits():
    from zerolab.theory import settings

    plan = theory.plan("7b", 8, 80e9, rows=2, checkpointing="block")
    assert plan.settings() == settings(plan.fitting[0], "bf16", 2, "block")
    assert plan.settings("zero3")["deepspeed"]["train_micro_batch_size_per_gpu"] == 2


def test_a_vocabulary_smaller_than_the_ranks_that_divide_it_is_planned():
    shape = replace(catalog.architecture("gpt2"), vocabulary=3)
    assert list(theory.plan(shape, world_size=4, tensor=4, logits="fused"))
