"""A teacher may change the number of ranks in a lesson's first cell: what the cells below print stays true."""

import dis
import os
import re
from pathlib import Path
from types import CodeType

import nbformat
import pytest
from nbclient import NotebookClient

NOTEBOOKS = Path(__file__).resolve().parents[2] / "notebooks"
PRINTED = {  # by a part of the cell that prints
    ("02", "wire = {"): r"gloo_reduce_scatter +no\n",
    ("02", "impatient.run("): r"rank 1 has not reached all_gather #0",
    ("02", "as much as an all-reduce"): r"sends as much as an all-reduce: True",
    ("03", "alone = "): r"at most 1e-6 apart: True",
    ("03", '"on all ranks"'): r"\nparameters +4\.000 +12\.00",
    ("04", "one_pass = "): r"Zero1 +\S+ +2\.000 +yes\nAllReduceZero1 +\S+ +3\.000 +yes\n",
    ("06", "one_unit = "): r"two blocks: ([\d,]+);.*\n(?:.*\n)*prefetch=1 +\1\n",
    ("10", "measured = {"): r"zero3 +20\.0\d*\n",
    ("15", "found = []"): r"muon-rows +2 +(\S+) +(\S+) +\1 +\2\n",
    ("15", "bit for bit"): r"muon-owners equals one process, bit for bit: True",
    ("16", "gathers = "): r" = ([\d,]+) bytes; recorded: \1\n",
    ("16", "found = {"): r" 4 +43 %",
    ("18", "bit for bit"): r"zero3: equal bit for bit: True(?:.*\n)+fsdp2: .* within 1e-5: True",
}
SAVING = {"11": ["saved = cluster.run("], "17": ["saved = cluster.run(", "def save_twice(", "unlucky = "]}


def names_of(source):
    """The names that a cell binds, and those of others that it or its functions use."""
    codes, bound, used = [compile(source, "cell", "exec")], set(), set()
    for step in dis.get_instructions(codes[0]):  # in their order: what a cell has bound before it uses it is its own
        if step.opname == "STORE_NAME":
            bound.add(step.argval)
        elif step.opname == "LOAD_NAME" and step.argval not in bound:
            used.add(step.argval)
    for code in codes:
        codes += [part for part in code.co_consts if isinstance(part, CodeType)]
        used |= {step.argval for step in dis.get_instructions(code) if step.opname == "LOAD_GLOBAL"} - bound
    return bound, used


def cells_for(lesson, parts):
    """The cells with these parts, and those above that they need: of each name that they use the last that binds it."""
    (path,) = NOTEBOOKS.glob(f"{lesson}-*.ipynb")
    kept, needed = [], set()
    for cell in reversed(nbformat.read(path, as_version=4).cells):
        if cell.cell_type != "code" or cell.metadata.get("tags") or cell.source.startswith(("!", "%%")):
            continue
        bound, used = names_of(cell.source)
        if any(part in cell.source for part in parts) or bound & needed:
            kept.insert(0, cell.source)
            needed = (needed - bound) | used
    return kept


@pytest.fixture(scope="module")
def kernel(tmp_path_factory):
    """One for all lessons: each binds anew the names that it uses, and torch is imported once."""
    folder = str(tmp_path_factory.mktemp("lessons"))
    book, resources = nbformat.v4.new_notebook(), {"metadata": {"path": folder}}
    client = NotebookClient(book, timeout=120, kernel_name="python3", resources=resources)
    with client.setup_kernel(env={**os.environ, "ZEROLAB_STATIC": "1"}):
        yield client


def printed_by(kernel, sources):
    """What these cells print."""
    printed, cells = "", kernel.nb.cells
    for source in sources:
        cells.append(nbformat.v4.new_code_cell(source))
        for output in kernel.execute_cell(cells[-1], len(cells) - 1).outputs:
            printed += output.get("text") or output.get("data", {}).get("text/plain", "") + "\n"
    return printed


def on_three_ranks(sources):
    return [source.replace("world_size=4", "world_size=3") for source in sources]


@pytest.mark.slow
@pytest.mark.parametrize("lesson", sorted({lesson for lesson, _ in PRINTED}))
def test_on_three_ranks_a_lesson_prints_what_is_true_of_three(lesson, kernel):
    patterns = {part: pattern for (its, part), pattern in PRINTED.items() if its == lesson}
    printed = printed_by(kernel, on_three_ranks(cells_for(lesson, patterns)))
    assert [pattern for pattern in patterns.values() if not re.search(pattern, printed)] == []


@pytest.mark.slow
@pytest.mark.parametrize("lesson", SAVING)
def test_cells_that_save_can_be_run_again_and_on_fewer_ranks(lesson, kernel):
    cells = cells_for(lesson, SAVING[lesson])
    again = [cell for cell in cells if "cluster = " in cell or any(part in cell for part in SAVING[lesson])]
    printed = printed_by(kernel, [*cells, *on_three_ranks(again)])
    files = [line.count(".distcp") for line in printed.splitlines() if line.startswith("files:")]
    assert files == [4, 3]
