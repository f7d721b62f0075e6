"""NCCL's choice among its algorithms: every second by hand from the figures of its tuner."""

from dataclasses import replace
from itertools import product

import pytest

from zerolab import catalog
from zerolab.catalog import Link
from zerolab.theory.nccl import LINK_RATES, OPS, Group, buffer_bytes

NDR = catalog.link("infiniband-ndr")
H100, A100 = catalog.link("nvlink4"), catalog.link("nvlink3")
GATHERS = ("all_gather", "reduce_scatter")


def on(ranks, nodes, link=H100, network=NDR, **more):
    return Group(ranks, nodes, link, network, **more)


@pytest.mark.parametrize("nodes", [2, 16, 64])
@pytest.mark.parametrize("nbytes", [10**6, 10**8, 10**9])
def test_gathers_and_reduce_scatters_over_nodes_are_rings(nodes, nbytes):
    """Not level by level, which would be 0.79 of a ring's time for 100 MB on 128 GPUs, and 0.38 for 1 MB on 512."""
    for op in GATHERS:
        group = on(8 * nodes, nodes)
        assert {way.name for way in group.ways(op)} == {"ring LL", "ring LL128", "ring Simple"}
        assert group.seconds(op, nbytes) > nbytes * (group.ranks - 1) / group.ranks / group.rate


def test_a_ring_over_nodes_by_hand():
    """128 GPUs: 112 steps within nodes, 15 between; NVLink's 370.8 GB/s are less than the cards' 400."""
    ways = {way.name: way.seconds(1e8) for way in on(128, 16).ways("all_gather")}
    bytes_alone = 127 / 128 * 1e8
    assert ways["ring Simple"] == pytest.approx(8.4e-6 + 112 * 3.4e-6 + 15 * 14e-6 + bytes_alone / 370.8e9)
    assert ways["ring LL128"] == pytest.approx(14e-6 + 112 * 1.9e-6 + 15 * 4e-6 + bytes_alone / 370.8e9 / 0.92)
    assert ways["ring LL"] == pytest.approx(6.6e-6 + 112 * 1e-6 + 15 * 2.7e-6 + bytes_alone / 20.4e9)
    assert on(128, 16).best("all_gather", 1e8).name == "ring LL128"
    assert on(128, 16).best("all_gather", 1e10).name == "ring Simple"


# What NVIDIA's own tuning.cc (2.30.7) gave, compiled with these rates: GPUs, nodes, link, bytes, way, microseconds.
TUNED = [
    ((8, 1, H100), 1e6, "ring LL", 17.0),
    ((8, 1, H100), 1e8, "ring Simple", 268.2),
    ((8, 1, A100), 1e9, "ring Simple", 3678.0),
    ((16, 2, H100), 1e6, "ring LL", 47.3),
    ((16, 2, H100), 1e8, "ring LL128", 319.4),
    ((128, 16, H100), 1e6, "ring LL", 207.7),
    ((128, 16, H100), 1e8, "ring LL128", 577.6),
    ((64, 8, A100), 1e9, "ring Simple", 4398.4),
    ((512, 64, H100), 1e6, "ring LL", 673.6),
    ((512, 64, H100), 1e8, "ring LL128", 1409.8),
    ((512, 64, A100), 1e9, "ring LL128", 5637.3),
    ((16, 16, H100), 1e6, "PAT Simple", 95.5),
    ((16, 16, H100), 1e8, "ring Simple", 2093.4),
]


@pytest.mark.parametrize(("place", "nbytes", "name", "microseconds"), TUNED)
def test_nccls_own_tuner_chooses_the_same_and_takes_as_long(place, nbytes, name, microseconds):
    for op in GATHERS:
        best = on(*place).best(op, nbytes)
        assert best.name == name
        assert best.seconds(nbytes) * 1e6 == pytest.approx(microseconds, abs=0.1)


def test_pat_gathers_only_with_one_gpu_a_node():
    alone = on(16, 16)
    assert "PAT Simple" in {way.name for way in alone.ways("all_gather")}
    pat = next(way for way in alone.ways("all_gather") if way.name == "PAT Simple")
    assert pat.seconds(1e6) == pytest.approx(8e-6 + 4 * 14e-6 / 3.5 + 16 * 2.8e-6 + 1e6 / (0.75 * 50e9))
    assert "PAT Simple" not in {way.name for way in on(32, 16).ways("all_gather")}
    assert "PAT Simple" not in {way.name for way in alone.ways("all_reduce")}


def test_the_switch_adds_up_in_one_node_from_hopper_on_and_over_nodes_only_with_sharp():
    nvls = "NVLS Simple"
    assert nvls in {way.name for way in on(8, 1).ways("all_gather")}
    assert nvls not in {way.name for way in on(8, 1, A100).ways("all_gather")}
    assert nvls not in {way.name for way in on(64, 8).ways("all_gather")}
    assert nvls in {way.name for way in on(64, 8, sharp=True).ways("all_gather")}
    # It wins where it adds up, an all-reduce; a gather's ring is faster.
    assert on(8, 1).best("all_reduce", 1e8).name == nvls
    assert on(8, 1).best("all_gather", 1e8).name == "ring Simple"


def test_trees_are_for_all_reduces_over_nodes_alone():
    assert {way.name.split()[0] for way in on(64, 8, A100).ways("all_reduce")} == {"ring", "tree"}
    assert {way.name.split()[0] for way in on(64, 8).ways("all_reduce")} == {"ring", "tree", "NVLSTree"}
    assert {way.name.split()[0] for way in on(8, 1, A100).ways("all_reduce")} == {"ring"}
    assert on(512, 64, A100).best("all_reduce", 1e6).name.startswith("tree")


def test_within_a_node_a_ring_has_the_rate_that_nccl_counts_for_the_link_and_not_the_datasheets():
    for name, rate in LINK_RATES.items():
        link = catalog.link(name)
        assert 0.79 < rate / link.bytes_per_second < 0.83
        assert on(8, 1, link).seconds("all_gather", 1e10) == pytest.approx(7 / 8 * 1e10 / rate, rel=0.01)


def test_a_link_of_ones_own_carries_a_plain_ring():
    own = Link("own", 100.0, 0.5, "a test")
    assert on(4, 4, network=own).seconds("all_gather", 400.0) == 3 * 0.5 + 3 / 4 * 4.0
    assert on(4, 4, network=own).seconds("all_reduce", 400.0) == 2 * (3 * 0.5 + 3 / 4 * 4.0)
    assert on(1, 1, network=own).seconds("all_gather", 400.0) == 0.0


def test_over_tcp_a_step_costs_what_the_link_says():
    ethernet = catalog.link("ethernet-10g")
    ways = {way.name: way for way in on(4, 2, network=ethernet).ways("all_gather")}
    assert set(ways) == {"ring Simple"}
    assert ways["ring Simple"].latency == pytest.approx(8.4e-6 + 2 * 3.4e-6 + 50e-6)


@pytest.mark.parametrize("name", LINK_RATES)
@pytest.mark.parametrize(("ranks", "nodes"), [(4, 4), (8, 2), (16, 2), (256, 32)])
def test_no_collective_is_slower_over_nvlink_between_nodes_than_over_infiniband(name, ranks, nodes):
    nvlink = catalog.link(name)
    for link, op, nbytes in product((A100, H100), OPS, (1e4, 1e6, 1e8, 1e10)):
        over_nvlink, over_ndr = (on(ranks, nodes, link, network).seconds(op, nbytes) for network in (nvlink, NDR))
        assert over_nvlink <= over_ndr, (link.name, op, nbytes)


def test_over_nvlink_between_nodes_a_step_is_as_within_one_and_trees_and_the_switch_take_part():
    nvlink = catalog.link("nvlink4")
    among, within = on(64, 8, network=nvlink), on(64, 1)
    rings = {way.name: way for way in within.ways("all_gather") if way.name.startswith("ring")}
    assert {way.name: way for way in among.ways("all_gather")} == rings
    assert {way.name.split()[0] for way in among.ways("all_reduce")} == {"ring", "tree", "NVLSTree"}
    assert on(64, 8, network=replace(nvlink, bytes_per_second=5e9)).rate == 8 * 5e9, "as the caller has said"


@pytest.mark.parametrize(("ranks", "fewest", "cards"), [(9, 1, 1), (12, 4, 4), (13, None, 6), (16, 8, 8)])
def test_the_node_with_the_fewest_cards_bounds_what_goes_over_the_network(ranks, fewest, cards):
    """NCCL, init.cc: of each rank's graph the minimum over all ranks, in number and in rate of its channels."""
    group = on(ranks, 2, fewest=fewest)
    assert group.rate == min(LINK_RATES["nvlink4"], cards * NDR.bytes_per_second)
    assert group.seconds("all_to_all", 1e10) == pytest.approx(
        1e10 * (ranks - cards) / ranks / NDR.bytes_per_second, rel=0.01
    )
    assert ("NVLSTree Simple" in {way.name for way in group.ways("all_reduce")}) == (cards > 1)


@pytest.mark.parametrize(("ranks", "nodes"), [(16, 2), (64, 8), (8, 8)])
@pytest.mark.parametrize("op", ["all_to_all", "gather", "scatter"])
def test_of_messages_for_one_rank_each_gpus_card_carries_all_that_leaves_the_node(op, ranks, nodes):
    away = 1e9 * (1 - 1 / nodes) / NDR.bytes_per_second
    assert away <= on(ranks, nodes).seconds(op, 1e9) < 1.03 * away


def test_within_a_node_an_all_to_all_takes_what_a_gather_takes():
    assert on(8, 1).seconds("all_to_all", 1e9) == on(8, 1).seconds("all_gather", 1e9)


@pytest.mark.parametrize("op", ["broadcast", "reduce", "send", "recv"])
def test_what_one_rank_sends_or_receives_whole_is_not_divided_by_the_others(op):
    """NCCL's tuner: nsteps is the number of ranks, so the ratio is 1; nccl-tests: bus bandwidth is S / t."""
    for ranks in (2, 8):
        (least,) = {1e9 / LINK_RATES["nvlink4"]}
        assert least < on(ranks, 1).seconds(op, 1e9) < 1.02 * least
    assert {way.name.split()[0] for way in on(16, 16).ways(op)} == {"ring"}


@pytest.mark.parametrize(
    ("asked", "says"),
    [
        (lambda: on(8, 1).seconds("allreduce", 1e9), "unknown collective 'allreduce': .* did you mean 'all_reduce'"),
        (lambda: on(8, 1).best("allreduce", 1e9), "unknown collective 'allreduce'"),
        (lambda: on(8, 1).seconds("all_reduce", -5), "a collective over -5 bytes: give 0 or more"),
        (lambda: on(8, 1).seconds("all_reduce", float("nan")), "a collective over nan bytes"),
        (lambda: on(1, 1).best("all_gather", 1e9), "one rank sends nothing"),
        (lambda: on(2, 0), "the number of nodes is 0"),
        (lambda: on(0, 1), "the number of ranks is 0"),
        (lambda: on(2, 4), "there are 4 nodes for 2 ranks: give each node at least one"),
        (lambda: on(9, 2, fewest=5), "2 nodes of 5 or more ranks are more than 9: give fewer"),
        (lambda: on(9, 2, fewest=0), "the number of ranks in the smallest node is 0"),
        (lambda: buffer_bytes(-1), "the number of channels is -1"),
        (lambda: buffer_bytes(16, 0), "the number of connections is 0"),
    ],
)
def test_a_collective_that_cannot_be_is_refused(asked, says):
    with pytest.raises(ValueError, match=says):
        asked()


def test_a_ring_of_16_channels_receives_into_154_megabytes_and_with_a_tree_into_four_times_as_much():
    """A connection has 4 MiB for Simple, 512 KiB for LL, and 4.6875 MiB for LL128."""
    assert buffer_bytes() == 16 * (4_194_304 + 524_288 + 4_915_200) == 154_140_672
    assert buffer_bytes(16, 4) == 4 * buffer_bytes(16)
