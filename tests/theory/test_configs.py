"""Other systems take what the planner says to type, and do the same with it."""

import json
from importlib.util import find_spec

import pytest
import torch

from zerolab import Cluster, catalog, models, simulate, theory
from zerolab.simulation import architectures
from zerolab.theory.activations import CHECKPOINTING, kept_by_a_block
from zerolab.theory.configs import settings


def test_a_stage_or_a_checkpointing_that_is_none_is_told():
    with pytest.raises(ValueError, match="unknown stage 'zero4': choose one of ddp"):
        settings("zero4")
    with pytest.raises(ValueError, match="unknown checkpointing 'full': choose one of none"):
        settings("zero3", checkpointing="full")
    with pytest.raises(ValueError, match="unknown moments '8bit': choose one of fp32, 8-bit"):
        settings("zero3", moments="8bit")
    with pytest.raises(ValueError, match=r"unknown precision 'bf17': .* did you mean 'bf16'"):
        settings("zero3", "bf17")


@pytest.mark.parametrize("name", ["rows", "tensor", "context", "micro_batches"])
def test_counts_below_one_are_told(name):
    with pytest.raises(ValueError, match=f"value of {name} is 0: it must be a whole number"):
        settings("zero1", **{name: 0})


def test_on_a_mesh_fsdp2_divides_by_the_ranks_that_shard():
    assert "16 bytes a parameter, divided by all ranks" in settings("zero3")["fsdp2"]
    assert "16 bytes a parameter, divided by the 8 ranks that shard" in settings("zero3", mesh=(2, 8))["fsdp2"]


def test_a_system_that_lacks_a_stage_has_no_lines_for_it():
    assert settings("zero1")["fsdp2"] is None
    assert settings("zero3")["megatron"] is None
    assert settings("ddp")["megatron"] == "--micro-batch-size 1 --bf16"
    assert settings("zero1", rows=2, checkpointing="block")["megatron"] == (
        "--micro-batch-size 2 --bf16 --use-distributed-optimizer --recompute-granularity full "
        "--recompute-method uniform --recompute-num-layers 1"
    )


@pytest.mark.parametrize("kind", ["gpt", "llama"])
@pytest.mark.parametrize("checkpointing", CHECKPOINTING)
def test_the_lines_that_checkpoint_keep_what_the_planner_counts(checkpointing, kind):
    """Run on a simulated GPU, where each byte of a block is told."""
    shape = catalog.Architecture("tiny", kind, 64, 4, 3, 128, 100, "a test", hidden=96, kv_heads=2)
    tokens = torch.zeros(2, 96, dtype=torch.int64)

    def build():
        model = architectures.build(shape)
        exec(settings("zero1", checkpointing=checkpointing)["checkpointing"] or "", {"blocks": model.blocks})  # noqa: S102
        return model

    events = simulate("ddp", 1, build, batches=[(tokens, tokens)]).recordings["ddp"].rank(0).events
    live = [event.live["activations"] for event in events if event.op == "forward" and event.unit.startswith("blocks")]
    per_block = sum(kept_by_a_block(shape, 2, 96, 4, checkpointing=checkpointing).values())
    assert live[-1] - live[-2] == per_block


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
@pytest.mark.parametrize("precision", ["fp32", "bf16", "fp16"])
@pytest.mark.parametrize("stage", ["zero2", "zero3"])
def test_fsdp2_runs_the_lines_that_the_planner_gives(cluster, stage, precision):
    for kind, dtype, whole in cluster.run(run_fsdp2, settings(stage, precision)["fsdp2"], precision):
        assert kind == "DTensor" or stage == "zero2"
        assert dtype == {"fp32": "torch.float32", "bf16": "torch.bfloat16", "fp16": "torch.float16"}[precision]
        assert whole == (stage == "zero2")  # stage 2 keeps the parameters from forward to backward


@pytest.mark.parametrize("precision", ["fp32", "bf16"])
@pytest.mark.parametrize("stage", theory.STAGES)
def test_accelerate_reads_from_the_file_what_the_planner_means(tmp_path, stage, precision):
    from accelerate.commands.launch import _validate_launch_command, launch_command_parser
    from accelerate.utils.launch import prepare_multi_gpu_env

    file = tmp_path / "accelerate.yaml"
    file.write_text("num_processes: 2\n" + settings(stage, precision)["accelerate"])
    arguments = launch_command_parser().parse_args(["--config_file", str(file), "train.py"])
    arguments, _, _ = _validate_launch_command(arguments)
    assert (arguments.use_fsdp, arguments.use_deepspeed) == (stage in ("zero2", "zero3"), stage == "zero1")
    assert arguments.mixed_precision == (precision if precision == "bf16" else "no")
    if stage == "zero1":
        assert arguments.zero_stage == 1
    if stage in ("zero2", "zero3"):
        environment = prepare_multi_gpu_env(arguments)
        assert environment["FSDP_VERSION"] == "2"
        assert environment["FSDP_RESHARD_AFTER_FORWARD"] == str(stage == "zero3").lower()


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
    sizes = engine.train_micro_batch_size_per_gpu(), engine.gradient_accumulation_steps()
    return engine.zero_optimization_stage(), engine.bfloat16_enabled(), *sizes


@pytest.mark.slow
@pytest.mark.deepspeed
@pytest.mark.parametrize(
    ("stage", "precision", "options"),
    [
        ("ddp", "fp32", {}),
        ("zero1", "bf16", {"offload": True}),
        ("zero2", "fp32", {"offload": True}),
        ("zero3", "bf16", {"micro_batches": 2, "moments": "8-bit"}),
    ],
)
def test_deepspeed_trains_with_the_configuration_that_the_planner_gives(cluster, require, stage, precision, options):
    require(find_spec("deepspeed"), "DeepSpeed", 'pip install -c constraints.txt -e ".[deepspeed]"')
    batches = [models.batches("gpt-tiny", 2, rank, 1)[0] for rank in range(2)]
    text = json.dumps(settings(stage, precision, 4, **options)["deepspeed"])
    number = {"ddp": 0, "zero1": 1, "zero2": 2, "zero3": 3}[stage]
    expected = (number, precision == "bf16", 4, options.get("micro_batches", 1))
    assert cluster.run(run_deepspeed, text, batches) == [expected] * 2


def test_an_optimizer_in_main_memory_has_settings_only_where_a_system_moves_it_there():
    ddp = theory.plan("7b", 8, offload=True).settings()
    assert [ddp[system] for system in ("fsdp2", "accelerate", "deepspeed", "megatron")] == [None] * 4
    assert ddp["not covered"] == (
        "Optimizer in main memory: no system here has that under ddp. Take the settings of zero1."
    )
    for stage in ("zero1", "zero2", "zero3"):
        found = settings(stage, offload=True)
        assert found["deepspeed"]["zero_force_ds_cpu_optimizer"] is False
        assert found["not covered"] is None
        assert "zero_force_ds_cpu_optimizer" not in settings(stage)["deepspeed"]


def test_what_made_a_plan_fit_is_said_where_no_setting_has_it():
    moments = theory.plan("llama2-7b", 1, gpu="h200", checkpointing="block", length=512, moments="8-bit")
    assert "torchao.optim.AdamW8bit in place of torch.optim.AdamW" in moments.settings()["not covered"]
    assert moments.settings("zero1")["deepspeed"]["zero_allow_untested_optimizer"] is True
    both = theory.plan("llama3-8b", 8, moments="8-bit", logits="fused").settings("zero3")["not covered"]
    assert both.startswith("Moments in 8 bits: ")
    assert "LigerFusedLinearCrossEntropyLoss" in both.splitlines()[1]
    assert theory.plan("7b", 8).settings()["not covered"] is None
    several = settings("zero1", rows=2, micro_batches=4)
    assert several["deepspeed"]["gradient_accumulation_steps"] == 4
    assert several["accelerate"].endswith("  gradient_accumulation_steps: 4\n")
    assert "--global-batch-size of 4 times 2 times the data-parallel ranks" in several["not covered"]


def test_settings_on_two_levels_and_in_main_memory_are_given_where_a_system_has_them():
    hybrid = settings("zero3", mesh=(4, 8))
    assert 'init_device_mesh("cuda", (4, 8), mesh_dim_names=("replicate", "shard"))' in hybrid["fsdp2"]
    assert hybrid["fsdp2"].count("mesh=mesh") == 2
    assert (hybrid["accelerate"], hybrid["deepspeed"], hybrid["megatron"]) == (None, None, None)
    offloaded = settings("zero3", offload=True)
    assert offloaded["fsdp2"].count("offload_policy=CPUOffloadPolicy()") == 2
    assert offloaded["deepspeed"]["zero_optimization"]["offload_optimizer"] == {"device": "cpu"}
    assert "fsdp_offload_params: true" in offloaded["accelerate"]
    divided = settings("zero1", tensor=8)
    assert divided["megatron"].endswith("--tensor-model-parallel-size 8 --sequence-parallel")
    assert (divided["fsdp2"], divided["deepspeed"]) == (None, None)


@pytest.mark.slow
def test_fsdp2_runs_the_lines_for_two_levels(cluster):
    lines = settings("zero3", "bf16", mesh=(1, 2))["fsdp2"].replace('"cuda"', '"cpu"')
    assert cluster.run(run_fsdp2, lines, "bf16") == [("DTensor", "torch.bfloat16", False)] * 2
