"""`make gpu`: each promise stands by itself, and the report says of each what came of it."""

import importlib
import json
import os
import re
import subprocess
import sys
from pathlib import Path

import pytest
import torch

from zerolab.recording import recorder

HERE = Path(__file__).parent
ROOT = HERE.parents[1]
SIX = """
import ctypes, os, subprocess, sys, time
from promise import NotTestable, promise

@promise("One and one is two")
def sums(device):
    return {"sum": 1 + 1, "device": device}

@promise("One and one is three")
def wrong(device):
    import torch
    print("about to add up")
    print(torch.__file__, sys.prefix + "/bin", os.path.expanduser("~/x/y"), os.sep + "opt/torch/x.so")
    assert 1 + 1 == 3, "it is 2"

@promise("It comes to an end", 4)
def endless(device):
    print("child", subprocess.Popen([sys.executable, "-c", "import time; time.sleep(300)"]).pid, flush=True)
    time.sleep(300)

@promise("It lives")
def crash(device):
    ctypes.string_at(0)

@promise("It says what it found")
def silent(device):
    os._exit(3)

@promise("There are ten cards")
def ten_cards(device):
    raise NotTestable("this box has one")
"""


def battery(*arguments, **environment):
    command = [sys.executable, str(HERE / "battery.py"), *map(str, arguments)]
    return subprocess.run(command, env=os.environ | environment, capture_output=True, text=True, check=False)


@pytest.fixture(scope="module")
def six(tmp_path_factory):
    """What the frame printed and wrote about six promises."""
    folder = tmp_path_factory.mktemp("promises")
    (folder / "six_promises.py").write_text(SIX)
    ended = battery("--device", "cpu", "--promises", folder / "six_promises.py", "--out", folder / "out")
    written = {path.suffix: path.read_text() for path in (folder / "out").iterdir()}
    return ended, json.loads(written[".json"]), written[".md"]


def test_of_each_promise_the_report_says_whether_it_is_kept_broken_or_cannot_be_tested_here(six):
    ended, report, _ = six
    assert re.match(r"--device cpu, torch \S+: this tries the promises' own code, and says nothing about", ended.stdout)
    verdicts = {each["name"]: (each["verdict"], each.get("reason")) for each in report["promises"]}
    assert verdicts == {
        "sums": ("kept", None),
        "wrong": ("broken", "AssertionError: it is 2"),
        "endless": ("broken", "not done after 4 s"),
        "crash": ("broken", "killed by SIGSEGV"),
        "silent": ("broken", "ended with exit status 3 and without an answer"),
        "ten_cards": ("not testable", "this box has one"),
    }
    assert report["promises"][0]["figures"] == {"sum": 2, "device": "cpu"}
    assert ended.returncode == 1
    assert "1 kept, 4 broken, 1 not testable, 0 not reached" in ended.stdout


def test_a_broken_promise_brings_its_log_and_a_hang_the_line_at_which_it_hangs(six):
    logs = {each["name"]: "\n".join(each.get("log", [])) for each in six[1]["promises"]}
    assert "about to add up" in logs["wrong"]
    assert "in endless" in logs["endless"]
    assert "in crash" in logs["crash"]
    assert logs["sums"] == logs["ten_cards"] == ""


def test_what_a_hanging_promise_has_started_ends_with_it(six):
    (pid,) = [line.split()[1] for each in six[1]["promises"] for line in each.get("log", []) if line[:5] == "child"]
    assert not Path(f"/proc/{pid}/cmdline").exists() or not Path(f"/proc/{pid}/cmdline").read_bytes()


def test_the_report_in_words_has_a_row_a_promise_and_names_no_folder_of_this_machine(six):
    _, report, text = six
    rows = [line for line in text.splitlines() if line.startswith("|")][2:]
    assert [row.split(" | ")[1] for row in rows] == [each["verdict"] for each in report["promises"]]
    assert "| One and one is two | kept | sum 2, device cpu |" in rows
    assert "## Broken: endless" in text
    folders = re.compile(r"/(?:home|opt|root|Users|work|workspace)/|site-packages")  # as test_project.py looks for them
    assert folders.findall(text + json.dumps(report)) == []


@pytest.mark.slow
@pytest.mark.skipif(torch.cuda.is_available(), reason="this box has a GPU")
def test_without_a_gpu_it_says_so_in_a_sentence_and_writes_nothing(tmp_path):
    ended = battery("--out", tmp_path / "out", PATH=str(tmp_path))
    assert ended.returncode == 2
    assert ended.stdout == ""
    assert ended.stderr == (
        "make gpu: nvidia-smi was not found, so there is no NVIDIA driver. "
        "Nothing was tried, and nothing was written.\n"
    )
    assert not (tmp_path / "out").exists()


@pytest.mark.slow
def test_where_no_gpu_has_run_anything_the_stored_report_says_so_of_each_promise_that_there_is(tmp_path):
    stored = sorted((ROOT / "tests" / "bench" / "results").glob("gpu-*.json"))
    if [path.stem for path in stored] != ["gpu-none"]:
        assert "gpu-none.json" not in {path.name for path in stored}, "a card has run since"
        return
    assert "**zerolab has not run on a GPU so far.**" in (ROOT / "README.md").read_text()
    assert battery("--not-run", "--out", tmp_path).returncode == 0
    for written in tmp_path.iterdir():
        assert stored[0].with_suffix(written.suffix).read_text() == written.read_text(), "battery.py --not-run"
    assert {each["verdict"] for each in json.loads(stored[0].read_text())["promises"]} == {"not run"}


@pytest.mark.slow
def test_when_the_time_is_over_the_other_promises_are_not_reached_and_that_is_no_success(tmp_path):
    (tmp_path / "patient_promises.py").write_text(SIX)
    named = ("--promises", tmp_path / "patient_promises.py", "wrong", "sums")
    ended = battery("--device", "cpu", "--seconds", "0", *named)
    assert "0 kept, 0 broken, 0 not testable, 2 not reached" in ended.stdout
    assert re.findall(r"^not reached .* (\w+): ", ended.stdout, re.MULTILINE) == ["wrong", "sums"], "as they are named"
    assert ended.returncode == 1


@pytest.mark.slow
def test_a_promise_that_the_end_of_the_time_cuts_off_is_not_broken(tmp_path):
    text = SIX.replace('"It comes to an end", 4', '"It comes to an end"')
    (tmp_path / "long_promises.py").write_text(text)
    ended = battery("--device", "cpu", "--seconds", "25", "--promises", tmp_path / "long_promises.py", "endless")
    assert "0 kept, 0 broken, 0 not testable, 1 not reached" in ended.stdout
    assert "the time for all of them was over" in ended.stdout
    assert ended.returncode == 1


@pytest.mark.slow
def test_an_unknown_promise_is_refused_with_the_known_ones(tmp_path):
    (tmp_path / "known_promises.py").write_text(SIX)
    ended = battery("--device", "cpu", "--promises", tmp_path / "known_promises.py", "summs")
    assert "there is no promise 'summs'; there are sums, wrong, endless" in ended.stderr


def test_make_gpu_needs_no_environment_of_the_project(tmp_path):
    dry = subprocess.run(["make", "-n", "gpu", "PYTHON=python3"], cwd=ROOT, capture_output=True, text=True, check=True)
    assert '"python3" tests/gpu/battery.py' in dry.stdout.splitlines()


@pytest.mark.slow
def test_the_promises_own_code_runs_on_the_cpu_and_claims_nothing(tmp_path):
    names = ("hang", "device_assert", "after_the_notebook", "doctor", "cache", "terms", "nvidia_smi")
    before = sorted((ROOT / "tests" / "bench" / "results").iterdir())
    ended = battery("--device", "cpu", *names)
    assert ended.returncode == 0, ended.stdout
    assert "4 kept, 0 broken, 3 not testable, 0 not reached" in ended.stdout
    assert sorted((ROOT / "tests" / "bench" / "results").iterdir()) == before


def test_the_ledger_of_the_tests_for_a_gpu_takes_what_a_recorder_gives_it(monkeypatch):
    monkeypatch.syspath_prepend(ROOT / "tests" / "engines")
    made = importlib.import_module("test_gpu").ledger_of_the_gpu()
    monkeypatch.setattr(recorder, "Ledger", made)
    with recorder.Recorder():
        torch.ones(3)
    assert (made.made.rounded(), made.made.highest) == (0, 0), "main memory counts nothing there"


ABSENT = """
import importlib.util, sys, pytest

class Absent:
    def find_spec(self, name, *_):
        if name.partition(".")[0] in sys.argv[1].split(","):
            raise ModuleNotFoundError(f"No module named {name!r}")

def find_spec(name, *rest, find=importlib.util.find_spec):
    return None if name.partition(".")[0] in sys.argv[1].split(",") else find(name, *rest)

sys.meta_path.insert(0, Absent())
importlib.util.find_spec = find_spec
sys.exit(pytest.main(["-p", "no:nbval", "-p", "no:cacheprovider", "--collect-only", "-q", *sys.argv[2:]]))
"""


@pytest.mark.slow
def test_where_a_notebooks_packages_are_missing_the_tests_of_what_runs_on_ranks_are_still_found():
    folders = ("engines", "runtime", "recording", "trace", "why", "difference", "gpu", "nccl", "theory", "simulation")
    absent = "IPython,anywidget,ipykernel,ipywidgets,jupyter_client,nbformat,pandas,plotly,tqdm,transformers"
    command = [sys.executable, "-c", ABSENT, absent, *(f"tests/{name}" for name in folders)]
    ended = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)
    assert ended.returncode == 0, ended.stdout[-2000:] + ended.stderr


FIXTURES = """
import sys, pytest

class Known:
    def pytest_collection_finish(self, session):
        for item in session.items:
            known = {"request", *item._fixtureinfo.name2fixturedefs}
            known |= set(item.callspec.params) if hasattr(item, "callspec") else set()
            print(item.name, "lacks", sorted(set(item.fixturenames) - known))

options = ["-c", sys.argv[1], "--noconftest", "-p", "no:cacheprovider", "-m", "gpu", "--collect-only", "-q"]
sys.exit(pytest.main([*options, *sys.argv[2:]], plugins=[Known()]))
"""


def test_the_tests_for_a_gpu_need_nothing_that_other_tests_share(tmp_path):
    """`make gpu` runs them with `--noconftest`; where all are skipped, pytest does not miss a fixture."""
    (tmp_path / "plain.ini").touch()
    promises = json.loads((ROOT / "tests/bench/results/gpu-none.json").read_text())["promises"]
    files = [f"tests/{promise['name']}" for promise in promises if promise["name"].endswith(".py")]
    command = [sys.executable, "-c", FIXTURES, tmp_path / "plain.ini", *files]
    listed = subprocess.run(command, capture_output=True, text=True, check=False, cwd=ROOT)
    lacking = re.findall(r"^(\S+) lacks (.*)$", listed.stdout, re.MULTILINE)
    assert len(lacking) > len(files), listed.stdout + listed.stderr
    assert {lacks for _, lacks in lacking} == {"[]"}, lacking
