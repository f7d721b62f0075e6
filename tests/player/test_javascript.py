"""The player's pure parts outside a browser, which `node --test` runs, and how its JavaScript is kept."""

import dataclasses
import json
import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
from showing import changed, in_order, made_up

from zerolab.player import payload
from zerolab.player.bundle import script
from zerolab.recording.events import CATEGORIES, Event, SourceLine

HERE = Path(__file__).parent
ROOT = HERE.parents[1]
# Event's names in JavaScript, where they are others.
NAMES = {
    "t_start": "start",
    "t_end": "end",
    "logical_bytes": "logicalBytes",
    "device_start": "deviceStart",
    "device_end": "deviceEnd",
}


@pytest.fixture
def node(require):
    """The path of node."""
    found = shutil.which("node")
    require(found, "node", "apt install nodejs")
    return found


def with_every_field():
    """A recording in which each field of an event is used by some event and left out by another."""
    made = made_up(2, 2)
    full = {
        "group": (0, 1),
        "dtype": "bfloat16",
        "peer": 1,
        "text": "a note",
        "stream": "communication",
        "device_start": 2**41,
        "device_end": 2**41 + 5,
        "source": SourceLine("engine", 3, from_autograd=True),
        "host": {category: 7 + place for place, category in enumerate(CATEGORIES)},
    }
    ranks = []
    for rank in made.ranks:
        events = list(rank.events)
        place = next(e.seq for e in events if e.kind == "collective")
        events[place] = dataclasses.replace(events[place], **full)
        events[place + 1] = dataclasses.replace(events[place + 1], parent=place, source=None, unit=None)
        ranks.append(dataclasses.replace(rank, events=tuple(events)))
    return changed(made, ranks=ranks)


def as_read(recording):
    """The events in the player's order with every field that `Event` declares, as `events.js` should give them."""
    events = in_order(recording)
    places = {(event.rank, event.seq): place for place, event in enumerate(events)}
    out = []
    for event in events:
        said = {NAMES.get(field.name, field.name): getattr(event, field.name) for field in dataclasses.fields(Event)}
        source = event.source
        label = source and recording.sources[source.id].label
        said["source"] = source and {"label": label, "line": source.line, "fromAutograd": source.from_autograd}
        said["live"] = {category: event.live.get(category, 0) for category in CATEGORIES}
        earlier = (one.host for one in reversed(recording.ranks[event.rank].events[: event.seq + 1]) if one.host)
        said["host"] = dict.fromkeys(CATEGORIES, 0) | next(earlier, {})  # what says nothing repeats it
        said["spans"] = event.spans and [edge for span in event.spans for edge in span]
        said["parent"] = None if event.parent is None else places[event.rank, event.parent]
        out.append(said)
    return out


@pytest.mark.slow
def test_the_pure_parts_do_what_their_own_tests_say(node, tmp_path):
    recording = with_every_field()
    written = tmp_path / "payload.json"
    written.write_text(json.dumps({"payload": payload(recording), "events": as_read(recording)}))
    files = sorted(HERE.glob("*.test.js"))
    done = subprocess.run(
        [node, "--test", *files],
        cwd=ROOT,
        env={**os.environ, "ZEROLAB_TEST_PAYLOAD": str(written)},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    assert int(re.search(r"^. tests (\d+)$", done.stdout, re.MULTILINE)[1]) >= 2 * len(files)
    assert re.search(r"^. skipped 0$", done.stdout, re.MULTILINE)


def test_the_files_joined_into_one_name_nothing_twice(node, tmp_path):
    joined = tmp_path / "joined.mjs"
    joined.write_text(script(), encoding="utf-8")
    done = subprocess.run([node, "--check", joined], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr


def test_no_line_of_the_players_code_is_longer_than_120_characters():
    files = [*(ROOT / "zerolab" / "player").glob("*.*s"), *HERE.glob("*.js"), *(ROOT / "docs" / "_static").glob("*.js")]
    long = [
        f"{file.name}:{number}"
        for file in files
        for number, line in enumerate(file.read_text(encoding="utf-8").splitlines(), 1)
        if len(line) > 120
    ]
    assert long == []


def test_a_page_carries_no_comment_that_has_a_line_of_its_own():
    comments = [line for line in script().splitlines() if re.match(r"\s*(/\*|\*|//)", line)]
    assert comments == [line for line in comments if re.fullmatch(r"// \w+\.js", line)]


@pytest.mark.parametrize(("required", "status"), [("", 0), ("1", 1)])
def test_lint_without_node_says_so_and_fails_only_where_everything_is_required(required, status, tmp_path):
    environment = {**os.environ, "PATH": str(tmp_path), "ZEROLAB_REQUIRE_ALL": required}
    command = [sys.executable, str(ROOT / "tools" / "lint_javascript.py")]
    done = subprocess.run(command, env=environment, capture_output=True, text=True, check=False)
    assert done.returncode == status
    assert "JavaScript was not looked at: node is missing (apt install nodejs npm)." in done.stderr


def test_scripts_of_other_packages_below_the_checkout_run_as_they_were_written(node, tmp_path):
    # JupyterLab asks a yarn of its own, in .venv/, at every start; as a module it fails with a page of minified code.
    inside = ROOT / "build" / tmp_path.name
    inside.mkdir(parents=True)
    try:
        (inside / "old.js").write_text("console.log(require('path').sep)")
        done = subprocess.run([node, str(inside / "old.js")], capture_output=True, text=True, check=False)
    finally:
        shutil.rmtree(inside)
    assert (done.returncode, done.stdout.strip()) == (0, "/"), done.stderr


def test_the_tools_are_pinned_and_the_lock_file_names_no_place_to_get_them_from():
    wanted = json.loads((ROOT / "package.json").read_text())["devDependencies"]
    assert all(re.fullmatch(r"\d+\.\d+\.\d+", version) for version in wanted.values())
    packages = json.loads((ROOT / "package-lock.json").read_text())["packages"]
    assert {name: packages[f"node_modules/{name}"]["version"] for name in wanted} == wanted
    assert [name for name, entry in packages.items() if "resolved" in entry] == []
