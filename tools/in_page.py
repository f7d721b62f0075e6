"""What the site's pages ask of Python in a browser: text in, text out. Runs there, and in a test also here."""

import json
from dataclasses import asdict
from typing import Any

from zerolab.exercises.harness import here
from zerolab.theory.planner import plan


def planned(asked: str) -> str:
    """The plan for the keywords of `zerolab.theory.plan`, both as JSON; what it refuses is an `error` in its words."""
    try:
        found = plan(**json.loads(asked))
    except ValueError as error:
        return json.dumps({"error": f"{error}."})
    return json.dumps(
        {
            "title": found.title,
            "answer": found.answer,
            "sensitivity": found.sensitivity,
            "usable": found.usable,
            "parts": found.parts,
            "rows": found.rows,
            "remedies": [] if found.fitting else found.remedies.rows,
            "settings": _settings(found.settings()) if found.fitting else {},
        }
    )


def checked(asked: str) -> str:
    """What `check` says of an answer to a plain exercise: `id`, its `text` and, if it is to be repeated, a `seed`."""
    given = json.loads(asked)
    found = here.checked(given["id"], given["text"], given.get("seed"))
    table = found.table._repr_html_() if found.table else ""
    return json.dumps({**asdict(found), "table": table})


def _settings(given: dict[str, Any]) -> dict[str, str]:
    """Each as text to paste; systems that have no such stage are left out."""
    return {
        system: json.dumps(text, indent=2) if isinstance(text, dict) else text for system, text in given.items() if text
    }
