"""The trace obeys Chrome's format, so that Perfetto opens it."""

import json

from zerolab import simulate


def test_the_trace_obeys_the_format(tmp_path):
    recording = simulate("zero3", world_size=2, model="gpt-tiny").recordings["zero3"]
    recording.to_chrome(tmp_path / "run.trace.json")
    trace = json.loads((tmp_path / "run.trace.json").read_text())
    events = trace["traceEvents"]
    assert trace["displayTimeUnit"] in ("ms", "ns")
    assert trace["otherData"]["simulated"] is True
    assert {event["ph"] for event in events} == {"M", "X", "C"}
    assert all({"name", "pid", "tid"} <= event.keys() for event in events)
    names = {(e["pid"], e["tid"]): e["args"]["name"] for e in events if e["name"] == "thread_name"}
    assert {e["args"]["name"] for e in events if e["name"] == "process_name"} == {"rank 0", "rank 1"}
    bars = [event for event in events if event["ph"] == "X"]
    assert all(event["dur"] >= 0 and event["ts"] >= 0 and (event["pid"], event["tid"]) in names for event in bars)
    assert all(set(e["args"].values()) and min(e["args"].values()) >= 0 for e in events if e["ph"] == "C")
    for thread in names:
        assert_nested([event for event in bars if (event["pid"], event["tid"]) == thread])


def assert_nested(bars):
    """Bars of one thread lie beside or inside one another."""
    open_ends = []
    for bar in sorted(bars, key=lambda bar: (bar["ts"], -bar["dur"])):
        while open_ends and open_ends[-1] <= bar["ts"] + 1e-6:
            open_ends.pop()
        end = bar["ts"] + bar["dur"]
        assert not open_ends or end <= open_ends[-1] + 1e-6, bar
        open_ends.append(end)
