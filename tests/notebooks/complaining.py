"""What a page with widgets complains of."""

LATE = "[anywidget] Failed to initialize model."
"""What anywidget says of a widget that a busy browser had ready after two seconds; ours lose nothing by it: see
`test_a_kernel_moves_what_a_busy_browser_was_late_with`."""


def listen(page, but=()):
    """Keeps in `page.complaints` what goes wrong in it, but not what holds one of the texts `but`."""
    page.complaints = []

    def hear(text):
        if text != LATE and not any(part in text for part in but):
            page.complaints.append(text)

    page.on("console", lambda message: message.type == "error" and hear(message.text))
    page.on("pageerror", lambda error: hear(str(error)))
