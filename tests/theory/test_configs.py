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


@pytest.mark.parametrize("name", ["rows", "tensor", "context", "micro_batches", "second_shard"])
def test_counts_below_one_are_told(name):
    with pytest.raises(ValueError, match=f"value of {name} is 0: it must be a whole number"):
        settings("zero1", **{name: 0})


@pytest.mark.parametrize(
    ("wrong", "says"),
    [
        ({"offload": "no"}, "unknown offload 'no': choose one of False, True"),
        ({"offload": 2}, "unknown offload 2"),
        ({"mesh": 8}, "mesh is 8: it must be a pair, of how many replicas and how many shards"),
        ({"mesh": (2, 4, 8)}, "must be a pair"),
        ({"mesh": (0, 8)}, "number of replicas in mesh is 0: it must be a whole number"),
        ({"mesh": (2, 1.5)}, r"number of shards in mesh is 1\.5"),
    ],
)
def test_an_offload_and_a_mesh_that_cannot_be_are_told(wrong, says):
    with pytest.raises(ValueError, match=says):
        settings("zero3", **wrong)


def test_counts_are_written_as_whole_numbers():
    given = {"rows": 2, "micro_batches": 4, "second_shard": 8, "tensor": 1, "context": 1}
    for stage in ("zero1", "zero3"):
        floats = {name: float(count) for name, count in given.items()}
        assert repr(settings(stage, **floats, offload=1.0)) == repr(settings(stage, **given, offload=True))
    assert repr(settings("zero3", mesh=(2.0, 8.0))) == repr(settings("zero3", mesh=(2, 8)))


def test_on_a_mesh_fsdp2_divides_by_the_ranks_that_shard():
    assert "16 bytes a parameter, divided by all ranks" in settings("zero3")["fsdp2"]
    assert "16 bytes a parameter, divided by the 8 ranks that shard" in settings("zero3", mesh=(2, 8))["fsdp2"]


def test_a_system_that_lacks_a_stage_has_no_lines_for_it():
    assert settings("zero1")["fsdp2"] is None
    assert settings("zero3")["megatron"] is None
    assert settings("ddp")["megatron"] == "--micro-batch-size 1 --bf16"
    assert [settings("ddp", **more)["megatron"] for more in ({"offload": True}, {"moments": "8-bit"})] == [None, None]
    assert settings("zero1", rows=2, checkpointing="block")["megatron"] == (
        "--micro-batch-size 2 --bf16 --use-distributed-optimizer --recompute-granularity full "
        "--recompute-method uniform --recompute-num-layers 1"
    )


def test_megatron_is_not_given_a_selection_or_a_loss_that_it_does_not_have():
    for scheme in ("zerolab", "deepspeed"):
        plan = theory.plan("gpt2", 8, scheme=scheme, checkpointing="selective")
        found = plan.settings("zero1")
        assert found["megatron"] is None
        assert found["not covered"].startswith("Selective checkpointing: Megatron's is another.")
    assert settings("zero3", checkpointing="selective")["not covered"] is None  # no Megatron there
    assert settings("zero1", logits="fused")["megatron"] is None
    assert settings("zero1", logits="fused")["not covered"].endswith("Megatron has none.")


def test_megatron_keeps_the_optimizer_in_main_memory_and_moments_in_8_bits():
    offloaded, eight = (settings("zero1", **more) for more in ({"offload": True}, {"moments": "8-bit"}))
    before = "--micro-batch-size 1 --bf16 --use-distributed-optimizer --use-precision-aware-optimizer"
    assert offloaded["megatron"] == f"{before} --optimizer-cpu-offload"
    assert eight["megatron"] == f"{before} --exp-avg-dtype fp8 --exp-avg-sq-dtype fp8"
    assert "keeps them in fp8, and has all of them in fp32 during the update" in eight["not covered"]
    assert settings("zero1", "fp32", moments="8-bit")["megatron"] is None


def test_a_loss_in_fp16_has_to_be_scaled_where_lines_alone_do_not():
    assert "scale it with torch.amp.GradScaler" in settings("zero3", "fp16")["not covered"]
    assert settings("zero1", "fp16")["not covered"] is settings("zero3")["not covered"] is None


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


def run_scaled(lines):
    """Trains two steps in fp16 with a scaled loss, which overflows on rank 0 in the first: which of them updated."""
    model = models.build("gpt-tiny")
    exec(lines, {"model": model, "blocks": model.blocks})  # noqa: S102
    optimizer, scaler = torch.optim.AdamW(model.parameters()), torch.amp.GradScaler("cpu", init_scale=1.0)
    rank, updated = torch.distributed.get_rank(), []
    for number, (inputs, targets) in enumerate(models.batches("gpt-tiny", 2, rank, 2)):
        before = model.blocks[0].state_dict()
        before = {name: value.to_local().clone() for name, value in before.items()}
        overflow = float("inf") if (number, rank) == (0, 0) else 1.0
        scaler.scale(models.loss(model(inputs), targets) * overflow).backward()
        scaler.step(optimizer)
        scaler.update()
        optimizer.zero_grad()
        after = model.blocks[0].state_dict()
        updated.append(any((after[name].to_local() != value).any().item() for name, value in before.items()))
    return updated


@pytest.mark.slow
def test_torchs_scaler_leaves_out_the_update_on_all_ranks_of_fsdp2(cluster):
    assert cluster.run(run_scaled, settings("zero3", "fp16")["fsdp2"]) == [[False, True]] * 2


@pytest.mark.parametrize("precision", ["fp32", "bf16"])
@pytest.mark.parametrize(
    ("stage", "mesh"), [*((stage, None) for stage in theory.STAGES), ("zero2", (1, 2)), ("zero3", (1, 2))]
)
def test_accelerate_reads_from_the_file_what_the_planner_means(tmp_path, require, stage, mesh, precision):
    require(find_spec("accelerate"), "accelerate", "pip install 'zerolab[test]'")
    from accelerate.commands.launch import _validate_launch_command, launch_command_parser
    from accelerate.utils.launch import prepare_multi_gpu_env

    file = tmp_path / "accelerate.yaml"
    file.write_text("num_processes: 2\n" + settings(stage, precision, mesh=mesh)["accelerate"])
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
        sizes = [environment.get(f"PARALLELISM_CONFIG_DP_{name}_SIZE") for name in ("REPLICATE", "SHARD")]
        assert sizes == (["1", "2"] if mesh else [None, None])


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
    assert (hybrid["deepspeed"], hybrid["megatron"]) == (None, None)
    megatron = theory.plan("gpt2", 32, sharding="hybrid", tensor=4, scheme="megatron").settings("zero1")
    assert "--use-distributed-optimizer --num-distributed-optimizer-instances 4" in megatron["megatron"]
    assert theory.plan("gpt2", 16, sharding="hybrid").settings("ddp") == settings("ddp")
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
