"""The planner says which stages fit, no with the number that is missing, and settings that other systems take."""

import json
from importlib.util import find_spec

import pytest
import torch

from zerolab import Cluster, models, simulate, theory
from zerolab.planner import PUBLISHED_UTILISATION, as_json, settings


def test_seven_billion_parameters_fit_eight_gpus_only_when_sharded():
    rows = {row["stage"]: row for row in theory.plan("7b", 8, 80e9)}
    assert not rows["ddp"]["fits"]
    assert rows["ddp"]["missing GB"] == pytest.approx(rows["ddp"]["needs GB"] - 80)
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


def test_what_is_needed_is_the_sum_of_the_parts():
    for row in theory.plan("gpt2-xl", 4, batch=2):
        assert row["needs GB"] == pytest.approx(row["state GB"] + row["unit buffers GB"] + row["activations GB"])


@pytest.mark.parametrize("precision", ["fp32", "bf16"])
@pytest.mark.parametrize("model", ["gpt2", "gpt2-xl", "7b"])
def test_it_promises_no_less_than_the_engines_need_at_their_peak(model, precision):
    """A small model's logits are most of it: 50,257 words of each token."""
    simulated = simulate(world_size=8, model=model, precision=precision).rows
    for planned, row in zip(theory.plan(model, 8, precision=precision), simulated, strict=True):
        assert planned["stage"] == row["stage"]
        assert 1 <= planned["needs GB"] * 1e9 / sum(row["peak"].values()) < 1.6, row["stage"]


def test_a_llamas_activations_are_counted_by_its_gated_mlp_and_its_vocabulary():
    """Simulated on shapes, where its norms are not fused: those keep three widths more a token and block."""
    activations = 4 * 2048 * (32 * (8 * 4096 + 4 * 11008) + 4 * 32000) / 1e9
    assert [row["activations GB"] for row in theory.plan("llama-7b", 8, precision="fp32")] == [activations] * 4
    norms = 4 * 2048 * 32 * 3 * 4096 / 1e9
    (row,) = simulate("zero3", 8, "llama-7b").rows
    assert row["peak"]["activations"] / 1e9 == pytest.approx(activations + norms, rel=0.06)


def test_stage_3_sends_half_as_much_again():
    seconds = [row["communication_seconds"] for row in theory.plan("7b", 8)]
    assert seconds[3] == pytest.approx(1.5 * seconds[0])


def test_seconds_of_computing_follow_the_utilisation_and_those_of_sending_do_not():
    slow, fast = (theory.plan("7b", 8, utilisation=part)[3] for part in (0.2, 0.4))
    assert slow["compute_seconds"] == pytest.approx(2 * fast["compute_seconds"])
    assert slow["communication_seconds"] == fast["communication_seconds"]
    # 6 operations a parameter and token: 7e9 parameters, 2048 tokens, 40 % of 989.5e12 a second.
    assert fast["compute_seconds"] == pytest.approx(6 * 7e9 * 2048 / (0.4 * 989.5e12))


def test_it_says_how_far_its_seconds_depend_on_the_utilisation():
    at_40, at_50 = (theory.plan("7b", 8, 80e9, utilisation=part) for part in (0.4, 0.5))
    seconds = [6 * 7e9 * 2048 / (part * 989.5e12) for part in (0.4, *PUBLISHED_UTILISATION)]
    assert at_40.sensitivity == (
        "A step of zero1 computes for {:.3g} s at 40% of the GPU's dense rate; FSDP2 was published with 33% to 58%, "
        "which makes {:.3g} to {:.3g} s. It sends for {:.3g} s."
    ).format(*seconds, at_40[1]["communication_seconds"])
    assert at_50.sensitivity.partition(";")[2] == at_40.sensitivity.partition(";")[2]
    assert "A step of zero3 computes" in theory.plan("gpt3-175b", 8, 80e9).sensitivity


def test_the_default_utilisation_is_one_that_was_published():
    low, high = PUBLISHED_UTILISATION
    assert low < theory.plan("7b", 8).utilisation < high


def test_a_yes_names_the_stages_that_fit_and_what_the_others_lack():
    plan = theory.plan("7b", 8, 80e9)
    lacking = plan[0]["missing GB"]
    assert plan.fitting == ["zero1", "zero2", "zero3"]
    assert plan.answer == f"Fits: zero1, zero2, zero3. ddp lacks {lacking:.1f} GB."


def test_a_no_names_the_number_that_is_missing():
    plan = theory.plan("gpt3-175b", 8, 80e9)
    assert plan.fitting == []
    needs = plan[3]["needs GB"]
    assert f"No: even zero3 needs {needs:.1f} GB of 80 GB on each GPU, {needs - 80:.1f} GB are missing" in plan.answer
    with pytest.raises(ValueError, match="No: even zero3"):
        plan.settings()


def test_more_gpus_of_the_same_memory_make_it_fit_where_the_state_is_what_is_too_large():
    few, many = (theory.plan("llama-65b", gpus, 80e9) for gpus in (8, 1024))
    assert few.answer.endswith("Take more GPUs, larger ones, or fewer rows.")
    assert many.fitting == ["zero3"]


def test_where_activations_alone_are_too_large_it_does_not_send_for_more_gpus():
    plan = theory.plan("gpt3-175b", 1024, 80e9)
    undivided = plan[3]["unit buffers GB"] + plan[3]["activations GB"]
    assert f"More GPUs would not help: unit buffers and activations alone take {undivided:.1f} GB" in plan.answer


@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        ({"gpus": 0}, "world size is 0"),
        ({"gpus": 8, "bandwidth": 0}, "bandwidth is 0"),
        ({"gpus": 8, "bandwidth": 50}, "bandwidth is 50: it is in bytes a second, at least a million .50 GB/s is 50e9"),
        ({"gpus": 8, "memory": -1}, "memory is -1"),
        ({"gpus": 8, "memory": 80}, "memory is 80: it is in bytes, at least a million .80 GB is 80e9, 80 GiB is 80"),
        ({"gpus": 8, "memory": float("nan")}, "memory is nan"),
        ({"gpus": 8, "batch": 0}, "batch is 0"),
        ({"gpus": 8, "batch": 1.5}, "batch is 1.5: it is a whole number of rows"),
        ({"gpus": 8, "precision": "fp8"}, "fp8"),
        ({"gpus": 8, "utilisation": 0}, "utilisation is 0: it is a part"),
        ({"gpus": 8, "utilisation": 40}, "utilisation is 40: it is a part"),
        ({"gpus": 8, "gpu": "h10"}, "nearest: h100"),
    ],
)
def test_bad_input_gets_a_sentence(arguments, says):
    with pytest.raises(ValueError, match=says):
        theory.plan("7b", **arguments)


def test_a_stage_that_is_none_is_told():
    with pytest.raises(ValueError, match="unknown stage 'zero4': choose one of ddp"):
        settings("zero4")


def test_the_plans_settings_are_those_of_the_first_stage_that_fits():
    plan = theory.plan("7b", 8, 80e9, batch=2)
    assert plan.settings() == settings("zero1", "bf16", 2)
    assert plan.settings("zero3")["deepspeed"]["train_micro_batch_size_per_gpu"] == 2
    assert settings("zero1")["fsdp2"] is None


# --- other systems take the settings ---------------------------------------------------------------------------------


def run_fsdp2(lines, precision):
    """Runs the lines on a tiny model, trains a step, and says what is sharded, computed in, and whole after forward."""
    model = models.build("gpt-tiny")
    exec(lines, {"model": model, "blocks": model.blocks})  # noqa: S102  (the lines are what is tested)
    optimizer = torch.optim.AdamW(model.parameters())
    [(inputs, targets)] = models.batches("gpt-tiny", 2, torch.distributed.get_rank(), 1)
    seen = []
    model.blocks[0].register_forward_hook(lambda _, __, output: seen.append(str(output.dtype)))
    outputs = model(inputs)
    weight = next(model.blocks[0].parameters())
    whole = weight.numel() == weight.to_local().numel() if hasattr(weight, "to_local") else True
    models.loss(outputs, targets).backward()
    optimizer.step()
    return type(next(model.parameters())).__name__, seen[0], whole


@pytest.fixture(scope="module")
def cluster():
    with Cluster(world_size=2, device="cpu", timeout=60) as cluster:
        yield cluster


@pytest.mark.slow
@pytest.mark.parametrize("precision", ["fp32", "bf16"])
@pytest.mark.parametrize("stage", ["zero2", "zero3"])
def test_fsdp2_runs_the_lines_that_the_planner_gives(cluster, stage, precision):
    for kind, dtype, whole in cluster.run(run_fsdp2, settings(stage, precision)["fsdp2"], precision):
        assert kind == "DTensor" or stage == "zero2"
        assert dtype == {"fp32": "torch.float32", "bf16": "torch.bfloat16"}[precision]
        assert whole == (stage == "zero2")  # stage 2 keeps the parameters from forward to backward


def run_deepspeed(text, rank_batches):
    """Trains a step under DeepSpeed with the configuration as it would stand in a file; its stage and precision."""
    import torch.distributed as dist

    from zerolab.engines.deepspeed import import_deepspeed

    deepspeed = import_deepspeed("cpu")
    model = models.build("gpt-tiny")
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
    configuration = json.loads(text) | {"zero_allow_untested_optimizer": True}
    engine, _, _, _ = deepspeed.initialize(
        model=model, optimizer=optimizer, config=configuration, dist_init_required=False
    )
    inputs, targets = rank_batches[dist.get_rank()]
    engine.backward(models.loss(engine(inputs), targets))
    engine.step()
    return engine.zero_optimization_stage(), engine.bfloat16_enabled(), engine.train_micro_batch_size_per_gpu()


@pytest.mark.slow
@pytest.mark.deepspeed
@pytest.mark.parametrize(
    ("stage", "precision"), [("ddp", "fp32"), ("zero1", "bf16"), ("zero2", "fp32"), ("zero3", "bf16")]
)
def test_deepspeed_trains_with_the_configuration_that_the_planner_gives(cluster, require, stage, precision):
    require(find_spec("deepspeed"), "DeepSpeed", 'pip install "zerolab[deepspeed]"')
    batches = [models.batches("gpt-tiny", 2, rank, 1)[0] for rank in range(2)]
    text = as_json(settings(stage, precision, 4)["deepspeed"])
    number = {"ddp": 0, "zero1": 1, "zero2": 2, "zero3": 3}[stage]
    assert cluster.run(run_deepspeed, text, batches) == [(number, precision == "bf16", 4)] * 2
