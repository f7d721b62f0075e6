import linecache
import sysconfig

import pytest
import torch

from zerolab.recording import sources


@pytest.fixture
def run_cell(monkeypatch):
    """A function that executes text as cell 7 of a notebook, and gives what it defines."""

    def run_cell(text):
        filename = "/ipykernel/123456.py"
        monkeypatch.setitem(sources.LABELS, filename, "cell [7]")
        monkeypatch.setitem(linecache.cache, filename, (len(text), None, text.splitlines(keepends=True), filename))
        namespace = {"torch": torch}
        exec(compile(text, filename, "exec"), namespace)  # noqa: S102  # as a kernel does
        return namespace

    return run_cell


@pytest.mark.parametrize(
    ("filename", "name"),
    [
        (str(sources.PACKAGE / "engines" / "zero2.py"), "zerolab/engines/zero2.py"),
        (str(sources.PACKAGE / "recording" / "log.py"), None),
        (str(sources.PACKAGE / "models.py"), None),
        ("/home/someone/secret/train.py", "train.py"),
        (torch.__file__, None),
        (sysconfig.get_path("stdlib") + "/threading.py", None),
        ("/elsewhere/lib/site-packages/model.py", None),
        ("/usr/lib/python3/dist-packages/numpy/core.py", None),
        ("<string>", None),
        (f"/scratch/cache/x2/cx2pb2{'v' * 46}.py", None),
    ],
    ids=[
        "engine",
        "recorder",
        "model",
        "script",
        "torch",
        "library",
        "another Python's",
        "a system's",
        "no file",
        "compiled",
    ],
)
def test_only_lessons_and_learners_have_labels_and_none_has_a_path(filename, name):
    assert sources.label(filename) == name


def test_an_event_points_to_the_learners_line(record, run_cell):
    cell = run_cell(
        "def train():\n    linear = torch.nn.Linear(2, 2)\n    linear(torch.zeros(1, 2)).sum().backward()\n"
    )
    recording = record(cell["train"])
    forward, backward = (event for event in recording.events if event.kind == "module")
    (source,) = {recording.sources[event.source.id] for event in (forward, backward)}
    assert (source.label, source.text.count("\n")) == ("cell [7]", 3)
    assert (forward.source.line, forward.source.from_autograd) == (3, False)
    assert (backward.source.line, backward.source.from_autograd) == (3, True)


def test_a_cell_that_was_edited_is_another_source_under_the_same_label(record, run_cell):
    text = "def look():\n    torch.nn.Linear(2, 2)(torch.zeros(1, 2))\n"
    texts = set()
    for edit in ("", "# edited\n"):
        sources_of_run = record(run_cell(text + edit)["look"]).sources
        texts |= {(key, source.text) for key, source in sources_of_run.items() if source.label == "cell [7]"}
    assert {edited for _, edited in texts} == {text, text + "# edited\n"}
    assert len({key for key, _ in texts}) == 2
