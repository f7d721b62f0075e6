"""What a stored notebook may hold: outputs that are the same in every run, nothing that ages, nothing twice."""

import base64
import configparser
import json
import math
import re
import statistics
import struct
from pathlib import Path

import minutes
import nbformat
import pytest

from zerolab.exercises import load
from zerolab.exercises.harness.exercise import TAG

# Papers, the issues that users have filed, and a system's own pages: what a lesson may lean on elsewhere.
SOURCES = (
    "https://arxiv.org/abs/",
    "https://github.com/deepspeedai/",
    "https://github.com/hiyouga/LlamaFactory/issues/",
    "https://www.deepspeed.ai/",
)
ROOT = Path(__file__).resolve().parents[2]
NOTEBOOKS = sorted((ROOT / "notebooks").glob("*.ipynb"))
by_name = pytest.mark.parametrize("notebook", NOTEBOOKS, ids=lambda path: path.stem)


def read(notebook):
    return json.loads(notebook.read_text(encoding="utf-8"))


def source(cell):
    return "".join(cell["source"])


def code_cells(notebook):
    return [cell for cell in read(notebook)["cells"] if cell["cell_type"] == "code"]


def outputs(notebook):
    return [output for cell in code_cells(notebook) for output in cell["outputs"]]


def test_the_first_two_lessons_are_there():
    assert {"00-start-here", "04-zero1"} <= {notebook.stem for notebook in NOTEBOOKS}


@by_name
def test_cells_are_numbered_from_one_in_order(notebook):
    counts = [cell["execution_count"] for cell in code_cells(notebook)]
    assert counts == list(range(1, len(counts) + 1))


@by_name
def test_no_error_is_stored(notebook):
    assert [output for output in outputs(notebook) if output["output_type"] == "error"] == []


@by_name
def test_no_widget_no_frame_and_no_widget_state_is_stored(notebook):
    text = notebook.read_text(encoding="utf-8")
    assert "widget-view" not in text
    assert "widget-state" not in text
    assert "<iframe" not in text
    assert "widgets" not in read(notebook)["metadata"]


@by_name
def test_a_picture_is_a_small_png_of_fixed_size_with_a_caption(notebook):
    pictures = [output for output in outputs(notebook) if "image/png" in output.get("data", {})]
    assert pictures, "each lesson shows what ran"
    sizes = {}
    for picture in pictures:
        png = base64.b64decode("".join(picture["data"]["image/png"]))
        assert len(png) <= 60_000
        caption = "".join(picture["data"]["text/plain"])
        kind = caption.partition(": ")[0]
        assert kind in ("player", "figure", "planner")
        more = re.findall(r" on \d+ ranks|\d saves?$", caption)  # ranks have rows, and saves a lane
        sizes.setdefault((kind, *more), set()).add(struct.unpack(">II", png[16:24]))
    assert all(len(its) <= 1 for its in sizes.values())


@by_name
def test_the_file_is_small_and_has_nothing_left_to_do(notebook):
    assert notebook.stat().st_size <= 300_000
    # A picture's bytes may spell anything.
    words = re.sub(r'"image/png": "[^"]*"', "", notebook.read_text(encoding="utf-8"))
    assert not re.search(r"\b(TO[D]O|FIX[M]E|X[X]X)\b", words)


@by_name
def test_nothing_of_the_machine_is_stored(notebook):
    for output in outputs(notebook):
        text = json.dumps({key: value for key, value in output.get("data", {}).items() if key != "image/png"})
        text += "".join(output.get("text", ""))
        assert not re.search(r"\bpid\b|0x[0-9a-f]{6,}|/home/|/tmp/|/root/|127\.0\.0\.1", text), text


@by_name
def test_cells_are_short_and_prose_leads(notebook):
    cells = read(notebook)["cells"]
    lengths = [len([line for line in source(cell).splitlines() if line.strip()]) for cell in code_cells(notebook)]
    assert statistics.median(lengths) <= 4
    assert max(lengths) <= 25
    words = [len(source(cell).split()) for cell in cells if cell["cell_type"] == "markdown"]
    assert 25 <= statistics.median(words) <= 60
    kinds = "".join(cell["cell_type"][0] for cell in cells)
    assert "ccc" not in kinds, "at most two code cells in a row"
    assert all(len(re.findall(r"^(?:def|class) ", source(cell), re.MULTILINE)) <= 1 for cell in code_cells(notebook))


def test_the_series_has_eight_to_twenty_words_of_prose_for_each_line_of_code():
    cells = [cell for notebook in NOTEBOOKS for cell in read(notebook)["cells"]]
    words = sum(len(source(cell).split()) for cell in cells if cell["cell_type"] == "markdown")
    lines = [line for cell in cells if cell["cell_type"] == "code" for line in source(cell).splitlines()]
    assert 8 <= words / sum(bool(line.strip()) for line in lines) <= 20


@by_name
def test_a_lesson_says_minutes_goal_and_needs_and_ends_on_gpus(notebook):
    cells = read(notebook)["cells"]
    top = source(cells[0])
    assert all(word in top for word in ("**Minutes**", "**Goal**", "**Needs**"))
    assert "question" in top
    assert cells[-1]["metadata"]["tags"] == ["zerolab.gpu"]
    assert 'world_size=4, device="cpu"' in json.dumps("".join(map(source, cells)))[1:-1].replace('\\"', '"')


@by_name
def test_exercise_cells_are_those_of_the_package(notebook):
    stored = {}
    for cell in read(notebook)["cells"]:
        for tag in cell["metadata"].get("tags", []):
            if tag.startswith(TAG):
                stored.setdefault(tag.removeprefix(TAG), []).append((cell["cell_type"], source(cell)))
    for exercise_id, cells in stored.items():
        assert cells == load(exercise_id).cells()
    if notebook.stem == "04-zero1":
        assert list(stored) == ["zero1-average", "clip-shards"]


def test_each_lesson_has_one_to_three_exercises_and_together_they_are_at_least_24():
    tag = re.compile(re.escape(TAG) + r"([\w-]+)")
    counts = {
        notebook.stem: len(set(tag.findall(notebook.read_text(encoding="utf-8"))))
        for notebook in NOTEBOOKS
        if "01" <= notebook.stem[:2] <= "11"
    }
    assert all(1 <= count <= 3 for count in counts.values()), counts
    assert sum(counts.values()) >= 24


def test_at_most_a_third_of_the_exercises_are_plain_functions_and_every_lesson_from_07_to_11_has_one_on_ranks():
    tag = re.compile(re.escape(TAG) + r"([\w-]+)")
    lessons = {notebook.stem: set(tag.findall(notebook.read_text(encoding="utf-8"))) for notebook in NOTEBOOKS}
    on_ranks = {stem: {name for name in found if load(name).targets.on_ranks} for stem, found in lessons.items()}
    every, ranks = (sum(map(len, each.values())) for each in (lessons, on_ranks))
    assert 3 * (every - ranks) <= every, f"{every - ranks} of {every} are plain functions"
    assert [stem for stem in lessons if "07" <= stem[:2] <= "11" and not on_ranks[stem]] == []


@by_name
def test_each_lesson_lets_its_reader_guess_move_a_picture_break_something_and_write_code_for_ranks(notebook):
    cells = read(notebook)["cells"]
    words, code = (
        "\n".join(source(cell) for cell in cells if cell["cell_type"] == kind) for kind in ("markdown", "code")
    )
    tags = {tag for cell in cells for tag in cell["metadata"].get("tags", []) if tag.startswith(TAG)}
    on_ranks = [tag for tag in tags if load(tag.removeprefix(TAG)).targets.on_ranks]
    assert re.search(r"^(guess = None|votes = \{1: None)", code, re.MULTILINE)
    assert re.search(r"\.play\(\)|figures\.\w+\(", code)
    assert re.search(r"\b[Bb]reak it\b", words)
    # In the fact check it is an experiment of one's own.
    assert on_ranks or "evidence.answers(" in code


@by_name
def test_the_minutes_on_top_follow_from_the_rule_for_all(notebook):
    book = nbformat.read(notebook, as_version=4)
    (said,) = re.findall(r"\*\*Minutes\*\* \| (.*) \|", book.cells[0].source)
    assert said == minutes.stated(book), "python tools/notebooks.py writes them"


def test_the_first_code_is_run_within_a_minute_and_written_within_the_first_third_of_lesson_00():
    book = nbformat.read(NOTEBOOKS[0], as_version=4)
    first = next(at for at, cell in enumerate(book.cells) if cell.cell_type == "code")
    hole = next(at for at, cell in enumerate(book.cells) if "hole(" in cell.source and cell.cell_type == "code")
    assert sum(map(minutes.of_cell, book.cells[:first])) <= 1
    assert sum(map(minutes.of_cell, book.cells[:hole])) <= 15
    assert 3 * hole <= len(book.cells)


SCREEN = 50  # lines of text on a screen of 1080 pixels
WIDE = 115  # letters in a line of prose


def height(cell):
    """About how many lines a cell takes, with what is stored below it."""
    if cell["cell_type"] == "markdown":
        return 1 + sum(1.2 * max(1, math.ceil(len(line) / WIDE)) for line in source(cell).splitlines())
    lines = 1 + len(source(cell).splitlines())
    for output in cell["outputs"]:
        text = "".join(output.get("text", "") or output.get("data", {}).get("text/plain", ""))
        lines += len(text.splitlines()) * (1.3 if "text/html" in output.get("data", {}) else 1)
    return lines


@by_name
def test_no_lesson_scrolls_more_than_three_screens_without_a_picture(notebook):
    lines = 0
    for cell in read(notebook)["cells"]:
        data = [output.get("data", {}) for output in cell.get("outputs", ())]
        # An exercise's picture is the learner's own, and comes when it is solved.
        shows = any({"image/png", "image/svg+xml"} & set(each) for each in data) or source(cell) == "attempt.play()"
        lines = 0 if shows else lines + height(cell)
        assert lines <= 3 * SCREEN, f"{lines:.0f} lines without a picture, at: {source(cell)[:60]}"


@by_name
def test_links_lead_somewhere(notebook):
    anchors = set()
    glossary = (ROOT / "docs" / "glossary.md").read_text(encoding="utf-8")
    for title in re.findall(r"^## (.+)$", glossary, re.MULTILINE):
        anchors.add(title.strip().lower().replace(" ", "-"))
    for cell in read(notebook)["cells"]:
        for target in re.findall(r"\]\(([^)]+)\)", source(cell)) if cell["cell_type"] == "markdown" else ():
            path, _, anchor = target.partition("#")
            if target.startswith(SOURCES):
                continue
            assert (notebook.parent / path).resolve().exists(), target
            assert path != "../docs/glossary.md" or anchor in anchors, target


def test_at_most_four_patterns_are_overlooked():
    patterns = configparser.ConfigParser()
    patterns.read(ROOT / "tests" / "nbval_sanitize.cfg")
    assert len(patterns.sections()) <= 4


@by_name
def test_a_slider_to_guess_with_does_not_open_on_what_was_measured(notebook):
    pages = ["".join(output.get("data", {}).get("text/html", "")) for output in outputs(notebook)]
    for page in (page for page in pages if 'type="range"' in page):
        most, value = re.search(r'type="range" min="0" max="([\d.]+)"(?: value="([\d.]+)")?', page).groups()
        opens = 100 * float(value) / float(most) if value else 50  # in the middle, where no value is given
        measured = float(re.search(r"width: ([\d.]+)%; height", page)[1])
        assert abs(opens - measured) > 5, page
