"""The player's JavaScript and CSS as one text each, joined from the files next to this one.

The files are ordinary ES modules, readable one by one. A notebook hands a widget its code as one text, in which
relative imports lead nowhere, so the files are joined, each after everything it imports.
Within one text, the imports between files and the word `export` are unnecessary and are removed, and so are comments.
"""

import re
from functools import cache
from graphlib import TopologicalSorter
from pathlib import Path

# `page` is not among them: inside a notebook its rules for `body` would restyle the notebook.
STYLES = ("base", "layout", "window", "walk", "pair", "strata", "many", "find")

_FOLDER = Path(__file__).parent
_IMPORT = re.compile(r'^import \{([^}]*)\} from "\./(\w+)\.js";\n', re.MULTILINE)
# The default export stays, for it is what widget.mjs asks the module for.
_EXPORT = re.compile(r"^export (?!default )", re.MULTILINE)
# Comments on lines of their own: they are for readers of the files, and would be a fifth of a page.
_COMMENT = re.compile(r"^ *(?:/\*\*(?:[^*]|\*(?!/))*\*/|//.*)\n", re.MULTILINE)


def ordered(texts: dict[str, str]) -> list[str]:
    """The names of files by their texts, each after all that it imports. Raises graphlib.CycleError for a circle."""
    # In one text a name must be declared before it is used at the top level.
    imported = {name: [found[2] for found in _IMPORT.finditer(text)] for name, text in texts.items()}
    return list(TopologicalSorter(imported).static_order())


def _bare(text: str) -> str:
    """A file without imports, exports and comments."""
    for part in (_IMPORT, _EXPORT, _COMMENT):
        text = part.sub("", text)
    return text.lstrip()


@cache
def script() -> str:
    """All of the player's JavaScript as one ES module; its default export is `{ render }` for widget.mjs."""
    texts = {path.stem: path.read_text(encoding="utf-8") for path in sorted(_FOLDER.glob("*.js"))}
    return "\n".join(f"// {name}.js\n{_bare(texts[name])}" for name in ordered(texts))


@cache
def style(*more: str) -> str:
    """The player's CSS, every rule below the class `zl-player` or a class that begins with `zl-`, and `more` files."""
    return "\n".join((_FOLDER / f"{name}.css").read_text(encoding="utf-8") for name in (*STYLES, *more))
