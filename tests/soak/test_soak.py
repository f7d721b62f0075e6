"""The soak itself: a short one is clean, and it notices what a long one is for."""

import json
import subprocess
import sys

import pytest
import soak


@pytest.mark.slow
def test_a_short_soak_reports_every_fault_as_itself_and_leaves_nothing_behind(tmp_path):
    # In a process of its own, whose children are the soak's and nobody else's.
    command = [sys.executable, soak.__file__, "--runs", "40", "--seed", "4", "--results", str(tmp_path)]
    ended = subprocess.run(command, capture_output=True, text=True, check=False)
    assert ended.returncode == 0, ended.stdout + ended.stderr
    figures = json.loads((tmp_path / "soak_40.json").read_text())
    assert figures["wrong"] == []
    assert sum(figures["faults"].values()) >= 2
    assert figures["held"]["after"]["processes"] == soak.WORLD_SIZE + 1
    assert "40 runs" in (tmp_path / "soak_40.md").read_text()


def test_what_has_grown_is_named_with_both_numbers():
    before = {"descriptors": 28, "memory": 160_000_000}
    assert soak.grown(before, {"descriptors": 28, "memory": 160_000_000 + soak.MEMORY_ALLOWED}) == []
    assert soak.grown(before, {"descriptors": 29, "memory": 260_000_000}) == [
        "descriptors grew from 28 to 29",
        "memory grew from 160,000,000 to 260,000,000",
    ]


class Accused:
    rank, exception, signal, exitcode = 1, "KeyError", None, None

    def __str__(self):
        return "rank 1 raised KeyError"


@pytest.mark.parametrize(
    ("guilty", "kind", "sentence"),
    [
        (2, "raise", "blamed on rank 1"),
        (1, "raise", r"told as {'exception': 'KeyError'}"),
        (1, "hang", "reported as Accused"),
    ],
)
def test_a_fault_that_is_not_reported_as_itself_is_found(tmp_path, guilty, kind, sentence):
    judge = soak.Soak(cluster=None, seed=0, folder=tmp_path)
    judge._judge("run 1", kind, guilty, Accused(), 0.1)
    assert sentence in judge.wrong[0]
