"""`make env` chooses torch by looking at the box, says what is missing in a sentence, and does nothing twice."""

import argparse
import http.server
import importlib.metadata
import importlib.util
import json
import os
import shutil
import subprocess
import sys
import threading
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
VERSION = f"{sys.version_info[0]}.{sys.version_info[1]}"
specification = importlib.util.spec_from_file_location("make_env", ROOT / "tools" / "make_env.py")
make_env = importlib.util.module_from_spec(specification)
specification.loader.exec_module(make_env)


def choice(asked, *, cards=(), index=True):
    return make_env.choose_torch(asked, has=lambda: list(cards), answers=lambda _: index)


@pytest.mark.parametrize("asked", ["cpu", "cuda", "cuda12", "system"])
def test_what_the_person_chose_is_taken_whatever_the_box_has(asked):
    assert choice(asked, cards=[(580, (9, 0))], index=True) == asked


@pytest.mark.parametrize(
    ("driver", "capability", "build"),
    [
        (580, (9, 0), "cuda"),
        (595, (0, 0), "cuda"),  # it does not tell
        (535, (9, 0), "cuda12"),
        (580, (7, 0), "cuda12"),  # a V100
        (525, (0, 0), "cuda12"),
    ],
)
def test_a_gpu_gets_the_build_that_its_driver_and_its_generation_run(driver, capability, build):
    assert choice("auto", cards=[(driver, capability)]) == build


def test_a_driver_too_old_for_any_build_gets_the_cpu_build_and_a_sentence(capsys):
    assert choice("auto", cards=[(470, (8, 0))]) == "cpu"
    assert "the GPU's driver is 470, and torch needs 525 or newer: the CPU build" in capsys.readouterr().out


@pytest.mark.parametrize(
    ("script", "cards"),
    [
        ("echo 535.183.01, 8.0; echo 535.183.01, 7.0", [(535, (8, 0)), (535, (7, 0))]),
        ('case "$*" in *compute_cap*) exit 2;; esac; echo 470.82.01', [(470, (0, 0))]),
        ("echo NVIDIA-SMI has failed; exit 9", []),
        ("echo No devices were found", []),
    ],
)
def test_cards_are_asked_for_their_driver_and_their_generation(tmp_path, monkeypatch, script, cards):
    (tmp_path / "nvidia-smi").write_text(f"#!/bin/sh\n{script}\n")
    (tmp_path / "nvidia-smi").chmod(0o700)
    monkeypatch.setenv("PATH", f"{tmp_path}:{os.environ['PATH']}")
    assert make_env.cards() == cards


def test_the_build_for_cuda_12_is_asked_for_by_its_full_version(tmp_path):
    environment, asked = make_env.Environment(tmp_path / "env"), []
    environment.pip = lambda *arguments: asked.append(arguments)
    environment.add_torch("cuda12")
    assert asked == [
        ("--extra-index-url", make_env.CUDA12_INDEX, make_env.pinned("setuptools"), make_env.pinned("torch") + "+cu126")
    ]


def test_without_a_gpu_the_cpu_index_is_taken_if_it_answers_and_pips_own_settings_if_not():
    assert choice("auto", index=True) == "cpu"
    assert choice("auto", index=False) == "default"


def test_an_unknown_choice_is_refused_with_the_known_ones():
    with pytest.raises(SystemExit, match="TORCH=rocm is not known; it is cpu, cuda, cuda12 or system"):
        choice("rocm")


@pytest.mark.slow
def test_an_index_that_answers_counts_and_one_that_does_not_is_given_up_in_time():
    class Answers(http.server.SimpleHTTPRequestHandler):
        def log_message(self, *_):
            """Says nothing."""

    with http.server.ThreadingHTTPServer(("127.0.0.1", 0), Answers) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        assert make_env.reaches(f"http://127.0.0.1:{server.server_port}", seconds=20)
        server.shutdown()
    assert not make_env.reaches(f"http://127.0.0.1:{server.server_port}", seconds=20)
    with http.server.HTTPServer(("127.0.0.1", 0), Answers) as silent:  # takes the connection and never answers
        assert not make_env.reaches(f"http://127.0.0.1:{silent.server_port}", seconds=1)


@pytest.mark.parametrize(
    ("version", "missing", "sentence"),
    [
        ((3, 10), "", "needs Python 3.11 to 3.13, and this is 3.10 .* make env PYTHON=python3.12"),
        ((3, 14), "", "needs Python 3.11 to 3.13, and this is 3.14"),
        ((3, 11), "ensurepip", "Python 3.11 has no venv; apt install python3.11-venv"),
        ((3, 11), "git", "git is not installed; apt install git"),
    ],
)
def test_each_missing_prerequisite_is_a_sentence_with_its_remedy(version, missing, sentence):
    with pytest.raises(SystemExit, match=sentence):
        make_env.check_prerequisites(version, lambda name: name != missing, lambda name: name != missing)


def test_a_box_with_everything_passes():
    make_env.check_prerequisites((3, 13), lambda _: True, lambda _: True)


def test_a_disk_without_room_for_it_is_told_beforehand_with_both_numbers(tmp_path):
    with pytest.raises(SystemExit, match=r"new takes about 2 GB, and 0\.3 GB are free on that disk; free some"):
        make_env.check_room(tmp_path / "new", "cpu", 0.3)
    make_env.check_room(tmp_path / "new", "cuda", 8.1)
    make_env.check_room(tmp_path, "cpu", 0.3)  # it broke off on the way, and most of it may be there


def plan(made, *, torch="auto", extras="lab,test", switch=False):
    """What is to be done with an environment of which `made` is the note."""
    return make_env.plan(made, argparse.Namespace(torch=torch, extras=extras, switch=switch))


def note(**changes):
    """The note of an environment that is up to date, but for some changes."""
    same = {"fingerprint": make_env.fingerprint(), "extras": ["lab", "test"], "torch": "cpu", "python": "3.12"}
    return {**same, **changes}


def test_an_environment_that_is_up_to_date_is_left_alone():
    assert plan(note()) is None
    assert plan(note(), torch="cpu") is None
    assert plan(note(extras=["deepspeed", "lab", "test"])) is None, "more than asked for is no reason either"


def test_a_changed_project_or_a_further_extra_is_added_to_what_is_there():
    for planned in (plan(note(fingerprint="older")), plan(note(), extras="lab,test,deepspeed")):
        assert not planned["fresh"]
        assert planned["torch"] == "cpu"
    assert planned["extras"] == ["deepspeed", "lab", "test"]


def test_another_torch_or_another_python_makes_it_anew():
    assert plan(note(), torch="cuda")["fresh"]
    assert plan(note(python="3.10"), switch=True)["fresh"]
    assert plan(note(python="3.10")) is None, "unless a Python was chosen, the one that is there will do"


TORCH_OF_THE_BOX = """Metadata-Version: 2.1
Name: torch
Version: 2.12.0
Requires-Dist: setuptools<82
Requires-Dist: typing_extensions>=4.10.0
Requires-Dist: pyyaml; extra == "pyyaml"
"""


def test_the_boxs_own_torch_is_kept_and_so_is_what_it_needs(tmp_path):
    environment = make_env.Environment(tmp_path / "env")
    subprocess.run([sys.executable, "-m", "venv", "--without-pip", tmp_path / "env"], check=True)
    asked = []
    environment.pip = lambda *arguments: asked.append(arguments)
    # A torch of this name and version stands for the box's; only what it says of itself is looked at.
    site = next((tmp_path / "env").glob("lib/python*/site-packages"))
    (site / "torch-2.12.0.dist-info").mkdir()
    (site / "torch-2.12.0.dist-info" / "METADATA").write_text(TORCH_OF_THE_BOX)
    environment.add_torch("system")
    assert asked == [("setuptools",)]
    everywhere, here = (
        {line for line in file.read_text().splitlines() if line and not line.startswith("#")}
        for file in (ROOT / "constraints.txt", environment.constraints)
    )
    # Under the pin of setuptools, which is above 82, pip would take the newest torch in place of the box's.
    lost = {make_env.pinned(name) for name in ("torch", "setuptools", "typing-extensions")}
    assert (everywhere - here, here - everywhere) == (lost, {"torch==2.12.0"})


def test_what_a_container_pins_for_itself_does_not_contradict_the_pins_of_the_environment(tmp_path, monkeypatch):
    environment = make_env.Environment(Path(sys.prefix))
    environment.constraints = tmp_path / "constraints.txt"
    environment.constraints.write_text(f"pip=={importlib.metadata.version('pip')}\n")  # so there is nothing to do
    (tmp_path / "containers.txt").write_text("pip==1.0\n")
    monkeypatch.setenv("PIP_CONSTRAINT", str(tmp_path / "containers.txt"))
    environment.pip("pip")


def test_a_box_whose_torch_is_too_old_gets_a_sentence_and_no_half_made_environment(tmp_path):
    environment = make_env.Environment(tmp_path / "env")
    subprocess.run([sys.executable, "-m", "venv", "--without-pip", tmp_path / "env"], check=True)
    with pytest.raises(SystemExit, match=r"TORCH=system needs torch 2.11 or newer, and .* has none; leave TORCH= out"):
        environment.add_torch("system")
    assert not (tmp_path / "env").exists()


def make(folder, *arguments):
    chosen = {name: value for name, value in os.environ.items() if not name.startswith(("ZEROLAB_", "MAKE", "MFLAGS"))}
    return subprocess.run(["make", *arguments], cwd=folder, env=chosen, capture_output=True, text=True, check=False)


def test_make_env_does_nothing_the_second_time(tmp_path):
    for name in ("Makefile", "pyproject.toml", "constraints.txt", "tools/make_env.py"):
        (tmp_path / name).parent.mkdir(exist_ok=True)
        shutil.copy(ROOT / name, tmp_path / name)
    subprocess.run([sys.executable, "-m", "venv", "--without-pip", tmp_path / ".venv"], check=True)
    (tmp_path / ".venv" / "bin" / "zerolab").touch()
    (tmp_path / ".venv" / "zerolab-env.json").write_text(
        json.dumps(note(python=VERSION, extras=["lab", "site", "test"]))
    )
    done = make(tmp_path, "env", f"PYTHON={sys.executable}")
    assert (done.returncode, done.stdout, done.stderr) == (0, "", "")


@pytest.mark.parametrize("python", ["python3.99", "true", "", "python3 -I"])
def test_what_is_not_a_python_that_starts_is_a_sentence(python):
    done = make(ROOT, "env", f"PYTHON={python}")
    assert done.returncode
    assert f"'{python}' is not a Python that starts; zerolab needs 3.11 to 3.13" in done.stderr


def pip(code):
    """A process that speaks as pip does."""
    command = [sys.executable, "-u", "-c", code]
    return subprocess.Popen(command, text=True, stdout=subprocess.PIPE, stderr=subprocess.STDOUT)


def test_whoever_waits_for_pip_is_told_where_it_is_every_few_seconds(monkeypatch, capsys):
    monkeypatch.setattr(make_env, "SILENCE", 0.2)
    code = "import time; print('Collecting torch'); print('  Using cache'); time.sleep(1)"
    assert make_env.well(pip(code), "torch")
    out, err = capsys.readouterr()
    assert "s  Collecting torch" in out
    assert err == ""


def test_a_pip_that_fails_is_quoted_whole(capsys):
    assert not make_env.well(pip("print('Collecting nonsense'); print('ERROR: No matching'); raise SystemExit(1)"), "x")
    assert capsys.readouterr().err == "Collecting nonsense\nERROR: No matching\n"


@pytest.mark.parametrize(
    ("goal", "extras"), [("lab", "lab"), ("test", "lab,test,site"), ("env", "lab,test,site"), ("", "lab,test,site")]
)
def test_make_lab_installs_what_the_lab_needs_and_no_more(goal, extras):
    environment = {
        name: value for name, value in os.environ.items() if name not in ("ZEROLAB_REQUIRE_ALL", "MAKEFLAGS")
    }
    said = subprocess.run(
        ["make", "-n", *goal.split()], cwd=ROOT, env=environment, capture_output=True, text=True, check=True
    ).stdout
    assert f'--extras "{extras}"' in said
