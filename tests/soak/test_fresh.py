"""The soak of fresh processes: what it calls wrong, and that its figures add up."""

import json

import fresh
import pytest

PRESSURE = "100 1"


@pytest.mark.slow
def test_a_trial_is_right_only_if_it_ends_well_says_nothing_and_leaves_nothing():
    assert fresh.trial("import gc; assert gc.get_threshold()[0] == 100 and gc.callbacks", PRESSURE)[1] == ""
    assert fresh.trial("raise SystemExit(3)", PRESSURE)[1] == "exit code 3"
    assert fresh.trial("import sys; print('a warning', file=sys.stderr)", PRESSURE)[1] == "a warning\n"
    start = "import subprocess, sys; subprocess.Popen([sys.executable, '-c', '{}'], stdout=-3, stderr=-3)"
    assert "left behind" in fresh.trial(start.format("import time; time.sleep(60)"), PRESSURE)[1]
    assert fresh.trial(start.format("pass"), PRESSURE)[1] == ""


def test_a_trial_that_takes_too_long_is_ended_with_all_that_it_started(monkeypatch):
    monkeypatch.setattr(fresh, "LIMIT", 0.5)
    assert "it took longer than 0.5 s" in fresh.trial("import time; time.sleep(60)", PRESSURE)[1]


def test_trials_of_one_commit_add_up_over_runs(tmp_path, monkeypatch):
    results, tried = tmp_path / "fresh.json", []

    def trial(code, pressure):
        tried.append(code)
        if len(tried) == 4:
            raise KeyboardInterrupt
        return 1.0, "it failed" if code == fresh.RECORD else ""

    monkeypatch.setattr(fresh, "trial", trial)
    with pytest.raises(KeyboardInterrupt):
        fresh.soak(2, results, say=lambda *_, **__: None)
    figures = fresh.soak(2, results, say=lambda *_, **__: None)
    assert len(tried) == 7  # three, one that was ended, and the three that were missing
    assert {kind: fresh.done(figures, kind) for kind in fresh.KINDS} == dict.fromkeys(fresh.KINDS, 2)
    assert [each["said"] for each in figures["wrong"]] == ["it failed"] * 2
    assert json.loads(results.read_text()) == {fresh.commit(): figures}
    assert "record | 2 | 2 |" in results.with_suffix(".md").read_text()
