"""How long a step took and for how much of it a rank was blocked."""

from dataclasses import replace

import pytest

from zerolab.recording.events import Event, RankInfo, RankRecording
from zerolab.recording.recording import Recording
from zerolab.recording.steps import length

MS = 1_000_000


def event(seq, kind, start, end, device=None, *, stream="compute", **more):
    on_device = dict(zip(("device_start", "device_end"), (MS * t for t in device), strict=True)) if device else {}
    on_device |= {"stream": stream} if device else {}
    return Event(0, seq, MS * start, MS * end, 1, "forward", kind, "forward", **on_device, **more)


def recorded(*events, world_size=1):
    return Recording.merge([RankRecording(0, world_size, events, {}, (), RankInfo(started_ns=0, steps=1))])


def row(*events, world_size=1):
    table = recorded(*events, world_size=world_size).times()
    return {name.removesuffix("_ms"): value for name, value in table.rows[0].items()}


def test_time_in_several_intervals_counts_once():
    assert length([(0, 4), (2, 6), (8, 9), (8, 8)]) == 7
    assert length([]) == 0


ON_GPU = (
    event(0, "module", 0, 1, (2, 12)),
    event(1, "collective", 0, 2, (1, 9), stream="communication"),
    event(2, "wait", 1, 2, (6, 9), parent=1),
    event(3, "optimizer", 1, 2, (12, 15)),
)


def test_a_step_on_a_gpu_is_told_in_gpu_time():
    assert row(*ON_GPU) == {"rank": 0, "step": 14, "computing": 10, "communication": 8, "blocked": 3}
    assert recorded(*ON_GPU).times().title == "step 1, GPU time"


def test_a_step_without_a_device_is_told_in_host_time():
    events = (
        event(0, "module", 0, 9),
        event(1, "collective", 1, 6),
        event(2, "collective", 1, 2, parent=1),  # a part of it
        event(3, "wait", 4, 6, parent=1),
    )
    assert row(*events) == {"rank": 0, "step": 9, "computing": 7, "communication": 5, "blocked": 2}
    assert recorded(*events).times().title == "step 1, host time"


def test_a_collective_on_the_compute_stream_blocks_it():
    events = (event(0, "module", 0, 1, (0, 9)), event(1, "collective", 0, 1, (3, 7)))
    assert row(*events) == {"rank": 0, "step": 9, "computing": 5, "communication": 4, "blocked": 4}


def test_where_a_wait_was_not_seen_nothing_is_said_of_it():
    events = (event(0, "module", 0, 9), event(1, "collective", 1, 6))
    told = {"rank": 0, "step": 9, "computing": None, "communication": None, "blocked": None}
    assert row(*events, world_size=2) == told
    assert "-" in str(recorded(*events).times())
    assert row(*events) == told | {"communication": 5}  # one rank waits for nobody


def test_a_barrier_ends_where_it_is_called():
    assert row(*ON_GPU, replace(event(4, "collective", 20, 23), op="barrier"), world_size=2)["communication"] == 8 + 3


def test_waits_for_another_stream_count_where_a_collective_has_no_wait_of_its_own():
    gathered = event(1, "collective", 0, 1, (0, 3), stream="communication")
    waited = event(2, "wait", 1, 2, (1, 3))
    computed = event(0, "module", 0, 1, (0, 9))
    assert row(computed, gathered, waited)["blocked"] == 2
    assert row(computed, gathered, waited, event(3, "wait", 1, 2, (6, 9), parent=1))["blocked"] == 3


def test_a_wait_of_another_stream_than_the_compute_stream_blocks_nothing():
    events = (*ON_GPU[:2], event(2, "wait", 1, 2, (6, 9), stream="communication", parent=1))
    assert row(*events)["blocked"] == 0


def test_a_step_that_is_not_there_is_refused():
    with pytest.raises(ValueError, match="step 2 is not in this recording: choose one of 1 to 1"):
        recorded(*ON_GPU).times(2)


@pytest.mark.parametrize("stage", ["ddp", "zero3"])
def test_a_real_recording_says_how_long_its_ranks_were_blocked(recordings, stage):
    for figures in recordings[stage].times():
        assert 0 < figures["blocked_ms"] < figures["step_ms"]
        assert figures["computing_ms"] + figures["blocked_ms"] <= figures["step_ms"]
