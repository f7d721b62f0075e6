"""A headless Chromium, started the same way wherever a picture is taken or a page is tried."""

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING

from zerolab.player.browser import find_chromium

if TYPE_CHECKING:
    from playwright.sync_api import Browser

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
_open: "list[Browser]" = []  # the one that is running, if there is one


@contextmanager
def chromium(path: Path | None = None) -> "Iterator[Browser]":
    """A browser, closed at the end; `path` is that of a Chromium or Chrome, None for the one that is found.

    Within the block of another call it is that one's browser, which stays open: starting one takes a second, and
    playwright drives only one at a time from a thread. Pages that are opened in it have to be closed.
    Raises ImportError without playwright and RuntimeError without a Chromium.
    """
    if _open:
        yield _open[0]
        return
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
        _open.append(browser)
        # Closed even if the caller failed: a browser left over keeps its memory.
        try:
            yield browser
        finally:
            _open.clear()
            browser.close()
