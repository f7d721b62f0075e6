"""Published numbers of other systems come out here: torch's recipe, DeepSpeed's estimators, the FSDP paper's forms."""

from importlib.util import find_spec

import pytest
import torch
from torch import nn

from zerolab import Cluster, models, theory
from zerolab.engines import ENGINES
from zerolab.engines.partition import partition
from zerolab.facts.evidence import Evidence
from zerolab.theory import systems

pytestmark = pytest.mark.slow
WORLD = 4


@pytest.fixture(scope="module")
def evidence():
    with Cluster(world_size=WORLD, device="cpu") as cluster:
        yield Evidence(cluster)


# --- torch's recipe for ZeroRedundancyOptimizer: 20 x Linear(2000, 2000), two ranks, Adam --------------------------


def optimizer_bytes_of_the_recipe(stage):
    """One step on one row; bytes of what the optimizer keeps, step counters apart."""
    model = nn.Sequential(*(nn.utils.skip_init(nn.Linear, 2000, 2000) for _ in range(20)))  # values do not matter
    engine = ENGINES[stage](model, torch.optim.Adam, lr=0.01)
    engine.training_step(torch.ones(1, 2000), torch.zeros(1, 2000), models.loss)
    kept = [holding.tensor for holding in engine.holdings() if holding.category == "optimizer_state"]
    return sum(tensor.nbytes for tensor in kept if tensor.dim())


def test_torchs_recipe_halves_the_optimizer_state_from_640_to_320_megabytes():
    with Cluster(world_size=2, device="cpu", timeout=120) as cluster:
        whole = cluster.run(optimizer_bytes_of_the_recipe, "torch-ddp")
        halved = cluster.run(optimizer_bytes_of_the_recipe, "torch-zero1")
    assert [round(nbytes / 1e6, 1) for nbytes in whole] == [640.3, 640.3]
    assert [round(nbytes / 1e6, 1) for nbytes in halved] == [320.2, 320.2]
    num = 20 * (2000 * 2000 + 2000)
    assert whole[0] == theory.state_bytes("ddp", num, 2)["optimizer_state"]
    assert halved[0] == theory.state_bytes("zero1", num, 2)["optimizer_state"]


# --- DeepSpeed's estimators beside ours ------------------------------------------------------------------------------


@pytest.mark.deepspeed
@pytest.mark.parametrize("num", [2_851_598_336, 212_352, 1_000_001])
@pytest.mark.parametrize("gpus", [1, 8, 64])
def test_deepspeeds_estimate_is_the_papers_form_and_named_terms(require, num, gpus):
    require(find_spec("deepspeed"), "DeepSpeed", 'pip install -c constraints.txt -e ".[deepspeed]"')
    from deepspeed.runtime.zero.stage3 import estimate_zero3_model_states_mem_needs as of_stage_3
    from deepspeed.runtime.zero.stage_1_and_2 import estimate_zero2_model_states_mem_needs as of_stage_2

    largest = num // 10
    _, second = of_stage_2(num, gpus, 1, cpu_offload=False)
    _, third, _ = of_stage_3(num, largest, gpus, 1, cpu_offload=False, cpu_offload_params=False)
    rounded = 3  # each term is rounded down to bytes, and theirs only in the end
    assert sum(systems.deepspeed_estimate("zero2", num, gpus).values()) == pytest.approx(second, abs=rounded, rel=0)
    assert sum(systems.deepspeed_estimate("zero3", num, gpus, largest).values()) == pytest.approx(
        third, abs=rounded, rel=0
    )


def test_the_4_of_18_is_the_fp32_copy_of_the_gradients_that_our_terms_have_too():
    layouts = partition(models.build("gpt-tiny"), WORLD)
    num = sum(layout.numel for layout in layouts)
    for stage in ("zero2", "zero3"):
        ours, theirs = theory.terms(stage, layouts, WORLD, "bf16"), systems.deepspeed_estimate(stage, num, WORLD)
        assert ours["fp32_gradient_shard"] == theirs["fp32_gradient_shard"] == 4 * num // WORLD
    assert systems.deepspeed_estimate("zero3", num, WORLD)["parameters_not_counted"] == -2 * num // WORLD


def test_deepspeed_has_no_estimate_for_stage_1():
    with pytest.raises(ValueError, match="no estimate for 'zero1': choose zero2 or zero3"):
        systems.deepspeed_estimate("zero1", 1000, 4)
    for largest in (-5, 1001):
        with pytest.raises(ValueError, match=f"the largest layer has {largest} of 1000 parameters: give none to all"):
            systems.deepspeed_estimate("zero3", 1000, 4, largest)


# --- FSDP, arXiv 2304.11277, section 3.2: M bytes of model, W ranks, G ranks in a host ---------------------------


def sent(recording, crosses=None):
    """Bytes that rank 0 sent in the last step, to all or only within groups for which `crosses` holds."""
    events = [e for e in recording.ranks[0].events if e.kind == "collective" and e.parent is None]
    last = [e for e in events if e.step == recording.info.steps]
    return sum(e.logical_bytes for e in last if crosses is None or crosses(e))


def test_full_replication_sends_2m_w_minus_1_over_w(evidence):
    recording = evidence.recording("torch-ddp")
    bytes_of_model = 4 * recording.num_params
    gradients = sent(recording, lambda event: event.op == "all_reduce")
    assert gradients == 2 * bytes_of_model * (WORLD - 1) // WORLD
    assert sent(recording) - gradients == 162  # once, in the second step, DDP tells all ranks its new order of buckets


def test_full_sharding_sends_3m_w_minus_1_over_w(evidence):
    recording = evidence.recording("fsdp2", reshard_after_forward=True)
    assert sent(recording) == 3 * 4 * recording.num_params * (WORLD - 1) // WORLD


def test_by_default_fsdp_keeps_the_root_unit_whole_and_sends_it_once_less(evidence):
    for stage in ("fsdp1", "fsdp2"):
        recording = evidence.recording(stage)
        root = next(unit.numel for unit in recording.units if unit.name == "root")
        full = 3 * 4 * recording.num_params * (WORLD - 1) // WORLD
        assert sent(recording) == full - 4 * root * (WORLD - 1) // WORLD


def test_hybrid_sharding_sends_across_hosts_what_an_all_reduce_of_the_shards_takes(evidence):
    recording = evidence.recording("hsdp", reshard_after_forward=True)
    model, per_host = 4 * recording.num_params, WORLD // 2
    hosts = WORLD // per_host
    across = sent(recording, lambda event: event.group == (0, 2))
    assert across == 2 * (model // per_host) * (hosts - 1) // hosts
    # The paper's 2M(W-1)/(GW) counts the shard's all-reduce as if all W ranks took part in it, not one of each host.
    paper = 2 * model * (WORLD - 1) // (per_host * WORLD)
    assert paper - across == 2 * model * (per_host - 1) // (per_host * WORLD)
    assert sent(recording) - across == 3 * model * (per_host - 1) // per_host


@pytest.mark.parametrize(("stage", "factor", "whole_at_once"), [("fsdp1", 4, 2), ("fsdp2", 4, 1), ("hsdp", 2, 1)])
def test_at_most_the_shards_the_root_and_the_largest_units_are_there(evidence, stage, factor, whole_at_once):
    """The paper's O(sum of psi / F + max of psi), with its constants: FSDP1 gathers the next unit in backward."""
    options = {} if stage == "fsdp1" else {"reshard_after_forward": True}
    recording = evidence.recording(stage, **options)
    sizes = {unit.name: unit.numel for unit in recording.units}
    root, largest = sizes.pop("root"), max(sizes.values())
    shards = recording.num_params // factor
    assert recording.highest("parameters") == 4 * (shards + root + whole_at_once * largest)


def padding_of_fsdp1():
    """By flat parameter of the odd MLP: elements of padding, and of the flat."""
    from torch.distributed.fsdp import FullyShardedDataParallel

    engine = ENGINES["fsdp1"](models.build("mlp-odd"), torch.optim.SGD, lr=0.1)
    found = []
    for module in engine.model.modules():
        if isinstance(module, FullyShardedDataParallel) and module._handle is not None:
            flat = module._handle.flat_param
            numel = flat._unpadded_unsharded_size.numel()
            found.append((flat._sharded_size.numel() * engine.world_size - numel, numel))
    return found


def test_padding_is_at_most_f_minus_1_elements_a_flat_in_fsdp_and_in_ours(evidence):
    found = evidence.answers(padding_of_fsdp1)[0]
    ours = [(layout.padded - layout.numel, layout.numel) for layout in partition(models.build("mlp-odd"), WORLD)]
    assert sorted(found) == sorted(ours)
    assert all(0 <= padding <= WORLD - 1 for padding, _ in found)
    assert any(padding for padding, _ in found)
