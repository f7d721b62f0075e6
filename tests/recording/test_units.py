"""Which elements of a parameter that DTensor divides a rank has."""

from itertools import chain, product, starmap
from math import prod

import divided
import pytest
import torch
from torch.distributed.device_mesh import DeviceMesh, init_device_mesh
from torch.distributed.fsdp import MixedPrecisionPolicy, fully_shard
from torch.distributed.tensor import Replicate, Shard, distribute_tensor
from torch.distributed.tensor.parallel import ColwiseParallel, parallelize_module
from torch.distributed.tensor.placement_types import _StridedShard

from zerolab import Cluster
from zerolab.recording.events import STATE
from zerolab.recording.units import ROWS, spans_of
from zerolab.recording.wrappers import plain

SHAPES = [(), (6,), (1,), (5, 4), (4, 7), (3, 4, 5), (2, 3, 1, 6)]


@pytest.fixture(scope="module")
def four():
    with Cluster(4, device="cpu") as cluster:
        yield cluster


def told_and_there(shape, placements):
    """The elements that the spans of a tensor name, and those that this rank really has."""
    mesh = init_device_mesh("cpu", (2, 2))
    tensor = distribute_tensor(torch.arange(prod(shape)).view(shape), mesh, placements)
    return [*chain(*starmap(range, spans_of(tensor._spec)))], tensor.to_local().flatten().tolist()


def divisions():
    for shape in SHAPES:
        ways = [Replicate(), *map(Shard, range(len(shape)))]
        yield from ((shape, [one, other]) for one, other in product(ways, ways))


def test_the_spans_of_a_tensor_are_the_elements_that_a_rank_has(four):
    for shape, placements in divisions():
        for rank, (told, there) in enumerate(four.run(told_and_there, shape, placements)):
            assert told == there, f"{shape} as {placements} on rank {rank}"


def divided_by_rows_twice():
    """A matrix that FSDP2 divides within a rank's part of it, as torch notes that."""
    mesh = init_device_mesh("cpu", (2, 2), mesh_dim_names=("data", "tensor"))
    model = parallelize_module(torch.nn.Linear(3, 8), mesh["tensor"], ColwiseParallel())
    with torch.no_grad():
        model.weight.to_local().copy_(torch.arange(24).view(8, 3).chunk(2)[mesh["tensor"].get_local_rank()])
    fully_shard(model, mesh=mesh["data"])
    spec = model.weight._spec
    assert any(isinstance(placement, _StridedShard) for placement in spec.placements)
    return [*chain(*starmap(range, spans_of(spec)))], model.weight.to_local().flatten().tolist()


def test_so_they_are_where_a_matrix_is_divided_by_rows_twice(four):
    for told, there in four.run(divided_by_rows_twice):
        assert told == there


def test_of_a_matrix_with_very_many_rows_no_columns_are_told(four):
    rows = ROWS + 1
    assert [told for told, _ in four.run(told_and_there, (rows, 4), [Replicate(), Shard(1)])] == [[]] * 4
    assert all(told for told, _ in four.run(told_and_there, (rows, 4), [Shard(0), Shard(1)]))


def test_under_tensor_parallelism_all_bytes_of_state_are_elements_that_are_told(four):
    recording = four.record(divided.train)
    for rank in recording.ranks:
        held = {
            (e.unit, e.category): sum(stop - start for start, stop in e.spans) for e in rank.events if e.op == "hold"
        }
        after = {category: sum(n for (_, each), n in held.items() if each == category) for category in rank.state}
        assert 4 * after["parameters"] == rank.state["parameters"]
        assert 8 * after["optimizer_state"] == rank.state["optimizer_state"] - 4 * 52  # Adam's step, one a parameter


def a_number_on_two_of_four():
    """A model with a parameter without a dimension, on a mesh that only two ranks are in."""
    mesh = DeviceMesh("cpu", [0, 1])
    model = torch.nn.Linear(2, 2)
    model.scale = torch.nn.Parameter(distribute_tensor(torch.ones(()), mesh, [Replicate()]))
    model(torch.ones(1, 2)).sum().backward()
    torch.optim.SGD(model.parameters(), lr=0.1).step()
    return spans_of(model.scale._spec)


def test_a_rank_that_the_mesh_does_not_have_has_nothing_of_a_tensor_and_is_recorded(four):
    assert four.record(a_number_on_two_of_four).results == [((0, 1),), ((0, 1),), (), ()]


def train_with_wide_sums():
    """A step of two micro-batches, whose gradients FSDP2 adds up whole, in another dtype than it computes in."""
    mesh = init_device_mesh("cpu", (2, 2), mesh_dim_names=("data", "tensor"))
    model = parallelize_module(torch.nn.Linear(8, 16), mesh["tensor"], ColwiseParallel())
    fully_shard(model, mesh=mesh["data"], mp_policy=MixedPrecisionPolicy(torch.bfloat16, torch.float32))
    for last in (False, True):
        model.set_requires_gradient_sync(last)
        model(torch.ones(2, 8)).float().sum().backward()
    torch.optim.SGD(model.parameters(), lr=0.1).step()


def test_of_gradients_that_are_added_up_whole_a_rank_has_those_of_what_it_computes_with(four):
    recording = four.record(train_with_wide_sums)
    held = {each: [e.held for e in recording.events if e.category == each and e.op == "hold"] for each in STATE}
    assert max(held["gradients"]) == max(held["parameters"]) == 8 * 8 + 8


@pytest.mark.parametrize(
    ("name", "told"),
    [
        ("layers.0._checkpoint_wrapped_module.0.bias", "layers.0.0.bias"),
        ("_fsdp_wrapped_module._orig_mod.weight", "weight"),
        ("my_orig_mod.weight", "my_orig_mod.weight"),
    ],
)
def test_what_wrappers_put_into_a_name_is_left_out_and_nothing_else(name, told):
    assert plain(name) == told
