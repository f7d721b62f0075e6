"""Who owns what, as data: each element once, cut as the engines and torch cut it; systems are rows of one table."""

from itertools import chain
from math import prod

import pytest
import torch
from torch import nn

from zerolab import models, theory
from zerolab.engines import placement
from zerolab.engines.partition import partition
from zerolab.theory import systems

WORLD_SIZES = range(1, 9)
ODD = [(13, 7), (13,), (), (1, 5), (2, 3, 3), (0, 4), (11, 1)]  # a single number, less rows than ranks, none at all
CUTS = {
    "flat": placement.flat,
    "rows": placement.rows,
    "matrices": lambda shapes, n: placement.matrices(placement.balanced([*map(prod, shapes)], n))(shapes, n),
}


@pytest.mark.parametrize("world_size", WORLD_SIZES)
@pytest.mark.parametrize("cut", CUTS)
def test_every_element_has_exactly_one_owner(cut, world_size):
    shares = CUTS[cut](ODD, world_size)
    owned = sorted(chain.from_iterable(range(*span) for share in shares for span in share.spans))
    assert len(shares) == world_size
    assert owned == list(range(sum(map(prod, ODD))))
    assert all(start < stop for share in shares for start, stop in share.spans)


@pytest.mark.parametrize("world_size", WORLD_SIZES)
def test_replicated_gives_everybody_everything(world_size):
    assert placement.replicated(ODD, world_size) == [placement.Share(((0, sum(map(prod, ODD))),))] * world_size


@pytest.mark.parametrize("world_size", WORLD_SIZES)
def test_rows_are_those_of_torchs_chunk_in_room_for_the_most(world_size):
    shares = placement.rows(ODD, world_size)
    chunks = [torch.empty(shape or (1,)).chunk(world_size) for shape in ODD]
    mine = [[each[rank].numel() if rank < len(each) else 0 for each in chunks] for rank in range(world_size)]
    assert [share.numel for share in shares] == list(map(sum, mine))
    assert {share.size for share in shares} == {sum(each[0].numel() for each in chunks)}


@pytest.mark.parametrize("world_size", WORLD_SIZES)
def test_flat_is_the_cut_of_the_engines_flats(world_size):
    for layout in partition(models.build("mlp-odd"), world_size):
        shares = placement.flat([slot.shape for slot in layout.slots], world_size)
        assert {share.size for share in shares} == {layout.shard_numel}
        assert [share.spans for share in shares] == [
            ((first, min(last, layout.numel)),) if first < layout.numel else ()
            for first, last in map(layout.span, range(world_size))
        ]


@pytest.mark.parametrize("world_size", WORLD_SIZES)
def test_a_flat_of_whole_matrices_has_the_shards_of_its_owners_end_to_end(world_size):
    (layout,) = partition(nn.ParameterList(nn.Parameter(torch.empty(n, 3)) for n in (1, 5, 4, 2)), world_size, units=[])
    names, sizes = [slot.name for slot in layout.slots], [slot.shape.numel() for slot in layout.slots]
    owners = placement.balanced(sizes, world_size)
    owned = layout.owned_by(owners)
    assert owned.padded == owned.numel == layout.numel
    assert [owned.span(rank)[1] - owned.span(rank)[0] for rank in range(world_size)] == list(owned.sizes)
    for slot in owned.slots:
        first, last = owned.span(owners[names.index(slot.name)])
        assert first <= slot.start < slot.stop <= last


def test_owners_are_balanced_by_size_and_the_imbalance_is_the_fullest_rank_to_the_mean():
    assert placement.balanced([4, 1, 3, 4], 2) == [0, 1, 0, 1]  # 4 and 4, then 3 and 1
    assert placement.imbalance([6, 1, 1], [0, 1, 1], 2) == 1.5
    assert placement.imbalance([2, 2], [0, 1], 4) == 2.0
    assert placement.imbalance([], [], 4) == 0.0


@pytest.mark.parametrize("world_size", WORLD_SIZES)
def test_the_fullest_rank_has_at_most_a_third_more_than_it_must(world_size):
    for seed in range(20):
        sizes = torch.randint(1, 1000, (17,), generator=torch.Generator().manual_seed(seed)).tolist()
        owners = placement.balanced(sizes, world_size)
        must = max(-(-sum(sizes) // world_size), *sizes)
        assert placement.imbalance(sizes, owners, world_size) * sum(sizes) / world_size <= must * 4 / 3


# The table.


def of_flats(count, stage, world_size, rank=0, **keywords):
    """What `held` or `sent` says of the whole model under a system that cuts flats."""
    system = placement.SYSTEMS[stage]
    return [
        count(system, placement.flat, [slot.shape for slot in layout.slots], world_size, rank, **keywords)
        for layout in partition(models.build("mlp-odd"), world_size)
    ]


@pytest.mark.parametrize("world_size", WORLD_SIZES)
@pytest.mark.parametrize("stage", theory.STAGES)
def test_each_stage_is_a_row_whose_state_is_the_formulas_and_its_padding(stage, world_size):
    layouts = partition(models.build("mlp-odd"), world_size)
    formula = theory.state_bytes(stage, sum(layout.numel for layout in layouts), world_size)
    terms = theory.terms(stage, layouts, world_size)
    found = of_flats(placement.held, stage, world_size)
    states = {"parameters": 4, "gradients": 4, "optimizer_state": 8}
    held = sum(states[category] * numel for flat in found for category, numel in flat.items())
    assert held == sum(formula.values()) + terms["padding"]
    sharded = {name for name in states if getattr(placement.SYSTEMS[stage], name) != "replicated"}
    assert sharded == set(theory.SHARDED[stage])


@pytest.mark.parametrize("world_size", WORLD_SIZES)
@pytest.mark.parametrize("stage", theory.STAGES)
def test_each_stage_sends_its_passes(stage, world_size):
    padded = sum(layout.padded for layout in partition(models.build("mlp-odd"), world_size))
    for rank in range(world_size):
        sent = sum(of_flats(placement.sent, stage, world_size, rank))
        assert sent == theory.PASSES[stage] * padded * (world_size - 1) // world_size


@pytest.mark.parametrize("world_size", [2, 4, 6, 8])
def test_hsdp_holds_what_fsdp2_holds_on_half_the_ranks_and_its_halves_add_up_their_shards(world_size):
    hsdp, fsdp2 = placement.SYSTEMS["hsdp"], placement.SYSTEMS["fsdp2"]
    shapes = [(24, 5), (48,)]  # which 1 to 4 ranks divide
    for rank in range(world_size):
        half = placement.rows, shapes, world_size // 2, rank % (world_size // 2)
        whole = placement.rows, shapes, world_size, rank
        assert placement.held(hsdp, *whole) == placement.held(fsdp2, *half)
        assert placement.sent(hsdp, *whole) == placement.sent(fsdp2, *half) + 168 // (world_size // 2)
        assert 4 * placement.sent(hsdp, *whole) == systems.traffic_bytes("hsdp", 168, world_size, "fp32")


def test_a_choice_of_placements_names_the_stage_and_what_no_engine_does_is_refused_with_what_one_does():
    stages = ["ddp", "zero1", "zero2", "zero3", "fsdp2", "hsdp", "muon-owners"]
    assert [placement.system_of(*placement.SYSTEMS[stage]) for stage in stages] == stages
    others = {stage: placement.system_of(*placement.SYSTEMS[stage]) for stage in placement.SYSTEMS.keys() - stages}
    assert others == {"muon-replicated": "ddp", "muon-rows": "fsdp2"}
    with pytest.raises(
        ValueError, match=r"no engine has parameters flat, gradients replicated .* zero3: flat, flat, flat"
    ):
        placement.system_of("flat", "replicated", "flat")
