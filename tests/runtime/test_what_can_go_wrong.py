"""Runs every example of docs/what-can-go-wrong.md in a real kernel, and compares what it prints with the page."""

import os
import re
import subprocess
import sys
from pathlib import Path

import drivers
import printed_lines
import pytest

from zerolab.runtime import devices, machine

PAGE = Path(__file__).parents[2] / "docs" / "what-can-go-wrong.md"
MAKE = (
    "import _thread, ctypes, os, signal, threading, time\nimport torch, torch.distributed as dist\n"
    "from zerolab import Cluster\ncluster = Cluster(3, device='cpu', timeout=3)"
)
EXAMPLE = re.compile(
    r"^## (?P<title>.+?)\n.*?```python\n(?P<code>.*?)```\n.*?```text\n(?P<output>.*?)```", re.MULTILINE | re.DOTALL
)
CHANGING = (
    (re.compile(r"\x1b\[[0-9;]*m"), ""),
    (re.compile(r"pid \d+"), "pid 4711"),
    (re.compile(r"cell \[\d+\]"), "cell [5]"),
    (re.compile(r"(?<![\w.])/(?:[^\s/:'\"]+/)+"), ""),
    (re.compile(r"lost a peer, in"), "waiting in"),  # whether a rank has noticed by then is a matter of milliseconds
    (re.compile(r"^ *[ ~^]+$\n?", re.MULTILINE), ""),  # Python 3.13 marks other parts of a line than 3.11
    (re.compile(r"[\d.]+ GB are free; at most \d+ fit"), "12.5 GB are free; at most 202 fit"),
    (re.compile(r"[ \t]+"), " "),
    # Which rank has waited longest is a matter of milliseconds, and where ranks disagree so is what it waits in.
    (re.compile(r"rank \d has waited in \w+ #\d+"), "rank 0 has waited in all_reduce #0"),
)
EVERY_RANK_RAISES = re.compile(r"^RankError: rank \d(?= .* raised )")  # which one is told is a matter of chance
EXAMPLES = [(found["title"], found["code"], found["output"]) for found in EXAMPLE.finditer(PAGE.read_text())]
BEGIN = next(code for _, code, _ in EXAMPLES if "AdamW" in code).partition("def train")[0]  # of all that train


def comparable(text):
    for pattern, replacement in CHANGING:
        text = pattern.sub(replacement, text)
    return [line.strip() for line in printed_lines.by_rank(text) if line.strip()]


def shown(printed, error):
    """What a learner sees; of an error in the kernel itself, the last line."""
    if error is None:
        return printed
    ours = error["ename"] in ("RankError", "CollectiveHang", "KeyboardInterrupt")
    return printed + ("\n".join(error["traceback"]) if ours else f"{error['ename']}: {error['evalue']}")


def matches(expected, lines):
    """Whether the lines are the expected ones; `...` stands for any that are left out."""
    if not expected:
        return not lines
    if expected[0] == "...":
        return any(matches(expected[1:], lines[start:]) for start in range(len(lines) + 1))
    return bool(lines) and expected[0] == lines[0] and matches(expected[1:], lines[1:])


@pytest.fixture(scope="module")
def notebook(kernel):
    commands = str(Path(sys.executable).parent)
    kernel.run(
        f"import os\nos.chdir({str(kernel.folder)!r})\nos.environ['PATH'] = {commands!r} + ':' + os.environ['PATH']"
    )
    kernel.run("os.environ['CUDA_VISIBLE_DEVICES'] = ''")  # the page is of a box without GPUs
    assert kernel.run(MAKE, timeout=60) == ("", None)
    return kernel


def test_the_page_has_examples_and_each_of_them_a_meaning_and_a_remedy():
    sections = PAGE.read_text().split("\n## ")[1:]
    assert len(sections) == len(EXAMPLES) > 15
    for section in sections:
        assert "**What it means.**" in section
        assert "**What to do.**" in section


@pytest.mark.slow
def test_the_refusals_that_take_other_machines_are_what_is_said_there(tmp_path, monkeypatch):
    busy = drivers.RTX.format(index=1, free=8000, mode="Exclusive_Process")
    drivers.install(tmp_path, monkeypatch, [drivers.H200_MIG.format(index=0), busy, *drivers.several(drivers.L40S, 1)])
    cards = dict(enumerate(machine.cards()))
    sliced, exclusive = (devices.unusable(cards[number], ranks=2, gpus=2) for number in (0, 1))
    almost = {0: {**cards[2], "memory_free": 7_900_000_000}}
    with pytest.raises(ValueError, match="ZEROLAB_DEVICES names GPU 7") as missing:
        devices.chosen_of(2, (0, 7))
    notes = devices.free_gpus([0], almost, 4)[1]
    with pytest.raises(ValueError, match=re.escape(exclusive)):
        devices.check_usable([1], cards, 2)
    restarts = {"TORCHELASTIC_RUN_ID": "7", "TORCHELASTIC_MAX_RESTARTS": "3", "TORCHELASTIC_USE_AGENT_STORE": "True"}
    command = [sys.executable, "-m", "zerolab.run", "--stage", "zero3", "--out", str(tmp_path / "run.json")]
    said = subprocess.run(command, env=os.environ | restarts, capture_output=True, text=True, check=False).stderr
    bullets = re.findall(r"^\* `(.*)`$", PAGE.read_text(), re.MULTILINE)
    assert bullets == [exclusive, sliced, str(missing.value), notes[0].partition("L40S, ")[2], said.strip()]


@pytest.mark.slow
@pytest.mark.parametrize(("title", "code", "output"), EXAMPLES, ids=[title for title, _, _ in EXAMPLES])
def test_the_page_shows_what_is_really_printed(notebook, title, code, output):
    notebook.run("[os.environ.pop(name) for name in list(os.environ) if name.startswith('ZEROLAB_')];")
    if title == "Fresh ranks":
        notebook.run("cluster.run(os._exit, 1)")
    else:
        notebook.run("cluster.run(dist.get_rank)")  # whatever the example before it has cost
    trains = re.search(r"\bZero[123]\b", code)
    if trains:
        notebook.run(BEGIN)
    lines = comparable(shown(*notebook.run(code, timeout=90)))
    if trains:
        lines = [EVERY_RANK_RAISES.sub("RankError: rank 0", line) for line in lines]
    if title == "More prints than a cell can show":
        lines = [line for line in lines if re.search(r"left out|line 99999", line)]
        lines = [re.sub(r"\d[\d,]+ bytes are", "1,000,000 bytes are", line) for line in lines]
    assert matches(comparable(output), lines), "\n".join(lines)
