"""Notebooks as pages of the site: executed copies, whose players are frames and whose figures are pictures."""

import base64
import hashlib
import html
import os
import re
import tempfile
from dataclasses import dataclass
from functools import cache, cached_property
from pathlib import Path

import nbformat
from nbclient import NotebookClient
from nbformat import NotebookNode
from nbformat.v4 import new_markdown_cell

import zerolab
from zerolab.exercises.harness.exercise import TAG

CELL_SECONDS = 300  # a build may share its machine with anything
QUIET = "--IPKernelApp.log_level=ERROR"  # every start would warn that loopback is not encrypted
FRAME = re.compile(r'<iframe title="(?P<title>[^"]*)"[^>]* srcdoc="(?P<page>[^"]*)"></iframe>')
ROW = re.compile(r"^\| \*\*(?P<name>\w+)\*\* \| (?P<text>.*) \|$", re.MULTILINE)
NOTE = """```{{admonition}} This page is a notebook that ran
:class: zl-note
Everything below was printed by real processes. Run it yourself, change it, and solve the exercises:
`zerolab lab`, then open `{name}`.
```"""


@cache
def package_digest() -> bytes:
    """A digest of the package: what a notebook prints follows from it and from the notebook."""
    digest = hashlib.sha256()
    for file in sorted(Path(zerolab.__file__).parent.rglob("*")):
        if file.suffix in {".py", ".js", ".css", ".txt", ".json"}:
            digest.update(file.read_bytes())
    return digest.digest()


def read(path: Path) -> NotebookNode:
    """A notebook from its file."""
    book: NotebookNode = nbformat.read(path, as_version=4)
    return book


def executed(path: Path, cache: Path) -> NotebookNode:
    """A notebook run from a clean kernel, its players as frames; taken from `cache` if nothing changed since.

    Raises nbclient.exceptions.CellExecutionError if a cell raises.
    """
    kept = cache / f"{path.stem}-{hashlib.sha256(path.read_bytes() + package_digest()).hexdigest()[:16]}.ipynb"
    if kept.exists():
        return read(kept)
    book = read(path)
    # Static, because a page can show only what is left when a cell has ended, and no kernel answers a widget here.
    environment = {**os.environ, "ZEROLAB_PLAYER": "iframe", "ZEROLAB_STATIC": "1"}
    with tempfile.TemporaryDirectory(prefix="zerolab-site-") as home:
        where = {"metadata": {"path": home}}
        client = NotebookClient(
            book, timeout=CELL_SECONDS, kernel_name="python3", resources=where, extra_arguments=[QUIET]
        )
        client.execute(env=environment)
    cache.mkdir(parents=True, exist_ok=True)
    for older in cache.glob(f"{path.stem}-*.ipynb"):
        older.unlink()
    nbformat.write(book, kept)
    return book


class Pictures:
    """The site's folder of players and stills; each gets a name once."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        folder.mkdir(parents=True)

    def frame(self, frame: str, name: str, still: str | None, above: str = "../", opened: str = "") -> str:
        """A live player as a file of its own, loaded when scrolled to, and its still, which is what gets printed.

        Args:
            frame: the iframe that the player shows itself in, page and all.
            name: what the file is called.
            still: a PNG as base64, None if there is none.
            above: the way from the page to the site's top.
            opened: how it opens, as in a page's address after `#`.

        """
        found = FRAME.search(frame)
        if found is None:
            raise ValueError(f"{name} is no player in a frame: {frame[:200]}")
        # The page holds its script and its data. In a file it is fetched when it is seen, and the lesson stays small.
        (self.folder / f"{name}.html").write_text(html.unescape(found["page"]))
        src = f'src="{above}pictures/{name}.html{"#" * bool(opened)}{opened}"'
        live = f'<iframe class="zl-frame" title="{found["title"]}" sandbox="allow-scripts" loading="lazy" {src}>'
        printed = self.still(name, still, html.unescape(found["title"]), "zl-printed", above) if still else ""
        return f"{live}</iframe>{printed}"

    def still(self, name: str, png: str, caption: str, look: str = "", above: str = "../") -> str:
        """A picture with its caption."""
        (self.folder / f"{name}.png").write_bytes(base64.b64decode(png))
        words = html.escape(caption, quote=True)
        # What waits to be printed is never scrolled to, so it would not be there when the printer asks.
        when = "eager" if look else "lazy"
        picture = f'<img src="{above}pictures/{name}.png" alt="{words}" loading="{when}">'
        return f'<figure class="zl-picture {look}">{picture}<figcaption>{words}</figcaption></figure>'


@dataclass(frozen=True)
class Lesson:
    """A notebook as it is stored and, if it was executed, as it came out."""

    path: Path
    live: NotebookNode | None

    @cached_property
    def stored(self) -> NotebookNode:
        """The notebook as it lies in the checkout, with stills."""
        return read(self.path)

    @property
    def number(self) -> str:
        """Its place in the series, two digits."""
        return self.path.name[:2]

    @property
    def title(self) -> str:
        """Its heading without the number."""
        return str(self.stored.cells[0].source).splitlines()[0].removeprefix(f"# {self.number} · ")

    @property
    def question(self) -> str:
        """The one question that it asks."""
        return str(self.stored.cells[0].source).rsplit("**", 2)[1].strip()

    @property
    def minutes(self) -> str:
        """How long it takes, in the notebook's own words."""
        return next(row["text"] for row in ROW.finditer(self.stored.cells[0].source) if row["name"] == "Minutes")

    @property
    def exercises(self) -> list[str]:
        """The ids of its exercises, in order."""
        tags = [tag for cell in self.stored.cells for tag in cell.metadata.get("tags", []) if tag.startswith(TAG)]
        return list(dict.fromkeys(tag.removeprefix(TAG) for tag in tags))

    def page(self, pictures: Pictures) -> NotebookNode:
        """The notebook that Sphinx reads."""
        book: NotebookNode = (self.live or self.stored).copy()
        count = 0
        for cell, stored in zip(book.cells, self.stored.cells, strict=True):
            for output, kept in zip(cell.get("outputs", []), stored.get("outputs", []), strict=False):
                shown = self._shown(output, kept, pictures, f"{self.path.stem}-{count}")
                count += shown is not None
                if shown:
                    output.data, output.metadata = {"text/html": shown}, {}
        # Not plain Python: a cell may begin with %% or !
        book.metadata["language_info"] = {"name": "python", "pygments_lexer": "ipython3"}
        book.cells.insert(1, new_markdown_cell(NOTE.format(name=self.path.name)))
        return book

    @staticmethod
    def _shown(output: NotebookNode, stored: NotebookNode, pictures: Pictures, name: str) -> str | None:
        """A player or figure as the page shows it; None for any other output."""
        data, kept = output.get("data", {}), stored.get("data", {}).get("image/png")
        if "<iframe" in data.get("text/html", ""):
            return pictures.frame(data["text/html"], name, kept)
        # A figure is the same each time, so its stored picture is this run's, and no page carries plotly's 4 MB.
        if kept and data["text/plain"] == stored.data["text/plain"]:
            return pictures.still(name, kept, data["text/plain"].partition(": ")[2])
        return None
