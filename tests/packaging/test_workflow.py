"""The workflow for GitHub, which cannot run here, is one by GitHub's own schema, and calls what there is."""

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest
import yaml

ROOT = Path(__file__).resolve().parents[2]
WORKFLOWS = sorted((ROOT / ".github" / "workflows").glob("*.yml"))


def checked(path):
    command = [sys.executable, "-m", "check_jsonschema", "--builtin-schema", "vendor.github-workflows", str(path)]
    return subprocess.run(command, capture_output=True, text=True, check=False)


def test_there_is_one():
    assert [path.name for path in WORKFLOWS] == ["site.yml"]


@pytest.mark.parametrize("path", WORKFLOWS, ids=lambda path: path.name)
def test_it_is_a_workflow(path):
    done = checked(path)
    assert done.returncode == 0, done.stdout


@pytest.mark.parametrize(
    ("old", "new"),
    [
        ("runs-on: ubuntu-24.04", "run-on: ubuntu-24.04"),
        ("contents: read", "contents: reed"),
        ("needs: test", "needs: 3"),
    ],
)
def test_a_broken_one_is_found(tmp_path, old, new):
    broken = tmp_path / "broken.yml"
    broken.write_text(WORKFLOWS[0].read_text("utf-8").replace(old, new, 1), "utf-8")
    assert checked(broken).returncode == 1


def test_what_it_runs_is_there_and_what_it_publishes_is_what_make_site_writes():
    workflow = yaml.safe_load(WORKFLOWS[0].read_text("utf-8"))
    steps = [step for job in workflow["jobs"].values() for step in job["steps"]]
    commands = "\n".join(step.get("run", "") for step in steps)
    assert ".ci/run" in commands
    assert os.access(ROOT / ".ci" / "run", os.X_OK)
    targets = re.findall(r"^(\w+):", (ROOT / "Makefile").read_text("utf-8"), re.MULTILINE)
    assert set(re.findall(r"make (\w+)", commands)) <= set(targets)
    (folder,) = (step["with"]["path"] for step in steps if "upload-pages-artifact" in step.get("uses", ""))
    makes = subprocess.run(["make", "-n", "site"], cwd=ROOT, capture_output=True, text=True, check=True).stdout
    assert "tools/make_site.py" in makes
    assert "--out" not in makes  # so that it writes below build/site
    assert folder == "build/site/html"


def test_it_may_write_pages_and_nothing_else():
    workflow = yaml.safe_load(WORKFLOWS[0].read_text("utf-8"))
    assert workflow["permissions"] == {"contents": "read"}
    assert workflow["jobs"]["publish"]["permissions"] == {"contents": "read", "pages": "write", "id-token": "write"}
    assert workflow["jobs"]["publish"]["needs"] == "test"
    # Started by hand it runs on any branch, and only one is the site's.
    conditions = set(workflow["jobs"]["publish"]["if"].split(" && "))
    assert conditions == {
        "github.event_name != 'pull_request'",
        "github.ref_name == github.event.repository.default_branch",
    }
    assert all(job["timeout-minutes"] <= 90 for job in workflow["jobs"].values())
