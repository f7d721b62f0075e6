"""Whoever waits for more than three seconds is told what for; nothing of it stays, and nobody else is told."""

import os
import pty
import subprocess
import sys
import time

import pytest

import zerolab.runtime.waiting
from zerolab.runtime.waiting import waiting

SLOW = "import time, zerolab.runtime.waiting as w\nw.SILENCE, w.EVERY = 0.05, 0.05\n"


def at_a_terminal(code):
    """What a terminal shows of a program's stderr."""
    ours, theirs = pty.openpty()
    subprocess.run([sys.executable, "-c", code], stderr=theirs, stdin=subprocess.DEVNULL, check=True)
    os.close(theirs)
    return os.read(ours, 1 << 16).decode()


def test_at_a_terminal_one_line_says_what_and_how_long_and_goes_away():
    shown = at_a_terminal(SLOW + "with w.waiting('starting 4 ranks'): time.sleep(0.4)")
    assert "\r\x1b[Kstarting 4 ranks ... 0 s" in shown
    assert shown.endswith("\r\x1b[K")


def test_what_is_quick_says_nothing():
    assert at_a_terminal_or_nothing("import zerolab.runtime.waiting as w\nwith w.waiting('a moment'): pass") == ""


def at_a_terminal_or_nothing(code):
    return at_a_terminal(f"{code}\nimport sys; sys.stderr.write('.')").removesuffix(".")


def test_the_inner_wait_is_the_one_that_is_told():
    code = SLOW + (
        "with w.waiting('zero1: 5 steps'):\n"
        "    with w.waiting('starting 4 ranks'): time.sleep(0.4)\n"
        "    time.sleep(0.4)\n"
    )
    shown = at_a_terminal(code)
    assert shown.index("starting 4 ranks") < shown.index("zero1: 5 steps")


def test_no_file_and_no_stored_notebook_is_told(monkeypatch, capfd):
    monkeypatch.setattr(zerolab.runtime.waiting, "SILENCE", 0.0)
    with waiting("nobody looks"):
        time.sleep(0.1)
    assert capfd.readouterr() == ("", "")


@pytest.mark.slow
def test_in_a_notebook_it_is_an_output_that_ends_empty(jupyter):
    from jupyter_client.manager import start_new_kernel

    manager, client = start_new_kernel()
    try:
        seen = []
        code = SLOW + "from zerolab import Cluster\nwith Cluster(world_size=2, device='cpu') as c: print(c.run(int))"
        client.execute_interactive(code, timeout=120, output_hook=seen.append)
        texts = [m["content"]["data"]["text/plain"] for m in seen if "data" in m["content"]]
        assert any(text.startswith("starting 2 ranks ...") for text in texts)
        assert texts[-1] == ""
        assert [m["content"]["text"] for m in seen if m["msg_type"] == "stream"] == ["[0, 0]\n"]
    finally:
        client.stop_channels()
        manager.shutdown_kernel(now=True)
