"""A guess is put beside what was measured; without one a fixed line is printed."""

import re
from fractions import Fraction
from pathlib import Path

import numpy as np
import pytest
import torch

from zerolab import Recording, reveal
from zerolab.lessons import folding
from zerolab.lessons.predictions import NO_GUESS, PREDICTIONS
from zerolab.recording.events import RankInfo, RankRecording, RunInfo


def run():
    """A recording of four ranks and 1,000 parameters under ZeRO-1, as far as a prediction looks at it."""
    state = {"parameters": 4000, "gradients": 4000, "optimizer_state": 2000}
    rank = RankRecording(0, 4, (), {}, (), RankInfo(state=state, logical_bytes=[0, 6000]))
    return Recording([rank], world_size=4, info=RunInfo(num_params=1000))


def test_without_a_guess_one_fixed_line_is_printed_and_nothing_is_measured(capsys):
    reveal("04-zero1-state", None)
    assert capsys.readouterr().out == NO_GUESS + "\n"


def test_without_a_guess_a_notebook_offers_a_slider_and_folds_what_was_measured(monkeypatch, capsys):
    shown = []
    monkeypatch.setattr(folding, "show", lambda *what: shown.append(what))
    reveal("04-zero1-state", None, run())
    [(html, plain)] = shown
    assert 'type="range" min="0" max="32"' in html
    # On one scale: 10 of 32.
    assert "width: 31.25%" in html.split("<details>")[1]
    assert "10.00 bytes a parameter</details>" in html
    assert "10" not in html.split("<details>")[0].replace("100%", "")
    assert "10" not in plain
    assert capsys.readouterr().out == NO_GUESS + "\n"


def test_every_scale_has_room_for_what_is_measured_and_more_on_both_sides():
    """The stored lessons say what was measured."""
    folder = Path(__file__).resolve().parents[2] / "notebooks"
    texts = "".join(path.read_text(encoding="utf-8") for path in sorted(folder.glob("*.ipynb")))
    shares = [float(share) for share in re.findall(r"width: ([\d.]+)%; height: 12px", texts)]
    assert len(shares) == len(PREDICTIONS)
    assert all(5 <= share <= 90 for share in shares), shares


def test_guess_measured_and_ratio_are_printed(capsys):
    reveal("04-zero1-state", 5, run())
    printed = capsys.readouterr().out
    assert "guess     5.00 bytes a parameter" in printed
    assert "measured  10.00 bytes a parameter" in printed
    assert "ratio     0.50" in printed


def test_traffic_is_counted_in_passes_of_the_model(capsys):
    reveal("04-zero1-traffic", 2, run())
    assert "measured  2.00 passes of the model" in capsys.readouterr().out


@pytest.mark.parametrize("guess", [np.int64(5), np.float32(5), np.array(5.0), torch.tensor(5), Fraction(5)])
def test_a_guess_may_be_a_number_of_any_kind(guess, capsys):
    reveal("04-zero1-state", guess, run())
    assert "ratio     0.50" in capsys.readouterr().out


@pytest.mark.parametrize(
    "guess", ["ten", True, [1], float("nan"), -float("inf"), pytest.param(10**5000, id="huge"), np.array([1]), 1j]
)
def test_a_guess_that_is_no_number_is_answered_with_a_line(guess, capsys):
    reveal("04-zero1-state", guess, run())
    assert "write a plain number" in capsys.readouterr().out


def test_an_unknown_id_is_refused_with_those_that_exist():
    with pytest.raises(ValueError, match="choose one of 00-ddp-state, "):
        reveal("99-nothing", 1)


@pytest.mark.slow
def test_without_a_recording_one_is_made_on_real_ranks(capsys):
    reveal("04-zero1-state", 10)
    assert "measured  10.00 bytes a parameter" in capsys.readouterr().out


def test_every_prediction_belongs_to_a_notebook():
    folder = Path(__file__).resolve().parents[2] / "notebooks"
    texts = "".join(path.read_text(encoding="utf-8") for path in folder.glob("*.ipynb"))
    assert all(f'reveal(\\"{name}\\"' in texts for name in PREDICTIONS)
