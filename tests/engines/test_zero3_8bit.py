"""ZeRO-3 that gathers in 8 bits: what rounding does, what travels, and what training makes of it."""

import pytest
import torch
import torch.distributed as dist

from zerolab import Zero3, compare, models
from zerolab.engines.blocks import BLOCK, FORMATS, pack, unpack
from zerolab.engines.zero3_8bit import Zero3In8Bits

STEPS = 6


def rounded(shard, bits):
    into = torch.empty_like(shard)
    unpack(pack(shard, FORMATS[bits]), into, FORMATS[bits])
    return into


def blocks_of(shard):
    return torch.nn.functional.pad(shard, (0, -shard.numel() % BLOCK)).view(-1, BLOCK)


@pytest.mark.parametrize("numel", [1, BLOCK - 1, BLOCK, BLOCK + 1, 1000])
def test_a_shard_takes_a_byte_an_element_and_four_for_each_block(numel):
    for bits in FORMATS.values():
        assert pack(torch.randn(numel), bits).numel() == numel + 4 * -(-numel // BLOCK)


def test_int8_is_off_by_half_a_step_of_its_block_at_most():
    shard = torch.randn(1000) * torch.logspace(-3, 3, 1000)  # blocks of very different sizes
    steps = blocks_of(shard).abs().amax(1) / 127
    off = blocks_of(shard - rounded(shard, "int8")).abs().amax(1)
    assert (off <= 0.5001 * steps).all()
    assert (off > 0.4 * steps).all()


def test_fp8_is_off_by_a_sixteenth_of_the_number_itself_unless_that_is_tiny():
    shard = torch.randn(1000)
    off = (shard - rounded(shard, "fp8")).abs()
    tiny = blocks_of(shard).abs().amax(1).max() / 448 * 2**-10  # half of the smallest number of e4m3
    assert (off <= shard.abs() / 16 + tiny).all()


def test_zeros_stay_zeros():
    for bits in FORMATS:
        assert not rounded(torch.zeros(BLOCK + 3), bits).any()


@pytest.mark.parametrize("value", [float("inf"), float("nan")])
def test_a_block_without_a_scale_is_refused_with_the_remedy(value):
    shard = torch.ones(3 * BLOCK)
    shard[BLOCK] = value
    with pytest.raises(
        ValueError, match=r"1 of 3 blocks of 256 parameters hold inf or NaN, and have no scale.*lower the learning rate"
    ):
        pack(shard, FORMATS["int8"])


def test_an_unknown_format_is_refused_before_the_first_exchange():
    with pytest.raises(ValueError, match="bits is 'int4': choose one of int8, fp8"):
        Zero3In8Bits(torch.nn.Linear(2, 2), torch.optim.SGD, bits="int4")


def trained(engine_class, **options):
    """Losses of some steps of AdamW, then the model as every rank sees it and as the owners keep it."""
    engine = engine_class(models.build("gpt-tiny"), torch.optim.AdamW, lr=1e-3, **options)
    batches = models.batches("gpt-tiny", dist.get_world_size(), dist.get_rank(), STEPS)
    losses = [engine.training_step(*batch, models.loss).item() for batch in batches]
    with engine.full_parameters():
        seen = torch.cat([p.detach().flatten().clone() for p in engine.model.parameters()])
    kept = engine.state_dict()
    named = [kept[name].flatten() for name, _ in engine.model.named_parameters()]
    shards = [(flat.layout.shard_numel, flat.shard.element_size()) for flat in engine.flats]
    return losses, seen, torch.cat(named), shards


def beside_full_precision():
    return trained(Zero3)[0], {bits: trained(Zero3In8Bits, bits=bits) for bits in FORMATS}


@pytest.mark.parametrize("world_size", [1, 2, 3, 4])
def test_all_ranks_compute_with_the_same_rounded_parameters_and_the_loss_falls_as_in_full_precision(
    clusters, world_size
):
    ranks = clusters(world_size).run(beside_full_precision)
    exact = ranks[0][0]
    for bits in FORMATS:
        losses, seen, kept, _ = ranks[0][1][bits]
        for _, others in ranks[1:]:
            assert torch.equal(others[bits][1], seen)
        assert not torch.equal(seen, kept)  # the owners keep more digits than travel
        assert (seen - kept).abs().max() < 0.07 * kept.abs().max()
        assert losses[-1] < losses[0] - 0.5
        assert max(abs(one - other) for one, other in zip(losses, exact, strict=True)) < 0.02


def test_blocks_begin_anew_with_each_shard_so_other_numbers_of_ranks_round_to_others(clusters):
    two, three = (clusters(n).run(first_rounding)[0] for n in (2, 3))
    assert not torch.equal(two, three)
    assert torch.allclose(two, three, atol=0.02)


def first_rounding():
    engine = Zero3In8Bits(models.build("gpt-tiny"), torch.optim.SGD, lr=0.1)
    with engine.full_parameters():
        return torch.cat([p.detach().flatten().clone() for p in engine.model.parameters()])


def test_whole_numbers_of_a_frozen_weight_are_not_rounded(clusters):
    for seen in clusters(2).run(codes_of_a_frozen_weight):
        assert torch.equal(seen, torch.arange(256, dtype=torch.uint8))


def codes_of_a_frozen_weight():
    model = torch.nn.Linear(2, 2)
    model.codes = torch.nn.Parameter(torch.arange(256, dtype=torch.uint8), requires_grad=False)
    engine = Zero3In8Bits(model, torch.optim.SGD, lr=0.1)
    with engine.full_parameters():
        return model.codes.detach().clone()


@pytest.mark.parametrize(("precision", "width"), [("fp32", 4), ("bf16", 2)])
def test_what_travels_is_the_bytes_of_codes_and_scales_to_the_byte(clusters, precision, width):
    world_size = 4
    recording = clusters(world_size).record(trained, Zero3In8Bits, precision=precision)
    shards = [numel for numel, _ in recording.results[0][3]]
    gathers = sum((world_size - 1) * (numel + 4 * -(-numel // BLOCK)) for numel in shards)
    reductions = sum((world_size - 1) * numel * width for numel in shards)
    assert recording.sent == 2 * gathers + reductions


def test_beside_zero3_its_state_is_the_same_to_the_byte_and_it_sends_half_as_much():
    found = compare(("zero3", "zero3-8bit"), world_size=2, model="gpt-tiny", steps=2, device="cpu")
    full, eight = found.rows
    assert eight["state"] == full["state"]
    for rank in eight["ranks"]:
        assert sum(rank["state"].values()) - sum(eight["formula"].values()) == sum(rank["terms"].values())
    sent, of_full = eight["traffic"]["logical_bytes"], full["traffic"]["logical_bytes"]
    assert sent / of_full == pytest.approx((2 * (1 + 4 / BLOCK) + 4) / 12, rel=0.01)
    assert sent == pytest.approx(eight["traffic"]["formula_bytes"], rel=0.01)
    events = found.recordings["zero3-8bit"].ranks[0].events
    gathers = [each for each in events if each.op == "all_gather" and each.kind == "collective" and each.step == 2]
    assert gathers
    assert all(each.live["communication"] >= each.numel for each in gathers), "a message of one byte an element"


def train_while(look):
    """Three steps, in each of which a hook looks at the first layer's weight: its losses, and where it ends."""
    torch.manual_seed(0)
    model = torch.nn.Sequential(torch.nn.Linear(64, 64), torch.nn.Tanh(), torch.nn.Linear(64, 64))
    engine = Zero3In8Bits(model, torch.optim.SGD, lr=0.1)
    if look:
        model[0].register_forward_pre_hook(lambda layer, _: look(layer.weight))
    inputs = torch.randn(8, 64, generator=torch.Generator().manual_seed(1))
    losses = [float(engine.training_step(inputs, inputs.roll(1, 1), models.loss)) for _ in range(3)]
    return losses, engine.state_dict()


def test_who_only_reads_a_parameters_data_changes_nothing(clusters):
    def read(weight):
        weight.data.norm()

    (losses, end), (read_losses, read_end) = (clusters(2).run(train_while, look)[0] for look in (None, read))
    assert read_losses == losses
    assert all(torch.equal(read_end[name], value) for name, value in end.items())


@pytest.mark.parametrize("bits", FORMATS)
@pytest.mark.parametrize("by_data", [False, True])
def test_what_is_set_to_zero_is_zero_for_its_owner_too_though_small_numbers_were_seen_as_zero_before(
    clusters, bits, by_data
):
    def erase(bits, by_data):
        torch.manual_seed(0)
        model = torch.nn.Sequential(torch.nn.Linear(64, 64), torch.nn.Linear(64, 64))
        engine = Zero3In8Bits(model, torch.optim.SGD, lr=0.1, bits=bits)
        with engine.full_parameters(), torch.no_grad():
            (model[0].weight.data if by_data else model[0].weight).zero_()
        return engine.state_dict()["0.weight"]

    for weight in clusters(2).run(erase, bits, by_data):
        assert not weight.any()
