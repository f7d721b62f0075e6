"""The doctor looks at the box without touching it, and says what is missing and what it would give."""

import json
import os
import stat

import pytest

from zerolab import doctor

CARDS = "0, NVIDIA A100, 40960, 40000, Default, Disabled\n1, NVIDIA A100, 40960, 20000, Default, [N/A]\n"


@pytest.fixture
def driver(tmp_path, monkeypatch):
    """A box whose `nvidia-smi` lists two cards."""
    command = tmp_path / "nvidia-smi"
    command.write_text(f"#!/bin/sh\nprintf '{CARDS}'\n")
    command.chmod(stat.S_IRWXU)
    monkeypatch.setenv("PATH", f"{tmp_path}:{os.environ['PATH']}")
    monkeypatch.delenv("CUDA_VISIBLE_DEVICES", raising=False)


def test_cards_are_listed_with_their_memory_in_bytes(driver):
    first, second = doctor.gpus()
    assert (first["name"], first["memory_total"], first["memory_free"]) == ("NVIDIA A100", 40960 * 2**20, 40000 * 2**20)
    assert second["mig"] == "[N/A]"


@pytest.mark.parametrize(("chosen", "seen"), [("1", [1]), ("", []), ("1,0", [0, 1]), ("GPU-5ee", [0, 1]), ("-1", [])])
def test_cards_that_were_hidden_are_not_listed(driver, monkeypatch, chosen, seen):
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", chosen)
    assert [card["index"] for card in doctor.gpus()] == seen


def test_a_card_without_memory_of_its_own_counts_as_none(driver, tmp_path):
    (tmp_path / "nvidia-smi").write_text("#!/bin/sh\necho '0, NVIDIA GB10, [N/A], [N/A], Default, [N/A]'\n")
    assert [card["memory_free"] for card in doctor.gpus()] == [0]


def test_a_box_without_a_driver_has_no_cards(tmp_path, monkeypatch):
    monkeypatch.setenv("PATH", str(tmp_path))
    assert doctor.gpus() == []


def test_seats_are_set_by_the_scarcer_memory(driver):
    cards = doctor.gpus()
    gigabyte = 10**9
    assert doctor.seats([], 20 * gigabyte) == (10, "main")
    # 60,000 MiB of cards with 500 MiB a rank hold 120 ranks, which are 30 people
    assert doctor.seats(cards, 1000 * gigabyte, context=lambda _: 500 * 2**20) == (30, "gpu")
    assert doctor.seats(cards, 20 * gigabyte, context=lambda _: 500 * 2**20) == (10, "main")


def test_chromium_is_the_one_that_was_named_before_any_on_the_path(tmp_path, monkeypatch):
    named, found = tmp_path / "mine", tmp_path / "google-chrome"
    for path in (named, found):
        path.touch(stat.S_IRWXU)
    monkeypatch.setenv("PATH", str(tmp_path))
    monkeypatch.delenv("ZEROLAB_CHROMIUM", raising=False)
    assert doctor.find_chromium() == found
    monkeypatch.setenv("ZEROLAB_CHROMIUM", str(named))
    assert doctor.find_chromium() == named


def test_a_named_chromium_that_is_not_there_is_an_error_and_no_guess(monkeypatch):
    monkeypatch.setenv("ZEROLAB_CHROMIUM", "/nowhere/chromium")
    with pytest.raises(FileNotFoundError, match="ZEROLAB_CHROMIUM is '/nowhere/chromium', which is no file"):
        doctor.find_chromium()


def test_the_report_is_json_and_reads_as_one_line_a_thing():
    report = doctor.examine()
    assert json.loads(json.dumps(report)) == report
    assert report["cores"] >= 1
    assert 0 < report["memory_available"] <= report["memory_total"]
    lines = doctor.describe(report).splitlines()
    assert [line.split()[0] for line in lines][:3] == ["zerolab", "python", "torch"]


def test_what_is_missing_is_said_with_its_remedy():
    report = doctor.examine() | {"deepspeed": None, "chromium": None, "gpus": []}
    shown = doctor.describe(report)
    assert "pip install" in shown
    assert "every lesson also runs on the CPU" in shown
