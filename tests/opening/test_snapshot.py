"""What becomes of a memory snapshot: bytes over time, and nothing said of what they are for."""

import made
import pytest

from zerolab import Recording
from zerolab.opening import snapshot


def totals(recording):
    return [event.live["other"] for event in recording.rank(0).events if event.kind == "memory"]


def test_bytes_are_those_of_the_entries_counted_back_from_what_was_live_at_the_end(tmp_path):
    recording = Recording.open(made.write(tmp_path / "snapshot0.pickle", made.snapshot()))
    assert totals(recording) == [1024, 3072, 3584, 2560]
    earlier = made.write(tmp_path / "earlier0.pickle", made.snapshot(left=(2048, 512, 100_000)))
    assert totals(Recording.open(earlier)) == [101_024, 103_072, 103_584, 102_560]
    assert (recording.info.total_only, recording.info.times_only) == (True, False)
    assert any("what memory was used for" in lack for lack in recording.info.lacks)
    with pytest.raises(ValueError, match="no state after 0 steps"):
        _ = recording.state


def test_of_many_moments_the_highest_and_the_lowest_of_each_stretch_stay(tmp_path):
    sizes = [1000 + (place * 7919) % 5000 for place in range(20_000)]
    recording = Recording.open(made.write(tmp_path / "s0.pickle", made.snapshot(sizes, freed=15_000)))
    found = totals(recording)
    assert len(found) <= 2 * snapshot.MOMENTS
    assert max(found) == sum(sizes)


def test_beside_a_trace_it_tells_the_bytes_at_each_event(tmp_path):
    trace = made.write(tmp_path / "trace0.json", made.trace(made.nccl_bars(), world_size=1))
    memory = made.write(tmp_path / "memory0.pickle", made.snapshot(at=made.START + 50))
    recording = Recording.open(trace, memory)
    assert recording.info.origin == "a trace of torch.profiler and a memory snapshot"
    updates = [event.live["other"] for event in recording.events if event.kind == "optimizer"]
    assert updates == [2560, 2560]
    assert {event.step for event in recording.events if event.kind == "memory"} == {1}
    assert not any("bytes of memory" in lack for lack in recording.info.lacks)


def test_beside_a_trace_no_event_gets_the_bytes_of_another_moment_however_many_there_are(tmp_path):
    sizes = [1 << (10 + place % 14) for place in range(20_000)]
    updates = [
        made.bar("Optimizer.step#AdamW.step", made.START + at, 0.5, "user_annotation") for at in range(7, 20_000, 1003)
    ]
    trace = made.write(tmp_path / "trace0.json", made.trace(updates, world_size=1))
    recording = Recording.open(trace, made.write(tmp_path / "memory0.pickle", made.snapshot(sizes, freed=0)))
    told = [event.live["other"] for event in recording.events if event.kind == "optimizer"]
    assert told == [sum(sizes[: at + 1]) for at in range(7, 20_000, 1003)]


def test_another_devices_bytes_and_what_is_no_segment_do_not_count(tmp_path):
    document = made.snapshot()
    segment = {**document["segments"][0], "device": 1}
    document["device_traces"].reverse()  # the rank is on GPU 1
    for others in ([{**segment, "device": 0}], [{"device": 1, "blocks": 3}, 5]):
        document["segments"] = [*others, segment]
        assert totals(Recording.open(made.write(tmp_path / "snapshot0.pickle", document))) == [1024, 3072, 3584, 2560]
    document["segments"] = 3
    assert totals(Recording.open(made.write(tmp_path / "snapshot0.pickle", document)))[-1] == 0


def test_a_date_in_a_snapshots_name_is_no_rank(tmp_path):
    first, second, *named = (
        made.write(tmp_path / name, made.snapshot())
        for name in ("devbox_Nov_26_11_30_05.pickle", "devbox_Nov_26_11_30_06.pickle", "rank1-2026-11-26.pickle")
    )
    assert Recording.open(first).world_size == 1
    with pytest.raises(ValueError, match=r"'devbox_Nov_26_11_30_05\.pickle', .*, does not say of which rank it is"):
        Recording.open(first, second)
    assert [rank.rank for rank in Recording.open(*named).ranks] == [1]
    trace = made.write(tmp_path / "trace.json", made.trace(made.nccl_bars(), rank=1))
    assert [rank.rank for rank in Recording.open(trace, first).ranks] == [1]
