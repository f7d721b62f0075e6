"""What all tests share: missing parts, the quick selection, the time each part took, and nothing left running."""

import gc
import importlib.util
import os
import sys
import tempfile
import time
import uuid
from collections import defaultdict
from pathlib import Path

import psutil
import pytest

from zerolab.player.browser import find_chromium

sys.path.append(str(Path(__file__).parents[1] / "tools"))
from headless import chromium as start_chromium
from tabs import Tabs

# OpenMP's threads would spin while they wait for work, on cores that other ranks need. It is read when torch is loaded.
os.environ.setdefault("OMP_WAIT_POLICY", "PASSIVE")

EVERYTHING = os.environ.get("ZEROLAB_REQUIRE_ALL") == "1"
MARK = "ZEROLAB_TEST_SESSION"  # every process that a test starts inherits this variable
LONGEST = (  # files of three quarters of a minute and more; they begin, and those that compute beside those that wait
    "test_in_lab.py",
    "test_answers.py",
    "test_scripts.py",
    "test_fault_matrix.py",
    "test_trace.py",
    "test_site.py",
    "test_step_peak.py",
    "test_faults.py",
    "test_run.py",
    "test_known_hangs.py",
    "test_walk.py",
    "test_player_live.py",
    "test_own_backward.py",
    "test_what_can_go_wrong.py",
    "test_cluster.py",
    "test_fit_truth.py",
    "test_battery.py",
    "test_matrix.py",
    "test_machines.py",
    "test_kernel.py",
    "test_fit.py",
    "test_exactness.py",
    "test_binder_and_conda.py",
    "test_comparison.py",
    "test_adamw_8bit.py",
    "test_published_numbers.py",
)
LONG_SETUP = {  # files whose first test of any kind takes seconds: `make check` leaves them out
    "test_battery.py",
    "test_clinic.py",
    "test_comparison.py",
    "test_cut_off.py",
    "test_guests.py",
    "test_muon_runs.py",
    "test_notebook_life.py",
    "test_pretended_gpus.py",
    "test_right_runs.py",
    "test_scripts.py",
    "test_silent_faults.py",
    "test_trace.py",
    "test_transformers.py",
    "test_ward.py",
}
BEGINS = 60  # seconds after which a file should be among the first
MINUTES = {
    "notebooks": 6,
    "browser": 6,
    "exercises": 4,
    "engines": 6,
    "trace": 6,
    "opening": 4,
    "why": 3,
    "runtime": 5,
    "truth": 4,
    "player": 1,
    "packaging": 3,
}


def require(found, what, remedy):
    """Skips a test for want of a part, and says so; where everything is required, fails instead."""
    if found:
        return
    sentence = f"{what} is missing; {remedy}"
    if EVERYTHING:
        pytest.fail(f"{sentence} (ZEROLAB_REQUIRE_ALL=1 allows no skip)", pytrace=False)
    pytest.skip(sentence)


@pytest.fixture(scope="session", name="require")
def give_require():
    """`require(found, what, remedy)`, for a test that needs a part that a box may lack."""
    return require


@pytest.fixture(scope="session")
def chromium():
    """The path of a Chromium or Chrome that playwright can drive."""
    found = find_chromium()
    require(found, "Chromium", "apt install chromium, or set ZEROLAB_CHROMIUM to one")
    require(importlib.util.find_spec("playwright"), "playwright", "pip install 'zerolab[test]'")
    return found


@pytest.fixture(scope="module")
def browser(chromium):
    """One headless browser for a file of tests.

    Not for all: while playwright runs, no test of its thread can run an event loop of its own.
    """
    with start_chromium(chromium) as browser:
        yield browser


@pytest.fixture(scope="module")
def tabs(browser):
    """Its tabs, which tests take and give back."""
    return Tabs(browser)


def pytest_addoption(parser):
    parser.addoption(
        "--quick", action="store_true", help="what make check runs: nothing slow, of a test's cases the first"
    )


def is_quick(item):
    """Whether `make check` may run a test: no browser, nothing slow, and of several world sizes only two."""
    if any(item.get_closest_marker(mark) for mark in ("slow", "browser", "deepspeed", "gpu")):
        return False
    if "bench" in item.path.parts or item.path.name in LONG_SETUP:
        return False
    if "notebooks" in item.path.parts and "notebook" in getattr(item, "callspec", Empty).params:
        return "04-zero1" in str(item.callspec.params["notebook"])
    return getattr(item, "callspec", Empty).params.get("world_size", 2) == 2


def pytest_collection_finish():
    """Has pytest's own process, which computes little, use one thread: more would only wait, and spin meanwhile."""
    if "torch" in sys.modules:
        sys.modules["torch"].set_num_threads(1)


@pytest.fixture(scope="module", autouse=True)
def freeze():
    """Has the garbage collector skip what torch and pytest have made, which it would look through again and again.

    At each file again, since a simulation thaws whatever is frozen.
    """
    if not gc.get_freeze_count():
        gc.collect()
        gc.freeze()


class Empty:
    """Stands for the parameters of a test that has none."""

    params: dict[str, object] = {}  # noqa: RUF012  (never written)


def pytest_collection_modifyitems(config, items):
    items.sort(key=lambda item: LONGEST.index(item.path.name) if item.path.name in LONGEST else len(LONGEST))
    if not config.getoption("--quick"):
        return
    first = {}  # of each test's cases
    for item in filter(is_quick, items):
        first.setdefault((item.path, item.originalname), item)
    kept = list(first.values())
    config.hook.pytest_deselected(items=[item for item in items if item not in kept])
    items[:] = kept


# --- the time of each part ---------------------------------------------------------------------------------------

seconds = defaultdict(lambda: defaultdict(float))


RUNTIME = {"soak", "test_run.py", "test_doctor.py"}  # of ranks and machines, though not in its folder


def part_of(nodeid, keywords):
    """The part of the tests that a test's time counts for: its folder, but for what drives a browser."""
    name = Path(nodeid.split("::")[0]).parts[1]
    # Looking at the built site is part of building it, and JupyterLab is where notebooks run.
    if "browser" in keywords and name not in ("packaging", "notebooks"):
        return "browser"
    return "runtime" if name in RUNTIME else name if name in MINUTES else "truth"


def pytest_runtest_logreport(report):
    if report.failed and "PYTEST_XDIST_WORKER" not in os.environ:  # at once, for a run that is ended from outside
        print(f"\n{report.nodeid} failed: {report.longreprtext.strip().splitlines()[-1:]}", flush=True)
    seconds[part_of(report.nodeid, report.keywords)][report.nodeid] += report.duration


def _of_each_file():
    files = defaultdict(float)
    for tests in seconds.values():
        for nodeid, taken in tests.items():
            files[Path(nodeid.split("::")[0]).name] += taken
    return files


def pytest_terminal_summary(terminalreporter):
    # A busy box takes longer, and nobody is to take that for a failure.
    terminalreporter.section("time of each part, for information")
    for name, taken in sorted(_of_each_file().items(), key=lambda file: -file[1]):
        if taken > BEGINS and name not in LONGEST:
            terminalreporter.line(f"{name} took {taken:.0f} s: if a quiet box does, too, name it in LONGEST")
    for part, minutes in MINUTES.items():
        tests = seconds.get(part)
        if not tests:
            continue
        taken = sum(tests.values())
        terminalreporter.line(f"{part:<10} {taken:7.1f} s of {60 * minutes} s, {len(tests)} tests")
        if taken > 60 * minutes:
            slowest = sorted(tests.items(), key=lambda test: -test[1])[:5]
            terminalreporter.line(
                "           more than planned; the slowest: " + ", ".join(f"{name} {s:.1f} s" for name, s in slowest)
            )


# --- kernels that share nothing ----------------------------------------------------------------------------------


def pytest_configure(config):
    os.environ[MARK] = uuid.uuid4().hex
    folder = tempfile.TemporaryDirectory(prefix="zerolab-ipython-")
    config.add_cleanup(folder.cleanup)
    os.environ["IPYTHONDIR"] = folder.name
    profile = Path(folder.name, "profile_default")
    profile.mkdir()
    # Kernels of one user write their history into one file. On a busy box it is locked for seconds, and IPython prints
    # that it cannot write into it, below whichever cell is running.
    (profile / "ipython_config.py").write_text("c.HistoryManager.hist_file = ':memory:'\n")


# --- nothing left running ----------------------------------------------------------------------------------------


def orphans():
    """Processes that carry this session's mark and are no longer below it: their parent died and they did not.

    But for what a Chromium that is still in use keeps beside it, to report its crashes.
    """
    family = psutil.Process().children(recursive=True)
    below = {process.pid for process in family} | {os.getpid()}
    beside = {"chrome_crashpad_handler"} if any(named(process, "chrom") for process in family) else set()
    found = []
    for process in psutil.process_iter():
        try:
            marked = process.pid not in below and process.environ().get(MARK) == os.environ[MARK]
            if marked and not any(named(process, name) for name in beside) and process.status() != psutil.STATUS_ZOMBIE:
                found.append(f"{process.pid} {' '.join(process.cmdline())[:120]}")
        except psutil.Error:
            continue
    return found


def named(process, text):
    """Whether a process's program has this in its name; the system's own name for it is cut off."""
    try:
        return text in Path(process.exe()).name
    except psutil.Error:
        return False


@pytest.fixture(autouse=True, scope="module")
def nothing_left_running():
    """Each file of tests ends with no orphan: a rank or a forkserver must not outlive the kernel that started it."""
    yield
    patience = time.monotonic() + 5
    while (left := orphans()) and time.monotonic() < patience:
        time.sleep(0.1)
    if left:
        pytest.fail("left running: " + "; ".join(left), pytrace=False)
