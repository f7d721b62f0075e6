"""Binder's image and the conda environment: read by repo2docker, and their pip parts installed for real."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
import yaml
from packaging.utils import canonicalize_name

ROOT = Path(__file__).resolve().parents[2]
LOADS = "import jupyterlab, anywidget, plotly, pandas, zerolab; print(zerolab.Cluster)"


def test_repo2docker_understands_the_checkout(tree):
    command = [sys.executable, "-m", "repo2docker", "--no-build", "--debug", "."]
    done = subprocess.run(command, cwd=tree, capture_output=True, text=True, check=True)
    dockerfile = done.stdout + done.stderr
    assert '--file "binder/environment.yml"' in dockerfile, "binder/ must use its own environment file"
    assert "RUN ./binder/postBuild" in dockerfile
    assert "/binder/start" in dockerfile


@pytest.mark.parametrize("name", ["postBuild", "start"])
def test_binders_scripts_run_and_stop_at_the_first_error(name):
    script = ROOT / "binder" / name
    assert os.access(script, os.X_OK)
    commands = [line for line in script.read_text().splitlines() if line and not line.startswith("#")]
    assert commands[0] == "set -euo pipefail"
    subprocess.run(["bash", "-n", script], check=True)


def test_binders_start_keeps_ranks_on_loopback_with_one_thread_each():
    shown = subprocess.run([ROOT / "binder" / "start", "env"], capture_output=True, text=True, check=True).stdout
    assert {"OMP_NUM_THREADS=1", "GLOO_SOCKET_IFNAME=lo"} <= set(shown.splitlines())


@pytest.mark.slow
def test_binders_install_gives_a_working_lab(tree, binders):
    assert "Cluster" in binders.run("python", "-c", LOADS)
    assert (tree / "work" / "00-start-here.ipynb").is_file()


@pytest.mark.slow
def test_the_conda_environments_pip_part_gives_the_same_lab(tree, binders, clean_venv):
    environment = yaml.safe_load((tree / "environment.yml").read_text())
    [pip] = [part["pip"] for part in environment["dependencies"] if isinstance(part, dict)]
    # conda hands these lines to pip as a requirements file beside environment.yml
    (tree / "condaenv.requirements.txt").write_text("\n".join(pip) + "\n")
    asked = ("pip", "install", "-q", "--dry-run", "--report", "-", "-r", "condaenv.requirements.txt")
    planned = [package["metadata"] for package in json.loads(clean_venv.run(*asked, folder=tree))["install"]]
    there = json.loads(binders.run("pip", "list", "--format", "json"))
    assert versions(planned) == versions(package for package in there if package["name"] not in ("pip", "torch"))


def versions(packages):
    return {canonicalize_name(package["name"]): package["version"] for package in packages}


@pytest.mark.parametrize("path", ["environment.yml", "binder/environment.yml"])
def test_conda_gets_a_python_that_the_project_supports(path):
    packages = yaml.safe_load((ROOT / path).read_text())["dependencies"]
    assert "pip" in packages
    assert {"python=3.11", "python=3.12", "python=3.13"} & set(filter(lambda part: isinstance(part, str), packages))
