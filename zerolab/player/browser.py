"""A headless Chromium, started the same way wherever a picture is taken or a page is tried."""

import importlib.util
import io
import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING

from zerolab.files import StrPath
from zerolab.runtime import variables

if TYPE_CHECKING:
    from playwright.sync_api import Browser

NAMES = ("chromium", "chromium-browser", "google-chrome", "google-chrome-stable")
FLAGS = (
    "--no-sandbox",  # containers, in which most of this runs, have no user namespaces for it
    "--disable-gpu",
    "--disable-quic",
    "--no-first-run",
    "--disable-background-networking",
    "--disable-component-update",
    "--disable-sync",
    # Letters that look the same on every machine.
    "--font-render-hinting=none",
    "--disable-lcd-text",
)


def find_chromium() -> Path | None:
    """Finds Chromium or Chrome: `ZEROLAB_CHROMIUM`, then one on the path, then playwright's own; None without one.

    Raises:
        FileNotFoundError: `ZEROLAB_CHROMIUM` names a file that is not there.
    """
    on_the_path = (shutil.which(name) for name in NAMES)
    return variables.chromium() or next((Path(found) for found in on_the_path if found), None) or _playwrights_own()


def _playwrights_own() -> Path | None:
    """The browser that `playwright install chromium` keeps, if there is one."""
    if importlib.util.find_spec("playwright") is None:
        return None
    from playwright.sync_api import sync_playwright

    with sync_playwright() as playwright:
        path = Path(playwright.chromium.executable_path)
    return path if path.is_file() else None


@contextmanager
def chromium(path: StrPath | None = None) -> "Iterator[Browser]":
    """A browser, closed at the end; `path` is that of a Chromium or Chrome, None for the one that is found.

    Raises ImportError without playwright and RuntimeError without a Chromium.
    """
    try:
        from playwright.sync_api import sync_playwright
    except ImportError as error:
        raise ImportError(f"Driving a browser needs playwright ({error}): pip install 'zerolab[test]'.") from error
    # playwright would download a browser of its own; the one that is installed does as well.
    found = path or find_chromium()
    if not found:
        raise RuntimeError("No Chromium was found: install it, or set ZEROLAB_CHROMIUM to one.")
    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=str(found), args=list(FLAGS))
        # Closed even if the caller failed: a browser left over keeps its memory.
        try:
            yield browser
        finally:
            browser.close()


def in_few_colours(shot: bytes) -> bytes:
    """A screenshot as a PNG of 128 colours: smoothed letters have thousands, and so it takes a third of the bytes.

    Raises ImportError without Pillow.
    """
    try:
        from PIL import Image
    except ImportError as error:
        raise ImportError(f"A still needs Pillow ({error}): pip install 'zerolab[test]'.") from error
    small, picture = io.BytesIO(), Image.open(io.BytesIO(shot)).convert("RGB")
    picture.quantize(128, dither=Image.Dither.NONE).save(small, "PNG", optimize=True)
    return small.getvalue()
