"""What the ranks send: for own engines to the byte what theory says, for other systems what they really do."""

from collections import Counter
from importlib.util import find_spec

import pytest
import torch
from torch import nn

from zerolab import Cluster, models, theory
from zerolab.engines import ENGINES
from zerolab.engines.partition import partition

STEPS = 3


def sequence(recording, step=STEPS, rank=0):
    """The collectives of a step in order: op, unit and elements of the whole buffer."""
    return [
        (event.op, event.unit, event.numel)
        for event in recording.ranks[rank].events
        if event.kind == "collective" and event.parent is None and event.step == step
    ]


def volumes(recording):
    """Elements by op, of a step."""
    total = Counter()
    for op, _, numel in sequence(recording):
        total[op] += numel
    return dict(total)


@pytest.mark.parametrize("world_size", [1, 2, 3, 4])
def test_own_engines_send_two_two_two_and_three_times_the_padded_model(train, world_size):
    flats = partition(models.build("mlp-odd"), world_size)
    padded, largest = sum(flat.padded for flat in flats), sum(flat.numel for flat in flats)
    assert padded - largest <= len(flats) * (world_size - 1)
    with Cluster(world_size=world_size, device="cpu") as cluster:
        for stage in theory.STAGES:
            passes = 3 if stage == "zero3" else 2
            for rank in cluster.record(train, stage, steps=STEPS).ranks:
                sent = 4 * passes * padded * (world_size - 1) // world_size
                assert rank.info.logical_bytes == [sent] * STEPS
                check_wire(rank, messages=passes * len(flats) * (world_size - 1))


def check_wire(rank, messages):
    """What left this rank's sockets: all logical bytes, and beside them gloo's header of each message at most."""
    for wire, logical in zip(rank.info.wire_bytes[1:], rank.info.logical_bytes[1:], strict=True):
        assert wire is None or logical <= wire <= logical + 200 * messages


def blocks_and_head():
    """Three blocks of 272 parameters, and a head of 34 that lies in no block: the root unit."""
    model = nn.Module()
    model.blocks = nn.ModuleList(nn.Sequential(nn.Linear(16, 16), nn.Tanh()) for _ in range(3))
    model.head = nn.Linear(16, 2)

    def forward(x):
        for block in model.blocks:
            x = block(x)
        return model.head(x)

    model.forward = forward
    return model


def train_in_parts(stage):
    """Blocks that are lists of two modules, and have no forward; the model calls one after the other."""
    torch.manual_seed(0)
    model = nn.Module()
    model.blocks = nn.ModuleList(nn.ModuleList([nn.LayerNorm(16), nn.Linear(16, 16)]) for _ in range(3))

    def forward(x):
        for norm, linear in model.blocks:
            x = x + linear(norm(x)).tanh()
        return x

    model.forward = forward
    engine = ENGINES[stage](model, torch.optim.SGD, lr=0.1)
    for _ in range(STEPS):
        engine.training_step(torch.rand(4, 16), torch.zeros(4, 16), models.loss)
        assert stage != "zero3" or not any(flat.presence.name == "WHOLE" for flat in engine.flats)
    with torch.no_grad():
        model(torch.ones(4, 16))
    assert stage != "zero3" or not any(flat.presence.name == "WHOLE" for flat in engine.flats)
    return engine.state_dict()


def test_a_unit_without_a_forward_of_its_own_is_gathered_once_for_all_of_its_parts():
    with Cluster(world_size=2, device="cpu") as cluster:
        recording = cluster.record(train_in_parts, "zero3")
        expected = cluster.run(train_in_parts, "ddp")[0]
    gathered = [unit for op, unit, _ in sequence(recording) if op == "all_gather"]
    assert gathered == [f"blocks.{number}" for number in (0, 1, 2, 2, 1, 0)]
    for rank, state in zip(recording.ranks, recording.results, strict=True):
        assert rank.info.logical_bytes == [4 * 3 * 3 * (2 * 16 + 16 * 17) // 2] * STEPS
        for name, value in expected.items():
            assert torch.allclose(state[name], value, atol=1e-6)


def train_foreign(stage, **options):
    engine = ENGINES[stage](blocks_and_head(), torch.optim.AdamW, lr=1e-3, **options)
    for _ in range(STEPS):
        engine.training_step(torch.ones(4, 16), torch.zeros(4, 2), models.loss)


PSI = 3 * 272 + 34  # parameters of that model


def logical(recording):
    """Bytes that a rank had to send in the last step, the same on every rank; what left its sockets is no less."""
    for rank in recording.ranks:
        wire = rank.info.wire_bytes[-1]
        assert wire is None or wire >= rank.info.logical_bytes[-1]
    (sent,) = {rank.info.logical_bytes[-1] for rank in recording.ranks}
    return sent


@pytest.mark.slow
@pytest.mark.parametrize("stage", ["fsdp1", "fsdp2"])
def test_fsdp_gathers_its_root_unit_once_and_every_other_unit_twice(cluster, stage):
    recording = cluster.record(train_foreign, stage)
    steps = sequence(recording)
    assert steps[:4] == [("all_gather", steps[0][1], 34), *[("all_gather", unit, 272) for _, unit, _ in steps[1:4]]]
    assert volumes(recording) == {"all_gather": 34 + 2 * 3 * 272, "reduce_scatter": PSI}
    assert logical(recording) == 4 * (3 * PSI - 34) // 2  # 3 Ψ (N-1)/N, less one gather of the root unit


@pytest.mark.slow
def test_fsdp2_that_keeps_its_units_after_forward_sends_as_little_as_ddp(cluster):
    recording = cluster.record(train_foreign, "fsdp2", reshard_after_forward=False)
    assert volumes(recording) == {"all_gather": PSI, "reduce_scatter": PSI}
    assert logical(recording) == 4 * 2 * PSI // 2


@pytest.mark.slow
@pytest.mark.parametrize(("megabytes", "buckets"), [(25, [PSI]), (0.001, [272 + 34, 272, 272])])
def test_ddp_reduces_its_gradients_in_buckets_the_last_layers_first(cluster, megabytes, buckets):
    recording = cluster.record(train_foreign, "torch-ddp", bucket_cap_mb=megabytes)
    assert [numel for op, _, numel in sequence(recording) if op == "all_reduce"] == buckets
    assert logical(recording) == 4 * 2 * PSI // 2


@pytest.mark.slow
def test_torchs_zero1_all_reduces_and_then_broadcasts_each_parameter_three_times_psi_in_all(cluster):
    recording = cluster.record(train_foreign, "torch-zero1")
    assert volumes(recording) == {"all_reduce": PSI, "broadcast": PSI}
    assert sum(op == "broadcast" for op, _, _ in sequence(recording)) == 4 * 2  # weights and biases one by one
    assert logical(recording) == 4 * 3 * PSI // 2


@pytest.fixture(scope="module")
def deepspeed(require):
    """Recordings of DeepSpeed's stages, on ranks of their own: it replaces parts of torch."""
    require(find_spec("deepspeed"), "DeepSpeed", 'pip install -c constraints.txt -e ".[deepspeed]"')
    with Cluster(world_size=2, device="cpu", timeout=60) as cluster:
        return {stage: cluster.record(train_foreign, f"deepspeed-{stage}") for stage in range(4)}


@pytest.mark.slow
@pytest.mark.deepspeed
@pytest.mark.parametrize("stage", [1, 2])
def test_deepspeed_on_gloo_all_reduces_where_the_paper_reduce_scatters_so_it_sends_three_times_psi(deepspeed, stage):
    volume = volumes(deepspeed[stage])
    assert "reduce_scatter" not in volume
    assert volume["all_gather"] == PSI + 2  # its flat, padded for its alignment
    assert volume["all_reduce"] == PSI + 1  # the gradients, and whether one of them is no number
    assert logical(deepspeed[stage]) == 4 * (2 * (PSI + 1) + PSI + 2) // 2


@pytest.mark.slow
@pytest.mark.deepspeed
def test_deepspeed_0_sends_what_ddp_sends_and_3_does_not_gather_small_parameters_again(deepspeed):
    assert volumes(deepspeed[0]) == {"all_reduce": PSI}
    assert logical(deepspeed[0]) == 4 * 2 * PSI // 2
    # Parameters below its persistence threshold stay whole after forward, so backward need not gather them.
    assert volumes(deepspeed[3]) == {"all_gather": PSI, "reduce_scatter": PSI, "all_reduce": 1}
    assert logical(deepspeed[3]) == 4 * 2 * PSI // 2 + 8  # the number that is all-reduced has eight bytes
