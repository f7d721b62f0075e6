"""A simulated rank does what a real one does: the same state, peaks, traffic and ownership, at any size."""

import gc
import sys
import weakref
from functools import cache, partial
from itertools import pairwise

import pytest
import torch
from on_cpus import CPU
from torch import nn
from torch.nn import functional
from torch.utils.checkpoint import checkpoint

from zerolab import catalog, compare, simulate, theory
from zerolab.recording.recording import Recording
from zerolab.simulation import architectures
from zerolab.simulation.checkpointing import checkpoint_blocks
from zerolab.simulation.fake import world


def assert_explained(simulation):
    for row in simulation.rows:
        stage, n = row["stage"], row["world_size"]
        assert sum(row["state"].values()) - sum(row["formula"].values()) == sum(row["terms"].values()), stage
        padded = sum(unit.padded for unit in simulation.recordings[stage].units)
        word = theory.BYTES_PER_PARAMETER[row["precision"]]["parameters"]
        assert row["traffic"]["logical_bytes"] == theory.PASSES[stage] * word * padded * (n - 1) // n, stage


@cache
def on_real_ranks(precision):
    """Three steps of gpt-tiny, once for all tests that hold a simulation against them."""
    return compare(world_size=2, model="gpt-tiny", steps=3, precision=precision)


@pytest.mark.slow
@pytest.mark.parametrize("precision", ["fp32", "bf16", "fp16"])
def test_a_simulation_holds_what_real_ranks_hold(precision):
    real = on_real_ranks(precision)
    fake = simulate(world_size=2, model="gpt-tiny", precision=precision)
    for measured, simulated in zip(real.rows, fake.rows, strict=True):
        for key in ("stage", "num_params", "state", "formula", "terms"):
            assert measured[key] == simulated[key], key
        assert measured["traffic"]["logical_bytes"] == simulated["traffic"]["logical_bytes"]
        assert [rank["state"] for rank in measured["ranks"]] == [rank["state"] for rank in simulated["ranks"]]
    assert_explained(fake)


def test_a_scaler_of_what_torch_shards_finds_no_overflow_where_there_are_no_values():
    """FSDP2 in fp16 was said to need values, and fit knew its state alone."""
    real = compare("muon-rows", world_size=2, model="gpt-tiny", steps=2, precision="fp16").rows[0]
    fake = simulate("muon-rows", world_size=2, model="gpt-tiny", precision="fp16", hardware=CPU).rows[0]
    assert real["state"] == fake["state"]
    for category in ("parameters", "gradients", "optimizer_state"):
        assert real["peak"][category] == fake["peak"][category]


def test_derived_ranks_own_what_the_real_ones_own_and_say_so():
    real = compare("zero3", world_size=2, model="mlp-odd", steps=2).recordings["zero3"]
    fake = simulate("zero3", world_size=2, model="mlp-odd", hardware=CPU).recordings["zero3"]

    def owned(recording, rank):
        events = recording.rank(rank).events
        return {(e.category, e.unit, e.spans) for e in events if e.op == "hold" and e.category == "optimizer_state"}

    for rank in (0, 1):
        assert owned(fake, rank) == owned(real, rank)
    assert "did not run" in str(fake.rank(1).events[0].text)
    assert fake.rank(1).info.derived is True
    assert fake.rank(0).info.derived is False


def test_the_recording_is_marked_simulated_saved_and_shown(tmp_path):
    recording = simulate("zero2", world_size=16, model="gpt-tiny").recordings["zero2"]
    assert recording.info.simulated is True
    assert recording.world_size == 16
    assert len(recording.ranks) == 8
    recording.save(tmp_path / "run.json")
    assert Recording.load(tmp_path / "run.json").info.costs == recording.info.costs
    recording.to_html(tmp_path / "run.html")
    assert "simulated" in (tmp_path / "run.html").read_text()


def test_time_is_the_cost_models_and_the_same_each_time():
    first, second = (simulate("zero3", world_size=8, model="gpt-tiny") for _ in range(2))
    assert first.rows[0]["step_seconds"] == second.rows[0]["step_seconds"] > 0
    recording = first.recordings["zero3"]
    assert [e.t_end for e in recording.events] == [e.t_end for e in second.recordings["zero3"].events]
    costs = recording.info.costs
    assert 0 < costs["blocked_seconds"] < costs["seconds"]
    slow = simulate("zero3", world_size=8, model="gpt-tiny", gpus_per_node=1, network="ethernet-10g")
    assert slow.rows[0]["step_seconds"] > first.rows[0]["step_seconds"]


def test_a_collective_that_is_asked_of_torch_itself_is_waited_for_too():
    """Engines send their first parameters so, and learners anything."""
    recording = simulate("ddp", world_size=4, model="gpt-tiny").recordings["ddp"]
    sent = [event for event in recording.rank(0).events if event.op == "broadcast"]
    bars, waits = ([event for event in sent if event.kind == kind] for kind in ("collective", "wait"))
    assert [wait.parent for wait in waits] == [bar.seq for bar in bars]
    assert all(bar.t_end > bar.t_start for bar in bars)
    assert all(after.t_start >= before.t_end for before, after in pairwise(bars))


TINY_LLAMA = catalog.Architecture("tiny", "llama", 32, 4, 2, 16, 64, "a test", hidden=48, kv_heads=2)
TOKENS = torch.zeros(4, 16, dtype=torch.int64)


@pytest.mark.parametrize("kind", ["gpt", "llama"])
def test_the_peak_of_a_simulation_is_that_of_real_ranks(kind):
    """But for the batches, which real ranks read from memory, and the last step's loss, which their loop keeps."""
    if kind == "gpt":
        real, fake = on_real_ranks("fp32"), simulate(world_size=2, model="gpt-tiny", hardware=CPU)
    else:
        build = partial(architectures.build, TINY_LLAMA)
        real = compare(world_size=2, steps=3, model=build, batches=[(TOKENS, TOKENS)] * 3)
        # compare divides the rows among the ranks, simulate takes one rank's
        fake = simulate(world_size=2, model=build, batches=[(TOKENS[:2], TOKENS[:2])], hardware=CPU)
    for measured, simulated in zip(real.rows, fake.rows, strict=True):
        for category in ("parameters", "gradients", "optimizer_state", "communication"):
            assert measured["peak"][category] == simulated["peak"][category], (measured["stage"], category)
        assert measured["peak"]["activations"] - simulated["peak"]["activations"] in (0, 4)


def test_simulated_gpus_wait_and_pad_as_over_nccl_and_cpus_as_over_gloo():
    gpus, cpus = (simulate("zero2", 4, "gpt-tiny", hardware=hardware).recordings["zero2"] for hardware in (None, CPU))

    def waited_for(recording):
        """The steps whose updated parameters were waited for: in the next one's forward, or before that began."""
        return {event.step for event in recording.rank(0).events if event.kind == "wait" and event.op == "all_gather"}

    assert waited_for(cpus) == {1, 2}
    assert waited_for(gpus) == {1}
    # A reduction is in flight until the next flat is complete, not until that has half its gradients.
    late, early = (max(event.live.get("gradients", 0) for event in found.rank(0).events) for found in (gpus, cpus))
    assert late > 1.1 * early

    gpus, cpus = (simulate("zero2", 4, "mlp-odd", hardware=each).recordings["zero2"].units for each in (None, CPU))
    assert {unit.padded // 4 % 8 for unit in gpus} == {0}
    assert {unit.padded // 4 for unit in cpus} == {-(-unit.numel // 4) for unit in cpus}


def four_matrices():
    return torch.nn.Sequential(*(torch.nn.Linear(64, 64) for _ in range(4)))


@pytest.mark.parametrize("hardware", [None, CPU], ids=["nccl", "gloo"])
def test_the_highest_moment_of_a_step_is_shown_by_an_event(hardware):
    """Over NCCL it is just before a gather's wait, which frees a reduction's buffers: that hid it."""
    batch = torch.zeros(2, 64)
    found = simulate(world_size=8, model=four_matrices, batches=[(batch, batch)], precision="bf16", hardware=hardware)
    for stage, recording in found.recordings.items():
        levels = [sum(event.live.values()) for event in recording.rank(0).events if event.step == 2]
        assert max(levels) == sum(recording.rank(0).info.peak.values()), stage
        times = [event.t_start for event in recording.rank(0).events if event.op != "peak"]
        assert times == sorted(times)


def checkpointed_llama():
    model = architectures.build(TINY_LLAMA)
    checkpoint_blocks(model, "selective")
    return model


def test_a_simulation_forgets_and_computes_again_what_real_ranks_do():
    real = compare("zero3", world_size=2, steps=3, model=checkpointed_llama, batches=[(TOKENS, TOKENS)] * 3)
    options = {"batches": [(TOKENS[:2], TOKENS[:2])], "checkpointing": "selective", "hardware": CPU}
    fake = simulate("zero3", world_size=2, model=partial(architectures.build, TINY_LLAMA), **options)
    live = [
        [event.live["activations"] for event in found.recordings["zero3"].rank(0).events if event.kind == "module"]
        for found in (real, fake)
    ]
    last = len(live[1]) // 2  # of each the last step, which begins with the last loss still there on real ranks
    assert {measured - simulated for measured, simulated in zip(live[0][-last:], live[1][-last:], strict=True)} <= {
        0,
        4,
    }


class Convolutions(nn.Sequential):
    def __init__(self):
        block = nn.Sequential(nn.Conv2d(3, 8, 3), nn.BatchNorm2d(8), nn.ReLU(), nn.MaxPool2d(2))
        super().__init__(block, nn.Flatten(), nn.Linear(8 * 7 * 7, 10))


class Recurrent(nn.Module):
    def __init__(self):
        super().__init__()
        self.tokens, self.cells, self.out = nn.Embedding(64, 8), nn.LSTM(8, 8, batch_first=True), nn.Linear(8, 64)

    def forward(self, tokens):
        return self.out(self.cells(self.tokens(tokens))[0])


class Masked(nn.Module):
    """Buffers made of numbers, a mask, positions looked up, dropout, and a forward that runs again in backward."""

    def __init__(self):
        super().__init__()
        self.blocks = nn.ModuleList(nn.Sequential(nn.Linear(8, 8), nn.Dropout(0.1)) for _ in range(3))
        self.register_buffer("mask", torch.tril(torch.ones(4, 4)).bool())
        self.register_buffer("scale", torch.tensor([1.0, 2.0, 3.0, 4.0]))

    def forward(self, x):
        for block in self.blocks:
            x = checkpoint(block, x, use_reentrant=False)
        scores = (x @ x.transpose(-1, -2)).masked_fill(~self.mask, float("-inf")).softmax(dim=-1)
        return scores @ (x * self.scale[torch.arange(4)][:, None])


@pytest.mark.parametrize(
    ("model", "batch"),
    [
        (Convolutions, (torch.ones(2, 3, 16, 16), torch.zeros(2, dtype=torch.int64))),
        (Recurrent, (TOKENS, TOKENS)),
        (Masked, (torch.ones(2, 4, 8), torch.ones(2, 4, 8))),
    ],
)
def test_a_model_of_ones_own_is_simulated_with_whatever_is_in_it(model, batch):
    assert_explained(simulate(world_size=4, model=model, batches=[batch]))


MEANS = [functional.mse_loss, functional.smooth_l1_loss, functional.binary_cross_entropy, functional.soft_margin_loss]


@pytest.mark.parametrize("loss", MEANS)
def test_a_mean_takes_the_memory_of_all_elements_losses_as_on_real_devices(loss):
    """torch makes a tensor for all of them into a single number; its meta implementation allocates that alone."""
    expected = loss(torch.ones(3, 4), torch.zeros(3, 4)).untyped_storage().nbytes()
    with world(1):
        for _ in range(2):
            assert loss(torch.ones(3, 4), torch.zeros(3, 4)).untyped_storage().nbytes() == expected
        assert loss(torch.ones(3, 4), torch.zeros(3, 4), reduction="none").shape == (3, 4)


class Scaled(nn.Module):
    """Two parameters of one number, of which one is tied, and a buffer whose value is asked for."""

    def __init__(self):
        super().__init__()
        self.linear = nn.Linear(8, 8)
        self.gain, self.bias = nn.Parameter(torch.tensor(1.0)), nn.Parameter(torch.tensor(0.0))
        self.linear.register_parameter("gain", self.gain)
        self.register_buffer("times", torch.tensor(2))

    def forward(self, x):
        for _ in range(int(self.times)):
            x = self.linear(x) * self.linear.gain + self.bias
        return x


def test_a_parameter_of_one_number_is_a_shape_like_the_others():
    simulation = simulate(world_size=2, model=Scaled, batches=[(torch.ones(2, 8), torch.ones(2, 8))])
    assert_explained(simulation)
    assert {row["num_params"] for row in simulation.rows} == {8 * 8 + 8 + 2}


def test_what_is_made_in_a_world_has_no_memory_but_for_single_numbers():
    with world(4):
        model = nn.Linear(10**6, 10**6)
        assert model.weight.is_meta
        assert torch.tensor([1.0, 2.0]).is_meta
        assert torch.tensor(3.0).item() == 3.0
        assert torch.arange(5).to("cpu").is_meta
        assert (torch.tensor(2.0) * model.bias).shape == (10**6,)
    assert not torch.ones(3).is_meta


def test_an_operation_met_again_gives_what_it_gave_at_first():
    """Results are made from what is known of equal shapes; numbers that differ only in kind are not equal."""
    with world(1):
        whole = torch.arange(6)
        for _ in range(2):
            assert (whole + 1).dtype == torch.int64
            assert (whole + 1.0).dtype == torch.float32
            assert (whole[:4].view(2, 2).t() * 2).stride() == (1, 2)
            assert [part.shape for part in torch.ones(2, 3, 4).max(dim=1)] == [(2, 4), (2, 4)]


def test_an_operation_met_again_has_the_default_dtype_of_then():
    before = torch.get_default_dtype()
    try:
        with world(1):
            assert torch.ones(5).dtype == before
            torch.set_default_dtype(torch.float64)
            assert torch.ones(5).dtype == torch.float64
    finally:
        torch.set_default_dtype(before)


def test_what_is_written_into_is_returned_written_if_it_has_a_value_and_as_wide_as_it_was():
    with world(1):
        shape, number = torch.ones(3, 4), torch.tensor(2.0)
        for _ in range(2):
            assert shape.add_(1.0) is shape
            torch._foreach_add_([shape, shape.t()], 1.0)
            torch._foreach_mul_([number], 2.0)
            with pytest.raises(RuntimeError, match="broadcast"):
                shape.add_(torch.ones(5))
            torch._foreach_mul_([shape, number], 2.0)
            column, row = torch.ones(3, 1, dtype=torch.int64), torch.ones(1, 4, dtype=torch.int64)
            assert (column << row).shape == (3, 4)  # `__lshift__` writes nothing
        assert number.item() == 32.0
        assert shape.shape == (3, 4)


class TwoProducts(nn.Module):
    """A square, which reads its argument once, and another product; in one order or the other."""

    def __init__(self, square_first):
        super().__init__()
        self.weight, self.square_first = nn.Parameter(torch.empty(8, 8)), square_first

    def forward(self, x):
        other = x + 1
        factors = [other, x] if self.square_first else [x, other]
        return (other * factors[0] + other * factors[1]) @ self.weight


def test_a_square_moves_as_many_bytes_whatever_was_multiplied_before_it():
    batch = [(torch.ones(8, 8), torch.ones(8, 8))]
    found = [simulate("ddp", 1, partial(TwoProducts, first), batches=batch) for first in (True, False)]
    first, second = (each.recordings["ddp"].info.costs["moved_bytes"] for each in found)
    assert first == second


def test_attention_is_fused_as_on_real_devices():
    """Activations grow with the length, not with its square: no matrix of all pairs of positions is stored."""
    held = []
    for length in (256, 512, 1024):
        events = simulate("ddp", 1, "gpt2", length=length).recordings["ddp"].rank(0).events
        forward = [event for event in events if event.op == "forward" and event.unit == "root"][-1]
        held.append(forward.live["activations"])
    assert held[2] - held[1] == pytest.approx(2 * (held[1] - held[0]), rel=0.001)


def test_a_simulation_leaves_the_process_as_it_was():
    """torch announces a rank in every later error, and what is frozen is never collected again."""
    before = sys.excepthook
    simulate(world_size=2, model="mlp-odd")
    assert sys.excepthook is before
    assert gc.get_freeze_count() == 0


def test_what_a_simulation_made_is_gone_with_it():
    """A stage's engine and its hooks are rings of references: left to themselves, hundreds would pile up unseen."""
    made = weakref.WeakSet()

    class Watched(nn.Linear):
        def __init__(self):
            super().__init__(4, 4)
            made.add(self)

    batch = torch.ones(2, 4), torch.ones(2, 4)
    for _ in range(2):
        simulate(world_size=2, model=Watched, batches=[batch])
        assert not made


def test_odd_world_sizes_padding_and_one_rank_are_explained_too():
    for world_size in (1, 3, 7, 1000):
        assert_explained(simulate(world_size=world_size, model="mlp-odd"))


def test_moments_in_8_bits_are_simulated_as_they_are_compared():
    found = simulate(world_size=8, model="gpt-tiny", moments="8-bit")
    for row, line in zip(found.rows, found.table(exact=True), strict=True):
        assert line["unexplained"] == 0
        assert row["formula"] == theory.state_bytes(row["stage"], row["num_params"], 8, moments="8-bit")
    with pytest.raises(ValueError, match=r"muon-rows has no moments in 8-bit: take ddp, zero1, zero2 or zero3$"):
        simulate("muon-rows", moments="8-bit")


@pytest.mark.parametrize(
    "both",
    [
        {"gpu": "a100"},
        {"network": "infiniband-hdr"},
        {"bandwidth": 50e9},
        {"gpus_per_node": 2},
        {"utilisation": 0.5},
    ],
)
def test_hardware_beside_what_it_would_replace_is_refused(both):
    with pytest.raises(ValueError, match=f"hardware= says what {next(iter(both))} would: leave it out, or give it to"):
        simulate("ddp", 2, "mlp-odd", hardware=CPU, **both)
    with pytest.raises(TypeError, match="hardware is 'h100': pass a Hardware, or gpu"):
        simulate("ddp", 2, "mlp-odd", hardware="h100")
