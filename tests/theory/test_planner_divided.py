"""What the planner says of other ways to divide: HSDP, hpZ, a row among ranks; beside `parallel` and a simulation."""

from dataclasses import replace
from functools import partial

import pytest

from zerolab import catalog, theory
from zerolab.simulation import architectures
from zerolab.simulation.fit import fit
from zerolab.theory import parallel, settings
from zerolab.theory.job import Job
from zerolab.theory.moments import moments
from zerolab.theory.parallel import Run, one_pass

RATE = 450e9  # a ring's, wherever the GPUs are
LLAMA = catalog.architecture("llama3-8b")


def last(model, world_size, **options):
    return theory.plan(model, world_size, **options)[-1]


def test_hybrid_sharding_holds_what_one_node_would_and_sends_less_between_nodes():
    slow = {"network": "ethernet-100g"}
    full, hybrid = (last("llama2-13b", 64, sharding=name, scheme="fsdp2", **slow) for name in ("full", "hybrid"))
    assert hybrid["state GB"] == last("llama2-13b", 8, scheme="fsdp2")["state GB"] == 8 * full["state GB"]
    assert hybrid["communication_seconds"] < full["communication_seconds"]
    assert theory.plan("llama2-13b", 64, sharding="hybrid").title.endswith("sharding='hybrid'")


def test_a_second_shard_takes_what_the_form_says_of_memory_and_saves_what_it_says_of_the_network():
    full, hpz = (last(LLAMA, 64, sharding=name, bandwidth=RATE, checkpointing="block") for name in ("full", "hpz"))
    run = Run(LLAMA, 64)
    assert hpz["state GB"] == full["state GB"]  # what is kept beside it is gathered, not state
    assert hpz["buffers GB"] - full["buffers GB"] == pytest.approx(
        (parallel.hpz(run).state - parallel.zero3(run).state) / 1e9
    )
    whole = 2 * (LLAMA.depth * LLAMA.block_params + LLAMA.root_params)
    less = (one_pass(whole, 64) - one_pass(whole, 8)) / RATE
    assert full["communication_seconds"] - hpz["communication_seconds"] == pytest.approx(less)
    others = [list(theory.plan(LLAMA, 64, sharding=name))[:3] for name in ("full", "hpz")]
    assert others[0] == others[1]  # only stage 3 releases anything


def test_over_a_slow_network_a_step_is_shorter_with_a_second_shard():
    slow = {"network": "ethernet-100g", "checkpointing": "block", "length": 1024}
    full, hpz = (last(LLAMA, 64, sharding=name, **slow)["step_seconds"] for name in ("full", "hpz"))
    assert hpz < 0.8 * full


@pytest.mark.slow
def test_fsdp2s_second_shards_go_one_after_the_other_as_in_a_simulation_of_it():
    shape = replace(catalog.architecture("gpt2"), depth=6, vocabulary=1000)
    build, needs, named = partial(architectures.build, shape), {}, {}
    for sharding, released in (("full", True), ("hpz", 8)):
        options = {"reshard_after_forward": released}
        (row,) = fit(build, 64, length=64, stages="fsdp2", checkpointing="none", options=options).rows
        job = Job(shape, 64, "bf16", 1, 64, scheme="fsdp2", sharding=sharding)
        needs[sharding], named[sharding] = row["needs"], sum(moments(job, "zero3")[row["highest in"]].values())
    assert needs["hpz"] - needs["full"] == pytest.approx(named["hpz"] - named["full"], rel=0.01)


def test_ranks_that_divide_a_row_keep_a_part_of_what_it_takes_and_all_of_the_state():
    """Llama 3 8B on 262,144 tokens, eight GPUs together, as torchtitan published it."""
    row = {"length": 262_144, "checkpointing": "block", "scheme": "fsdp2", "logits": "fp32"}
    together, alone = last(LLAMA, 8, context=8, **row), last(LLAMA, 8, **row | {"length": 32_768})
    run = Run(LLAMA, 8, length=262_144)
    inputs = 32 * 2 * 4096 * 32_768  # of 32 blocks, a bf16 number for each of 4096 of a token
    assert parallel.context(run, 8).activations == inputs
    norm_and_output, logits = (2 * 2 * 4096 + 4) * 32_768, 4 * 4 * 128_256 * 32_768
    assert together["activations GB"] * 1e9 == pytest.approx(inputs + norm_and_output + logits)
    assert together["needs GB"] == alone["needs GB"]
    assert together["state GB"] == alone["state GB"] == pytest.approx(16 * LLAMA.num_params / 8 / 1e9)


def test_a_ring_gathers_keys_and_values_in_backward_beside_their_gradients_in_fp32():
    job = Job(LLAMA, 8, "bf16", 1, 65_536, "block", context=8)
    alone = replace(job, length=8_192, context=1)
    name = f"attention of blocks.{LLAMA.depth - 1}"
    more = moments(job, "zero3")[name]["activations"] - moments(alone, "zero3")[name]["activations"]
    keys_and_values = 2 * 1024 * 8_192  # eight of 32 heads, so a quarter of the width
    assert more == keys_and_values * (8 * 2 + 2 * 4)
    for name in ("loss", "update"):
        assert moments(job, "zero3")[name] == moments(alone, "zero3")[name]


@pytest.mark.parametrize("checkpointing", ["none", "block"])
def test_a_ring_sends_what_the_form_says(checkpointing):
    given = {"length": 65_536, "bandwidth": RATE, "checkpointing": checkpointing}
    ring, plain = (last(LLAMA, 8, context=ranks, **given)["communication_seconds"] for ranks in (8, 1))
    run = Run(LLAMA, 8, length=65_536, checkpointing=checkpointing)
    assert (ring - plain) * RATE == pytest.approx(parallel.context(run, 8).sent["context"])


def test_attention_hides_a_ring_of_long_rows_within_a_node_and_not_one_of_short_rows_between_nodes():
    long, short = (
        theory.plan(LLAMA, 64, context=ranks, length=length, network=network, checkpointing="block").steps["zero3"]
        for ranks, length, network in ((8, 131_072, "infiniband-ndr"), (64, 8_192, "ethernet-100g"))
    )
    assert long.waiting < long.sending < long.computing
    assert short.waiting > short.computing


def test_a_no_under_hybrid_sharding_tries_a_second_shard_before_it_tries_none():
    plan = theory.plan("llama3-70b", 64, sharding="hybrid", scheme="fsdp2", checkpointing="block")
    tried = [row["try"] for row in plan.remedies]
    assert tried.index("sharding='hpz'") + 1 == tried.index("sharding='full'") < tried.index("tensor=2")
    assert tried.index("tensor=8") < tried.index("context=2")


def test_settings_have_the_second_shard_and_the_divided_rows_where_a_system_has_them():
    found = theory.plan("llama2-13b", 64, sharding="hpz", scheme="fsdp2").settings("zero3")
    assert "fully_shard(block, reshard_after_forward=8, mp_policy=policy)" in found["fsdp2"]
    assert found["deepspeed"]["zero_optimization"] == {"stage": 3, "zero_hpz_partition_size": 8}
    assert found["accelerate"] is None
    assert settings("zero2", second_shard=8)["fsdp2"] == settings("zero2")["fsdp2"]
    rows = theory.plan(LLAMA, 16, context=8, scheme="megatron", checkpointing="block").settings("zero1")
    assert rows["megatron"].endswith(" --context-parallel-size 8")
    assert (rows["fsdp2"], rows["accelerate"], rows["deepspeed"]) == (None, None, None)


@pytest.mark.parametrize(
    ("model", "world_size", "options"),
    [
        ("llama-30b", 8, {"context": 4}),
        ("gpt3-175b", 8, {"context": 8}),
        ("llama3-70b", 8, {"gpus_per_node": 12}),
        ("gpt3-175b", 6, {"tensor": 3}),
        ("7b", 6, {"sharding": "hybrid", "memory": 8e9}),
        ("7b", 8, {"attention": "math", "memory": 8e9}),
    ],
)
def test_a_no_leaves_out_what_does_not_come_out_even(model, world_size, options):
    plan = theory.plan(model, world_size, **options)
    assert not plan.fitting
    assert "GB" in plan.answer
    assert plan.remedies


def test_a_second_shard_is_advised_only_for_the_stage_that_has_one():
    plan = theory.plan("llama-65b", 64, sharding="hybrid", scheme="megatron")
    tried = [row["try"] for row in plan.remedies]
    assert "sharding='full'" in tried
    assert "sharding='hpz'" not in tried
    assert theory.plan("llama3-8b", 16, sharding="hpz").settings("zero1")["accelerate"] is not None


@pytest.mark.parametrize(
    ("model", "gpu", "with_these", "options"),
    [
        ("1t", "a100-40gb", "world_size=1024, checkpointing='block', tensor=4", {"tensor": 4}),
        ("llama3-405b", "h100", "world_size=128, checkpointing='block', tensor=8", {"tensor": 8}),
    ],
)
@pytest.mark.parametrize("gpus", [1, 8])
def test_more_gpus_divide_matrices_even_where_those_at_hand_are_too_few_for_that(gpus, model, gpu, with_these, options):
    """One GPU has nothing to divide them among, and was told to divide rows, or that nothing helps."""
    answer = theory.plan(model, gpus, gpu=gpu).answer
    assert f"With {with_these} it needs" in answer
    followed = theory.plan(model, int(with_these[11:].split(",")[0]), gpu=gpu, checkpointing="block", **options)
    assert "zero3" in followed.fitting


def test_on_more_gpus_a_loss_without_stored_logits_is_tried_before_rows_are_divided_further():
    answer = theory.plan("llama3-8b", 1, length=2**20).answer
    assert "With world_size=16, checkpointing='block', logits='fused', tensor=8, context=2 it needs" in answer
    more = {"length": 2**20, "checkpointing": "block", "logits": "fused"}
    assert theory.plan("llama3-8b", 16, tensor=8, context=2, **more).fitting
    # Eight need no more of them.
    assert "moments='8-bit', offload=True, context=8 it needs" in theory.plan("llama3-8b", 8, length=2**20).answer
    assert theory.plan("llama3-8b", 8, moments="8-bit", offload=True, context=8, **more).fitting


def test_where_a_second_shard_is_more_than_stage_2_keeps_a_no_names_that_one():
    plan = theory.plan("llama-7b", 16, sharding="hpz", gpus_per_node=1, memory=20e9)
    assert plan[3]["needs GB"] > plan[2]["needs GB"]
    assert plan.answer.startswith(f"No: even zero2 needs {plan[2]['needs GB']:.1f} GB")
    assert " zero3 needs 17.7 GB, and fits." in plan.answer


def test_rows_are_not_divided_where_attention_keeps_its_matrix():
    with pytest.raises(ValueError, match="attention is 'math', and where ranks share a row it is fused"):
        theory.plan(LLAMA, 16, context=2, attention="math")
