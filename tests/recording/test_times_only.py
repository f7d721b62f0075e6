"""A recording of times only: the same units and collectives as the whole one has, and no bytes."""

import pytest
import torch
import torch.distributed as dist

from zerolab import Recording


def told(recording, *kinds, step=2):
    """What happened on rank 0 in a step, without its times."""
    fields = ("kind", "op", "unit", "phase", "dtype", "numel", "logical_bytes", "number", "group")
    events = [event for event in recording.rank(0).events if event.step == step and event.kind in kinds]
    events = [event for event in events if event.kind != "collective" or event.parent is None]
    return [tuple(getattr(event, field) for field in fields) for event in events]


@pytest.mark.parametrize("stage", ["ddp", "zero1", "zero2", "zero3"])
def test_units_updates_collectives_and_waits_are_those_of_the_whole_recording(cluster, train, recordings, stage):
    light, whole = cluster.record_times(train, stage), recordings[stage]
    for kinds in (("module", "optimizer"), ("collective",), ("wait",)):
        assert told(light, *kinds) == told(whole, *kinds)
        assert told(light, *kinds)
    assert light.rank(1).info.losses == whole.rank(1).info.losses
    assert light.sent == whole.sent
    assert light.times().rows[0]["blocked_ms"] > 0


@pytest.mark.parametrize("stage", ["torch-ddp", "fsdp1", "fsdp2", "torch-zero1"])
def test_what_other_systems_send_is_seen_too(cluster, train, stage):
    def collectives(recording):
        return [entry for event in (1, 2) for entry in sent(recording, event)]

    def sent(recording, step):
        events = [event for event in recording.rank(0).events if event.kind == "collective" and event.step == step]
        return [(event.op, event.numel, event.logical_bytes) for event in events]

    light, whole = cluster.record_times(train, stage), cluster.record(train, stage)
    assert collectives(light) == collectives(whole)
    assert collectives(light)


def functional():
    from torch.distributed._functional_collectives import all_reduce

    return (all_reduce(torch.ones(4), "sum", dist.group.WORLD) + 1).tolist()


def test_functional_collectives_are_seen_as_what_they_are_made_of(cluster):
    recording = cluster.record_times(functional)
    assert recording.results == [[3.0] * 4] * 2
    assert [(event.op, event.numel) for event in recording.rank(0).events] == [("all_reduce", 4)]


def test_no_operation_is_looked_at(cluster):
    def modes():
        from torch.utils._python_dispatch import _get_current_dispatch_mode_stack

        return len(_get_current_dispatch_mode_stack())

    assert cluster.record_times(modes).results == [0, 0]
    assert cluster.record(modes).results == [1, 1]


def test_nothing_is_left_behind(cluster):
    def sends():
        dist.all_reduce(torch.ones(4))
        return dist.get_world_size()

    for _ in range(2):  # a kernel that stays could not be registered again
        assert len(cluster.record_times(sends).collectives) == 1
    assert len(cluster.record(sends).collectives) == 1


@pytest.fixture
def light(cluster, train, tmp_path):
    cluster.record_times(train, "zero2").save(tmp_path / "run.json")
    return Recording.load(tmp_path / "run.json")


def test_what_was_not_recorded_is_never_shown_as_zero(light):
    assert {tuple(event.live) for event in light.events} == {()}
    assert light.info.times_only
    info = light.ranks[0].info
    assert (info.state, info.peak, info.peak_total, info.peaks, info.operations) == (None, None, None, {}, [])
    for ask in (lambda: light.state, lambda: light.peak, lambda: light.highest("parameters"), light.explain):
        with pytest.raises(ValueError, match="bytes of memory were not recorded: this recording has times only"):
            ask()
    for table in (light.table(), light.memory()):
        assert "bytes of memory were not recorded" in str(table)
    assert {row["state"] for row in light.table()} == {None}
    assert {row["peak"] for row in light.memory()} == {None}
