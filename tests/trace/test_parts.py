"""What the ranks left is put together: on one clock where they were on several nodes, or refused in a sentence."""

from dataclasses import replace

import pytest

import zerolab
from zerolab import Cluster
from zerolab.recording import clocks
from zerolab.recording.info import Membership
from zerolab.recording.recording import Recording
from zerolab.trace import parts
from zerolab.trace.parts import Parts


@pytest.fixture(scope="module")
def ranks():
    """Four ranks that have made two steps."""

    def train():
        import torch
        import torch.distributed as dist
        from torch.nn.parallel import DistributedDataParallel

        model = DistributedDataParallel(torch.nn.Linear(64, 64))
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
        for _ in range(2):
            model(torch.ones(8, 64)).sum().backward()
            optimizer.step()
            dist.barrier()
            dist.all_reduce(torch.ones(1), async_op=True)  # for which nobody waits

    with Cluster(world_size=4, device="cpu") as cluster:
        return cluster.record(train).ranks


def ahead(rank, nanoseconds):
    """The same, by a clock that is so far ahead."""
    events = tuple(event.moved(lambda time: time + nanoseconds) for event in rank.events)
    return replace(rank, events=events, info=replace(rank.info, started_ns=rank.info.started_ns + nanoseconds))


@pytest.mark.parametrize("offset", [0, 5_000_000_000, -7_300_000_000])
def test_the_distance_of_two_clocks_follows_from_collectives(ranks, offset):
    reading = clocks.from_collectives(ranks[0], ahead(ranks[3], offset))
    assert abs(reading.offset - offset) <= reading.uncertainty
    assert reading.uncertainty < 20_000_000


def test_ranks_on_two_nodes_are_put_on_one_clock_and_how_exactly_is_said(ranks, tmp_path, monkeypatch):
    left = Parts(tmp_path / "run.json")
    for rank in ranks:
        monkeypatch.setattr(parts, "_host", lambda rank=rank: f"node{rank.rank // 2}")
        left.write(ahead(rank, 3_000_000_000 * (rank.rank // 2)), 2)
    merged = left.merge()
    assert not left.folder.exists()
    assert merged.info.clocks.startswith("times of all nodes are on one clock, to within ")
    begun = [next(event.t_start for event in rank.events if event.op == "barrier") for rank in merged.ranks]
    assert max(begun) - min(begun) < 2_000_000_000
    assert [bool(rank.info.clock) for rank in Recording.load(tmp_path / "run.json").ranks] == [False, False, True, True]


def test_nodes_without_a_collective_in_common_cannot_be_compared(ranks):
    alone = replace(ranks[3], events=tuple(event for event in ranks[3].events if event.kind != "collective"))
    with pytest.raises(ValueError, match="rank 3 is on another node than rank 0, and they have recorded no collective"):
        clocks.from_collectives(ranks[0], alone)


def test_the_parts_of_ranks_that_never_came_stay(ranks, tmp_path):
    left = Parts(tmp_path / "run.json")
    left.write(ranks[0], 2)
    left.write(ranks[2], 2)
    assert [rank.rank for rank in left.merge().ranks] == [0, 2]
    assert left.merge() is None  # nothing new
    assert sorted(left.ranks()) == [0, 2]
    left.write(ranks[1], 2)
    left.write(ranks[3], 2)
    assert [rank.rank for rank in left.merge().ranks] == [0, 1, 2, 3]
    assert not left.folder.exists()


@pytest.mark.parametrize("name", ["rank-x.json", "rank-.json", "rank-1 (copy).json"])
def test_other_files_among_the_parts_stay_and_are_no_parts(ranks, tmp_path, name):
    left = Parts(tmp_path / "run.json")
    left.folder.mkdir()
    (left.folder / name).write_text("{}")
    left.forget(Membership())
    for rank in ranks:
        left.write(rank, 2)
    assert left.ranks() == [0, 1, 2, 3]
    assert len(left.merge().ranks) == 4
    assert [path.name for path in left.folder.iterdir()] == [name]


def test_parts_of_two_runs_into_one_file_are_not_put_together(ranks, tmp_path, monkeypatch):
    parts = Parts(tmp_path / "run.json")  # made before the port is known, as Lightning does
    for port, mine in (("29999", ranks[1:2]), ("29998", ranks)):
        monkeypatch.setenv("MASTER_PORT", port)
        for rank in mine[:1]:
            parts.write(rank, 2)
    assert parts.ranks() == [0]
    assert [rank.rank for rank in parts.merge().ranks] == [0]
    for rank in ranks[1:]:
        parts.write(rank, 2)
    assert len(parts.merge().ranks) == 4
    monkeypatch.setenv("MASTER_PORT", "29999")
    assert [rank.rank for rank in parts.merge().ranks] == [1]


def test_ranks_know_their_parts_of_an_earlier_run_by_whichever_launcher_or_group_they_are_in(
    ranks, tmp_path, monkeypatch, capsys
):
    left = Parts(tmp_path / "run.json")
    for rank in ranks:
        left.write(rank, 2)
    monkeypatch.delenv("RANK", raising=False)
    for name, value in {"RANK": "1", "SIZE": "4"}.items():
        monkeypatch.setenv(f"OMPI_COMM_WORLD_{name}", value)
    with zerolab.recording(tmp_path / "run.json"):
        pass
    assert sorted(left.ranks()) == [0, 2, 3]
    assert not capsys.readouterr().err  # it is rank 0 that says it

    def enter(out):
        import os

        os.environ.pop("RANK", None)  # as of ranks that `mp.spawn` starts
        with zerolab.recording(out):
            pass

    with Cluster(world_size=3, device="cpu") as cluster:
        cluster.run(enter, tmp_path / "run.json")
    assert left.ranks() == []


def test_a_recording_that_was_written_is_given_though_its_parts_cannot_be_marked_as_merged(ranks, tmp_path):
    left = Parts(tmp_path / "run.json")
    left.write(ranks[0], 2)
    (left.folder / parts.MERGED).symlink_to(tmp_path / "gone" / "merged")
    assert [rank.rank for rank in left.merge().ranks] == [0]
    assert len(Recording.load(tmp_path / "run.json").ranks) == 1
