"""Bytes on a card and bytes in main memory are two things; the card is a pretended one."""

import gc
import json
import os
from functools import cache
from types import SimpleNamespace

import pytest
import torch
from a_card import CARD, recorded
from torch import nn

from zerolab import models
from zerolab.comparison import Comparison, row_of
from zerolab.engines import ENGINES
from zerolab.recording import card, jsonfile, log, memory
from zerolab.recording.events import CARD_FIGURES, STATE
from zerolab.recording.recording import Recording
from zerolab.runtime import nvml

STAGES = ("ddp", "zero1", "zero2", "zero3")


def model():
    return nn.Sequential(nn.Linear(31, 50), nn.Tanh(), nn.Linear(50, 20))


def train(stage, steps=3, **options):
    with torch.device(CARD):
        engine = ENGINES[stage](model(), torch.optim.AdamW, lr=1e-3, **options)
        inputs, targets = torch.randn(8, 31), torch.randn(8, 20)
    for _ in range(steps):
        engine.training_step(inputs, targets, models.loss)


@pytest.fixture(scope="module")
def measured():
    """A function from a stage and its options to the recording of rank 0 of two."""
    return cache(lambda stage, **options: Recording.merge([recorded(lambda: train(stage, **options))]))


def on_card(info):
    return {category: info.state[category] - info.host_state[category] for category in STATE}


@pytest.mark.slow
@pytest.mark.parametrize("stage", STAGES)
def test_offload_takes_the_optimizers_state_off_the_card(measured, stage):
    plain, offloaded = (measured(stage, offload=offload).ranks[0].info for offload in (False, True))
    counters = plain.host_state["optimizer_state"]  # torch keeps Adam's step in main memory
    assert plain.host_state == {"parameters": 0, "gradients": 0, "optimizer_state": counters}
    assert counters == 4 * 2
    moments = on_card(plain)["optimizer_state"]
    assert on_card(offloaded) == on_card(plain) | {"optimizer_state": 0}
    # Two moments, their counters, and the copy that the optimizer updates, half as large as the moments.
    assert offloaded.host_state["optimizer_state"] == moments + counters + moments // 2
    assert offloaded.peak_total <= plain.peak_total - moments


@pytest.mark.parametrize("precision", ["fp32", "bf16"])
@pytest.mark.parametrize("offload", [False, True])
@pytest.mark.parametrize("stage", STAGES)
def test_state_on_both_devices_is_the_formula_and_named_terms(measured, stage, offload, precision):
    recording = measured(stage, offload=offload, precision=precision)
    rows = {row["term"]: row for row in recording.explain()}
    assert rows["state"]["difference"] == 0, str(recording.explain())
    assert ("offloaded_gradients" in rows) == (offload and precision == "fp32")


def test_each_device_has_a_highest_moment_of_its_own_which_an_event_tells(measured):
    recording = measured("zero2", offload=True)
    info = recording.ranks[0].info
    last = [event for event in recording.ranks[0].events if event.step == info.steps]
    assert max(sum(event.live.values()) for event in last) == info.peak_total
    assert max(sum(event.host.values()) for event in last) == sum(info.host_peak.values())
    # Forward and backward fill the card, the update main memory.
    highest = {name: max(last, key=lambda event: sum(getattr(event, name).values())) for name in ("live", "host")}
    assert highest["live"].phase in {"backward", "reduce"}
    assert highest["host"].phase == "step"


@pytest.mark.slow
def test_a_buffer_in_main_memory_is_no_byte_of_the_card(measured):
    def with_a_buffer():
        kept = torch.zeros(10_000)
        train("zero1")
        return kept

    info = recorded(with_a_buffer).info
    assert info.peak == measured("zero1").peak
    assert info.host_peak["other"] >= 40_000


def test_a_rank_on_the_cpu_has_one_device_and_says_nothing_of_others(record):
    def loop():
        shape_only = torch.empty(1000, device=CARD)
        layer = nn.Linear(4, 4)
        optimizer = torch.optim.AdamW(layer.parameters())
        for _ in range(2):
            layer(torch.randn(2, 4)).sum().backward()
            optimizer.step()
            optimizer.zero_grad()
        return shape_only

    rank = record(loop)
    assert (rank.info.device, rank.info.host_state, rank.info.host_peak, rank.info.card) == ("cpu", None, None, [])
    assert not any(event.host for event in rank.events)
    assert all(sum(event.live.values()) < 4000 for event in rank.events), "a tensor of shape alone takes no memory"


def test_both_devices_are_in_the_file(measured, tmp_path):
    recording = measured("zero2", offload=True)
    recording.save(tmp_path / "run.json")
    loaded = Recording.load(tmp_path / "run.json")
    assert loaded.ranks == recording.ranks
    text = (tmp_path / "run.json").read_text()
    assert text.count('"host"') < len(recording.events), "only where main memory has changed"


@pytest.mark.parametrize("value", [[1, 2], "many", [0.5] * 6])
def test_bytes_in_main_memory_that_are_none_are_refused(measured, tmp_path, value):
    recording = measured("zero2", offload=True)
    document = json.loads(jsonfile.text(recording))
    next(row for row in document["ranks"][0]["events"] if "host" in row[-1])[-1]["host"] = value
    with pytest.raises(ValueError, match=r"'host' of event .* of rank 0 is"):
        jsonfile.parse(json.dumps(document).encode(), "bad.json")


def test_tables_have_rows_for_each_device(measured):
    recording = measured("zero1", offload=True)
    info = recording.ranks[0].info
    totals = {row["device"]: row for row in recording.memory() if row["category"] == "total"}
    assert list(totals) == [CARD, "main memory", "both"]
    assert totals[CARD]["peak"] == info.peak_total
    assert totals["main memory"]["peak"] == sum(info.host_peak.values())
    assert totals[CARD]["state"] + totals["main memory"]["state"] == totals["both"]["state"]
    assert totals["both"]["formula"] == sum(info.formula.values())
    (row,) = recording.table()
    assert row["in main memory"] == totals["main memory"]["state"]


def test_before_the_state_is_complete_the_peaks_are_told_device_by_device_all_the_same(measured):
    recording = measured("zero1", steps=1)
    info = recording.ranks[0].info
    totals = {row["device"]: row for row in recording.memory() if row["category"] == "total"}
    assert {device: row.get("peak") for device, row in totals.items()} == {
        CARD: info.peak_total,
        "main memory": sum(info.host_peak.values()),
        "both": None,
    }
    assert [row["state"] for row in totals.values()] == [None, None, None]
    assert recording.table()[0]["its peak"] == sum(info.host_peak.values())


def compared(measured, stages, **options):
    rows, recordings = [], {}
    for stage in stages:
        recordings[stage] = recording = measured(stage, **options)
        rows.append(row_of(recording, "fp32", 0.1))
    return Comparison(rows, recordings)


def test_a_comparison_shows_the_card_and_main_memory_apart(measured):
    found = compared(measured, ("ddp", "zero1"), offload=True)
    rows = list(found.table())
    assert [(row["stage"], row["device"]) for row in rows[:3]] == [
        ("ddp", "both"),
        ("ddp", CARD),
        ("ddp", "main memory"),
    ]
    for both, here, there in (rows[:3], rows[3:]):
        assert both["unexplained"] == 0
        assert here["optimizer_state"] == 0
        assert here["state"] + there["state"] == both["state"]
    peaks = list(found.memory())
    assert [row["peak"] for row in peaks[:2]] == [
        found.recordings["ddp"].ranks[0].info.peak_total,
        sum(found.recordings["ddp"].ranks[0].info.host_peak.values()),
    ]


class Asked:
    """A card whose figures are made up, one step's after the other's."""

    def __init__(self, *steps):
        self.steps, self.begun = list(steps), 0

    def begin(self):
        self.begun += 1

    def read(self):
        requested, allocated, reserved, process = self.steps[self.begun - 1]
        shared = {"used": 2**30, "total": 2**34}
        return {"requested": requested, "allocated": allocated, "reserved": reserved, "process": process, **shared}


FIGURES = [(10**6, 10**6 + 512, 2**21, 2**29)] * 2 + [(10**6, 10**6 + 1024, 2**22, 2**29 + 2**22)]


@pytest.fixture
def on_a_card(monkeypatch):
    """A function that records training on a card with the given figures; and what was asked of it."""

    def run(figures, function=lambda: train("zero2")):
        asked = Asked(*figures)
        monkeypatch.setattr(log, "card_of", lambda device: asked if device.type == CARD else None)
        return recorded(function), asked

    return run


def test_what_the_driver_says_of_the_process_is_a_sum_of_named_terms(on_a_card, tmp_path):
    rank, asked = on_a_card(FIGURES)
    assert asked.begun == rank.info.steps == len(rank.info.card) == 3
    for (requested, allocated, reserved, process), figures in zip(FIGURES, rank.info.card, strict=True):
        terms = memory.terms_on_card(figures)
        assert sum(terms.values()) == process
        assert list(terms) == ["tensors", "from before", "rounding and workspaces", "cached", "context and NCCL"]
        assert terms["rounding and workspaces"] == allocated - figures["ledger"] - figures["older"]
        assert (terms["cached"], terms["context and NCCL"]) == (reserved - allocated, process - reserved)
        assert figures["requested"] == requested
    assert rank.info.card[-1]["ledger"] == rank.info.peak_total
    recording = Recording.merge([rank])
    rows = {row["category"]: row["peak"] for row in recording.memory() if row["device"] == CARD}
    assert rows["total"] + sum(rows[name] for name in terms if name != "tensors") == rows["on the card"] == process
    recording.save(tmp_path / "run.json")
    assert Recording.load(tmp_path / "run.json").ranks[0].info.card == rank.info.card


def test_where_the_driver_does_not_tell_of_processes_the_rest_of_the_card_has_a_name(on_a_card):
    rank, _ = on_a_card([(*figures[:3], None) for figures in FIGURES])
    terms = memory.terms_on_card(rank.info.card[-1])
    assert terms["context, NCCL and other processes"] == 2**30 - 2**22
    assert sum(terms.values()) == rank.info.card[-1]["used"]


@pytest.mark.slow
def test_tensors_from_before_the_recording_are_a_term_of_their_own(on_a_card):
    older = torch.empty(1000, device=CARD)
    gc.collect()
    rank, _ = on_a_card(FIGURES)
    more = memory.terms_on_card(rank.info.card[-1])["from before"]
    del older
    rank, _ = on_a_card(FIGURES)
    assert more - memory.terms_on_card(rank.info.card[-1])["from before"] == 4000


def test_figures_that_lack_one_are_refused():
    with pytest.raises(ValueError, match="lack reserved"):
        memory.terms_on_card(dict.fromkeys(CARD_FIGURES, 1) | {"reserved": None})


def test_what_the_allocator_gave_back_since_its_peak_is_on_the_card_at_the_peak(monkeypatch):
    stats = {"requested_bytes.all.peak": 90, "allocated_bytes.all.peak": 100}
    stats |= {"reserved_bytes.all.peak": 500, "reserved_bytes.all.current": 300}
    monkeypatch.setattr(torch.cuda, "get_device_properties", lambda _: SimpleNamespace(uuid="1-2"))
    monkeypatch.setattr(torch.cuda, "memory_stats", lambda _: stats)
    monkeypatch.setattr(torch.cuda, "mem_get_info", lambda _: (1000, 9000))
    monkeypatch.setattr(nvml, "process_bytes", lambda uuid, pid: 700 if (uuid, pid) == ("GPU-1-2", os.getpid()) else 0)
    figures = card.CudaCard(torch.device("cuda", 0)).read()
    assert figures == {
        "requested": 90, "allocated": 100, "reserved": 500, "process": 900, "used": 8200, "total": 9000
    }  # fmt: skip
    named = memory.terms_on_card(figures | {"ledger": 60, "older": 10})
    assert list(named.values()) == [60, 10, 30, 400, 400]


class Awkward(nn.Module):
    """A layer without a gradient, one that is frozen, and one in fp64."""

    def __init__(self):
        super().__init__()
        self.unused, self.frozen, self.first = nn.Linear(5, 7), nn.Linear(31, 31), nn.Linear(31, 20)
        self.wide = nn.Linear(20, 20, dtype=torch.float64)
        self.frozen.requires_grad_(False)

    def forward(self, x):
        hidden = self.first(self.frozen(x))
        return self.wide(hidden.to(self.wide.weight.dtype)).to(x.dtype)


@pytest.mark.parametrize("offload", [False, True])
@pytest.mark.parametrize("stage", STAGES)
def test_a_model_with_all_that_has_a_term_of_its_own_is_explained_on_a_card_too(stage, offload):
    def run():
        with torch.device(CARD):
            engine = ENGINES[stage](Awkward(), torch.optim.AdamW, lr=1e-3, offload=offload, units=["unused", "wide"])
            inputs, targets = torch.randn(8, 31), torch.randn(8, 20)
        for _ in range(3):
            engine.training_step(inputs, targets, models.loss)

    recording = Recording.merge([recorded(run)])
    row = row_of(recording, "fp32", 0.1)
    assert all(row["terms"][name] for name in ("frozen", "other_dtypes", "unused"))
    table = Comparison([row], {stage: recording}).table(exact=True)
    assert table[0]["unexplained"] == 0, str(table)
