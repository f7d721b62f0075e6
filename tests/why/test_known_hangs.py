"""Hangs that people have asked about in public are made again on gloo; of each the rank and the line are named.

A script of `hangs/` says in its first line how many ranks it needs and where it was asked about, and marks the line at
which a rank is to be found with `# <- ` and the rank.
"""

import contextlib
import json
import re
import subprocess
import sys
from pathlib import Path

import pytest

pytestmark = pytest.mark.slow

HERE = Path(__file__).parent
TIMEOUT, GRACE = 1.5, 5.0  # seconds
MARKED = re.compile(r"# <- ([\d ]+)")


@pytest.fixture(scope="module")
def follow(tmp_path_factory):
    """`follow(script, ...)` runs a script's ranks until something is said of them, or they end; what was said."""
    process = subprocess.Popen(
        [sys.executable, HERE / "starter.py"], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    )

    def ask(script, *options, limit=TIMEOUT + GRACE):
        folder = tmp_path_factory.mktemp(script.stem)
        asked = {
            "script": str(script), "ranks": int(script.read_text().split()[1]), "timeout": TIMEOUT, "limit": limit,
            "folder": str(folder / "notes"), "output": str(folder / "output"), "options": options,
        }  # fmt: skip
        process.stdin.write(json.dumps(asked) + "\n")
        process.stdin.flush()
        return json.loads(process.stdout.readline()) | {"folder": folder / "notes"}

    yield ask
    with contextlib.suppress(BrokenPipeError):
        process.stdin.close()
    process.wait(30)


def at_fault(script):
    """The lines that are marked, of each rank."""
    found = {}
    for line, text in enumerate(script.read_text().splitlines(), 1):
        if marked := MARKED.search(text):
            for rank in marked[1].split():
                found.setdefault(int(rank), set()).add(line)
    return found


def scripts(folder):
    return sorted((HERE / folder).glob("*.py"))


@pytest.mark.parametrize("script", scripts("hangs"), ids=lambda script: script.stem)
def test_the_rank_and_the_line_of_a_known_hang_are_named_within_seconds(follow, script):
    expected = at_fault(script)
    said = follow(script)
    assert said.get("ranks") == sorted(expected), said.get("text", said["output"])
    for rank, where in zip(said["ranks"], said["lines"], strict=True):
        place = re.search(rf"{script.name}, line (\d+): ", where)
        assert place, said["text"]
        assert int(place[1]) in expected[rank], said["text"]
    assert said["seconds"] < TIMEOUT + GRACE
    first = said["text"].splitlines()[0]
    assert all(re.search(rf"\b{rank}\b", first) for rank in expected)
    assert f"zerolab why: {first}" in said["output"]


@pytest.mark.parametrize("script", scripts("moving"), ids=lambda script: script.stem)
def test_a_run_that_is_slow_and_moves_is_not_reported(follow, script):
    said = follow(script, limit=20.0)
    assert "text" not in said, said["text"]
    assert "zerolab why" not in said["output"]
    assert said["left"] == 0, said["output"]


def test_ranks_are_ended_if_that_was_asked_for(follow):
    said = follow(HERE / "hangs" / "sleeps.py", "--end")
    assert said["ranks"] == [0]
    assert "the ranks are ended, as --end asks" in said["output"]
