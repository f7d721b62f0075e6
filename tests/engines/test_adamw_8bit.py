"""AdamW with moments in 8 bits: what rounding does to them, what they take, and that sharding changes nothing."""

from functools import cache

import pytest
import torch
import torch.distributed as dist
from torch import nn

from zerolab import compare, models, theory
from zerolab.engines import ENGINES
from zerolab.engines.adamw_8bit import MOMENT, SQUARES, AdamW8bit
from zerolab.engines.blocks import BLOCK, FORMATS, pack, unpack
from zerolab.engines.declared import granule_of, moments_of, name_of, state_of
from zerolab.engines.muon_owners import MuonOwners
from zerolab.engines.partition import partition
from zerolab.engines.zero1_optimizer import Zero1Optimizer
from zerolab.recording.recorder import Recorder
from zerolab.simulation.fake import world

STEPS = 6


def updated(optimizer_cls, gradients, **keywords):
    """A parameter of zeros after one update for each gradient, and its optimizer."""
    parameter = nn.Parameter(torch.zeros_like(gradients[0]))
    optimizer = optimizer_cls([parameter], **keywords)
    for gradient in gradients:
        parameter.grad = gradient.clone()
        optimizer.step()
    return parameter.detach(), optimizer


# What rounding does.


def test_a_first_update_is_adamws_own_because_moments_are_rounded_after_it():
    gradient = torch.randn(1000)
    assert torch.equal(updated(AdamW8bit, [gradient])[0], updated(torch.optim.AdamW, [gradient])[0])


@pytest.mark.parametrize("bits", [MOMENT, SQUARES])
def test_what_was_unpacked_packs_into_the_same_bytes_again(bits):
    values = torch.randn(1000).pow(2) * torch.logspace(-9, 9, 1000)
    packed, again = pack(values, bits), torch.empty(1000)
    unpack(packed, again, bits)
    assert torch.equal(pack(again, bits), packed)
    assert ((again - values).abs() <= values / 16 + 2**-9 / 256 * values.max()).all()


class OfInt8(AdamW8bit):
    """As `AdamW8bit`, but with a second moment in the equal steps of int8."""

    formats = AdamW8bit.formats | {"exp_avg_sq": FORMATS["int8"]}


def test_squares_in_equal_steps_become_zeros_that_explode_an_update():
    """One gradient of 256 is large; then there is none, and what is left of the others' mean is divided by eps."""
    first = torch.full((BLOCK,), 1e-3)
    first[0] = 1.0
    gradients = [first, torch.zeros(BLOCK)]
    exact, ours, theirs = (updated(kind, gradients, lr=1e-3)[0] for kind in (torch.optim.AdamW, AdamW8bit, OfInt8))
    assert exact.abs().max() < 3e-3
    assert ours.abs().max() < 3e-3
    assert theirs.abs().max() > 10, "in one step the parameters moved by ten thousand learning rates"
    assert theirs.abs()[0] < 3e-3  # but not the one whose square is not zero


def test_squares_too_small_for_fp8_make_an_update_smaller_and_never_larger():
    first = torch.full((BLOCK,), 1e-5)
    first[0] = 1.0
    exact, ours = (updated(kind, [first, first], lr=1e-3)[0] for kind in (torch.optim.AdamW, AdamW8bit))
    assert (ours.abs() <= exact.abs() * 1.01).all()


def test_a_block_of_zeros_has_scale_zero_and_moves_nothing():
    parameter, optimizer = updated(AdamW8bit, [torch.zeros(BLOCK)] * 3, weight_decay=0.0)
    assert not parameter.any()
    assert not optimizer.wide[optimizer.param_groups[0]["params"][0]]["exp_avg_sq"].any()


@pytest.mark.parametrize("value", [float("inf"), float("nan"), 1e25])
def test_a_gradient_that_leaves_no_scale_is_refused_with_the_remedy(value):
    gradient = torch.ones(3 * BLOCK)
    gradient[BLOCK] = value  # the square of 1e25 is inf
    with pytest.raises(ValueError, match=r"1 of 3 blocks of 256 numbers of exp_avg\w* hold inf or NaN.*clip the grad"):
        updated(AdamW8bit, [gradient])


def test_steps_are_counted_in_fp32_whatever_the_default_dtype():
    torch.set_default_dtype(torch.bfloat16)  # in which 256 and one is 256
    try:
        _, optimizer = updated(AdamW8bit, [torch.ones(2)] * 300)
    finally:
        torch.set_default_dtype(torch.float32)
    assert [float(entries["step"]) for entries in optimizer.state.values()] == [300.0]


def test_a_complex_parameter_is_refused():
    with pytest.raises(ValueError, match="a parameter is complex, and moments in 8 bits are real: use AdamW"):
        AdamW8bit([nn.Parameter(torch.zeros(2, dtype=torch.complex64))])


# Under the engines.


def trained(stage, optimizer_cls=AdamW8bit, steps=STEPS, load=None, **options):
    """Losses, the model, the optimizer's state and its bytes after some steps, as this rank has them."""
    engine = ENGINES[stage](models.build("gpt-tiny"), optimizer_cls, lr=1e-3, **options)
    if load:
        engine.load_state_dict(load[0])
        engine.load_optimizer_state_dict(load[1])
    batches = models.batches("gpt-tiny", dist.get_world_size(), dist.get_rank(), steps, rows=1)
    losses = [engine.training_step(*batch, models.loss).item() for batch in batches]
    packed = [state["exp_avg"].numel() for state in engine.optimizer.state.values() if "exp_avg" in state]
    return losses, (engine.state_dict(), engine.optimizer_state_dict()), packed


def flattened(states):
    """All tensors of a model and its optimizer, by name."""
    model, optimizer = states
    return model | {f"{name}/{key}": v for name, state in optimizer["state"].items() for key, v in state.items()}


def equal(one, other):
    one, other = flattened(one), flattened(other)
    return one.keys() == other.keys() and all(torch.equal(one[key], other[key]) for key in one)


@pytest.fixture(scope="module")
def recorded(clusters):
    return cache(lambda stage, world_size: clusters(world_size).record(trained, stage))


@pytest.mark.slow
@pytest.mark.parametrize("world_size", [1, 2, 3, 4])
def test_every_stage_rounds_alike_and_learns_as_in_full_precision(clusters, recorded, world_size):
    exact = clusters(world_size).run(trained, "zero1", torch.optim.AdamW)[0][0]
    losses, states, _ = recorded("ddp", world_size).results[0]
    assert losses[0] == exact[0]
    assert losses[-1] < losses[0] - 0.2
    assert max(abs(one - other) for one, other in zip(losses, exact, strict=True)) < 0.05
    for stage in theory.STAGES[1:]:
        for _, others, _ in recorded(stage, world_size).results:
            assert equal(others, states), f"{stage} differs from ddp"


@pytest.mark.parametrize("world_size", [1, 2, 3, 4])
@pytest.mark.parametrize("stage", theory.STAGES)
def test_state_is_the_formula_and_its_terms_to_the_byte(recorded, stage, world_size):
    recording = recorded(stage, world_size)
    flats = partition(models.build("gpt-tiny"), world_size, granule=BLOCK)
    formula = theory.state_bytes(stage, sum(flat.numel for flat in flats), world_size, moments="8-bit")
    terms = theory.terms(stage, flats, world_size, moments="8-bit")
    for rank in recording.ranks:
        assert sum(rank.state.values()) == sum(formula.values()) + sum(terms.values())
        assert rank.info.formula == formula
    updated = [flat.padded if stage == "ddp" else flat.shard_numel for flat in flats]
    assert recording.results[0][2] == [numel + 4 * numel // BLOCK for numel in updated]
    assert recording.explain()[-1]["difference"] == 0


@pytest.mark.slow
@pytest.mark.parametrize("options", [{"precision": "bf16"}, {"offload": True}, {"param_groups": "split"}])
def test_other_options_leave_nothing_unexplained(options):
    if "param_groups" in options:
        options = {"param_groups": [(lambda _, parameter: parameter.ndim < 2, {"weight_decay": 0.0})]}
    precision = options.get("precision", "fp32")
    more = {key: value for key, value in options.items() if key != "precision"}
    found = compare(
        ("zero1", "zero3", "zero3-8bit"), 2, "gpt-tiny", None, 2, precision, "cpu", options=more, moments="8-bit"
    )
    for row, line in zip(found.rows, found.table(exact=True), strict=True):
        assert line["unexplained"] == 0
        in_fp32 = theory.state_bytes("zero1", row["num_params"], 2, precision)["optimizer_state"]
        assert in_fp32 - row["formula"]["optimizer_state"] == row["num_params"] * (8 - 65 / 32) // 2


def by_an_optimizer_over_shards():
    parameter = nn.Parameter(torch.zeros(700))
    optimizer = Zero1Optimizer([parameter], AdamW8bit, lr=1e-2)
    for step in range(3):
        parameter.grad = torch.randn(700, generator=torch.Generator().manual_seed(step))
        optimizer.step()
    return parameter.detach().clone()


def test_an_optimizer_over_shards_rounds_as_one_process_does(clusters):
    alone, *halves = (*clusters(1).run(by_an_optimizer_over_shards), *clusters(2).run(by_an_optimizer_over_shards))
    assert all(torch.equal(each, alone) for each in halves)


class Branches(nn.Module):
    """Two layers of 300 and 210 elements, of which a batch uses the first, or both."""

    def __init__(self):
        super().__init__()
        torch.manual_seed(0)
        self.first, self.second = nn.Linear(20, 15, bias=False), nn.Linear(14, 15, bias=False)

    def forward(self, inputs, both=True):
        return self.first(inputs).sum() + (self.second(inputs[:, :14]).pow(2).sum() if both else 0)


def unused(steps):
    engine = ENGINES["zero2"](Branches(), AdamW8bit, lr=1e-2)
    inputs = torch.randn(4, 20, generator=torch.Generator().manual_seed(dist.get_rank()))
    for both in steps:
        engine.backward(engine.model(inputs, both))
        engine.step()
    return engine.state_dict(), engine.optimizer_state_dict()


def test_a_parameter_without_gradient_keeps_weights_and_moments_and_its_blocks_are_its_own_from_then_on(clusters):
    before, after = (clusters(2).run(unused, steps)[0] for steps in ([True], [True, False]))
    assert torch.equal(before[0]["second.weight"], after[0]["second.weight"])
    assert not torch.equal(before[0]["first.weight"], after[0]["first.weight"])
    one, other = (states[1]["state"]["second.weight"] for states in (before, after))
    assert one["step"] == other["step"] == 1
    for key in ("exp_avg", "exp_avg_sq"):
        assert (one[key] - other[key]).abs().max() <= one[key].abs().max() / 16  # rounded anew, in other blocks
    recording = clusters(2).record(unused, [False, False, True, True])
    flats = partition(Branches(), 2, granule=BLOCK)
    found = [theory.terms("zero2", flats, 2, **rank.info.for_terms) for rank in recording.ranks]
    assert [terms.get("unused", 0) for terms in found] == [
        0,
        8,
    ]  # on rank 1 one block has become two, with two scales each
    for rank, terms in zip(recording.ranks, found, strict=True):
        assert sum(rank.state.values()) == sum(rank.info.formula.values()) + sum(terms.values())


# Checkpoints.


def loaded(stage, states, optimizer_cls=AdamW8bit):
    return trained(stage, optimizer_cls, 0, states)[1]


def test_a_checkpoint_is_resumed_bit_for_bit_on_any_number_of_ranks(clusters, recorded):
    states = recorded("zero3", 4).results[0][1]
    for stage, world_size in (("zero3", 3), ("ddp", 1), ("zero1", 2)):
        assert all(equal(states, again) for again in clusters(world_size).run(loaded, stage, states))


def test_it_is_adamws_own_and_loads_there_and_back(clusters, recorded):
    states = recorded("zero1", 2).results[0][1]
    in_fp32 = clusters(2).run(loaded, "zero2", states, torch.optim.AdamW)[0]
    assert equal(in_fp32, states)
    assert equal(clusters(2).run(loaded, "zero3", in_fp32)[0], states)


@pytest.mark.parametrize("stage", ["zero3", "muon-owners"])
def test_a_state_from_before_the_first_step_makes_it_forget_its_moments(clusters, stage):
    def begun_again():
        engine = ENGINES[stage](models.build("gpt-tiny"), AdamW8bit, lr=1e-3)
        at_first = engine.optimizer_state_dict()
        for batch in models.batches("gpt-tiny", 2, dist.get_rank(), 2):
            engine.training_step(*batch, models.loss)
        engine.load_optimizer_state_dict(at_first)
        return [name for name, entries in engine.optimizer_state_dict()["state"].items() if entries]

    assert clusters(2).run(begun_again) == [[], []]


def beside_muon(states=None):
    engine = MuonOwners(models.build("gpt-tiny"), AdamW8bit, muon={"lr": 0.02})
    if states:
        engine.load_optimizer_state_dict(states)
    else:
        for batch in models.batches("gpt-tiny", dist.get_world_size(), dist.get_rank(), 2):
            engine.training_step(*batch, models.loss)
    return engine.optimizer_state_dict()


def test_beside_muon_its_state_is_saved_and_loaded_too(clusters):
    states = clusters(2).run(beside_muon)[0]
    assert equal(({}, states), ({}, clusters(2).run(beside_muon, states)[0]))
    assert {"momentum_buffer", "exp_avg_sq"} <= {key for entries in states["state"].values() for key in entries}


def test_a_kind_of_it_declares_the_same_whatever_its_name_and_torchs_declare_nothing():
    ours, theirs = (kind([nn.Parameter(torch.zeros(2))]) for kind in (OfInt8, torch.optim.AdamW))
    assert (name_of(ours), moments_of(ours), granule_of(OfInt8)) == ("OfInt8", "8-bit", BLOCK)
    assert (name_of(theirs), moments_of(theirs), granule_of(torch.optim.AdamW)) == ("AdamW", "fp32", 1)
    assert state_of(theirs) is theirs.state


# What is refused, and what is only simulated.


def in_fsdp2(stage):
    ENGINES[stage](models.build("gpt-tiny"), AdamW8bit)


def test_a_system_that_cuts_within_blocks_is_refused(clusters):
    with pytest.raises(Exception, match="fsdp2's shards begin within blocks of AdamW8bit: use it in ddp, zero1"):
        clusters(2).run(in_fsdp2, "fsdp2")
    with pytest.raises(ValueError, match=r"torch-ddp has no moments in 8-bit: take ddp, .*, zero3 or zero3-8bit$"):
        compare("torch-ddp", 2, "gpt-tiny", moments="8-bit")
    with pytest.raises(ValueError, match="unknown kind of moments '8bit'"):
        compare("ddp", 2, "gpt-tiny", moments="8bit")


@pytest.mark.parametrize("stage", theory.STAGES)
def test_eight_ranks_that_are_simulated_hold_it_too(stage):
    with world(8, 3, on_gpu=False), Recorder(simulated=True) as recorder:
        engine = ENGINES[stage](models.build("gpt-tiny"), AdamW8bit)
        for inputs, targets in models.batches("gpt-tiny", 8, 3, 2):
            engine.training_step(inputs.to("meta"), targets.to("meta"), models.loss)
    found = recorder.finish()
    flats = partition(models.build("gpt-tiny"), 8, granule=BLOCK)
    terms = theory.terms(stage, flats, 8, moments="8-bit")
    assert sum(found.state.values()) == sum(found.info.formula.values()) + sum(terms.values())
