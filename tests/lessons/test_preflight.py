"""A host runs every lesson beforehand, and is told which of them does not run."""

import nbformat
import pytest

from zerolab.lessons import preflight, workspace


@pytest.mark.slow
def test_each_lesson_is_run_and_one_that_fails_is_named_with_its_error(tmp_path, monkeypatch, capsys):
    cells = {"00-dead": "import os; os._exit(1)", "01-ill": "import a_part_that_is_missing", "02-well": "print(6 * 7)"}
    for name, source in cells.items():
        book = nbformat.v4.new_notebook(cells=[nbformat.v4.new_code_cell(source)])
        nbformat.write(book, tmp_path / f"{name}.ipynb")
    monkeypatch.setattr(workspace, "published", lambda: {path.name: path for path in sorted(tmp_path.iterdir())})
    assert not preflight.run_lessons()
    dead, ill, well, all_of_them = capsys.readouterr().out.splitlines()
    assert dead.split(",")[0].split(maxsplit=1) == ["00-dead", "Kernel died; main memory may be short"]
    assert well.split()[:2] == ["02-well", "well,"]
    assert "01-ill" in ill
    assert "ModuleNotFoundError: No module named 'a_part_that_is_missing'" in ill
    assert all_of_them == "1 of 3 lessons ran"
