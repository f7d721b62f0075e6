"""What torch's own tools write of a run and what zerolab records of it agree: one run, looked at by both at once."""

import pytest

from zerolab import Recording


def files(folder, kind, world_size):
    return [folder / f"{kind.format(rank)}" for rank in range(world_size)]


def sent(recording, rank, *, units=True):
    """A rank's collectives in steps: step, operation, unit, group, elements and bytes, in order."""
    events = [event for event in recording.rank(rank).events if event.kind == "collective" and event.step]
    events = [event for event in events if event.parent is None]
    return [(e.step, e.op, e.unit if units else None, e.group, e.numel, e.logical_bytes) for e in events]


def agreement(own, opened, **options):
    """The part of all collectives that are the same at the same place."""
    pairs = [(sent(own, rank.rank, **options), sent(opened, rank.rank, **options)) for rank in own.ranks]
    same = sum(mine == theirs for one, other in pairs for mine, theirs in zip(one, other, strict=False))
    return same / sum(max(len(one), len(other)) for one, other in pairs)


@pytest.mark.slow
@pytest.mark.parametrize("world_size", [2, 4])
@pytest.mark.parametrize(("system", "collectives"), [("ddp", 11), ("fsdp2", 33), ("fsdp1", 33)])
def test_a_profiler_trace_has_the_collectives_of_the_recording_in_order_unit_and_bytes(
    system, collectives, world_size, profiled
):
    folder = profiled(system, world_size)
    own = Recording.load(folder / "own.json")
    opened = Recording.open(*files(folder, "trace-rank{}.json", world_size))
    assert len(sent(own, 0)) == collectives
    assert agreement(own, opened) >= 0.99
    assert (opened.info.steps, opened.info.first_step) == (own.info.steps, own.info.first_step) == (3, 2)
    assert opened.rank(1).info.logical_bytes == own.rank(1).info.logical_bytes
    assert {event.unit for event in opened.events if event.kind == "collective"} == (
        {"root", "layers.0", "layers.1", "layers.2"} if system == "fsdp2" else {None}
    )


@pytest.mark.slow
def test_groups_that_a_trace_does_not_tell_apart_come_from_the_flight_recorder(profiled):
    folder = profiled("hsdp", 4)
    own = Recording.load(folder / "own.json")
    traces, dumps = files(folder, "trace-rank{}.json", 4), files(folder, "dump-rank{}.pickle", 4)
    alone = Recording.open(*traces)
    assert any("the groups of some collectives" in lack for lack in alone.info.lacks)
    assert {event[3:] for event in sent(alone, 0)} == {(None, 0, 0)}
    both = Recording.open(*traces, *dumps)
    assert agreement(own, both) >= 0.99
    assert not any("groups" in lack or "sizes" in lack for lack in both.info.lacks)


@pytest.mark.slow
def test_without_shapes_sizes_are_missing_until_a_dump_tells_them(profiled):
    folder = profiled("fsdp2", 2, "bare")
    own = Recording.load(folder / "own.json")
    traces, dumps = files(folder, "trace-rank{}.json", 2), files(folder, "dump-rank{}.pickle", 2)
    alone = Recording.open(*traces)
    assert any(lack.startswith("sizes of some collectives") for lack in alone.info.lacks)
    assert [event[:3] for event in sent(alone, 0)] == [event[:3] for event in sent(own, 0)]
    assert {row["logical bytes"] for row in alone.traffic()} == {None}
    both = Recording.open(*traces, *dumps)
    assert agreement(own, both) >= 0.99
    labels = {
        both.sources[event.source.id].label for event in both.events if event.kind == "collective" and event.source
    }
    assert labels == {"profiled.py", "net.py"}


@pytest.mark.slow
def test_dumps_alone_have_the_collectives_of_the_whole_run(profiled):
    folder = profiled("fsdp2", 2)
    own = Recording.load(folder / "own.json")
    whole = Recording.open(*files(folder, "dump-rank{}.pickle", 2))
    asked = [(e.op, e.numel, e.logical_bytes) for e in whole.rank(0).events if e.op != "barrier"]
    inside = [(op, numel, nbytes) for _, op, _, _, numel, nbytes in sent(own, 0)]
    assert asked[11:44] == inside  # after the eleven of the first step
    assert all(rank.complete for rank in whole.ranks)
    as_json = Recording.open(*files(folder, "dump-rank{}.json", 2))
    assert [e.number for e in as_json.rank(0).events] == [e.number for e in whole.rank(0).events]
    assert {e.op for e in as_json.events} == {"all_gather", "all_reduce"}  # as gloo carries them out
    assert any("reduce-scatter" in lack for lack in as_json.info.lacks)


@pytest.mark.slow
def test_an_opened_trace_is_saved_loaded_and_drawn_as_any_recording(profiled, tmp_path):
    opened = Recording.open(*files(profiled("fsdp2", 2), "trace-rank{}.json", 2))
    opened.save(tmp_path / "run.json")
    again = Recording.load(tmp_path / "run.json")
    assert again.events == opened.events
    assert (again.info, again.units) == (opened.info, opened.units)
    again.to_html(tmp_path / "run.html")
    again.to_chrome(tmp_path / "again.json")
    assert again.times().rows[0]["computing_ms"] is None  # nobody saw who waited
