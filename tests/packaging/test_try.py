"""The page "Try it": its recordings are real, it works from a folder, and it says what a choice changed."""

import json
import os
import re
import subprocess
import sys
from pathlib import Path

import pytest
from tabs import Complaints

ROOT = Path(__file__).resolve().parents[2]
MADE = ("gpt-tiny-zero2-2-two-batches", "gpt-tiny-zero2-2-base", "gpt-tiny-zero3-2-base", "7b-zero3-64-base")
WRITE = """
import sys
from pathlib import Path
import site_choices
folder, cache, *only = sys.argv[1:]
site_choices.fill(Path(folder, "try.md"), Path(folder, "choices"), Path(cache), only)
"""

pytestmark = [pytest.mark.slow, pytest.mark.browser]


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    """The page with some of its recordings, made by the site's own tools, without a theme around it."""
    folder = tmp_path_factory.mktemp("try")
    (folder / "try.md").write_text((ROOT / "docs" / "try.md").read_text())
    (folder / "_static").symlink_to(ROOT / "docs" / "_static")
    environment = {**os.environ, "PYTHONPATH": str(ROOT / "tools")}
    (folder / "kept" / "0123456789abcdef").mkdir(parents=True)  # of an older package
    command = [sys.executable, "-c", WRITE, folder, folder / "kept", *MADE]
    done = subprocess.run(command, env=environment, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    head = '<!doctype html><html lang="en"><meta charset="utf-8"><title>Try it</title><body data-theme="light">'
    (folder / "try.html").write_text(head + (folder / "try.md").read_text())
    return folder


@pytest.fixture
def open_at(folder, tabs):
    """Opens the page from the folder at an address, and fails for what it complains of or asks from elsewhere."""
    complaints, tab = Complaints(), tabs.take(height=900, motion="reduce")
    complaints.listen(tab.on)

    def opened(address=""):
        tab.goto(f"{(folder / 'try.html').as_uri()}#{address}")
        return tab

    yield opened
    complaints.listen(tab.remove_listener)
    tabs.give_back(tab)
    assert complaints == []


def shows(tab, name):
    tab.wait_for_function(f"window.zerolabChosen === '{name}' && document.querySelector('.zl-player')")


def figures(folder, name):
    text = (folder / "choices" / f"{name}.js").read_text()
    return json.loads(text.removeprefix("zerolabChoice(").removesuffix(");\n"))["figures"]


def test_recordings_of_an_older_package_are_not_kept(folder):
    [kept] = (folder / "kept").iterdir()
    assert {file.stem for file in kept.iterdir()} == set(MADE)


def test_what_was_recorded_equals_the_formula_with_its_terms(folder):
    for name in MADE:
        made = figures(folder, name)
        assert sum(made["state"].values()) == sum(made["formula"].values()) + sum(made["terms"].values()), name
        # What is simulated pads as over NCCL; it is bf16 with Adam, 16 bytes of state for 2 that are sent.
        padding = made["terms"]["padding"] // 16 * 2 if name == MADE[-1] else 0
        assert made["sends"] == made["formula_sends"] + 3 * (64 - 1) * padding, name


def test_a_choice_plays_its_recording_says_what_it_changed_and_stands_in_the_address(open_at):
    tab = open_at("stage=zero2&ranks=2&model=gpt-tiny")
    shows(tab, "gpt-tiny-zero2-2-base")
    tab.locator("[name=stage][value=zero2]").focus()
    tab.keyboard.press("ArrowRight")  # radio buttons: the keyboard is enough
    shows(tab, "gpt-tiny-zero3-2-base")
    said = tab.inner_text("#zt-said")
    assert said.startswith("ZeRO-3: a rank keeps 425 kB less than with ZeRO-2 at the update (parameters \u2212425 kB)")
    assert tab.url.endswith("#stage=zero3&ranks=2&model=gpt-tiny")
    assert tab.evaluate("window.zerolabPlayers.length") == 1
    assert re.search(r"held at the update\s+1\.70 MB\s+1\.70 MB", tab.inner_text("#zt-figures"))


def test_what_does_not_apply_cannot_be_chosen_and_says_why(open_at):
    tab = open_at("stage=zero2&ranks=2&model=gpt-tiny&change=two-batches")
    shows(tab, "gpt-tiny-zero2-2-two-batches")
    assert tab.locator("[value=no-prefetch]").is_disabled()
    assert tab.inner_text("#zt-why-prefetch") == "Only ZeRO-3 gathers units, so only it can fetch early."
    assert tab.locator("[name=ranks][value='64']").is_disabled()
    assert "choose a model that is simulated" in tab.inner_text("#zt-why-ranks")


def test_sizes_beyond_this_box_are_marked_as_simulated(open_at):
    tab = open_at("stage=zero3&ranks=64&model=7b")
    shows(tab, "7b-zero3-64-base")
    assert tab.inner_text("#zt-said").startswith("Simulated. ZeRO-3 on 64 ranks")
    assert tab.locator("[name=precision][value=bf16]").is_checked()
    assert "simulated" in tab.inner_text(".zl-player")


def test_a_choice_that_this_build_lacks_is_said_in_words(open_at):
    tab = open_at("stage=ddp&ranks=8&model=gpt-tiny")
    tab.wait_for_function("document.getElementById('zt-said').textContent !== ''")
    assert "made without the recording of this choice" in tab.inner_text("#zt-said")
