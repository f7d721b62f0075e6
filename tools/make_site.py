"""Builds the site: the lessons with players that move, the exercises, and the pages of `docs/`.

    python tools/make_site.py [--out FOLDER] [--execute PART_OF_A_NAME ...] [--choices PART_OF_A_NAME ...]

Sphinx reads a folder that is put together here: `docs/` as it is, copies of the notebooks, executed, and pages written
from the package. Links in `docs/` and `notebooks/` are those of the checkout, so that they work there too; they are
rewritten on the way, and a link to a file that the site lacks ends the build.
"""

import argparse
import os
import re
import shutil
import subprocess
import sys
from pathlib import Path, PurePosixPath

import nbformat
import site_choices
import site_exercises
import site_pages
import site_python
from site_lessons import Lesson, Pictures, executed

ROOT = Path(__file__).resolve().parent.parent
TARGET = re.compile(r"(?<=\]\()(?!\w+:|#)([^)#\s]*)")
ALONE = {"SECURITY.md": "security.md", "README.md": "how-it-works.md", "CONTRIBUTING.md": "how-it-works.md"}


def main(arguments: list[str]) -> int:
    """Builds the site and says where it lies; 1 if Sphinx has anything to complain of."""
    parser = argparse.ArgumentParser(description="build the site")
    parser.add_argument("--out", type=Path, default=ROOT / "build" / "site", help="everything is written below it")
    parser.add_argument("--execute", nargs="*", metavar="NAME", help="only these notebooks, the rest as stored")
    parser.add_argument("--choices", nargs="*", metavar="NAME", help="only these recordings for the page that you try")
    options = parser.parse_args(arguments)
    source, html = options.out / "source", options.out / "html"
    stage(source, options.out / "executed", options.execute)
    site_choices.fill(source / "try.md", source / "extra" / "choices", options.out / "choices-kept", options.choices)
    shutil.rmtree(html, ignore_errors=True)  # a page whose source is gone must not stay
    command = [sys.executable, "-m", "sphinx", "-W", "--keep-going", "-q", "-E", "-b", "html", "-j", "2"]
    done = subprocess.run([*command, "-d", options.out / "doctrees", source, html], check=False)
    if done.returncode == 0:
        print(f"make site: {sum(1 for _ in html.rglob('*.html'))} pages; open {html / 'index.html'}")
    return done.returncode


def stage(source: Path, cache: Path, chosen: list[str] | None) -> None:
    """Writes into `source` what Sphinx reads. `chosen` are parts of the names of the notebooks to execute, None all."""
    shutil.rmtree(source, ignore_errors=True)
    shutil.copytree(ROOT / "docs", source)
    shutil.copy(ROOT / "SECURITY.md", source / "security.md")
    pictures = Pictures(source / "extra" / "pictures")
    lessons = []
    (source / "notebooks").mkdir()
    for path in sorted((ROOT / "notebooks").glob("*.ipynb")):
        wanted = chosen is None or any(part in path.name for part in chosen)
        print(f"make site: {path.name}", flush=True)  # executing all of them takes minutes, the first time
        lesson = Lesson(path, executed(path, cache) if wanted else None)
        book = lesson.page(pictures)
        book.cells = site_exercises.with_forms(book.cells)
        for cell in book.cells:
            if cell.cell_type == "markdown":
                cell.source = relinked(cell.source, "notebooks", "notebooks")
        nbformat.write(book, source / "notebooks" / path.name)
        lessons.append(lesson)
    site_exercises.write_exercises(source, lessons, relinked)
    site_python.fill_planner(source / "planner.md")
    site_python.write_python(source / "extra" / "_static" / "python")
    site_pages.fill_landing(source / "index.md", lessons, pictures)
    for page in source.glob("*.md"):
        page.write_text(relinked(page.read_text(), "" if page.name == "security.md" else "docs", ""))
    shutil.copy(ROOT / "CONTRIBUTING.md", source / "CONTRIBUTING.md")  # no page: one of them shows its tree


def relinked(text: str, home: str, there: str) -> str:
    """Markdown whose links, right for a file in the checkout's folder `home`, are right in the site's folder `there`.

    Raises ValueError for a link to a file that is no page of the site.
    """
    return TARGET.sub(lambda found: _in_site(found[1], home, there), text)


def _in_site(target: str, home: str, there: str) -> str:
    path = PurePosixPath(os.path.normpath(PurePosixPath(home, target)))
    if path.parts[0] == "docs":
        page = PurePosixPath(*path.parts[1:])
    elif path.parts[0] == "notebooks":
        page = path
    elif str(path) in ALONE:
        page = PurePosixPath(ALONE[str(path)])
    else:
        raise ValueError(f"a page of {home or 'the checkout'} links to {target}, which the site does not have")
    return os.path.relpath(page, there or ".")


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
