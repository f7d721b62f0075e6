"""In a real JupyterLab, in a real browser, each notebook prints what is stored in it, and its player works."""

import time
from pathlib import Path

import nbformat
import pytest
from complaining import listen
from strictly import differences

NOTEBOOKS = sorted((Path(__file__).resolve().parents[2] / "notebooks").glob("*.ipynb"))
pytestmark = [pytest.mark.browser, pytest.mark.slow]

LIVE = ("00-start-here", "04-zero1")
"""Lessons that run as a learner has them, where lines appear as ranks print them; nbval compares their outputs."""
STATIC = """
__import__('os').environ.update(ZEROLAB_STATIC='1', ZEROLAB_STILLS='1')  # and figures are drawn all the same
__import__('atexit').register(__import__('gc').freeze)  # taking torch apart takes a kernel half a second
"""
LONGEST = 250  # seconds that a lesson may take on a busy machine; at 300 pytest ends the whole run
ASK = """
async (code) => {
    const kernel = window.jupyterapp.shell.currentWidget.sessionContext.session.kernel;
    const reply = await kernel.requestExecute({ code, silent: true }).done;
    return reply.content.status;
}
"""
OPEN = "async (name) => { await window.jupyterapp.commands.execute('docmanager:open', { path: name }); }"
KERNEL_IS_CONNECTED = """
(name) => {
    const panel = window.jupyterapp?.shell.currentWidget;
    const kernel = panel?.sessionContext?.session?.kernel;
    return panel?.context?.path === name && kernel?.connectionStatus === "connected" && kernel.status === "idle";
}
"""
RUN_ALL = """
(seconds) => Promise.race([
    window.jupyterapp.commands.execute("notebook:run-all-cells"),
    new Promise((_, fail) => setTimeout(() => fail(new Error(`not done after ${seconds} seconds`)), 1000 * seconds)),
])
"""
# As a file has it, but that Lab gives cells without attachments null for them.
BOOK = """
() => JSON.stringify(
    window.jupyterapp.shell.currentWidget.content.model.toJSON(),
    (key, value) => (key === "attachments" && value === null ? undefined : value),
)
"""
SHOW_CELL = """
async (index) => {
    const notebook = window.jupyterapp.shell.currentWidget.content;
    notebook.activeCellIndex = index;
    await notebook.scrollToItem(index, "center");
}
"""
CLOSE = """
async () => {
    const panel = window.jupyterapp.shell.currentWidget;
    await panel.sessionContext.shutdown();
    await panel.context.save();
    panel.dispose();
}
"""


@pytest.fixture(scope="module")
def window(lab, browser):
    """JupyterLab, opened once: each notebook is opened in it and closed again, as a person would."""
    page = browser.new_page(viewport={"width": 1400, "height": 1200})
    listen(page)
    page.opened = time.monotonic()
    page.goto(f"{lab}/lab/workspaces/lessons")
    page.wait_for_function("() => window.jupyterapp?.shell.currentWidget", timeout=60_000)
    yield page
    page.close()


@pytest.fixture
def tab(window):
    window.complaints.clear()
    yield window
    window.evaluate(CLOSE)


@pytest.mark.parametrize("notebook", NOTEBOOKS, ids=lambda path: path.stem)
def test_a_notebook_prints_what_is_stored_in_lab_and_its_player_plays_and_steps(notebook, tab):
    place = f"{notebook.stem}/{notebook.name}"
    tab.evaluate(OPEN, place)
    tab.wait_for_function(KERNEL_IS_CONNECTED, arg=place, timeout=60_000)
    if notebook.stem not in LIVE:
        assert tab.evaluate(ASK, STATIC) == "ok"
    tab.evaluate(RUN_ALL, LONGEST)
    book = nbformat.reads(tab.evaluate(BOOK), as_version=4)
    code = [cell for cell in book.cells if cell.cell_type == "code"]
    assert [output for cell in code for output in cell.outputs if output.output_type == "error"] == []
    assert [cell.execution_count for cell in code] == list(range(1, len(code) + 1))
    if notebook.stem not in LIVE:
        assert differences(nbformat.read(notebook, as_version=4), book) == {}
    shown = next(index for index, cell in enumerate(book.cells) if ".play()" in cell.source)
    tab.evaluate(SHOW_CELL, shown)
    try_the_player(tab)
    assert tab.complaints == []


def test_nothing_is_asked_in_a_corner_of_the_window(window):
    left = 2 - (time.monotonic() - window.opened)  # what Jupyter asks comes after the window
    window.wait_for_timeout(1000 * max(0, left))
    assert window.locator(".Toastify__toast").count() == 0


def try_the_player(tab):
    """It draws, steps by button and by key, and plays."""
    player = tab.locator(".zl-player").first
    player.wait_for(timeout=20_000)
    player.locator("canvas").first.wait_for()
    assert player.locator("canvas").count() >= 3
    assert drawn(player), "the canvas is empty"
    player.press("e")  # by events, whose numbers are known
    at_first = event(player)
    player.locator(".zl-next").click()
    assert event(player) == at_first + 1
    player.press("ArrowRight")
    assert event(player) == at_first + 2
    player.locator(".zl-previous").click()
    assert event(player) == at_first + 1
    before = text(player)
    player.locator(".zl-play").click()
    wait_until(tab, lambda: event(player) != at_first + 1)  # at its end it begins anew
    wait_until(tab, lambda: text(player) != before)
    player.locator(".zl-play").click()


def wait_until(tab, true):
    for _ in range(1000):
        if true():
            return
        tab.wait_for_timeout(20)
    pytest.fail("it does not play")


def event(player):
    """The number of the event that the player shows, counted from 1."""
    return int(player.locator("[role=slider]").first.get_attribute("aria-valuenow"))


def text(player):
    """What a screen reader would read."""
    return player.locator(".zl-mirror, .zl-caption").all_inner_texts()


def drawn(player):
    """Whether something is drawn on a canvas: pixels of more than two colours."""
    look = """
    (canvases) => canvases.some((canvas) => {
        if (!canvas.width || !canvas.height) return false;
        const { data } = canvas.getContext("2d").getImageData(0, 0, canvas.width, canvas.height);
        return new Set(new Uint32Array(data.buffer)).size > 2;
    })
    """
    return player.locator("canvas").evaluate_all(look)
