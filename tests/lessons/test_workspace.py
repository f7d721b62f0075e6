"""The learner's folder: filled without ever overwriting, reset without losing, opened on loopback only."""

import json
import os
import re
import signal
import socket
import subprocess
import sys
import time
import urllib.error
import urllib.request
from pathlib import Path

import psutil
import pytest

from zerolab import cli
from zerolab.lessons import workspace


@pytest.fixture
def series(tmp_path, monkeypatch):
    """Published files to work with, so that these tests do not depend on the lessons."""
    folder = tmp_path / "published"
    folder.mkdir()
    for name in ("00-start-here.ipynb", "04-zero1-more.ipynb", "04-zero1.ipynb", "glossary.md"):
        (folder / name).write_text(f"published {name}")
    monkeypatch.setattr(workspace, "published", lambda: {path.name: path for path in sorted(folder.iterdir())})
    return folder


def test_filling_copies_what_is_missing(series, tmp_path):
    new = workspace.fill(tmp_path / "work")
    assert [path.name for path in new] == [
        "00-start-here.ipynb",
        "04-zero1-more.ipynb",
        "04-zero1.ipynb",
        "glossary.md",
    ]
    assert sorted((tmp_path / "work").iterdir()) == new


@pytest.mark.parametrize(
    ("published", "copied"),
    [
        ("a [rank](../docs/glossary.md#rank)", "a [rank](glossary.md#rank)"),
        ("[the\nfourth](../notebooks/04-zero1.ipynb)", "[the\nfourth](04-zero1.ipynb)"),
        ("[first](planner.md) and [then](../SECURITY.md#x)", "first and then"),
        ("[paper](https://arxiv.org/a.md)", "[paper](https://arxiv.org/a.md)"),
    ],
)
def test_links_lead_to_what_is_in_the_folder_or_are_none(series, tmp_path, published, copied):
    (series / "00-start-here.ipynb").write_text(published)
    workspace.fill(tmp_path / "work")
    assert (tmp_path / "work" / "00-start-here.ipynb").read_text() == copied


def test_every_link_to_a_heading_of_a_page_or_lesson_is_written_as_jupyterlab_finds_it(tmp_path):
    new = workspace.fill(tmp_path)
    places = {path.name: {heading.replace(" ", "-") for heading in headings(path)} for path in new}
    links = [link for path in new for link in re.findall(r"\]\(([\w.-]+\.(?:md|ipynb))#([^)]*)\)", path.read_text())]
    assert {("glossary.md", "GiB"), ("07-fsdp.ipynb", "HSDP")} < {*links}
    assert [(page, place) for page, place in links if place not in places[page]] == []


def headings(path):
    """The headings of a page or lesson as they are read: without the marks of code."""
    text = path.read_text()
    if path.suffix == ".ipynb":
        cells = json.loads(text)["cells"]
        text = "\n".join("".join(cell["source"]) for cell in cells if cell["cell_type"] == "markdown")
    return re.findall(r"^#+ (.+)$", text.replace("`", ""), re.MULTILINE)


def test_every_link_of_a_filled_folder_leads_to_a_file_in_it(tmp_path):
    for path in workspace.fill(tmp_path):
        text = path.read_text()
        if path.suffix == ".ipynb":
            json.loads(text)
        targets = re.findall(r"\]\(([^)\s#\"]*\.(?:md|ipynb|py))[)#]", text)
        assert [name for name in targets if "://" not in name and not (tmp_path / name).exists()] == [], path.name
    assert "[Your own run](your-own-run.md" in (tmp_path / "14-your-own-run.ipynb").read_text()


@pytest.mark.parametrize("place", [".", "work"])
def test_the_lessons_are_found_from_the_folder_they_are_in_and_from_the_one_above(series, tmp_path, monkeypatch, place):
    workspace.fill(tmp_path / "work")
    mine = tmp_path / "work" / "00-start-here.ipynb"
    mine.write_text("mine")
    monkeypatch.chdir(tmp_path / place)
    assert workspace.reset("00") == [(mine, mine.with_name(f"{mine.name}.bak"))]
    assert mine.read_text() == "published 00-start-here.ipynb"


def test_only_who_has_changed_a_lesson_is_told_that_jupyterlab_will_ask(series, tmp_path, monkeypatch, capsys):
    workspace.fill(tmp_path / "work")
    monkeypatch.chdir(tmp_path / "work")
    assert cli.main(["reset", "00"]) == 0
    assert "Revert" not in capsys.readouterr().out
    (tmp_path / "work" / "00-start-here.ipynb").write_text("mine")
    assert cli.main(["reset", "00"]) == 0
    assert capsys.readouterr().out.endswith("If JupyterLab has it open, choose Revert when it asks.\n")


def test_where_there_are_no_lessons_nothing_is_reset(tmp_path):
    command = [Path(sys.executable).with_name("zerolab"), "reset", "04"]
    # The published ones are nobody's.
    for place in (tmp_path, workspace.PACKAGE.parent / "notebooks"):
        ended = subprocess.run(command, cwd=place, capture_output=True, text=True, check=False)
        wrong = f"zerolab: no lessons of yours in {place}: go to the folder in which you started zerolab lab\n"
        assert (ended.returncode, ended.stdout, ended.stderr) == (2, "", wrong)
    assert list(tmp_path.iterdir()) == []


def test_filling_again_touches_nothing_that_is_there(series, tmp_path):
    workspace.fill(tmp_path / "work")
    mine = tmp_path / "work" / "04-zero1.ipynb"
    mine.write_text("my work")
    (tmp_path / "work" / "00-start-here.ipynb").unlink()
    assert [path.name for path in workspace.fill(tmp_path / "work")] == ["00-start-here.ipynb"]
    assert mine.read_text() == "my work"


def test_a_folder_that_cannot_be_written_is_named_with_a_remedy(series, tmp_path):
    (tmp_path / "work").write_text("a file where the folder should be")
    with pytest.raises(RuntimeError, match=r"work.* could not be written .*start zerolab in a folder of your own"):
        workspace.fill(tmp_path / "work")


def test_reset_brings_the_published_one_back_and_keeps_every_old_one(series, tmp_path):
    workspace.fill(tmp_path)
    for attempt in ("first", "second"):
        (tmp_path / "00-start-here.ipynb").write_text(attempt)
        [(restored, kept)] = workspace.reset("00", tmp_path)
        assert restored.read_text() == "published 00-start-here.ipynb"
        assert kept.read_text() == attempt
    assert (tmp_path / "00-start-here.ipynb.bak").read_text() == "first"
    assert (tmp_path / "00-start-here.ipynb.bak2").read_text() == "second"


def test_reset_of_a_notebook_that_was_not_touched_keeps_no_copy(series, tmp_path):
    workspace.fill(tmp_path)
    assert workspace.reset("00", tmp_path) == [(tmp_path / "00-start-here.ipynb", None)]
    assert not list(tmp_path.glob("*.bak*"))


def test_reset_of_a_notebook_that_was_not_there_keeps_nothing(series, tmp_path):
    assert workspace.reset("00", tmp_path) == [(tmp_path / "00-start-here.ipynb", None)]


def test_reset_of_all_brings_every_notebook_back_and_keeps_what_was_changed(series, tmp_path):
    workspace.fill(tmp_path)
    (tmp_path / "04-zero1.ipynb").write_text("mine")
    (tmp_path / "00-start-here.ipynb").unlink()
    back = workspace.reset("all", tmp_path)
    assert [path.read_text() for path, _ in back] == [f"published {path.name}" for path, _ in back]
    assert [kept for _, kept in back if kept] == [tmp_path / "04-zero1.ipynb.bak"]


@pytest.mark.parametrize(("which", "count"), [("99", 0), ("04", 2), ("", 3)])
def test_reset_of_none_or_of_several_is_refused_with_the_names(series, tmp_path, which, count):
    begin = f"{count} notebooks begin" if count else "no notebook begins"
    with pytest.raises(ValueError, match=rf"{begin} with '{which}'; choose one of .*04-zero1"):
        workspace.reset(which, tmp_path)
    assert not list(tmp_path.glob("*.ipynb*"))


def test_the_series_of_a_checkout_is_its_notebooks_folder():
    root = workspace.PACKAGE.parent
    assert workspace.published()["00-start-here.ipynb"] == root / "notebooks" / "00-start-here.ipynb"
    assert workspace.published()["glossary.md"] == root / "docs" / "glossary.md"


def take_port(first):
    port, keep = workspace.take_port(first)
    keep.close()
    return port


def test_a_taken_port_is_passed_over():
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        port = taken.getsockname()[1]
        assert take_port(port) > port


def test_thirty_people_who_start_at_once_get_a_port_each():
    # Each has found its port and not yet listened on it: JupyterLab takes seconds to come that far.
    started = [workspace.take_port(23000) for _ in range(30)]
    assert len({port for port, _ in started}) == 30
    for _, keep in started:
        keep.close()
    assert take_port(23000) == min(port for port, _ in started)


def test_the_port_is_kept_by_what_replaces_the_process_and_goes_with_it():
    code = (
        "import os, sys; from zerolab.lessons.workspace import take_port; port, keep = take_port(24000)\n"
        "keep.set_inheritable(True); print(port, flush=True)\n"
        "os.execv(sys.executable, [sys.executable, '-c', 'input()'])"
    )
    first = subprocess.Popen([sys.executable, "-c", code], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
    port = int(first.stdout.readline())
    assert take_port(port) > port
    first.communicate("\n")
    assert take_port(port) == port


def test_jupyterlab_asks_nothing_over_the_first_lesson_and_keeps_the_players_of_a_saved_one(tmp_path):
    # That JupyterLab heeds it is seen in a browser, in tests/notebooks.
    command = workspace.lab_command(tmp_path, 1, browser=False, root=False)
    assert f"--LabApp.app_settings_dir={workspace.SETTINGS}" in command
    assert json.loads((workspace.SETTINGS / "overrides.json").read_text()) == {
        "@jupyter-widgets/jupyterlab-manager:plugin": {"saveState": True},
        "@jupyterlab/apputils-extension:notification": {"fetchNews": "false", "checkForUpdates": False},
    }


KERNEL = """
import jupyter_client
kernel, client = jupyter_client.manager.start_new_kernel(kernel_name="python3")
client.execute_interactive(
    "import shutil, sys; print(sys.executable, get_ipython().history_manager.hist_file, shutil.which('torchrun'))",
    timeout=60,
)
kernel.shutdown_kernel(now=True)
"""


def test_a_kernel_of_the_lab_finds_its_commands_and_writes_its_history_into_no_file_another_may_have_locked(tmp_path):
    given = {name: value for name, value in os.environ.items() if name != "IPYTHONDIR"} | {"HOME": str(tmp_path)}
    given |= {"JUPYTER_PATH": "/nowhere", "PATH": os.defpath}  # no environment is activated
    environment = workspace.lab_environment(given, "abc")
    assert environment["JUPYTER_PATH"].endswith(":/nowhere")
    run = [sys.executable, "-c", KERNEL]
    ended = subprocess.run(run, env=environment, capture_output=True, text=True, check=True)
    assert ended.stdout.split() == [sys.executable, ":memory:", str(Path(sys.executable).with_name("torchrun"))]
    assert "encryption" not in ended.stderr, "what is sent over the loopback address alone worries nobody"


@pytest.mark.parametrize("port", [-1, 0, 65536])
def test_a_number_that_is_no_port_is_refused_in_a_sentence(port, tmp_path):
    command = [Path(sys.executable).with_name("zerolab"), "lab", "--port", str(port)]
    ended = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, check=False)
    assert ended.returncode == 2
    assert ended.stderr == f"zerolab: the port is {port}; give a number from 1 to 65535, such as 8888\n"


@pytest.mark.skipif(sys.platform != "linux", reason="/proc is a folder that not even root can write to")
def test_a_home_that_jupyter_cannot_use_is_named_before_an_address_is_printed(tmp_path):
    given = {name: value for name, value in os.environ.items() if not name.startswith(("JUPYTER", "XDG"))}
    command = [Path(sys.executable).with_name("zerolab"), "lab", "--no-browser"]
    environment = given | {"HOME": "/proc/nope"}
    ended = subprocess.run(command, cwd=tmp_path, env=environment, capture_output=True, text=True, check=False)
    assert (ended.returncode, ended.stdout) == (2, "")
    assert re.fullmatch(r"zerolab: JupyterLab cannot make '/proc/nope/.+: set HOME, or .*\n", ended.stderr)


def test_somebody_whose_home_nobody_knows_is_told_to_set_it(monkeypatch):
    for name in ("HOME", "JUPYTER_RUNTIME_DIR", "JUPYTER_DATA_DIR", "XDG_DATA_HOME"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setattr("os.getuid", lambda: 54_321)
    with pytest.raises(RuntimeError, match=r"^JupyterLab finds no place.+: set HOME, or JUPYTER_RUNTIME_DIR"):
        workspace.check_jupyters_folder()


@pytest.mark.parametrize(
    ("options", "says"),
    [
        (["--", "--version"], r"\d+\.\d+\.\d+\n"),
        (["--version"], r"(?s)usage: zerolab lab .*error: unrecognized arguments: --version\n"),
        (["04"], "zerolab: lab has nothing to do with '04': after -- come options for JupyterLab\n"),
    ],
)
def test_what_follows_two_dashes_is_jupyterlabs(tmp_path, options, says):
    environment = os.environ | {"HOME": str(tmp_path)}
    command = [Path(sys.executable).with_name("zerolab"), "lab", "--no-browser", *options]
    ended = subprocess.run(command, cwd=tmp_path, env=environment, capture_output=True, text=True, check=False)
    last = ended.stdout.splitlines(keepends=True)[-1:]
    assert re.fullmatch(says, ended.stderr if ended.returncode else "".join(last))


def test_without_a_display_the_address_and_the_tunnel_are_printed():
    shown = workspace.how_to_reach(8890, "abc", {"SSH_CONNECTION": "10.0.0.9 5000 10.0.0.7 22", "USER": "ada"})
    assert "http://127.0.0.1:8890/lab/tree/00-start-here.ipynb?token=abc" in shown
    assert "ssh -N -L 8890:127.0.0.1:8890 ada@10.0.0.7" in shown


@pytest.mark.skipif(sys.platform != "linux", reason="macOS always has a display")
def test_a_display_is_seen_by_its_variables():
    assert workspace.has_display({"DISPLAY": ":0"})
    assert workspace.has_display({"WAYLAND_DISPLAY": "wayland-0"})
    assert not workspace.has_display({"SSH_CONNECTION": "a 1 b 2"})


def test_root_is_allowed_only_where_it_is_root(tmp_path):
    assert "--allow-root" in workspace.lab_command(tmp_path, 1, browser=True, root=True)
    assert "--allow-root" not in workspace.lab_command(tmp_path, 1, browser=True, root=False)


@pytest.mark.slow
def test_lab_listens_on_loopback_only_and_asks_for_its_token(tmp_path):
    """The whole command, as a person on a server without a display starts it."""
    environment = {name: value for name, value in os.environ.items() if "DISPLAY" not in name} | {"HOME": str(tmp_path)}
    command = [Path(sys.executable).with_name("zerolab"), "lab", "--port", str(take_port(21000))]
    with (tmp_path / "log").open("w") as log:
        lab = subprocess.Popen(command, cwd=tmp_path, env=environment, stdout=log, stderr=log, start_new_session=True)
    try:
        address, page = wait_for(tmp_path / "log", lab)
        assert "JupyterLab" in page
        port = int(re.search(r":(\d+)/", address).group(1))
        assert listening(port) == {"127.0.0.1"}
        with pytest.raises(urllib.error.HTTPError, match="403"):
            urllib.request.urlopen(f"http://127.0.0.1:{port}/api/contents")
        assert re.search(r"token=(\S+)", address).group(1) not in " ".join(psutil.Process(lab.pid).cmdline())
        assert (tmp_path / "work" / "00-start-here.ipynb").is_file()
    finally:
        lab.send_signal(signal.SIGTERM)
        lab.wait(20)


def wait_for(log, lab):
    """The printed address, and what it answers as soon as it does."""
    for _ in range(1200):
        found = re.search(r"http://127\.0\.0\.1\S+", log.read_text())
        assert lab.poll() is None, log.read_text()
        if found:
            try:
                with urllib.request.urlopen(found.group()) as answer:
                    return found.group(), answer.read().decode()
            except urllib.error.URLError:
                pass
        time.sleep(0.1)
    pytest.fail(f"no JupyterLab after two minutes: {log.read_text()}")


def listening(port):
    """The addresses on which somebody listens at a port."""
    return {
        entry.laddr.ip
        for entry in psutil.net_connections("tcp")
        if entry.status == "LISTEN" and entry.laddr.port == port
    }
