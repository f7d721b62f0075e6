"""Which Chromium takes the pictures and tests the pages."""

import importlib.util
import shutil
from pathlib import Path

from zerolab.runtime import variables

NAMES = (
    "chromium-headless-shell",  # first: one with windows is busy even while nothing happens in it
    "chromium",
    "chromium-browser",
    "google-chrome",
    "google-chrome-stable",
)


def find_chromium() -> Path | None:
    """Finds Chromium or Chrome: `ZEROLAB_CHROMIUM`, then one on the path, then playwright's own; None without one.

    Raises FileNotFoundError if `ZEROLAB_CHROMIUM` names a file that is not there.
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
