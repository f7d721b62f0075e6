"""The player's JavaScript and CSS as one text each, joined from the files beside this one.

The files are ordinary ES modules, readable one by one. A notebook hands a widget its code as one text, in which
relative imports lead nowhere, so the files are joined in the order declared here: each after all that it imports.
Within one text the imports between files and the word `export` are not needed and are taken out, and so are comments.
"""

import re
from functools import cache
from pathlib import Path

# Declared instead of found out: a sorting of imports would be more code than the list, and hide cycles.
SCRIPTS = (
    "format",
    "dom",
    "decode",
    "derived",
    "events",
    "model",
    "axis",
    "palette",
    "pen",
    "rows",
    "flow",
    "story",
    "ownership",
    "timeline",
    "memory",
    "source",
    "caption",
    "mirror",
    "theme",
    "clock",
    "reports",
    "keys",
    "lens",
    "filter",
    "panels",
    "gestures",
    "tip",
    "transport",
    "scene",
    "player",
    "pair",
    "index",
)
# `page` is not among them: inside a notebook its rules for `body` would restyle the notebook.
STYLES = ("base", "layout")

_FOLDER = Path(__file__).parent
_IMPORT = re.compile(r'^import \{([^}]*)\} from "\./(\w+)\.js";\n', re.MULTILINE)
# The default export stays, for it is what anywidget asks the module for.
_EXPORT = re.compile(r"^export (?!default )", re.MULTILINE)
# Comments on lines of their own: they are for readers of the files, and would be a fifth of a page.
_COMMENT = re.compile(r"^ *(?:/\*\*(?:[^*]|\*(?!/))*\*/|//.*)\n", re.MULTILINE)


def _module(name: str, before: set[str]) -> str:
    """One file without imports, exports and comments; ValueError if it imports a file that does not come before it."""
    text = (_FOLDER / f"{name}.js").read_text(encoding="utf-8")
    # In one text a name must be declared before it is used at the top level, which the order alone ensures.
    for match in _IMPORT.finditer(text):
        if match[2] not in before:
            raise ValueError(f"{name}.js imports {match[2]}.js, which SCRIPTS does not list before it: move it up.")
    for part in (_IMPORT, _EXPORT, _COMMENT):
        text = part.sub("", text)
    return f"// {name}.js\n{text.lstrip()}"


@cache
def script() -> str:
    """All of the player's JavaScript as one ES module; its default export is anywidget's `{ render }`."""
    return "\n".join(_module(name, set(SCRIPTS[:place])) for place, name in enumerate(SCRIPTS))


@cache
def style(*more: str) -> str:
    """The player's CSS, every rule below the class `zl-player` or a class that begins with `zl-`, and `more` files."""
    return "\n".join((_FOLDER / f"{name}.css").read_text(encoding="utf-8") for name in (*STYLES, *more))
