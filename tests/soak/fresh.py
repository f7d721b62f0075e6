"""The first minute of a session, hundreds of times: `compare`, `record` and a notebook's first cells from a cold start.

    .venv/bin/python tests/soak/fresh.py                 300 trials of each, figures into tests/soak/results/
    .venv/bin/python tests/soak/fresh.py --each 20

Every trial is a fresh interpreter with a fresh fork server, while two other processes take all the CPU they can get,
and with random pressure from the garbage collector in the driver, in the kernel and in the ranks. A trial fails if it
ends with an error, writes to stderr, takes longer than `LIMIT` or leaves a process behind. Trials of one commit add up:
a run that was ended is taken up again where it was.
"""

import argparse
import contextlib
import datetime as dt
import json
import os
import random
import signal
import subprocess
import sys
import threading
import time
import uuid
from collections import Counter
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from statistics import median

import psutil

sys.path.insert(0, str(Path(__file__).parent.parent / "bench"))
from measuring import machine

FOLDER = Path(__file__).parent
ROOT = FOLDER.parents[1]
RESULTS = FOLDER / "results" / "fresh.json"
LIMIT = 300.0  # seconds that a trial may take
THRESHOLDS = (700, 100, 30, 10)  # new objects after which the garbage collector runs; Python's own is 700
NAPS = (0, 0, 1, 5)  # milliseconds for which it then lets other threads run
HOGS = 2
CELLS = 5  # code cells of the first notebook
HOG = (
    "import os, sys, threading\nthreading.Thread(target=lambda: (sys.stdin.read(), os._exit(0))).start()\nwhile 1: pass"
)

COMPARE = """
from zerolab import compare
comparison = compare("ddp,zero3", world_size=2, model="gpt-tiny", steps=2, device="cpu")
for row in comparison.rows:
    assert sum(row["state"].values()) == sum(row["formula"].values()) + sum(row["terms"].values()), comparison
    assert row["losses"] == comparison.rows[0]["losses"], comparison
"""
RECORD = """
from zerolab.comparison import record
recording = record("zero3", world_size=2, model="gpt-tiny", steps=2, device="cpu")
assert all(rank.complete for rank in recording.ranks) and len(recording.ranks) == 2, recording
"""
NOTEBOOK = f"""
import nbformat
from jupyter_client.manager import start_new_kernel
notebook = nbformat.read({str(ROOT / "notebooks" / "00-start-here.ipynb")!r}, as_version=4)
cells = [cell.source for cell in notebook.cells if cell.cell_type == "code"][:{CELLS}]
shown = []
kernel, client = start_new_kernel(startup_timeout=120, extra_arguments=["--log-level=ERROR"])
try:
    for cell in cells:
        content = client.execute_interactive(cell, timeout=120, output_hook=shown.append)["content"]
        assert content["status"] == "ok", "\\n".join(content["traceback"])
    results = [message["content"]["data"]["text/plain"] for message in shown if message["msg_type"] == "execute_result"]
    assert results[-1] == "[6, 6, 6, 6]", results
finally:
    client.stop_channels()
    kernel.shutdown_kernel()
"""
KINDS = {"compare": COMPARE, "record": RECORD, "notebook": NOTEBOOK}


def trial(code, pressure):
    """Runs one in a process of its own; seconds, and what was wrong with it: empty if nothing was."""
    mark, started = uuid.uuid4().hex, time.monotonic()
    path = os.pathsep.join(map(str, (FOLDER / "pressure", ROOT)))
    environment = os.environ | {"PYTHONPATH": path, "ZEROLAB_SOAK_PRESSURE": pressure, "ZEROLAB_SOAK_TRIAL": mark}
    process = subprocess.Popen(
        [sys.executable, "-c", code], env=environment, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    )
    try:
        _, said = process.communicate(timeout=LIMIT)
    except subprocess.TimeoutExpired:
        process.kill()
        said = f"it took longer than {LIMIT:g} s\n" + process.communicate()[1]
    seconds = time.monotonic() - started
    wrong = [f"exit code {process.returncode}"] if process.returncode else []
    wrong += [said[-4000:]] if said.strip() else []
    left = left_behind(mark)
    wrong += [f"left behind: {left}"] if left else []
    return seconds, "\n".join(wrong)


def left_behind(mark):
    """Command lines of the trial's processes that are still there two seconds after it; they are ended."""
    deadline = time.monotonic() + 2
    while family := [process for process in psutil.process_iter() if belongs(process, mark)]:
        if time.monotonic() > deadline:
            lines = [" ".join(process.cmdline())[:200] for process in family]
            for process in family:
                process.send_signal(signal.SIGKILL)
            return lines
        time.sleep(0.1)
    return []


def belongs(process, mark):
    """Whether a process was started by that trial, and lives."""
    try:
        environment = process.environ()
        return environment.get("ZEROLAB_SOAK_TRIAL") == mark and process.status() != psutil.STATUS_ZOMBIE
    except psutil.Error:
        return False


@contextlib.contextmanager
def hogs():
    """Processes that take all the CPU they can get; they end with this one, however it ends."""
    busy = [subprocess.Popen([sys.executable, "-c", HOG], stdin=subprocess.PIPE) for _ in range(HOGS)]
    try:
        yield
    finally:
        for hog in busy:
            hog.stdin.close()
            hog.wait()


def commit():
    """The commit whose code is tried, and whether something was edited since."""
    head = subprocess.check_output(["git", "rev-parse", "--short=12", "HEAD"], cwd=ROOT, text=True).strip()
    edited = subprocess.run(["git", "diff", "--quiet", "HEAD", "--", "zerolab"], cwd=ROOT, check=False).returncode
    return f"{head}, edited" if edited else head


def judged(figures, kind, seconds, pressure, wrong):
    """The figures of one commit with one more trial in them."""
    of_kind = figures["trials"].setdefault(kind, {"right": 0, "wrong": 0, "seconds": []})
    of_kind["wrong" if wrong else "right"] += 1
    of_kind["seconds"].append(round(seconds, 1))
    if wrong:
        figures["wrong"].append({"kind": kind, "pressure": pressure, "said": wrong})
    return figures


def as_text(everything):
    """The figures for a person, newest commit first."""
    lines = ["# Fresh processes", ""]
    lines += ["| commit | what | trials | wrong | median s | longest s |", "|---|---|---:|---:|---:|---:|"]
    for name, figures in reversed(everything.items()):
        for kind, each in figures["trials"].items():
            seconds = each["seconds"]
            row = (name, kind, each["right"] + each["wrong"], each["wrong"], f"{median(seconds):.1f}", max(seconds))
            lines.append(f"| {' | '.join(map(str, row))} |")
    for name, figures in reversed(everything.items()):
        box = figures["machine"]
        where = f"{box['processor']}, {box['cores']} cores, Python {box['python']}, torch {box['torch']}"
        lines += ["", f"{name}: {figures['date']}, {where}, {HOGS} processes that only compute beside it."]
        lines += [f"* {each['kind']}, pressure {each['pressure']}: {each['said']}" for each in figures["wrong"]]
    return "\n".join(lines) + "\n"


def soak(each, results, *, at_once=1, say=print):
    """Runs trials in turns, `at_once` at a time, until there are `each` of every kind; the figures of this commit."""
    name = commit()
    everything = json.loads(results.read_text()) if results.exists() else {}
    figures = everything.setdefault(name, {"date": "", "machine": machine(), "trials": {}, "wrong": []})
    waiting = Counter({kind: max(0, each - done(figures, kind)) for kind in KINDS})
    lock = threading.Lock()

    def work():
        while True:
            with lock:
                [(kind, left)] = waiting.most_common(1)
                if left <= 0:
                    return
                waiting[kind] -= 1
            pressure = f"{random.choice(THRESHOLDS)} {random.choice(NAPS)}"
            seconds, wrong = trial(KINDS[kind], pressure)
            with lock:
                judged(figures, kind, seconds, pressure, wrong)
                figures["date"] = dt.datetime.now(dt.UTC).date().isoformat()
                results.parent.mkdir(exist_ok=True)
                results.write_text(json.dumps(everything, indent=1) + "\n")
                results.with_suffix(".md").write_text(as_text(everything))
                say(f"{kind} {done(figures, kind)} of {each}, {seconds:.1f} s, {wrong or 'right'}", flush=True)

    with hogs(), ThreadPoolExecutor(at_once) as pool:
        for worker in [pool.submit(work) for _ in range(at_once)]:
            worker.result()
    return figures


def done(figures, kind):
    """How many trials of a kind there are."""
    each = figures["trials"].get(kind, {"right": 0, "wrong": 0})
    return each["right"] + each["wrong"]


def main():
    """Runs what is missing, and ends with status 1 if anything was wrong."""
    parser = argparse.ArgumentParser(description="Sessions from a cold start, under load; what goes wrong in them.")
    parser.add_argument("--each", type=int, default=300)
    parser.add_argument("--at-once", type=int, default=3, help="trials at a time, each the others' load, too")
    parser.add_argument("--results", type=Path, default=RESULTS, help="the file for the figures; what it has is kept")
    chosen = parser.parse_args()
    figures = soak(chosen.each, chosen.results, at_once=chosen.at_once)
    print(chosen.results.with_suffix(".md").read_text())
    sys.exit(1 if figures["wrong"] else 0)


if __name__ == "__main__":
    main()
