"""Units, flats and shards: who owns what, without any process."""

import pytest
import torch
from torch import nn

from zerolab.engines.partition import find_units, partition
from zerolab.models import build
from zerolab.names import ROOT


class EncoderDecoder(nn.Module):
    """Two stacks of blocks beside a shared embedding."""

    def __init__(self):
        super().__init__()
        self.shared = nn.Embedding(10, 4)
        self.encoder = nn.Module()
        self.encoder.embed = self.shared
        self.encoder.block = nn.ModuleList(nn.Linear(4, 4) for _ in range(3))
        self.decoder = nn.Module()
        self.decoder.block = nn.ModuleList(nn.Linear(4, 4) for _ in range(2))


class Experts(nn.Module):
    """A block that holds a list of its own."""

    def __init__(self):
        super().__init__()
        self.gate = nn.Linear(4, 2)
        self.experts = nn.ModuleList(nn.Linear(4, 4) for _ in range(2))


def test_the_benchmark_mlp_has_six_units():
    assert len(find_units(build("mlp-bench"))) == 6


def test_the_gpt_has_one_unit_for_each_block():
    model = build("gpt-tiny")
    assert find_units(model) == [f"blocks.{index}" for index in range(len(model.blocks))]


def test_an_encoder_decoder_has_one_unit_for_each_block_of_both():
    assert find_units(EncoderDecoder()) == [
        "encoder.block.0",
        "encoder.block.1",
        "encoder.block.2",
        "decoder.block.0",
        "decoder.block.1",
    ]


def test_a_module_without_parameters_is_no_unit():
    assert find_units(nn.Sequential(nn.Linear(3, 3), nn.Tanh(), nn.Linear(3, 3))) == ["0", "2"]


def test_experts_inside_a_block_are_no_units_of_their_own():
    assert find_units(nn.ModuleList([Experts(), Experts()])) == ["0", "1"]


def test_a_list_of_lists_of_blocks_is_searched_one_level_down():
    stages = nn.ModuleList(nn.ModuleList(nn.Linear(4, 4) for _ in range(depth)) for depth in (2, 3))
    assert find_units(stages) == ["0.0", "0.1", "1.0", "1.1", "1.2"]


def test_what_is_in_no_block_belongs_to_the_root_unit():
    (root,) = [layout for layout in partition(EncoderDecoder(), 2) if layout.unit == ROOT]
    assert [slot.name for slot in root.slots] == ["shared.weight"]


def test_a_parameter_that_two_units_share_belongs_to_the_root_unit():
    first, second = nn.Linear(4, 4, bias=False), nn.Linear(4, 4)
    second.weight = first.weight
    layouts = {layout.unit: layout for layout in partition(nn.Sequential(first, second), 2)}
    assert [slot.name for slot in layouts[ROOT].slots] == ["0.weight"]
    assert [slot.name for slot in layouts["1"].slots] == ["1.bias"]


@pytest.mark.parametrize("world_size", [1, 2, 3, 4, 8])
@pytest.mark.parametrize("name", ["mlp-odd", "gpt-tiny"])
def test_the_shards_of_a_flat_are_equal_and_cover_it_once(name, world_size):
    for layout in partition(build(name), world_size):
        spans = [layout.span(rank) for rank in range(world_size)]
        assert {stop - start for start, stop in spans} == {layout.shard_numel}
        assert [start for start, _ in spans] == [0, *(stop for _, stop in spans[:-1])]
        assert spans[-1][1] == layout.padded >= layout.numel > layout.padded - world_size


@pytest.mark.parametrize("world_size", [1, 2, 3, 4, 8])
def test_shards_of_whole_granules_are_equal_and_as_few_as_cover_the_flat(world_size):
    for layout in partition(build("mlp-odd"), world_size, granule=8):
        assert layout.shard_numel % 8 == 0
        assert layout.padded == layout.shard_numel * world_size >= layout.numel > layout.padded - 8 * world_size


def test_every_parameter_lies_in_exactly_one_place():
    model = build("gpt-tiny")
    slots = [slot for layout in partition(model, 4) for slot in layout.slots]
    assert sorted(slot.name for slot in slots) == sorted(name for name, _ in model.named_parameters())
    assert sum(slot.stop - slot.start for slot in slots) == sum(p.numel() for p in model.parameters())


def test_frozen_parameters_lie_in_a_flat_of_their_own():
    block = nn.Sequential(nn.Linear(4, 4))
    block[0].bias.requires_grad_(False)
    names = {layout.name: [slot.name for slot in layout.slots] for layout in partition(block, 2)}
    assert names == {"0": ["0.weight"], "0 frozen": ["0.bias"]}


def test_each_dtype_has_a_flat_of_its_own():
    block = nn.Sequential(nn.ModuleDict({"a": nn.Linear(4, 4), "b": nn.Linear(4, 4, dtype=torch.float64)}))
    assert {(layout.name, layout.dtype) for layout in partition(block, 2)} == {
        ("0 float32", torch.float32),
        ("0 float64", torch.float64),
    }


def test_units_may_be_named_by_hand():
    model = EncoderDecoder()
    assert {layout.unit for layout in partition(model, 2, units=["encoder", "decoder"])} == {ROOT, "encoder", "decoder"}


@pytest.mark.parametrize("world_size", [0, -1, 2.0, True])
def test_a_world_size_that_is_no_number_of_ranks_is_refused(world_size):
    with pytest.raises(ValueError, match=f"world size is {world_size}"):
        partition(nn.Linear(2, 2), world_size)


def test_a_model_without_parameters_is_refused():
    with pytest.raises(ValueError, match="Tanh has no parameters"):
        partition(nn.Tanh(), 2)


def test_something_that_is_no_module_is_refused():
    with pytest.raises(TypeError, match="model is a list"):
        partition([nn.Linear(2, 2)], 2)


def test_an_unknown_unit_is_refused_by_name():
    with pytest.raises(ValueError, match=r"unit 'blocks\.9' is not a module"):
        partition(build("gpt-tiny"), 2, units=["blocks.9"])


def test_units_inside_one_another_are_refused():
    with pytest.raises(ValueError, match=r"'encoder' and 'encoder\.block\.0' lie inside one another"):
        partition(EncoderDecoder(), 2, units=["encoder", "encoder.block.0"])


class Block(nn.Module):
    def __init__(self):
        super().__init__()
        self.linear = nn.Linear(4, 4)


def with_second_names():
    """As people keep parts of a model at hand: the list of its blocks, and the last of them."""
    model = nn.ModuleDict({"body": nn.ModuleDict({"layers": nn.ModuleList([Block(), Block()])})})
    model["layers"] = layers = model["body"]["layers"]
    model["last"], model["head"] = layers[-1], nn.Linear(4, 2)
    return model


def test_a_block_that_has_a_second_name_is_one_unit_and_travels_as_one():
    model = with_second_names()
    names = ["body.layers.0", "body.layers.1"]
    assert find_units(model) == names
    assert {flat.unit: flat.numel for flat in partition(model, 2)} == {"root": 10, **dict.fromkeys(names, 20)}
    others = ["layers.0", "layers.1"]
    assert {flat.unit: flat.numel for flat in partition(model, 2, others)} == {"root": 10, **dict.fromkeys(others, 20)}


def test_a_list_of_parts_of_blocks_has_no_units_of_its_own():
    model = with_second_names()
    model["linears"] = nn.ModuleList(block.linear for block in model["layers"])
    assert find_units(model) == ["body.layers.0", "body.layers.1"]


def test_a_block_that_is_used_again_in_its_list_is_one_unit():
    model = nn.ModuleDict({"layers": nn.ModuleList([nn.Linear(4, 4)] * 3), "head": nn.Linear(4, 2)})
    assert find_units(model) == ["layers.0"]
    assert [(flat.unit, flat.numel) for flat in partition(model, 2)] == [("root", 10), ("layers.0", 20)]
