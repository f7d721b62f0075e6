"""A headless Chromium, started the same way wherever a picture is taken or a page is tried."""

import io
import os
from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING

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


@contextmanager
def chromium(path: str | os.PathLike[str] | None = None) -> "Iterator[Browser]":
    """A browser, closed at the end; `path` is that of a Chromium or Chrome, None for the one that is found.

    Raises ImportError without playwright and RuntimeError without a Chromium.
    """
    try:
        from playwright.sync_api import sync_playwright
    except ImportError as error:
        raise ImportError(f"Driving a browser needs playwright ({error}): pip install 'zerolab[test]'.") from error
    from zerolab.doctor import find_chromium

    found = path or find_chromium()
    if not found:
        raise RuntimeError("No Chromium was found: install it, or set ZEROLAB_CHROMIUM to one.")
    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=str(found), args=list(FLAGS))
        try:
            yield browser
        finally:
            browser.close()


def in_few_colours(shot: bytes, colours: int = 128) -> bytes:
    """A screenshot as a PNG of so many colours: smoothed letters have thousands, and so it takes a third of the bytes.

    Raises ImportError without Pillow.
    """
    try:
        from PIL import Image
    except ImportError as error:
        raise ImportError(f"A still needs Pillow ({error}): pip install 'zerolab[test]'.") from error
    small = io.BytesIO()
    Image.open(io.BytesIO(shot)).convert("RGB").quantize(colours, dither=Image.Dither.NONE).save(
        small, "PNG", optimize=True
    )
    return small.getvalue()
