"""What a wheel carries, and that it is enough: installed away from the checkout it records, draws and opens lessons."""

import json
import zipfile

import pytest

from zerolab.lessons import workspace

pytestmark = pytest.mark.slow


def carried(wheel, folder, suffix):
    """The files of one kind below a folder of the wheel."""
    names = zipfile.ZipFile(wheel).namelist()
    return {name for name in names if name.startswith(folder) and name.endswith(suffix)}


def below(tree, folder, suffix):
    """The files of one kind below a folder of the checkout."""
    return {str(path.relative_to(tree)) for path in (tree / folder).rglob(f"*{suffix}")}


@pytest.mark.parametrize("suffix", [".py", ".js", ".css", ".txt", ".json", ".md", ".typed"])
def test_the_wheel_carries_every_file_of_the_package(wheel, tree, suffix):
    assert carried(wheel, "zerolab/", suffix) >= below(tree, "zerolab", suffix)


def test_the_wheel_carries_every_notebook(wheel, tree):
    notebooks = {name.removeprefix("zerolab/_notebooks/") for name in carried(wheel, "zerolab/_notebooks", ".ipynb")}
    assert notebooks == {name.removeprefix("notebooks/") for name in below(tree, "notebooks", ".ipynb")}
    assert "00-start-here.ipynb" in notebooks


def test_the_wheel_carries_the_pages_that_notebooks_link_to(wheel):
    pages = {name.removeprefix("zerolab/_notebooks/") for name in carried(wheel, "zerolab/_notebooks/", ".md")}
    assert pages == {f"{name}.md" for name in workspace.PAGES}


def test_the_wheel_carries_nothing_but_the_package(wheel):
    tops = {name.split("/")[0] for name in zipfile.ZipFile(wheel).namelist()}
    assert {top.split("-")[0] for top in tops} == {"zerolab"}


def test_the_wheel_leaves_out_what_only_those_need_who_change_it(wheel):
    assert carried(wheel, "", ".ts") == set()


def test_an_installed_wheel_records_writes_a_page_and_copies_the_notebooks(wheel, tree, clean_venv):
    clean_venv.run("pip", "install", "-q", "-c", tree / "constraints.txt", wheel)
    assert "jupyter" not in clean_venv.run("pip", "freeze"), "the core must do without the lab extra"

    size = ["--world-size", "2", "--model", "gpt-tiny", "--steps", "2"]
    clean_venv.run("zerolab", "record", "--stage", "zero3", *size, "--out", "run.json")
    recording = json.loads((clean_venv.home / "run.json").read_text())
    assert len(recording["ranks"]) == 2
    clean_venv.run("zerolab", "play", "run.json", "--out", "run.html", "--no-open")
    assert (clean_venv.home / "run.html").read_text().lstrip().lower().startswith("<!doctype html>")

    copy = "from zerolab import workspace; workspace.fill(); print(workspace.published().values())"
    assert str(clean_venv.folder) in clean_venv.run("python", "-c", copy)
    assert {"00-start-here.ipynb", "glossary.md"} <= {path.name for path in (clean_venv.home / "work").iterdir()}
