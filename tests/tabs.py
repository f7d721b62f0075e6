"""Tabs of a browser that tests use one after the other, and what is complained of in them."""

MODIFIERS = ("Shift", "Control", "Alt", "Meta")
FORGET = "() => { try { localStorage.clear(); sessionStorage.clear(); } catch {} }"  # some documents have none


class Tabs:
    """Tabs that tests use one after the other: to open one takes longer than most tests.

    What a test did to a document goes with the document, and the rest is undone here; `player/test_tabs.py` shows it.
    """

    def __init__(self, browser):
        self.browser, self.free = browser, []

    def take(self, width=1280, height=800, scheme="light", motion="no-preference"):
        """An empty tab of this size."""
        tab = self.free.pop() if self.free else self.browser.new_page()
        tab.set_viewport_size({"width": width, "height": height})
        tab.emulate_media(media="null", color_scheme=scheme, reduced_motion=motion)
        # Out of the window. A Chromium without windows believes it only of a pointer that was pressed there, and else
        # takes it to be in a corner.
        tab.mouse.move(-1, -1)
        tab.mouse.down()
        tab.mouse.up()
        return tab

    def give_back(self, tab):
        """Lets go of all buttons and keys, forgets, and ends what plays."""
        tab.mouse.up()
        for key in MODIFIERS:
            tab.keyboard.up(key)
        tab.evaluate(FORGET)
        tab.context.clear_cookies()
        tab.goto("about:blank")
        tab.evaluate("window.name = ''")  # which outlives a document
        self.free.append(tab)


class Complaints(list):
    """What a tab complains of, while it is listened to."""

    def hear(self, message):
        if message.type != "verbose":  # what only a verbose console shows is advice about speed
            self.append(f"{message.type}: {message.text}")

    def fail(self, error):
        self.append(f"error: {error}")

    def asked(self, request):
        if not request.url.startswith("file:"):
            self.append(request.url)

    def listen(self, listening):
        """Begins to listen to a tab by `tab.on`, or ends by `tab.remove_listener`."""
        for event, heard in (("console", self.hear), ("pageerror", self.fail), ("request", self.asked)):
            listening(event, heard)
