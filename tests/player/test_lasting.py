"""What a player leaves behind: nothing that grows while it plays, and nothing at all when its view is closed."""

import pytest
from showing import made_up, notebook, until

pytestmark = pytest.mark.browser
PLAYER = "window.zerolabPlayers[0]"

# Counts what stays alive by itself: frames that are asked for again and again, and observers that were not let go of.
COUNTING = """
window.frames_asked = 0;
window.watching = 0;
const ask = window.requestAnimationFrame.bind(window);
window.requestAnimationFrame = (callback) => { window.frames_asked += 1; return ask(callback); };
for (const kind of ["ResizeObserver", "MutationObserver"]) {
  const { observe, disconnect } = window[kind].prototype;
  window[kind].prototype.observe = function (...rest) { window.watching += 1; return observe.apply(this, rest); };
  window[kind].prototype.disconnect = function () { window.watching -= 1; return disconnect.apply(this); };
}
"""


def alive(tab):
    """Listeners and nodes that the page keeps once its rubbish is collected."""
    session = tab.context.new_cdp_session(tab)
    session.send("Performance.enable")
    for _ in range(3):  # what one collection sets free, the next one finds
        session.send("HeapProfiler.collectGarbage")
        tab.wait_for_timeout(50)
    metrics = {entry["name"]: entry["value"] for entry in session.send("Performance.getMetrics")["metrics"]}
    session.detach()
    return {name: metrics[name] for name in ("JSEventListeners", "Nodes")}


def test_a_thousand_moments_leave_nothing_that_grows(show):
    tab = show(made_up(4, 5, 2))
    through = f"for (let k = 0; k < 500; k++) {PLAYER}.goto((k * 7) % {PLAYER}.model.count)"
    tab.evaluate(through)  # every text and every name has been drawn once
    before = alive(tab)
    tab.evaluate(f"(() => {{ {through}; {through}; }})()")
    after = alive(tab)
    assert after["JSEventListeners"] == before["JSEventListeners"]
    assert after["Nodes"] <= before["Nodes"] + 50


def test_a_view_that_is_closed_while_it_plays_leaves_nothing_behind(browser):
    tab = browser.new_page()
    tab.add_init_script(COUNTING)
    notebook(tab, made_up(4, 5, 2))

    def open_and_close(times):
        for _ in range(times):
            tab.evaluate("async () => void (window.close_view = await window.open_view())")
            tab.evaluate(f"{PLAYER}.play()")
            until(tab, f"{PLAYER}.clock.playing")
            tab.evaluate("window.close_view(); delete window.close_view;")

    open_and_close(2)
    before = alive(tab)
    open_and_close(20)
    assert tab.evaluate("window.zerolabPlayers.length") == 0
    assert tab.evaluate("window.heard.size") == 0
    assert tab.evaluate("window.watching") == 0
    asked = tab.evaluate("window.frames_asked")
    tab.wait_for_timeout(200)
    assert tab.evaluate("window.frames_asked") == asked, "a closed player still plays"
    assert tab.evaluate("document.body.childElementCount") == 0  # a locator would bring listeners of its own
    after = alive(tab)
    assert after["JSEventListeners"] == before["JSEventListeners"]
    assert after["Nodes"] <= before["Nodes"] + 50, "closed players stay in memory"
    tab.close()
