"""The page "Try it": the panel's controls, as a form that works by keyboard and is read aloud."""

import html
import json
from pathlib import Path

import choices

from zerolab.player.strip import NAMES
from zerolab.theory import STAGES

CONTROLS = (
    ("stage", "Stage", tuple((stage, NAMES[stage]) for stage in STAGES)),
    ("ranks", "Ranks (N)", tuple((str(n), f"{n:,}") for n in (1, 2, 4, 8, 64, 512, 1024))),
    (
        "model",
        "Model",
        (
            ("gpt-tiny", "GPT, tiny"),
            ("mlp-odd", "MLP of odd sizes"),
            ("7b", "7B"),
            ("llama-70b", "Llama 70B"),
            ("1t", "1T"),
        ),
    ),
    ("precision", "Precision", (("base", "fp32"), ("bf16", "bf16 with fp32 masters"))),
    ("batches", "Accumulation", (("base", "one batch"), ("two-batches", "two micro-batches"))),
    ("checkpointing", "Checkpointing", (("base", "none"), ("checkpointed", "every block"))),
    ("units", "Units", (("base", "a block each"), ("one-unit", "the whole model"))),
    ("prefetch", "Prefetch", (("base", "1 unit ahead"), ("no-prefetch", "none"), ("prefetch-2", "2 ahead"))),
)
BEGIN = {"stage": "zero3", "ranks": "4", "model": "gpt-tiny"}


def fill(page: Path, folder: Path, cache: Path, only: list[str] | None) -> None:
    """Puts the panel in place of the page's mark, and what it plays into `folder`, which is `choices/` to the page."""
    made = choices.write(folder, cache, only)
    text = page.read_text()
    if "<!-- panel -->" not in text:
        raise ValueError(f"docs/{page.name} has no mark <!-- panel --> to put the panel in place of")
    page.write_text(text.replace("<!-- panel -->", panel([choice.name for choice in made])))


def panel(made: list[str]) -> str:
    """The controls, and the places where the page's script (docs/_static/try.js) puts its answers."""
    groups = "".join(_group(*control) for control in CONTROLS)
    # "<" could end the element; names of choices have none, and should one ever, it stays a name.
    known = json.dumps(made).replace("<", "\\u003c")
    return f"""<link rel="stylesheet" href="choices/player.css">
<link rel="stylesheet" href="_static/try.css">
<form id="zt-panel" class="zt-panel" aria-label="What to play">{groups}</form>
<p id="zt-said" class="zt-said" role="status"></p>
<div id="zt-bar" class="zt-figures"></div>
<div id="zt-player" class="zt-player"></div>
<div id="zt-figures" class="zt-figures"></div>
<script type="application/json" id="zt-made">{known}</script>
<script src="choices/player.js" defer></script>
<script src="_static/try.js" defer></script>
"""


def _group(name: str, title: str, values: tuple[tuple[str, str], ...]) -> str:
    begin = BEGIN.get(name, "base")
    options = "".join(
        f'<label><input type="radio" name="{name}" value="{value}" aria-describedby="zt-why-{name}"'
        f"{' checked' if value == begin else ''}><span>{html.escape(text)}</span></label>"
        for value, text in values
    )
    return (
        f'<fieldset class="zt-{name}"><legend>{title}</legend>'
        f'<div class="zt-choices">{options}</div><small id="zt-why-{name}"></small></fieldset>'
    )
