"""The payload holds the whole recording, in few bytes."""

import base64
import re
from dataclasses import replace
from pathlib import Path

import pytest
from showing import changed, renamed

from zerolab import Cluster, RankError
from zerolab.player import bundle, describe, payload
from zerolab.player.bundle import ordered, script
from zerolab.player.payload import encode
from zerolab.recording.events import CATEGORIES


def decode(text):
    raw, values, at = base64.b64decode(text), [], 0

    def varint():
        nonlocal at
        value = shift = 0
        while True:
            byte = raw[at]
            at += 1
            value |= (byte & 127) << shift
            shift += 7
            if byte < 128:
                return value

    while at < len(raw):
        value = varint()
        values += [0] * (varint() + 1) if value == 0 else [-(value + 1) // 2 if value % 2 else value // 2]
    return values


def column(data, name):
    values = decode(data["columns"][name]["data"])
    if data["columns"][name]["delta"]:
        for place in range(1, len(values)):
            values[place] += values[place - 1]
    return values


@pytest.mark.parametrize(
    "values", [[], [0], [0, 0, 0], [1, -1, 127, 128, -129], [0, 5, 0, 0, -7, 0], [2**50, -(2**50)]]
)
def test_numbers_survive_the_encoding(values):
    assert decode(encode(values)) == values


def test_every_event_is_in_the_payload_with_its_times_bytes_and_spans(recording):
    data = payload(recording)
    events = [event for rank in recording.ranks for event in rank.events]
    assert data["count"] == len(events)
    assert column(data, "t_start") == [event.t_start for event in events]
    assert column(data, "duration") == [event.t_end - event.t_start for event in events]
    assert column(data, "logical_bytes") == [event.logical_bytes for event in events]
    for category in CATEGORIES:
        assert column(data, f"live.{category}") == [event.live[category] for event in events]
    spans = [[edge for span in event.spans or () for edge in span] for event in events]
    assert [data["spans"][place - 1] if place else [] for place in column(data, "spans")] == spans
    names = [unit["name"] for unit in data["units"]]
    assert [names[place - 1] if place else None for place in column(data, "unit")] == [event.unit for event in events]


def test_an_event_takes_at_most_60_bytes(recordings):
    for recording in recordings.values():
        data = payload(recording)
        assert sum(len(column["data"]) for column in data["columns"].values()) <= 60 * data["count"]


def test_owners_are_read_off_the_recording(recordings):
    for stage in ("zero3", "zero1"):
        for unit in payload(recordings[stage])["units"]:
            share = unit["padded"] // 4
            assert unit["owners"] == [[[rank * share, (rank + 1) * share, rank] for rank in range(4)]]
    assert {str(unit["owners"]) for unit in payload(recordings["ddp"])["units"]} == {"None"}


def test_the_description_names_stage_ranks_and_steps_and_nothing_of_the_machine(recording):
    every = recording.collectives
    counted = f"{len(every)} collectives ({sum(c.step > 0 for c in every)} in steps), 5 units"
    assert describe(recording) == f"zero3 on 4 ranks, recorded: 2 training steps, {counted}"
    simulated = changed(recording, simulated=True, stage=None)
    assert describe(simulated).startswith("a loop of your own on 4 ranks, simulated: ")


def fails_in_step(failing, steps):
    """Steps under ZeRO-1, of which rank 1 raises within one."""
    import torch
    import torch.distributed as dist

    from zerolab import Zero1, models

    def broken(outputs, targets):
        raise ValueError("no loss")

    engine = Zero1(models.build("mlp-odd"), torch.optim.AdamW, lr=1e-3)
    batches = models.batches("mlp-odd", dist.get_world_size(), dist.get_rank(), steps)
    for step, (inputs, targets) in enumerate(batches, start=1):
        is_broken = step == failing and dist.get_rank() == 1
        engine.training_step(inputs, targets, broken if is_broken else models.loss)


@pytest.mark.parametrize("failing", [1, 2])
def test_the_description_of_a_run_that_failed_counts_the_steps_that_were_done(failing):
    with Cluster(world_size=2, device="cpu") as cluster, pytest.raises(RankError, match="no loss") as raised:
        cluster.record(fails_in_step, failing, 3)
    recording = raised.value.recording
    assert max(event.step for event in recording.events) == failing
    done = {1: "0 training steps", 2: "1 training step"}[failing]
    assert describe(recording).startswith(f"zero1 on 2 ranks, recorded: {done}, cut off in step {failing}, ")


def test_the_description_of_a_run_that_failed_between_steps_says_no_step_in_which_it_did(recording):
    ranks = [replace(rank, complete=False) for rank in recording.ranks]
    assert describe(changed(recording, ranks=ranks)) == describe(recording)


def test_a_unit_that_only_events_name_is_listed_without_a_size(recording):
    data = payload(changed(renamed(recording, "blocks.1", "new"), units=recording.units))
    assert [unit["padded"] for unit in data["units"] if unit["name"] == "new"] == [0]


def test_the_script_has_every_file_once_and_no_import_left():
    text = script()
    found = [line[3:-3] for line in text.splitlines() if line.startswith("// ") and line.endswith(".js")]
    assert sorted(found) == sorted(path.stem for path in Path(bundle.__file__).parent.glob("*.js"))
    assert "\nimport " not in text
    assert text.count("\nexport ") == 1  # anywidget's default export


def test_a_file_comes_after_those_that_it_imports():
    texts = {"a": 'import { b } from "./b.js";\n', "b": 'import { c } from "./c.js";\n', "c": "export const c = 1;\n"}
    assert ordered(texts) == ["c", "b", "a"]


def test_no_two_files_declare_the_same_name():
    found = re.findall(r"^(?:function|class|const|let) (\w+)", script(), re.MULTILINE)
    assert sorted(found) == sorted(set(found))


def test_no_file_of_the_player_is_longer_than_400_lines():
    files = list(Path(bundle.__file__).parent.glob("*.js"))
    assert {file.name: n for file in files if (n := file.read_text().count("\n")) > 400} == {}


def test_a_character_that_turns_text_around_or_is_none_to_see_is_escaped_and_no_other(recording):
    turned = renamed(recording, "blocks.1", "blocks.\u202e1\x1b é 一 👩\u200d🔬")
    data = payload(turned)
    assert "blocks.\\u202e1\\x1b é 一 👩\u200d🔬" in [unit["name"] for unit in data["units"]]
    sources = {source.label: source.text for source in recording.sources.values()}
    assert all(sources[source["label"]] == source["text"] for source in data["sources"])
