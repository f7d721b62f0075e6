"""Executes the notebooks and stores their outputs in the form that the tests compare.

    python tools/notebooks.py [PART_OF_A_NAME ...]

Each notebook runs from a clean kernel with ZEROLAB_STATIC=1. Exercise cells are written from the package, players
become stills that a real browser takes, and everything that differs from run to run goes.
"""

import base64
import os
import sys
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path

import nbformat
from minutes import state
from nbclient import NotebookClient
from nbformat import NotebookNode
from nbformat.v4 import new_code_cell, new_markdown_cell
from stills import figure_still, still

from zerolab.exercises.harness.exercise import TAG, load
from zerolab.figures.chart import PLOTLY
from zerolab.recording.recording import Recording

FOLDER = Path(__file__).resolve().parent.parent / "notebooks"
LARGEST_STILL = 60_000
LARGEST_FILE = 300_000
MANY_PLAYERS = 4  # more in one notebook, and their stills are small ones
CELL_SECONDS = 60
WIDGET_VIEW = "application/vnd.jupyter.widget-view+json"
# Runs in the notebook's kernel, after its cells: saves the recording of every player that was shown, by model id and by
# the event at which it was opened.
SAVE_RECORDINGS = """
from ipywidgets.widgets.widget import _instances as _widgets
from zerolab.player import Player as _Player
for _key, _widget in _widgets.items():
    if isinstance(_widget, _Player):
        _widget._recording.save({folder!r} + f"/{{_key}}@{{_widget.event}}.json")
"""


def main(arguments: list[str]) -> int:
    """Stores the outputs of the notebooks whose names contain one of the arguments; of all without any."""
    chosen = [
        path for path in sorted(FOLDER.glob("*.ipynb")) if not arguments or any(a in path.name for a in arguments)
    ]
    if not chosen:
        print(f"no notebook in {FOLDER} is called like {' or '.join(arguments)}", file=sys.stderr)
        return 1
    for path in chosen:
        store(path)
        print(f"{path.name}: {path.stat().st_size // 1000} KB")
    return 0


def store(path: Path) -> None:
    """Executes one notebook and writes it back, with stills and without anything that changes from run to run.

    Raises:
        ValueError: the file would be larger than 300 KB, or a still than 60 KB.
        nbclient.exceptions.CellExecutionError: a cell raised.
    """
    book = nbformat.read(path, as_version=4)
    write_exercises(book)
    state(book)
    with tempfile.TemporaryDirectory(prefix="zerolab-recordings-") as folder:
        execute(book, Path(folder))
        clean(book, take_stills(list(Path(folder).glob("*.json"))))
    text = nbformat.writes(book) + "\n"
    if len(text.encode()) > LARGEST_FILE:
        raise ValueError(f"{path.name} would be {len(text.encode()):,} bytes, more than {LARGEST_FILE:,}: print less")
    path.write_text(text, encoding="utf-8")


def write_exercises(book: NotebookNode) -> None:
    """Replaces the cells of each exercise by those that the package has; the first tagged cell says where."""
    cells: list[NotebookNode] = []
    written: set[str] = set()
    for cell in book.cells:
        exercise_id = exercise_of(cell)
        if exercise_id is None:
            cells.append(cell)
        elif exercise_id not in written:
            cells += exercise_cells(exercise_id)
            written.add(exercise_id)
    book.cells = cells


def exercise_of(cell: NotebookNode) -> str | None:
    """The id of the exercise that a cell belongs to; None for an ordinary cell."""
    tags = cell.metadata.get("tags", [])
    return next((tag.removeprefix(TAG) for tag in tags if tag.startswith(TAG)), None)


def exercise_cells(exercise_id: str) -> list[NotebookNode]:
    """An exercise's cells as the package has them."""
    make: dict[str, Callable[..., NotebookNode]] = {"markdown": new_markdown_cell, "code": new_code_cell}
    cells = []
    for number, (kind, source) in enumerate(load(exercise_id).cells()):
        metadata = {"tags": [f"{TAG}{exercise_id}"]}
        cells.append(make[kind](source, id=f"{exercise_id}-{number}", metadata=metadata))
    return cells


def execute(book: NotebookNode, folder: Path) -> None:
    """Runs all cells in a clean kernel, and saves into `folder` the recording of each player that was shown."""
    static = {**os.environ, "ZEROLAB_STATIC": "1", "ZEROLAB_STILLS": "1"}  # figures keep their data
    with tempfile.TemporaryDirectory(prefix="zerolab-notebooks-") as home:
        resources = {"metadata": {"path": home}}
        client = NotebookClient(book, timeout=CELL_SECONDS, kernel_name="python3", resources=resources)
        with client.setup_kernel(env=static):
            for index, cell in enumerate(book.cells):
                client.execute_cell(cell, index)
            if any(views(book)):
                book.cells.append(new_code_cell(SAVE_RECORDINGS.format(folder=str(folder))))
                client.execute_cell(book.cells[-1], len(book.cells) - 1, store_history=False)
                del book.cells[-1]


def views(book: NotebookNode, kind: str = WIDGET_VIEW) -> Iterator[NotebookNode]:
    """The outputs that show a widget, or another kind of data."""
    for cell in book.cells:
        for output in cell.get("outputs", []):
            if kind in output.get("data", {}):
                yield output


def take_stills(files: list[Path]) -> dict[str, str]:
    """The pictures of all players of a notebook, by model id."""
    stills = {}
    for file in files:
        model, _, event = file.stem.partition("@")
        opened = None if event == "-1" else int(event)
        stills[model] = take_still(Recording.load(file), opened, small=len(files) > MANY_PLAYERS)
    return stills


def take_still(recording: Recording, event: int | None = None, *, small: bool = False) -> str:
    """The player's picture of a recording, as base64. Raises ValueError above 60 KB."""
    picture = still(recording, event, small=small)
    if len(picture) > LARGEST_STILL:
        raise ValueError(f"a still takes {len(picture):,} bytes, more than {LARGEST_STILL:,}: show less in it")
    return base64.b64encode(picture).decode()


def clean(book: NotebookNode, stills: dict[str, str]) -> None:
    """Leaves in the notebook only what is the same in every run."""
    for output in views(book):
        model = output.data[WIDGET_VIEW]["model_id"]
        output.data = {"image/png": stills[model], "text/plain": output.data["text/plain"]}
        output.metadata = {}
    for output in views(book, PLOTLY):
        picture = base64.b64encode(figure_still(output.data[PLOTLY])).decode()
        output.data = {"image/png": picture, "text/plain": output.data["text/plain"]}
    book.metadata = {
        "kernelspec": {"display_name": "Python 3 (ipykernel)", "language": "python", "name": "python3"},
        "language_info": {"name": "python"},
    }
    for number, cell in enumerate((cell for cell in book.cells if cell.cell_type == "code"), 1):
        cell.execution_count = number
        cell.metadata = {"tags": cell.metadata["tags"]} if cell.metadata.get("tags") else {}
        cell.outputs = joined(cell.outputs)
        for output in cell.outputs:
            if output.output_type == "execute_result":
                output.execution_count = number


def joined(outputs: list[NotebookNode]) -> list[NotebookNode]:
    """The outputs with neighbouring pieces of one stream in one."""
    whole: list[NotebookNode] = []
    for output in outputs:
        if output.output_type == "stream" and whole and whole[-1].get("name") == output.name:
            whole[-1].text += output.text
        else:
            whole.append(output)
    return whole


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
