"""What a player leaves behind: nothing that grows while it plays, and nothing at all when its view is closed."""

import json

import pytest
from showing import made_up, until

from zerolab.player import payload
from zerolab.player.bundle import script, style

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

# A notebook's side of a widget: the model that anywidget hands to `render`.
WIDGET = """async ([code, css, payload]) => {
  const sheet = document.head.appendChild(document.createElement("style"));
  sheet.textContent = css;
  const url = URL.createObjectURL(new Blob([code], { type: "text/javascript" }));
  const { render } = (await import(url)).default;
  window.heard = new Set();
  window.open_view = async () => {
    const values = { payload, event: -1 };
    const model = {
      get: (name) => values[name], set: (name, value) => { values[name] = value; }, save_changes() {},
      on: (_, callback) => window.heard.add(callback), off: (_, callback) => window.heard.delete(callback),
    };
    const el = document.body.appendChild(document.createElement("div"));
    const close = await render({ model, el, unpacked: async (text) => text });
    return () => { close(); el.remove(); };
  };
}"""


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
    tab.goto("about:blank")
    tab.evaluate(WIDGET, [script(), style(), json.dumps(payload(made_up(4, 5, 2)))])

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
