"""Run by nbval from a clean kernel, notebooks print exactly what is stored in them.

Here are those that `test_in_lab.py` runs as a learner has them. The others it runs with settled outputs, in JupyterLab,
and compares them as strictly, by nbval's own comparison: each lesson's ranks start once.
"""

import os
import shutil
import subprocess
import sys
from pathlib import Path

import nbformat
import pytest
from strictly import differences

ROOT = Path(__file__).resolve().parents[2]
START, ZERO1, DEEPSPEED = (
    ROOT / "notebooks" / f"{name}.ipynb" for name in ("00-start-here", "04-zero1", "08-deepspeed")
)
CONFIG = "[pytest]\n"  # so that nbval does not take the project's own
# Each Python that starts reads it first.
WITHOUT_DEEPSPEED = """
import importlib.util as importing
find_spec = importing.find_spec
importing.find_spec = lambda name, *rest: None if name == "deepspeed" else find_spec(name, *rest)
"""


def nbval(notebook, folder, **environment):
    """Runs nbval strictly on a copy; returns its output, and fails the test if it finds a difference."""
    copy = shutil.copy(notebook, folder)
    (folder / "pytest.ini").write_text(CONFIG)
    command = [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", "-c", str(folder / "pytest.ini")]
    command += ["--nbval", "--nbval-current-env", "--nbval-cell-timeout", "60"]
    command += ["--nbval-sanitize-with", str(ROOT / "tests" / "nbval_sanitize.cfg"), str(copy)]
    done = subprocess.run(
        command,
        cwd=folder,
        env={**os.environ, "ZEROLAB_STATIC": "1", "PY_COLORS": "0", **environment},
        capture_output=True,
        text=True,
        timeout=180,
        check=False,
    )
    assert done.returncode == 0, done.stdout[-6000:] + done.stderr[-2000:]
    return done.stdout


@pytest.mark.parametrize("notebook", [ZERO1], ids=lambda path: path.stem)
def test_a_notebook_prints_what_is_stored(notebook, tmp_path):
    nbval(notebook, tmp_path)


@pytest.mark.slow
def test_outputs_do_not_depend_on_the_processors_vector_width(tmp_path):
    nbval(ZERO1, tmp_path, ATEN_CPU_CAPABILITY="avx2")


@pytest.mark.slow
def test_without_deepspeed_its_lesson_shows_the_same_from_the_recordings_that_are_shipped(tmp_path):
    folder = tmp_path / "first"
    folder.mkdir()
    (folder / "sitecustomize.py").write_text(WITHOUT_DEEPSPEED)
    nbval(DEEPSPEED, tmp_path, PYTHONPATH=str(folder))


@pytest.mark.slow
def test_of_the_first_lesson_only_an_edited_output_is_found(tmp_path):
    book = nbformat.read(START, as_version=4)
    cells = sum(cell.cell_type == "code" for cell in book.cells)
    stored = nbformat.v4.new_output("stream", name="stdout", text="rank 2 of 5\n")
    book.cells.append(nbformat.v4.new_code_cell("print('rank 2 of 4')", execution_count=cells + 1, outputs=[stored]))
    edited = tmp_path / "edited" / START.name
    edited.parent.mkdir()
    nbformat.write(book, edited)
    with pytest.raises(AssertionError, match="rank 2 of 5") as found:
        nbval(edited, tmp_path)
    assert f"1 failed, {cells} passed" in str(found.value)


def test_the_comparison_in_lab_finds_what_nbval_finds():
    stored, shown = (nbformat.read(ZERO1, as_version=4) for _ in range(2))
    assert differences(stored, shown) == {}
    code = [cell for cell in shown.cells if cell.cell_type == "code"]

    def first(has):
        """The first output of which that is true, and the number of its cell."""
        found = ((number, output) for number, cell in enumerate(code, 1) for output in cell.outputs if has(output))
        return next(found)

    printed, stream = first(lambda output: "text" in output)
    stream.text += "one more"
    table, result = first(lambda output: "text/html" in output.get("data", {}))
    result.data["text/plain"] = result.data["text/plain"].replace("1", "2", 1)
    drawn, picture = first(lambda output: "image/png" in output.get("data", {}))
    del picture.data["image/png"]
    code[0].outputs = [nbformat.v4.new_output("stream", name="stderr", text="a warning")]
    assert sorted(differences(stored, shown)) == sorted([1, printed, table, drawn])
