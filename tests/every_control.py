"""Every control of the player tried once, wherever the player is: on its own page or in a notebook, in either theme."""

import re
from pathlib import Path

import zerolab.player

# A key, and what of the player's state it must change. Each finds what the ones before it left.
KEYS = (
    ("ArrowRight", "index"),
    ("ArrowLeft", "index"),
    ("ArrowDown", "index"),
    ("ArrowUp", "index"),
    ("Shift+ArrowRight", "index"),
    ("Shift+ArrowLeft", "index"),
    ("Shift+ArrowDown", "index"),
    ("Shift+ArrowUp", "index"),
    ("u", "index"),
    ("U", "index"),
    ("PageDown", "index"),
    ("PageUp", "index"),
    ("p", "index"),
    ("Home", "index"),
    ("End", "index"),
    ("Home", "index"),
    ("+", "speed"),
    ("-", "speed"),
    ("z", "view"),
    ("z", "view"),
    ("i", "view"),
    ("d", "view"),
    ("a", "view"),
    ("o", "view"),
    ("i", "view"),
    ("0", "view"),
    ("s", "filter"),
    ("s", "filter"),
    ("m", "measured"),
    ("m", "measured"),
    ("t", "theme"),
    ("t", "theme"),
    (" ", "playing"),
    ("k", "playing"),
    ("e", "beat"),
    ("ArrowRight", "beat"),
    ("End", "beat"),
    ("Home", "beat"),
    ("e", "beat"),
    ("w", "walk"),
    ("w", "walk"),
)
# A button by its name, and what it must change.
BUTTONS = (
    ("Next phase", "index"),
    ("Previous phase", "index"),
    ("Next event", "index"),
    ("Previous event", "index"),
    ("Zoom in", "view"),
    ("Zoom out", "view"),
    ("Zoom in", "view"),
    ("No zoom", "view"),
    ("whole run", "view"),
    ("whole run", "view"),
    ("Light or dark", "theme"),
    ("Light or dark", "theme"),
    ("Play", "playing"),
    ("Pause", "playing"),
    ("events", "beat"),
    ("Next beat", "beat"),
    ("Previous beat", "beat"),  # of which no event need have ended since the one before
    ("events", "beat"),
    ("Walk", "walk"),
    ("Next chapter", "walk"),
    ("Previous chapter", "walk"),
    ("End the walk", "walk"),
    ("Story", "shown"),
    ("All", "shown"),
)
# Event by event, with every pane.
SHOW_ALL = "(root) => { root.zerolabPlayer.setView('all'); root.zerolabPlayer.tellEvents(true); }"
CHOICES = (("Rank", "1-1", [1, 1]), ("Category", "gradients", "gradients"), ("Unit", "blocks.1", "blocks.1"))


def state(player):
    return player.evaluate("(root) => root.zerolabPlayer.state()")


def changes(player, what, act):
    """Whether `act()` changes something of the player's state."""
    now = "(root, what) => root.zerolabPlayer.state()[what]"
    before = player.evaluate(now, what)
    act()
    return player.evaluate(now, what) != before


def listed_keys():
    """The keys that the player's own table has, as playwright calls them."""
    text = (Path(zerolab.player.__file__).parent / "keys.js").read_text(encoding="utf-8")
    return {
        key for group in re.findall(r'^  \[\[(.*?)\], "', text, re.MULTILINE) for key in re.findall(r'"(.+?)"', group)
    }


def try_every_control(player):
    """Presses every key and button of a player and moves every choice; whatever does nothing fails by its name."""
    player.evaluate(SHOW_ALL)
    player.evaluate("(root) => { root.zerolabPlayer.zoom.reset(); root.zerolabPlayer.goto(500); }")
    player.focus()
    for key in "12345":
        assert changes(player, "shown", lambda key=key: player.press(key)), key
    for key, what in KEYS:
        assert changes(player, what, lambda key=key: player.press("Shift+U" if key == "U" else key)), key
    for name, what in BUTTONS:
        button = player.get_by_role("button", name=name)
        assert changes(player, what, button.first.click), name
    speed = player.get_by_label("Speed")
    assert changes(player, "speed", lambda: speed.select_option("4"))
    speed.select_option("1")
    track = player.get_by_role("slider", name="Event")
    assert changes(player, "index", lambda: track.click(position={"x": 12, "y": 6}))
    _panels(player)
    assert {key for key, _ in KEYS} | {"f", "?", "/"} == listed_keys() - {"="}  # the same key as +, without shift


def _panels(player):
    """Filter and help: opened by key and by button, never both, closed by escape."""
    filters, help_ = player.locator(".zl-filter"), player.locator(".zl-help")
    for open_filter in (lambda: player.press("f"), player.get_by_role("button", name="Show only some ranks").click):
        open_filter()
        assert filters.is_visible()
        for label, value, wanted in CHOICES:
            player.get_by_label(label, exact=True).select_option(value)
            assert wanted in state(player)["filter"].values()
        filters.get_by_role("button", name="show all").click()
        assert not any(state(player)["filter"].values())
        player.focus()
        player.press("?")
        assert help_.is_visible()
        assert not filters.is_visible()
        player.press("Escape")
        assert not help_.is_visible()
    player.get_by_role("button", name="How to read this").click()
    assert help_.is_visible()
    player.press("Escape")
