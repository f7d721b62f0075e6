"""Marks on a device's clock become times on the host's, without a device."""

import struct
from types import SimpleNamespace
from typing import ClassVar

import pytest
import torch
import torch.distributed as dist

from zerolab.recording import streams
from zerolab.recording.recorder import Recorder
from zerolab.recording.streams import OnDevice, Streams


class ByHand:
    """A device whose clock and streams a test sets: a mark is the time at which it is reached, in nanoseconds."""

    kind = "cpu"

    def __init__(self):
        self.now, self.current, self.capturing = 0, 0, False

    def mark(self):
        assert not self.capturing, "it would become a part of the graph, and have no time"
        return self.now

    def is_capturing(self):
        return self.capturing

    def carries(self, group, tensors):
        return True

    def stream(self):
        return self.current

    def synchronize(self):
        pass

    def nanoseconds(self, earlier, later):
        return struct.unpack("f", struct.pack("f", (later - earlier) / 1e6))[0] * 1e6  # as torch's `elapsed_time`


def test_the_times_of_a_long_recording_are_as_exact_as_those_of_a_short_one():
    device = ByHand()
    marks = Streams(device, lambda: device.now)
    hours = [round(second * 1.000123457e9) for second in range(0, 36_000, 10)]
    for seq, now in enumerate(hours):
        device.now = now + 1
        marks.begin(seq)
        device.now = now + 2000
        marks.end(seq)
    found = marks.times()
    # After ten hours a float of 24 bits would have steps of 4 ms.
    assert max(abs(found[seq].device_start - now - 1) for seq, now in enumerate(hours)) < 20_000


def test_a_device_whose_clock_is_slow_is_read_on_the_hosts():
    device = ByHand()
    marks = Streams(device, lambda: 1000 + 2 * device.now)
    device.now = 100_000
    marks.begin(7)
    device.now = 300_000
    marks.end(7)
    device.now = 10_000_000
    assert marks.times() == {7: OnDevice("compute", 201_000, 601_000)}


def test_another_stream_on_which_units_run_has_a_name_of_its_own():
    device = ByHand()
    marks = Streams(device, lambda: device.now)
    for seq, device.current in enumerate((0, 5, 9, 5)):
        marks.begin(seq)
        marks.end(seq)
    device.now = 10
    assert [found.stream for found in marks.times().values()] == ["compute", "compute 2", "compute 3", "compute 2"]


def test_what_goes_into_a_cuda_graph_is_left_unmarked_and_what_lies_around_it_is_timed():
    device = ByHand()
    marks = Streams(device, lambda: device.now)
    marks.begin(0)
    device.capturing = True
    marks.begin(1)
    assert marks.launch(2, SimpleNamespace(group_name="0"), [torch.ones(1)]) is None
    marks.end(1)
    device.capturing, device.now = False, 1000
    marks.end(0)
    assert list(marks.times()) == [0]


class Event:
    """What `torch.cuda.Event` is asked for."""

    made: ClassVar = []

    def __init__(self, enable_timing):
        assert enable_timing
        self.done = False
        Event.made.append(self)

    def record(self):
        pass

    def query(self):
        return self.done


class Work:
    """A Work of NCCL's: its first `wait()` lets go of its tensors."""


@pytest.fixture
def gpu(monkeypatch):
    """`Gpu` over a `torch.cuda` without streams."""
    from contextlib import nullcontext

    Event.made = []
    monkeypatch.setattr(torch.cuda, "Event", Event)
    monkeypatch.setattr(torch.cuda, "Stream", object)
    monkeypatch.setattr(torch.cuda, "stream", nullcontext)
    monkeypatch.setattr(dist.Work, "wait", lambda _: True)
    return streams.Gpu()


def addresses(gpu):
    return [id(tensor) for _, _, tensors in gpu._kept for tensor in tensors]


def test_tensors_in_flight_are_kept_until_their_owner_has_waited(gpu):
    works, tensors = [Work(), Work()], [torch.ones(1), torch.ones(1)]
    for work, tensor in zip(works, tensors, strict=True):
        gpu.mark_end(work, "0", [tensor])
    assert addresses(gpu) == [id(tensor) for tensor in tensors]
    gpu.waited(works[0])
    assert addresses(gpu) == [id(tensors[1])]


def test_tensors_for_which_nobody_waits_are_kept_until_the_collective_is_over(gpu):
    tensors = [torch.ones(1) for _ in range(3)]
    for tensor in tensors[:2]:
        gpu.mark_end(Work(), "0", [tensor])
    assert addresses(gpu) == [id(tensor) for tensor in tensors[:2]]
    Event.made[0].done = True
    gpu.mark_end(Work(), "0", tensors[2:])
    assert addresses(gpu) == [id(tensor) for tensor in tensors[1:]]


def test_each_communicator_has_a_side_stream(gpu):
    for communicator in ("0", "1", "0"):
        gpu.mark_end(Work(), communicator, [])
    assert len(gpu._sides) == 2


def test_on_the_cpu_an_event_has_no_stream_and_no_second_times(record):
    recording = record(lambda: torch.nn.Linear(2, 2)(torch.ones(1, 2)))
    assert {(event.stream, event.device_start, event.device_end) for event in recording.events} == {(None, None, None)}


def test_a_wait_of_the_compute_stream_for_another_is_an_event(monkeypatch, record):
    device, asked = ByHand(), []
    monkeypatch.setattr(streams, "find_timer", lambda: device)
    monkeypatch.setattr(torch.cuda.Event, "wait", lambda *arguments: asked.append(arguments))

    def wait():
        for stream in (None, SimpleNamespace(stream_id=0), SimpleNamespace(stream_id=7)):
            torch.cuda.Event.wait("gathered", stream)

    waits = [event for event in record(wait).events if event.kind == "wait"]
    assert [(event.op, event.stream) for event in waits] == [("another_stream", "compute")] * 2
    assert len(asked) == 3
    wait()
    assert len(asked) == 6, "what was put in place is removed"


@pytest.mark.parametrize(("kind", "found"), [("cpu", {"compute"}), ("cuda", {None})])
def test_a_model_that_is_not_on_the_device_has_no_times_there(monkeypatch, record, kind, found):
    device = ByHand()
    device.kind = kind
    monkeypatch.setattr(streams, "find_timer", lambda: device)
    recording = record(lambda: torch.nn.Linear(2, 2)(torch.ones(1, 2)))
    assert {event.stream for event in recording.events if event.kind == "module"} == found


@pytest.mark.parametrize("times_only", [False, True])
def test_a_model_on_the_device_has_its_times_there_in_a_recording_of_times_only_too(monkeypatch, times_only):
    device = ByHand()
    device.kind = "meta"
    monkeypatch.setattr(streams, "find_timer", lambda: device)
    model = torch.nn.Sequential(torch.nn.Linear(2, 2), torch.nn.Linear(2, 2)).to("meta")
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    with Recorder(times_only=times_only) as recorder:
        for _ in range(2):
            model(torch.ones(1, 2, device="meta")).sum().backward()
            optimizer.step()
    recording = recorder.finish()
    assert {event.stream for event in recording.events if event.kind == "module"} == {"compute"}
    assert recording.info.device == "meta"
