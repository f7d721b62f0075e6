"""The form of an exercise on the site: nothing that was written is lost, and it is used by keyboard alone."""

from pathlib import Path

import pytest

STATIC = Path(__file__).resolve().parents[2] / "docs" / "_static"
OPENING = "def f():&#10;    return 1&#10;"
FORM = f'<div class="zl-exercise" data-exercise="one" data-opening="{OPENING}" data-seconds="1"></div>'
PAGE = f'<!doctype html><html lang="en"><body>{FORM}<script src="exercise.js"></script>'
JUDGE = """
export function started() {}
export const ask = async () => JSON.stringify({ ran: true, passed: false, said: ["no"], printed: "", table: "" });
"""

pytestmark = pytest.mark.browser


@pytest.fixture
def form(browser):
    """A page with one exercise, whose answers are all wrong."""

    def answer(route):
        name = route.request.url.rpartition("/")[2]
        kind = "text/javascript" if name.endswith(".js") else "text/html"
        bodies = {"ask.js": JUDGE, "exercise.js": (STATIC / "exercise.js").read_text()}
        route.fulfill(body=bodies.get(name, PAGE), content_type=kind)

    tab = browser.new_page()
    tab.route("**/*", answer)
    tab.goto("http://site.test/")
    yield tab
    tab.close()


def test_what_was_written_before_a_new_line_or_a_new_beginning_comes_back_by_undo(form):
    area = form.get_by_role("textbox")
    area.press("Control+End")
    area.press_sequentially("x = 1")
    area.press("Enter")
    area.press("Tab")
    area.press_sequentially("y = 2")
    written = area.input_value()
    assert written.endswith("x = 1\n    y = 2")
    form.get_by_role("button", name="Start again").click()
    assert area.input_value() == "def f():\n    return 1\n"
    area.press("Control+z")
    assert area.input_value() == written
    for _ in range(20):
        area.press("Control+z")
    assert area.input_value() == "def f():\n    return 1\n"


def test_the_button_that_checks_keeps_the_focus_and_the_keys_of_the_text_are_read_out_with_it(form):
    check = form.get_by_role("button", name="Check")
    check.focus()
    check.press("Enter")
    form.locator(".zl-verdict").wait_for()
    # Chromium takes the focus from what is disabled with the next frame.
    form.evaluate("new Promise((done) => requestAnimationFrame(() => requestAnimationFrame(() => done())))")
    assert form.evaluate("document.activeElement.textContent") == "Check"
    keys = form.get_by_role("textbox").get_attribute("aria-describedby")
    assert "Escape, then Tab, leaves the text" in form.locator(f"[id='{keys}']").inner_text()
