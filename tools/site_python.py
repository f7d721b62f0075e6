"""The Python that runs in the site's pages: an interpreter for browsers, and what of the package needs no torch.

The very files of the package run there, so that a page says what a notebook says. The interpreter (Pyodide, under the
Mozilla Public License 2.0) comes through npm, pinned by package-lock.json; a page loads it when it is first asked for
something, from the site's own folder.
"""

import html
import shutil
import zipfile
from pathlib import Path

import in_page
import lint_javascript

from zerolab import catalog
from zerolab.theory import MOMENTS
from zerolab.theory.activations import CHECKPOINTING
from zerolab.theory.job import SHARDING

ROOT = Path(__file__).resolve().parent.parent
FILES = ("pyodide.mjs", "pyodide.asm.mjs", "pyodide.asm.wasm", "pyodide-lock.json", "python_stdlib.zip")
NOTICE = """pyodide.* and python_stdlib.zip are Pyodide, Copyright (C) 2018 to 2026, Michael Droettboom, Mozilla and the
Pyodide contributors, under the Mozilla Public License, version 2.0 (https://www.mozilla.org/MPL/2.0/), unchanged; their
source is at https://github.com/pyodide/pyodide. python_stdlib.zip is Python's own library, under the PSF licence.
"""
NEEDED = (
    *("__init__.py", "__init__.pyi", "catalog.py", "files.py", "moved.py", "names.py", "tables.py"),
    *("data", "exercises", "lessons", "recording", "runtime", "theory"),
)
PLANNER = "<!-- planner -->"
ASKED = '{"model": "7b", "world_size": 8}'


def write_python(folder: Path) -> None:
    """Puts the interpreter and the package's part into `folder`.

    Raises RuntimeError where the interpreter cannot be had.
    """
    trouble = lint_javascript.missing()
    if trouble:
        raise RuntimeError(f"the site's pages need Python for browsers, which npm brings: {trouble}")
    folder.mkdir(parents=True)
    for name in FILES:
        shutil.copy(lint_javascript.TOOLS / "pyodide" / name, folder / name)
    (folder / "NOTICE.txt").write_text(NOTICE)
    with zipfile.ZipFile(folder / "zerolab.zip", "w", zipfile.ZIP_DEFLATED) as packed:
        packed.write(ROOT / "tools" / "in_page.py", "in_page.py")
        for name in NEEDED:
            place = ROOT / "zerolab" / name
            for file in sorted(place.rglob("*.*")) if place.is_dir() else [place]:
                if file.suffix in (".py", ".pyi", ".toml"):
                    packed.write(file, file.relative_to(ROOT))


def fill_planner(page: Path) -> None:
    """Puts the planner's form into its page, and what it answers to begin with."""
    text = page.read_text()
    if PLANNER not in text:
        raise ValueError(f"docs/{page.name} has no mark {PLANNER} to put the planner in place of")
    page.write_text(text.replace(PLANNER, _form()))


def _form() -> str:
    fields = [
        _choice("model", "model", list(catalog.ARCHITECTURES), "7b"),
        _choice("world_size", "GPUs", [str(2**power) for power in range(11)], "8"),
        _choice("gpu", "each", list(catalog.GPUS), "h100"),
        _choice("precision", "precision", ["bf16", "fp16", "fp32"], "bf16"),
        _choice("checkpointing", "checkpointing", list(CHECKPOINTING), "none"),
        _choice("moments", "Adam's moments", list(MOMENTS), "fp32"),
        _choice("sharding", "sharding", list(SHARDING), "full"),
        _choice("tensor", "tensor parallel", ["1", "2", "4", "8"], "1"),
        _choice("context", "context parallel", ["1", "2", "4", "8"], "1"),
        _choice("kernels", "kernels", ["eager", "compiled", "tuned"], "eager"),
        '<label>rows per rank <input type="number" name="rows" value="1" min="1" max="1024" required></label>',
        '<label>tokens per row <input type="number" name="length" min="1" placeholder="the model\'s"></label>',
    ]
    first = in_page.planned(ASKED).replace("<", "\\u003c")
    return (
        f'<form class="zl-planner" aria-label="What fits">{"".join(fields)}</form>\n'
        '<div class="zl-plan" role="status" aria-live="polite"></div>\n'
        f'<script type="application/json" id="zl-plan">{first}</script>\n'
        '<script defer src="_static/planner.js"></script>\n'
    )


def _choice(name: str, label: str, choices: list[str], chosen: str) -> str:
    options = "".join(f"<option{' selected' * (one == chosen)}>{html.escape(one)}</option>" for one in choices)
    return f'<label>{label} <select name="{name}">{options}</select></label>'
