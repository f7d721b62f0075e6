"""What users ask over and over has a cell that answers it, and the index of questions leads there."""

import json
import re
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
PAGE = ROOT / "docs" / "questions.md"
ROWS = [
    [cell.strip() for cell in line.strip("|").split("|")]
    for line in PAGE.read_text(encoding="utf-8").splitlines()
    if line.startswith("| ") and "](" in line
]
LINKS = [(row[0], link) for row in ROWS for link in re.findall(r"\]\(([^)]+)\)", row[1])]
# Where each question was asked, and words that its row must have; the rows themselves say it in full.
ASKED = {
    ("DeepSpeed 1302", "123, 336"): "ZeRO-2 take more memory than ZeRO-1",
    ("pytorch 160320", "fairseq 5318"): "switched to FSDP, and the memory is the same",
    ("DeepSpeed 264", "5758", "7059", "6463"): "reduce-scatters, my profile has all-reduces",
    ("DeepSpeed 5102", "4076"): "the 4, the 16 and the 18",
    ("torchtitan 735",): "FSDP1 or FSDP2",
    ("torchtitan 735", "191"): "memory numbers should I watch",
    ("940", "3524", "ipyparallel 435"): "my notebook hangs",
    ("accelerate 182", "1290"): "CUDA was initialized before a fork",
    ("pytorch 20375",): "function of a cell not be pickled",
}


def anchor(heading):
    """A heading's name in an address, as GitHub and the site make it."""
    return re.sub(r"[^\w\- ]", "", heading.strip().lower()).replace(" ", "-")


def sections(notebook):
    """The cells of each section of a notebook, those of its subsections too, by the heading's anchor."""
    found, above = {}, {}  # above: of each level the heading that is open
    for cell in json.loads(notebook.read_text(encoding="utf-8"))["cells"]:
        if cell["cell_type"] == "markdown":
            for marks, heading in re.findall(r"^(#+) (.+)$", "".join(cell["source"]), re.MULTILINE):
                above = {level: name for level, name in above.items() if level < len(marks)}
                above[len(marks)] = anchor(heading)
        for name in above.values():
            found.setdefault(name, []).append(cell)
    return found


@pytest.mark.parametrize("words", ASKED.values(), ids=ASKED.values())
def test_what_users_ask_again_and_again_is_in_the_index_with_its_sources(words):
    (sources,) = [sources for sources, its in ASKED.items() if its == words]
    (row,) = [row for row in ROWS if words in row[0]]
    assert all(source in row[2] for source in sources)


@pytest.mark.parametrize(("question", "link"), LINKS, ids=[link for _, link in LINKS])
def test_the_index_leads_to_a_cell_that_prints_something(question, link):
    path, _, heading = link.partition("#")
    target = (PAGE.parent / path).resolve()
    assert target.exists(), question
    if target.suffix == ".ipynb":
        assert heading, f"{question} leads to a whole notebook: name the heading"
        cells = sections(target).get(heading)
        assert cells is not None, f"{target.name} has no heading {heading!r}"
        assert any(cell.get("outputs") for cell in cells), f"nothing is measured under {heading!r} of {target.name}"


def test_every_lesson_answers_a_question_of_the_index():
    named = {Path(link.partition("#")[0]).name for _, link in LINKS}
    lessons = {notebook.name for notebook in (ROOT / "notebooks").glob("*.ipynb")}
    assert lessons <= named, "a lesson that answers nothing, or an index that forgot it"
