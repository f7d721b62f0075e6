"""The player's controls in a living notebook: in JupyterLab and in Notebook 7, where a kernel answers."""

import re

import nbformat
import pytest
from complaining import LATE, listen
from every_control import SHOW_ALL, try_every_control

from zerolab.comparison import record

pytestmark = [pytest.mark.browser, pytest.mark.slow]

CELLS = (
    'from zerolab import Recording\nrecording = Recording.load("zero3.json")\nplayer = recording.play()\nplayer',
    'recording.play(Recording.load("ddp.json"))',
    "from zerolab import explore\nexplore()",
    'seen = []\nplayer.observe(lambda change: seen.append(change["new"]["index"]), "current")',
)
OF_ONES_OWN = """import torch, torch.distributed as dist
from zerolab import Cluster
def mine():
    model = torch.nn.Sequential(torch.nn.Linear(4, 4), torch.nn.Tanh(), torch.nn.Linear(4, 1))
    model(torch.ones(2, 4)).sum().backward()
    for parameter in model.parameters():
        dist.all_reduce(parameter.grad)
with Cluster(world_size=2, device="cpu") as cluster:
    own = cluster.record(mine)
own.play()"""
FITS = "from zerolab import what_fits\nwhat_fits()"
KERNEL = {"name": "python3", "display_name": "Python 3", "language": "python"}  # without it a dialog asks for one
FRONT_ENDS = {"JupyterLab": "/lab/workspaces/player-{0}/tree/{0}.ipynb", "Notebook 7": "/notebooks/{0}.ipynb"}
CONNECTED = """() => {
    const kernel = window.jupyterapp?.shell.currentWidget?.sessionContext?.session?.kernel;
    return kernel?.connectionStatus === "connected" && kernel.status === "idle";
}"""
RUN_ALL = "() => window.jupyterapp.commands.execute('notebook:run-all-cells')"
# What a cell would do, without a cell: runs code on the notebook's kernel and gives what it printed.
ASK = """async (code) => {
    const kernel = window.jupyterapp.shell.currentWidget.sessionContext.session.kernel;
    let said = "";
    const future = kernel.requestExecute({ code });
    future.onIOPub = ({ content }) => { said += content.text ?? content.evalue ?? ""; };
    await future.done;
    return said.trim();
}"""
CLOSE = """async () => {
    const panel = window.jupyterapp.shell.currentWidget;
    await panel.sessionContext.shutdown();
    await panel.context.save();
}"""
SHOW_CELL = """async (index) => {
    const notebook = window.jupyterapp.shell.currentWidget.content;
    await notebook.scrollToItem(index, "center");
}"""
CHOOSE_THEME = "(theme) => window.jupyterapp.commands.execute('apputils:change-theme', { theme })"
HEIGHTS = "(all) => all.map((one) => one.getBBox().height.toFixed(1)).join()"
CELL_COUNT = "() => window.jupyterapp.shell.currentWidget.content.widgets.length"


@pytest.fixture(scope="module")
def stored(lab_folder):
    """Two recordings and a notebook for each front end, beside the lessons."""
    for stage in ("zero3", "ddp"):
        record(stage, 4, "gpt-tiny", 2, device="cpu").save(lab_folder / f"{stage}.json")
    for name in FRONT_ENDS:
        own = [OF_ONES_OWN, FITS] if name == "JupyterLab" else []  # starting ranks takes seconds, so in one of the two
        cells = [nbformat.v4.new_code_cell(source) for source in (*CELLS, *own)]
        notebook = nbformat.v4.new_notebook(cells=cells, metadata={"kernelspec": KERNEL})
        nbformat.write(notebook, lab_folder / f"{slug(name)}.ipynb")


in_lab = pytest.mark.parametrize("tab", ["JupyterLab"], indirect=True)


def slug(name):
    return name.replace(" ", "-").lower()


@pytest.fixture(scope="module", params=FRONT_ENDS)
def tab(request, stored, lab, browser):
    """The notebook in one front end, all its cells run."""
    page = browser.new_page(viewport={"width": 1400, "height": 1300})
    listen(page, but=["Failed to load resource"])  # the player fetches nothing: it is one of the front end's own
    page.goto(lab + FRONT_ENDS[request.param].format(slug(request.param)))
    page.wait_for_function(CONNECTED, timeout=60_000)
    page.complaints.clear()  # what the front end complains of while it starts is its own
    page.evaluate(RUN_ALL)
    player = page.locator(".zl-player").first
    player.wait_for(timeout=20_000)
    player.scroll_into_view_if_needed()
    yield page
    page.evaluate(CLOSE)
    page.close()


@pytest.fixture
def player(tab):
    """The first cell's player, as it opened; afterwards nothing may have complained."""
    found = tab.locator(".zl-player").first
    found.scroll_into_view_if_needed()
    found.evaluate("(root) => { root.zerolabPlayer.setFilter({ ranks: null, category: null, unit: null }); }")
    found.evaluate(SHOW_ALL)
    found.evaluate("(root) => { root.zerolabPlayer.zoom.reset(); root.zerolabPlayer.goto(700); }")
    found.focus()
    yield found
    assert tab.complaints == []


def test_a_saved_notebook_shows_its_player_again_without_the_kernel_that_drew_it(stored, lab, lab_folder, browser):
    notebook = nbformat.v4.new_notebook(cells=[nbformat.v4.new_code_cell(CELLS[0])], metadata={"kernelspec": KERNEL})
    nbformat.write(notebook, lab_folder / "saved.ipynb")
    with browser.new_page() as page:
        page.goto(lab + FRONT_ENDS["JupyterLab"].format("saved"))
        page.wait_for_function(CONNECTED, timeout=60_000)
        page.evaluate(RUN_ALL)
        page.locator(".zl-player canvas").first.wait_for(timeout=60_000)
        page.evaluate(CLOSE)  # ends the kernel, then saves
    with browser.new_page() as page:
        page.goto(lab + "/lab/workspaces/next-day/tree/saved.ipynb")
        player = page.locator(".zl-player").first
        player.locator("canvas").first.wait_for(timeout=60_000)
        player.press("e")
        before = player.locator("[role=slider]").first.get_attribute("aria-valuenow")
        player.locator(".zl-next").click()
        assert int(player.locator("[role=slider]").first.get_attribute("aria-valuenow")) == int(before) + 1


# anywidget gives the code of a widget two seconds; here none, so that every widget is late, as on a busy machine.
AT_ONCE = """
const timeout = AbortSignal.timeout;
AbortSignal.timeout = (milliseconds) => timeout.call(AbortSignal, milliseconds === 2000 ? 0 : milliseconds);
"""


def test_a_kernel_moves_what_a_busy_browser_was_late_with(stored, lab, lab_folder, browser):
    sources = (CELLS[0], "from zerolab import explore, what_fits\nplans = what_fits()\nplans", "runs = explore()\nruns")
    cells = [nbformat.v4.new_code_cell(source) for source in sources]
    nbformat.write(nbformat.v4.new_notebook(cells=cells, metadata={"kernelspec": KERNEL}), lab_folder / "slow.ipynb")
    page = browser.new_page(viewport={"width": 1400, "height": 2600})
    page.add_init_script(AT_ONCE)
    complaints = []
    page.on("pageerror", lambda error: complaints.append(str(error)))
    page.goto(lab + FRONT_ENDS["JupyterLab"].format("slow"))
    page.wait_for_function(CONNECTED, timeout=60_000)
    page.evaluate(RUN_ALL)
    player = page.locator(".zl-player").first
    player.locator("canvas").first.wait_for(timeout=60_000)
    bars = page.locator(".js-plotly-plot")
    bars.nth(1).locator(".bars path").first.wait_for(timeout=60_000)
    assert set(complaints) == {LATE}  # they were late indeed
    ask(page, "player.goto(5)")
    page.wait_for_function("(root) => root.zerolabPlayer.state().event.index === 5", arg=player.element_handle())
    drawn = [one.locator(".bars path").evaluate_all(HEIGHTS) for one in (bars.nth(0), bars.nth(1))]
    ask(page, "plans.rows.value = 8; runs.stage.value = 'zero1'")
    for one, before in zip((bars.nth(0), bars.nth(1)), drawn, strict=True):
        until_other(page, one.locator(".bars path"), before)
    assert set(complaints) == {LATE}
    page.evaluate(CLOSE)
    page.close()


def state(player):
    return player.evaluate("(root) => root.zerolabPlayer.state()")


def ask(tab, code):
    return tab.evaluate(ASK, code)


@pytest.mark.parametrize("theme", ["light", "dark"])
def test_every_control_does_something_here_too(tab, player, theme):
    tab.evaluate(CHOOSE_THEME, f"JupyterLab {theme.capitalize()}")
    tab.wait_for_function(f"() => document.body.dataset.jpThemeLight === '{str(theme == 'light').lower()}'")
    player.evaluate("(root) => { root.zerolabPlayer.setTheme(null); }")
    assert state(player)["theme"] == theme
    try_every_control(player)
    player.evaluate("(root) => { root.zerolabPlayer.setTheme(null); }")
    tab.evaluate(CHOOSE_THEME, "JupyterLab Light")


def test_the_kernel_moves_the_player_and_hears_where_it_is(tab, player):
    for _ in range(100):  # what the browser still has to say would otherwise arrive after the kernel's own move
        if ask(tab, "print(player.event)") == "700":
            break
        tab.wait_for_timeout(100)
    assert ask(tab, "player.goto(812)") == ""
    tab.wait_for_function("() => document.querySelector('.zl-player').zerolabPlayer.index === 812")
    player.press("ArrowRight")
    tab.wait_for_timeout(600)  # the browser tells the kernel a few times a second
    assert ask(tab, "print(player.event, player.current['index'], seen[-1])") == "813 813 813"
    assert ask(tab, "print(player.state()['caption'])") == state(player)["caption"]
    assert "this recording has" in ask(tab, "player.goto(10**6)")


def test_keys_step_zoom_and_pan_and_the_notebook_does_not_take_them(tab, player):
    cells = tab.evaluate(CELL_COUNT)
    first = state(player)
    player.press("u")
    assert state(player)["event"]["unit"] != first["event"]["unit"]
    player.press("ArrowDown")
    assert state(player)["index"] > first["index"]
    view = state(player)["view"]
    player.press("i")
    zoomed = state(player)["view"]
    assert zoomed[1] - zoomed[0] == pytest.approx((view[1] - view[0]) / 2)
    player.press("d")
    assert state(player)["view"][0] > zoomed[0]
    player.press("0")
    player.press("z")
    assert state(player)["view"][1] - state(player)["view"][0] > view[1] - view[0]
    player.press("z")
    player.press("p")
    assert "is at its peak" in state(player)["caption"]
    player.press("a")
    player.press("b")  # the notebook's keys for new cells do nothing here either
    assert tab.evaluate(CELL_COUNT) == cells
    theme = state(player)["theme"]
    player.press("t")
    assert state(player)["theme"] != theme
    player.press("t")


def test_the_wheel_with_ctrl_zooms_and_a_drag_scrubs(tab, player):
    box = player.locator(".zl-timeline .zl-layers").bounding_box()
    before = state(player)["view"]
    tab.mouse.move(box["x"] + 400, box["y"] + 30)
    tab.keyboard.down("Control")
    tab.mouse.wheel(0, -300)
    tab.keyboard.up("Control")
    tab.wait_for_timeout(100)
    after = state(player)["view"]
    assert after[1] - after[0] < 0.6 * (before[1] - before[0])
    tab.mouse.down()
    tab.mouse.move(box["x"] + 300, box["y"] + 30, steps=3)
    tab.mouse.up()
    assert after[0] <= state(player)["time"] <= after[0] + (after[1] - after[0]) / 2


def test_the_filter_leaves_one_rank_and_its_panel_and_the_keys_never_lie_over_each_other(tab, player):
    player.press("f")
    player.get_by_label("Rank", exact=True).select_option("2-2")
    player.get_by_label("Unit", exact=True).select_option("blocks.1")
    assert player.locator(".zl-only").inner_text() == "only rank 2, blocks.1"
    player.focus()
    player.press("ArrowRight")
    event = state(player)["event"]
    assert (event["rank"], event["unit"]) == (2, "blocks.1")
    player.press("?")
    assert player.locator(".zl-help").is_visible()
    assert not player.locator(".zl-filter").is_visible()
    assert one_line_each(player.locator(".zl-help dt")), "a key's name is broken"
    player.press("Escape")
    assert not player.locator(".zl-help").is_visible()


def one_line_each(terms):
    return all(
        terms.evaluate_all("(all) => all.map((one) => one.getClientRects().length === 1 && one.offsetHeight < 24)")
    )


def test_two_recordings_side_by_side_keep_the_same_time(tab, player):
    pair = tab.locator(".zl-pair").first
    pair.scroll_into_view_if_needed()
    said, now = pair.locator(".zl-difference").inner_text().splitlines()[:2]
    assert re.match(r"\S+ keeps .* at the update", said)
    assert re.match(r"At this moment, on rank 0, activations apart: \S+ holds", now)
    pair.get_by_role("button", name="first difference").click()
    assert re.search(r"First difference, on rank \d", pair.locator(".zl-difference").inner_text())
    both = pair.locator(".zl-player")
    assert both.count() == 2
    assert len(set(both.locator("h2").all_inner_texts())) == 2
    assert {state(both.nth(k))["theme"] for k in (0, 1)} == {state(player)["theme"]}


@in_lab
def test_a_loop_of_ones_own_shows_its_cell(tab, player):
    own = tab.locator(".zl-player").last
    own.scroll_into_view_if_needed()
    own.evaluate(SHOW_ALL)
    place = own.evaluate(
        "(root) => root.zerolabPlayer.events.find((e) => e.op === 'all_reduce' && e.parent === null)?.index"
    )
    own.evaluate("(root, place) => root.zerolabPlayer.goto(place)", place)
    shown = state(own)["source"]
    assert shown["label"] == "cell [5]"
    assert shown["text"].strip() == "dist.all_reduce(parameter.grad)"
    assert own.locator(".zl-lit").inner_text().strip() == shown["text"].strip()


@in_lab
def test_the_panel_runs_what_is_chosen_and_shows_it(tab, player):
    from playwright.sync_api import expect

    tab.evaluate(SHOW_CELL, 2)
    run = tab.locator(".jupyter-button", has_text="Run")
    run.wait_for(timeout=10_000)
    panel = tab.locator(".jp-Cell", has=run)
    ticks = expect(panel.locator(".js-plotly-plot .xtick"))
    panel.get_by_text("Recorded beforehand on real ranks").wait_for(timeout=10_000)
    ticks.to_have_text(["ddp", "zero3"], timeout=10_000)
    run.click()
    panel.get_by_text("zero3, measured just now").wait_for(timeout=60_000)
    ticks.to_have_text(["run 1: zero3, 4 ranks"], timeout=10_000)
    panel.get_by_role("button", name="DDP").click()
    panel.get_by_text("Recorded beforehand on real ranks").wait_for(timeout=10_000)
    run.click()
    panel.locator(".zl-pair").wait_for(timeout=60_000)
    assert panel.locator(".zl-player h2").all_inner_texts() == ["zero3", "ddp"]
    ticks.to_have_text(["run 1: zero3, 4 ranks", "run 2: ddp, 4 ranks"], timeout=10_000)
    panel.get_by_text("ddp, measured just now").wait_for(timeout=10_000)


@in_lab
def test_the_planners_panel_answers_each_of_its_widgets(tab, player):
    tab.evaluate(SHOW_CELL, len(CELLS) + 1)
    panel = tab.locator(".jp-Cell", has=tab.get_by_text("with DeepSpeed"))
    answer = panel.get_by_text(re.compile("^(Fits:|No:)"))
    answer.wait_for(timeout=10_000)
    bars = panel.locator(".js-plotly-plot .bars path")
    bars.first.wait_for(timeout=10_000)
    said, drawn = answer.inner_text(), bars.evaluate_all(HEIGHTS)
    sliders = panel.get_by_role("slider")
    assert sliders.count() == 4
    for place in range(4):
        sliders.nth(place).press("ArrowRight")
        drawn = until_other(tab, bars, drawn)
    for choice in ("fp32", "block"):
        panel.get_by_role("button", name=choice, exact=True).click()
        drawn = until_other(tab, bars, drawn)
    panel.get_by_role("combobox").first.select_option("llama-30b")
    until_other(tab, bars, drawn)
    assert answer.inner_text() != said
    panel.get_by_text("with DeepSpeed").click()
    panel.locator("textarea:visible").wait_for(timeout=10_000)


def until_other(tab, bars, before):
    """What bars look like once they look other than before."""
    for _ in range(100):
        now = bars.evaluate_all(HEIGHTS)
        if now != before:
            return now
        tab.wait_for_timeout(100)
    raise AssertionError("the bars stayed as they were")


def test_the_theme_follows_the_notebook(tab, player):
    light = tab.evaluate("document.body.dataset.jpThemeLight")
    assert state(player)["theme"] == ("light" if light == "true" else "dark")
    tab.evaluate("(light) => { document.body.dataset.jpThemeLight = light === 'true' ? 'false' : 'true'; }", light)
    player.evaluate("(root) => { root.zerolabPlayer.setTheme(null); }")
    assert state(player)["theme"] == ("dark" if light == "true" else "light")
    tab.evaluate("(light) => { document.body.dataset.jpThemeLight = light; }", light)
