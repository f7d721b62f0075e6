"""The moments of a step in 8 bits, and those of one of several micro-batches, beside a simulation of the engines."""

import re
from dataclasses import replace
from functools import partial
from pathlib import Path

import pytest
import torch
from torch.nn import functional

from zerolab import catalog, compare, theory
from zerolab.models import loss
from zerolab.simulation import architectures
from zerolab.simulation.fit import fit
from zerolab.simulation.run import simulate
from zerolab.theory.activations import CHECKPOINTING
from zerolab.theory.job import Job
from zerolab.theory.moments import moments, peak

GPT = catalog.Architecture("a test's", "gpt", 512, 8, 4, 64, 100, "a test")
ROOT_IS = {
    "far smaller than a block": GPT,
    "larger than a block": replace(GPT, vocabulary=9000),
    "far larger than a block": replace(GPT, vocabulary=40_000),
    "beside one block alone": replace(GPT, vocabulary=4000, depth=1),
    "Llama's": replace(catalog.architecture("llama3-8b"), depth=4, context=64),
}


def needed(shape, world_size, **options):
    """Bytes at the peak of each stage in a simulation."""
    tokens = torch.zeros(1, shape.context, dtype=torch.int64)
    build = partial(architectures.build, shape)
    rows = simulate(world_size=world_size, model=build, batches=[(tokens, tokens)], **options).rows
    return {row["stage"]: sum(row["peak"].values()) for row in rows}


@pytest.mark.parametrize("precision", ["bf16", "fp32"])
@pytest.mark.parametrize("root", ROOT_IS)
def test_one_flats_moments_in_fp32_are_needed_where_they_are_kept_in_8_bits(root, precision):
    shape = ROOT_IS[root]
    found = needed(shape, 4, precision=precision, moments="8-bit", checkpointing="block")
    job = Job(shape, 4, precision, 1, shape.context, "block", moments="8-bit")
    planned = {stage: peak(job, stage) for stage in theory.STAGES}
    needs = {stage: sum(parts.values()) for stage, (name, parts) in planned.items() if name == "update"}
    assert "ddp" in needs
    for stage, need in needs.items():
        assert need == pytest.approx(found[stage], rel=1e-3), stage


def test_the_page_that_plan_points_to_has_all_moments():
    (page,) = re.findall(r"docs/\w+\.md", theory.plan.__doc__)
    told = (Path(__file__).parents[2] / page).read_text()
    for scheme, stage in (("zerolab", "zero3"), ("fsdp2", "zero3")):
        for name in moments(Job(GPT, 4, "bf16", 1, 64, scheme=scheme), stage):
            assert f"`{name.partition(' of ')[0]}" in told


# Where activations are small: the root's last gradient comes while the first block's are still sent, and block 0 has no
# next one to gather, so with few ranks, who keep much of each gradient, block 1 is the highest.
FEW_TOKENS = {name: replace(catalog.architecture(name), depth=4, context=16) for name in ("gpt2-xl", "llama-70b")}


@pytest.mark.parametrize("world_size", [2, 512])
@pytest.mark.parametrize("name", FEW_TOKENS)
def test_with_few_tokens_the_peak_is_that_of_a_simulation(name, world_size):
    shape = FEW_TOKENS[name]
    for stage, found in needed(shape, world_size, precision="fp32", checkpointing="block").items():
        planned = peak(Job(shape, world_size, "fp32", 1, shape.context, "block"), stage)
        assert sum(planned[1].values()) == pytest.approx(found, rel=0.006), (stage, planned[0])


@pytest.mark.parametrize("precision", ["bf16", "fp32"])
@pytest.mark.parametrize("checkpointing", CHECKPOINTING)
@pytest.mark.parametrize("hidden", [14_336, 4096])
def test_with_hugging_faces_norms_the_peak_is_that_of_a_simulation(hidden, checkpointing, precision, monkeypatch):
    """Beside a block's input that backward recomputes from is its copy in fp32; a norm's backward has six such."""
    shape = replace(catalog.architecture("llama3-8b"), depth=2, vocabulary=1000, context=4096, hidden=hidden)
    from transformers.models.llama.modeling_llama import LlamaRMSNorm

    monkeypatch.setattr(torch.nn, "RMSNorm", LlamaRMSNorm)
    (found,) = needed(shape, 64, stages="zero2", precision=precision, checkpointing=checkpointing).values()
    job = Job(shape, 64, precision, 1, shape.context, checkpointing, norms="unfused")
    assert sum(peak(job, "zero2")[1].values()) == pytest.approx(found, rel=0.02)


def gpt(width, depth, context, vocabulary):
    return replace(GPT, width=width, depth=depth, context=context, vocabulary=vocabulary)


def llama(width, depth, context, vocabulary, **others):
    return replace(gpt(width, depth, context, vocabulary), kind="llama", **others)


# With few blocks no part hides what another lacks. Under zero3 a block is whole, and the next one too, while its last
# gradients come; under zero1 what is sent lies in the flat that stays; and the last norm's input has gone by then.
SHALLOW = {
    "gpt, two blocks": (gpt(1024, 2, 1024, 8000), 16, 1, "fp32", "selective"),
    "gpt, three blocks": (gpt(512, 3, 256, 1000), 3, 2, "fp32", "block"),
    "gpt, long rows": (gpt(256, 3, 4096, 64), 4, 5, "bf16", "block"),
    "llama, two blocks": (llama(512, 2, 64, 1000, hidden=512, kv_heads=4), 512, 5, "fp32", "none"),
    "llama, long rows": (llama(512, 3, 4096, 1000, hidden=512, kv_heads=8), 4, 2, "fp32", "block"),
    "llama, shared heads": (llama(512, 2, 256, 1000, hidden=512, kv_heads=1), 4, 1, "bf16", "selective"),
}


@pytest.mark.parametrize("name", SHALLOW)
def test_a_few_blocks_peak_as_in_a_simulation(name):
    shape, world_size, rows, precision, checkpointing = SHALLOW[name]
    tokens = torch.zeros(rows, shape.context, dtype=torch.int64)
    given = {"precision": precision, "checkpointing": checkpointing}
    build = partial(architectures.build, shape)
    for row in simulate(world_size=world_size, model=build, batches=[(tokens, tokens)], **given).rows:
        planned = peak(Job(shape, world_size, precision, rows, shape.context, checkpointing), row["stage"])
        found, where = sum(row["peak"].values()), (row["stage"], planned[0])
        assert sum(planned[1].values()) == pytest.approx(found, rel=0.015), where


@pytest.mark.slow
@pytest.mark.parametrize("length", [64, 1024])
@pytest.mark.parametrize("checkpointing", ["none", "block"])
@pytest.mark.parametrize(("stage", "options"), [("zero3", {}), ("zero2", {"reshard_after_forward": False})])
@pytest.mark.parametrize("shape", [gpt(512, 3, 1024, 1000), llama(512, 3, 1024, 4000, hidden=1408, kv_heads=2)])
def test_fsdp2_peaks_as_in_a_simulation_of_torchs_own(shape, stage, options, checkpointing, length):
    """In stage 2 it releases each block after its backward; in forward two more lie in the buffers they came in."""
    build = partial(architectures.build, shape)
    (cell,) = fit(build, 64, length=length, stages="fsdp2", checkpointing=checkpointing, options=options).cells
    job = Job(shape, 64, "bf16", 1, length, checkpointing, scheme="fsdp2")
    planned = peak(job, stage)
    assert sum(planned[1].values()) == pytest.approx(cell.needs, rel=0.01), (planned[0], cell.highest)


@pytest.mark.parametrize("precision", ["bf16", "fp32"])
@pytest.mark.parametrize(("node", "length"), [(4, 64), (2, 1024)])
def test_in_hybrid_sharding_what_nodes_add_up_stays_in_16_bits_until_backward_ends(node, length, precision):
    shape, ranks = gpt(512, 3, 1024, 1000), 2 * node
    asked = {"stages": "hsdp", "checkpointing": "block", "length": length, "precision": precision}
    (cell,) = fit(partial(architectures.build, shape), ranks, gpus_per_node=node, **asked).cells
    sharded = {"scheme": "fsdp2", "sharding": "hybrid", "gpus_per_node": node}
    planned = peak(Job(shape, ranks, precision, 1, length, "block", **sharded), "zero3")
    assert sum(planned[1].values()) == pytest.approx(cell.needs, rel=0.002), (planned[0], cell.highest)


@pytest.mark.parametrize("precision", ["bf16", "fp32"])
def test_two_ranks_of_fsdp2_have_much_of_a_wide_outputs_gradient_beside_what_they_send(precision):
    shape = llama(256, 1, 16, 128_000, hidden=1024, kv_heads=4)
    given = {"length": 16, "checkpointing": "block", "precision": precision}
    (cell,) = fit(partial(architectures.build, shape), 2, stages="fsdp2", **given).cells
    planned = peak(Job(shape, 2, precision, 1, 16, "block", scheme="fsdp2"), "zero3")
    assert sum(planned[1].values()) == pytest.approx(cell.needs, rel=0.01), (planned[0], cell.highest)


# Of one block, on few ranks, or where a checkpoint drops much, no block beside it hides these: FSDP2 copies a block out
# of the buffer that it was gathered in, for backward, too; its forward has what is dropped afterwards; its gradients
# are sent from another tensor, beside the last one, and what comes back is cast; one rank alone has no buffers.
FEW = {
    "copied for backward": (gpt(512, 1, 64, 1000), 64, 4, "bf16 none zero3"),
    "copied beside what is sent": (llama(512, 2, 256, 64, hidden=512, kv_heads=2), 2, 1, "bf16 none zero3"),
    "cast": (gpt(512, 1, 16, 64), 2, 1, "bf16 none zero3"),
    "cast beside a matrix's gradient": (llama(512, 1, 16, 64, hidden=1792, kv_heads=4), 2, 1, "bf16 none zero2"),
    "dropped by a GPT's forward": (gpt(512, 1, 256, 64), 16, 1, "bf16 selective zero2"),
    "dropped by a Llama's": (llama(512, 1, 256, 64, hidden=2048, kv_heads=4), 16, 1, "fp32 selective zero2"),
    "one rank alone": (gpt(256, 3, 16, 1000), 1, 2, "fp32 selective zero2", 3),
    "one rank's output": (llama(256, 2, 16, 20_000, hidden=896, kv_heads=4), 1, 1, "bf16 none zero3", 2),
    "micro-batches": (gpt(512, 2, 64, 1000), 8, 1, "fp32 none zero3", 2),
    "what nodes have added up": (gpt(512, 4, 64, 64), 4, 1, "fp32 none zero3", 2, 2),
    "halves in fp32": (llama(512, 1, 512, 64, hidden=512, kv_heads=8), 8, 2, "bf16 selective zero3", 2, 2),
}


def beside_torchs_own(shape, world_size, rows, how, *counts):
    """Bytes at the peak by the formulas, and by FSDP2 on shapes, and the names of both moments.

    `counts` are micro-batches, each of which is reduced, and the GPUs of a node, which are then several.
    """
    (precision, checkpointing, stage), (micro_batches, node) = how.split(), (*counts, 1, None)[:2]
    asked = {"precision": precision, "checkpointing": checkpointing, "micro_batches": micro_batches}
    options = {} if stage == "zero3" else {"reshard_after_forward": False}
    nodes = {} if len(counts) < 2 else {"gpus_per_node": node}
    batch = {"rows": rows, "length": shape.context, "sync_each_batch": True, "options": options}
    build, stages = partial(architectures.build, shape), "hsdp" if nodes else "fsdp2"
    (cell,) = fit(build, world_size, stages=stages, **batch, **asked, **nodes).cells
    divided = nodes | {"sharding": "hybrid" if nodes else "full"}
    job = Job(shape, world_size, rows=rows, length=shape.context, scheme="fsdp2", **asked, **divided)
    name, parts = peak(job, stage)
    return sum(parts.values()), cell.needs, (name, cell.highest)


@pytest.mark.parametrize("name", FEW)
def test_few_blocks_of_fsdp2_peak_as_in_a_simulation_of_torchs_own(name):
    planned, found, where = beside_torchs_own(*FEW[name])
    assert planned == pytest.approx(found, rel=0.005), where


def test_another_systems_kernel_unpacks_nothing_that_is_kept():
    for scheme, offload in (("megatron", True), ("deepspeed", False), ("fsdp2", False), ("zerolab", True)):
        job = Job(GPT, 4, "bf16", 1, 64, scheme=scheme, offload=offload, moments="8-bit")
        assert moments(job, theory.schemes.stages_of(scheme)[-1])["update"]["buffers"] == 0


def test_megatrons_adam_has_both_moments_of_what_a_rank_owns_in_fp32():
    for stage, owners in (("ddp", 1), ("zero1", 4)):
        update = moments(Job(GPT, 4, "bf16", 1, 64, scheme="megatron", moments="8-bit"), stage)["update"]
        assert update["buffers"] == 8 * round(GPT.num_params / owners)


WIDE = gpt(32, 1, 64, 20_000)


def returning_fp32():
    model = architectures.build(WIDE)
    model.register_forward_hook(lambda _module, _inputs, logits: logits.float())
    return model


def casting(logits, targets):
    return functional.cross_entropy(logits.float().flatten(0, -2), targets.flatten())


@pytest.mark.parametrize(
    ("build", "loss_fn", "spared"),
    [(returning_fp32, loss, 0), (partial(architectures.build, WIDE), casting, 2)],
    ids=["the model", "the loss"],
)
def test_logits_in_fp32_are_those_of_real_ranks_whose_model_returns_them_and_less_where_the_loss_casts(
    build, loss_fn, spared
):
    tokens = torch.zeros(4, 64, dtype=torch.int64)
    asked = {"batches": [(tokens, tokens)] * 2, "loss_fn": loss_fn, "precision": "bf16"}
    (row,) = compare("zero3", world_size=2, steps=2, model=build, **asked).rows
    planned = peak(Job(WIDE, 2, "bf16", 2, 64, logits="fp32"), "zero3")
    less = spared * 2 * 64 * WIDE.vocabulary
    assert sum(planned[1].values()) - less == pytest.approx(sum(row["peak"].values()), rel=0.002), planned[0]


def test_a_fused_linear_cross_entropy_needs_the_outputs_weight_at_the_loss():
    for logits, root in (("own", 0), ("fused", 2 * GPT.root_params)):
        assert moments(Job(GPT, 4, "bf16", 1, 64, logits=logits), "zero3")["loss"]["buffers"] == root


@pytest.mark.parametrize(("precision", "word"), [("bf16", 4), ("fp16", 2), ("fp32", 4)])
def test_megatrons_gradient_buffer_exists_always_and_a_copy_of_it_at_the_update_alone(precision, word):
    found = moments(Job(GPT, 4, precision, 1, 64, scheme="megatron"), "ddp")
    copy = 4 if precision == "fp16" else 0
    assert found["loss"]["gradients"] == word * GPT.num_params
    assert found["update"]["gradients"] == (word + copy) * GPT.num_params


# NVIDIA/Megatron-LM, tests/functional_tests/test_cases/gpt, golden_values_dev_dgx_h100.json, two with fused attention:
# gpt3_mcore_te_tp1_pp1_resume_torch_dist_dist_optimizer, and with uniform_full_recompute in its place.
MEGATRONS = [("zero1", "none", 2_691_792_384), ("ddp", "block", 2_561_334_272)]


@pytest.mark.parametrize(("stage", "checkpointing", "nbytes"), MEGATRONS)
def test_what_megatrons_own_tests_allocate_comes_out_within_a_tenth(stage, checkpointing, nbytes):
    shape = catalog.Architecture("Megatron's", "gpt", 512, 8, 12, 1024, 50_304, "Megatron-LM")
    job = Job(shape, 8, "bf16", 4, 1024, checkpointing, scheme="megatron")
    assert sum(peak(job, stage)[1].values()) == pytest.approx(nbytes, rel=0.1)


def test_deepspeed_has_less_and_less_whole_as_backward_goes_on_and_on_one_rank_no_copy():
    job = Job(catalog.architecture("gpt2-xl"), 64, "bf16", 1, 128, scheme="deepspeed", checkpointing="block")
    whole = {name: parts.get("buffers", 0) for name, parts in moments(job, "zero3").items()}
    first, last = (whole[f"backward of blocks.{number}"] for number in (0, job.shape.depth - 1))
    assert whole["loss"] >= last > first > whole["root"] > 0
    alone = moments(replace(job, world_size=1), "zero3")
    assert not any(parts.get("buffers") for name, parts in alone.items() if name != "update")


def test_what_deepspeed_offloads_has_no_gradients_on_the_gpu_before_they_come():
    shape, how = catalog.architecture("llama2-7b"), {"scheme": "deepspeed", "checkpointing": "block", "offload": True}
    job = Job(shape, 8, "bf16", 1, 512, **how)
    found = moments(job, "zero3")
    assert not found["loss"].get("gradients")
    assert not found["update"].get("gradients")
    assert moments(replace(job, offload=False), "zero3")["loss"]["gradients"] > 0


def test_deepspeed_updates_no_more_than_a_thousand_million_parameters_at_a_time_and_only_under_zero3():
    shape = catalog.architecture("llama2-13b")
    spared = shape.num_params // 4 - 10**9
    for stage in ("zero2", "zero3"):
        ours, its = (
            moments(Job(shape, 4, "bf16", 1, 64, scheme=name), stage)["update"] for name in ("zerolab", "deepspeed")
        )
        less = 4 * spared if stage == "zero3" else 0
        assert ours["gradients"] - its["gradients"] == less
        assert ours["buffers"] - its["buffers"] == pytest.approx(less, abs=8)


@pytest.mark.parametrize(("stage", "kept"), [("zero2", 1 / 2), ("zero3", 1 / 2), ("zero1", 1)])
def test_from_the_second_micro_batch_on_the_gradients_of_the_first_are_there_as_in_a_simulation(stage, kept):
    shape = replace(catalog.architecture("gpt2"), depth=4)
    once, added_up = (Job(shape, 2, "bf16", 16, 512, micro_batches=count) for count in (1, 2))
    at_the_loss = [moments(job, stage)["loss"]["gradients"] for job in (once, added_up)]
    assert at_the_loss == [0, pytest.approx(2 * shape.num_params * kept)]
    batch = {"rows": 16, "length": 512, "checkpointing": "none", "micro_batches": 2}
    (cell,) = fit(partial(architectures.build, shape), 2, stages=stage, **batch).cells
    assert sum(peak(added_up, stage)[1].values()) == pytest.approx(cell.needs, rel=0.01)


@pytest.mark.parametrize("stage", ["zero1", "ddp"])
def test_in_a_llama_the_first_gradient_of_an_mlp_is_added_to_the_earlier_ones_before_its_hidden_layers_come(stage):
    shape = replace(GPT, kind="llama", hidden=1408, kv_heads=8, depth=1, context=512)
    batch = {"rows": 1, "length": 512, "checkpointing": "none", "micro_batches": 2}
    (cell,) = fit(partial(architectures.build, shape), 8, stages=stage, precision="bf16", **batch).cells
    job = Job(shape, 8, "bf16", 1, 512, micro_batches=2)
    assert sum(peak(job, stage)[1].values()) == pytest.approx(cell.needs, rel=0.01)


def test_a_blocks_mean_gradient_is_a_tensor_of_its_own_until_it_is_added_to_those_of_earlier_micro_batches():
    shape = llama(512, 6, 64, 64, hidden=1408)
    batch = {"rows": 1, "length": 64, "checkpointing": "none", "precision": "fp32", "micro_batches": 2}
    (cell,) = fit(partial(architectures.build, shape), 3, stages="zero2", **batch).cells
    planned = peak(Job(shape, 3, "fp32", 1, 64, micro_batches=2), "zero2")
    assert sum(planned[1].values()) == pytest.approx(cell.needs, rel=0.003), (planned[0], cell.highest)
