"""The player as one HTML file that works without a network, and as a frame inside another page."""

import base64
import hashlib
import html
import json
from pathlib import Path
from typing import TYPE_CHECKING

from zerolab.player.bundle import script, style
from zerolab.player.payload import describe, pair_payload, payload

if TYPE_CHECKING:
    from zerolab.recording.recording import Recording

_PAGE = Path(__file__).with_name("page.html").read_text(encoding="utf-8")
# A player of four ranks is a little lower; a frame cannot ask what is inside it without a script of its own.
FRAME_HEIGHT = 850


def _hash(text: str) -> str:
    """The name of an inline text in a content security policy."""
    return "'sha256-" + base64.b64encode(hashlib.sha256(text.encode()).digest()).decode() + "'"


def policy(code: str, css: str) -> str:
    """The page's own policy for the browser: exactly this script and this style, and no connection to anywhere."""
    # Hashes instead of 'unsafe-inline': people pass pages on, and nothing in a recording may ever run in one.
    return f"default-src 'none'; script-src {_hash(code)}; style-src {_hash(css)}; base-uri 'none'; form-action 'none'"


def page(recording: "Recording", other: "Recording | None" = None, address: str = "") -> str:
    """The standalone page of a recording: offline, no foreign address in it, under its own strict policy.

    With `other`, both recordings side by side on common axes, and the first difference between them in words.

    Its address takes options after `#`, joined by `&`: `event=12` (counted from 1), `theme=light` or `dark`,
    `text=off` (no text, for comparing pictures), `slides` (16:9, as large as the window) and `still` (fixed width,
    light unless told otherwise), `walk=3` (opens the guided walk at a chapter). `address` stands for one where the page
    has none, as in a frame.
    """
    code = script() + "\nstartPage();\n"
    css = style("page")
    # "<" could end the element that the payload stands in; as an escape it is the same string to JSON.
    # One page for both cases: the script tells them apart by what the payload holds.
    content = payload(recording) if other is None else pair_payload(recording, other)
    data = json.dumps(content, separators=(",", ":")).replace("<", "\\u003c")
    # Names of units stand in the title, and a learner may name a unit anything.
    title = html.escape(f"zerolab: {content['title']}")
    return _PAGE.format(
        policy=policy(code, css),
        title=title,
        style=css,
        payload=data,
        script=code,
        address=html.escape(address, quote=True),
    )


def frame(recording: "Recording", other: "Recording | None" = None, address: str = "") -> str:
    """The page inside an iframe, for exported notebooks and sites: nothing to fetch, loaded when scrolled to."""
    inner = html.escape(page(recording, other, address), quote=True)
    title = html.escape(describe(recording), quote=True)
    # allow-scripts without allow-same-origin: the frame can draw, and can reach nothing of the page around it.
    look = f"width:100%;height:{FRAME_HEIGHT}px;border:0"
    text = f'<iframe title="{title}" sandbox="allow-scripts" loading="lazy" style="{look}" srcdoc="{inner}"></iframe>'
    # In ASCII alone: where a page does not say how it is encoded, a browser guesses, and the script may lose its hash.
    return text.encode("ascii", "xmlcharrefreplace").decode()
