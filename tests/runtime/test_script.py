"""A script that is run for a person ends, and not in the middle of what gloo still has to do."""

import argparse
import subprocess
import sys
import zipfile

import pytest
import warm

from zerolab.runtime import script

# Whoever waits for a collective runs as soon as gloo's thread says that it is over: both have the same core, and that
# thread gets it only if nobody else wants it. Of twenty threads, one is late nearly every time.
GROUPS = """
import os
import time
from pathlib import Path
import torch
import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel

def make_gloo_late():
    core = max(os.sched_getaffinity(0))
    for thread in Path("/proc/self/task").iterdir():
        os.sched_setaffinity(int(thread.name), {core})
        if (thread / "comm").read_text() == "pt_gloo_runloop\\n":
            os.sched_setscheduler(int(thread.name), os.SCHED_IDLE, os.sched_param(0))

dist.init_process_group("gloo", rank=0, world_size=1, store=dist.HashStore())
groups = [dist.new_group([0]) for _ in range(20)]
"""
ABORTS = """
class AtTheEnd:  # of Python, when a thread that asks for the GIL is ended
    def __del__(self, sleep=time.sleep):
        sleep(0.1)

torch.at_the_end = AtTheEnd()
for group in groups:
    dist.all_reduce(torch.ones(1), group=group)
make_gloo_late()
for group in groups:
    dist.all_reduce(torch.ones(1), group=group)
"""
HANGS = """
def train():
    models = [DistributedDataParallel(torch.nn.Linear(1, 1), process_group=group) for group in groups]
    for model in models:
        model(torch.ones(1)).backward()
    make_gloo_late()
    for model in models:
        model(torch.ones(1)).backward()
    groups.clear()
    dist.destroy_process_group()
    del model, models  # each group ends with its model, which holds the GIL meanwhile

train()
"""
# Each child ends as Python does, with all that was imported before it began.
CHILDREN = """
import argparse, os, sys
import torch.distributed
from zerolab.runtime import script

ends = []
for _ in range(int(sys.argv[2])):
    child = os.fork()
    if not child:
        script.run(argparse.Namespace(script=sys.argv[1], arguments=[], module=False))
        sys.exit()
    ends.append(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]))
print(ends)
"""


@pytest.mark.slow
@pytest.mark.parametrize(("script", "times"), [(ABORTS, 6), (HANGS, 1)], ids=["aborts", "hangs"])
def test_a_script_whose_gloo_threads_are_late_ends_as_if_they_were_not(script, times, tmp_path):
    path = tmp_path / "script.py"
    path.write_text(GROUPS + script)
    command = [sys.executable, "-c", CHILDREN, str(path), str(times)]
    done = subprocess.run(command, capture_output=True, text=True, check=True, timeout=120)
    assert done.stdout == f"{[0] * times}\n", done.stderr


MAIN = """
import atexit, pickle, sys
class Config:
    pass
def late():
    print(type(pickle.loads(pickle.dumps(Config()))).__module__, sys.modules["__main__"].__dict__ is globals())
atexit.register(late)
__builtins__.known = "known"  # the module itself, as in every main module
print(sys.argv[1:], __name__, __file__, __package__, __spec__ and __spec__.name, known)
"""


@pytest.mark.parametrize("tool", ["trace", "why"])
def test_a_script_or_a_package_is_the_main_module_to_the_end_of_python_and_gets_all_of_its_arguments(tool, tmp_path):
    (tmp_path / "package").mkdir()
    script, module = tmp_path / "script.py", tmp_path / "package" / "__main__.py"
    for path in (script, module):
        path.write_text(MAIN)
    options = ["-m", f"zerolab.{tool}", "--out", tmp_path / "out"]
    done = warm.launch([*options, "script.py", "--", "--b", "--"], ranks=0, cwd=tmp_path)
    assert done.stdout == f"['--', '--b', '--'] __main__ {script} None None known\n__main__ True\n", done.stderr
    done = warm.launch([*options, "-m", "package", "--", "c"], ranks=0, cwd=tmp_path)
    assert done.stdout == f"['--', 'c'] __main__ {module} package package.__main__ known\n__main__ True\n", done.stderr


@pytest.mark.parametrize(
    ("tool", "given", "gets"),
    [
        ("trace", ["--local_rank=1"], "--local_rank=1"),
        ("trace", ["--local-rank", "0"], "--local-rank=0"),
        ("why", ["--local-rank=1"], "--local-rank=1"),
    ],
)
def test_the_local_rank_that_a_launcher_puts_first_is_the_scripts(tool, given, gets, tmp_path):
    (tmp_path / "script.py").write_text("import sys\nprint(sys.argv[1:])\n")
    command = ["-m", f"zerolab.{tool}", *given, "--out", tmp_path / "out", "script.py", "--steps", "2"]
    done = warm.launch(command, ranks=0, cwd=tmp_path)
    assert done.stdout == f"['{gets}', '--steps', '2']\n", done.stderr


def test_a_module_in_an_archive_is_run(tmp_path, monkeypatch, capsys):
    with zipfile.ZipFile(tmp_path / "packed.zip", "w") as archive:
        archive.writestr("inside.py", "print(__name__, __file__)\n")
    monkeypatch.syspath_prepend(tmp_path / "packed.zip")
    monkeypatch.setattr(sys, "argv", sys.argv)
    monkeypatch.setitem(sys.modules, "__main__", sys.modules["__main__"])
    script.run(argparse.Namespace(script="inside", arguments=[], module=True))
    assert capsys.readouterr().out == f"__main__ {tmp_path / 'packed.zip' / 'inside.py'}\n"


def test_nothing_that_was_there_before_a_script_is_looked_through_by_its_collections(tmp_path):
    counting = "import gc, torch\nprint(len(gc.get_objects()), gc.get_freeze_count())\n"
    (tmp_path / "counting.py").write_text(counting)
    trace = ["-m", "zerolab.trace", "--out", "run.json", "counting.py"]
    done = subprocess.run([sys.executable, *trace], cwd=tmp_path, capture_output=True, text=True, check=True)
    seen, others = map(int, done.stdout.split())
    assert seen < others / 100
