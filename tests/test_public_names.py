"""`zerolab.` and Tab, `help(zerolab)`, and README's own sample: what a newcomer tries first."""

import json
import pydoc
import re
import subprocess
import sys
from importlib import import_module
from pathlib import Path
from types import ModuleType

import pytest
from jupyter_client.manager import start_new_kernel

import zerolab

ROOT = Path(__file__).resolve().parents[1]
README = (ROOT / "README.md").read_text(encoding="utf-8")


@pytest.fixture(scope="module")
def kernel():
    manager, client = start_new_kernel()
    yield client
    client.stop_channels()
    manager.shutdown_kernel(now=True)


def run(kernel, code):
    """What a cell shows: its prints and its outputs, in order."""
    shown = []
    reply = kernel.execute_interactive(code, timeout=120, output_hook=lambda message: shown.append(message["content"]))
    assert reply["content"]["status"] == "ok", reply["content"]
    return shown


@pytest.mark.slow
def test_tab_offers_the_public_names_and_nothing_else(kernel):
    run(kernel, "import zerolab")

    def offered(text):
        return kernel.complete(text, reply=True, timeout=60)["content"]["matches"]

    assert sorted(offered("zerolab.")) == sorted(zerolab.__all__)
    assert offered("zerolab.Z") == ["Zero1", "Zero2", "Zero3"]
    assert "FSDP2" in offered("from zerolab import F")


@pytest.mark.slow
def test_readmes_sample_trains_and_ends_in_a_player(kernel):
    (sample,) = re.findall(r"^```python\n(.*?)^```", README, re.MULTILINE | re.DOTALL)
    shown = run(kernel, sample.replace("Cluster(world_size=4)", 'Cluster(world_size=2, device="cpu")'))
    losses = [float(number) for number in re.findall(r"\d+\.\d+", next(c["text"] for c in shown if "text" in c))]
    assert len(losses) == 3
    assert losses[-1] < losses[0]
    assert any("application/vnd.jupyter.widget-view+json" in content.get("data", {}) for content in shown)


def test_a_script_that_plays_a_recording_is_told_where_it_would_show(capsys):
    zerolab.Recording.load(ROOT / "zerolab" / "data" / "deepspeed" / "deepspeed-0.json").play()
    assert capsys.readouterr().out == (
        "a player shows in a notebook; recording.to_html('run.html') writes it as a page\n"
    )


def test_every_public_name_is_there():
    missing = [name for name in zerolab.__all__ if not hasattr(zerolab, name)]
    assert missing == []
    assert set(zerolab.__all__) <= set(dir(zerolab))


def test_our_stages_are_public_names():
    from zerolab.engines import ENGINES, Engine

    ours = [ENGINES[stage] for stage in zerolab.theory.STAGES]
    assert all(issubclass(engine, Engine) for engine in ours)
    assert {engine.__name__ for engine in ours} <= set(zerolab.__all__)


def imported_by_lessons():
    """(module, name) of what the notebooks import from the package; an exercise's cell comes from the package."""
    for path in sorted((ROOT / "notebooks").glob("*.ipynb")):
        cells = json.loads(path.read_text(encoding="utf-8"))["cells"]
        code = ["".join(cell["source"]) for cell in cells if cell["cell_type"] == "code"]
        for module, names in re.findall(r"^from (zerolab[\w.]*) import (.*)$", "\n".join(code), re.MULTILINE):
            yield from ((module, name.strip()) for name in names.split(","))


def test_what_lessons_import_is_in_zerolab_or_in_a_module_that_it_names():
    modules = [getattr(zerolab, name) for name in zerolab.__all__ if isinstance(getattr(zerolab, name), ModuleType)]
    found = set(imported_by_lessons())
    assert {("zerolab", "record"), ("zerolab", "Table"), ("zerolab.engines", "ENGINES")} <= found
    for module, name in found:
        try:
            meant = getattr(import_module(module), name)
        except AttributeError:  # a module of a module, such as facts.mistakes
            meant = import_module(f"{module}.{name}")
        homes = [home for home in (zerolab, *modules) if getattr(home, name, None) is meant]
        assert homes, f"{name} is in {module}, and in no module that zerolab names"


@pytest.mark.slow
def test_the_modules_that_are_named_can_be_used_without_another_import():
    code = "import zerolab; print(zerolab.models.build('mlp-odd').__class__.__name__, len(zerolab.engines.ENGINES))"
    assert subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout == (
        "Sequential 17\n"
    )


def test_the_site_has_every_public_name():
    page = (ROOT / "docs" / "api.md").read_text(encoding="utf-8")
    missing = [name for name in zerolab.__all__ if not re.search(rf"\bzerolab\.{name}\b", page)]
    assert missing == []


def test_a_notebooks_hook_is_no_public_name():
    assert callable(zerolab.load_ipython_extension)
    assert "load_ipython_extension" not in dir(zerolab)


@pytest.mark.parametrize("name", ["explore", "what_fits"])
def test_a_panel_says_first_that_it_is_one(name):
    assert getattr(zerolab, name).__doc__.split("\n")[0].startswith("Shows a panel")


def test_help_speaks_of_every_name_and_of_no_machinery():
    text = pydoc.plain(pydoc.render_doc(zerolab))
    overview = text.split("PACKAGE CONTENTS")[0]
    for name in zerolab.__all__:
        assert name in overview or re.match(r"DeepSpeed\d", name), f"help(zerolab) does not speak of {name}"
    assert "__getattr__" not in text
    assert "import_module" not in text


def test_importing_zerolab_imports_nothing_heavy():
    code = "import sys, zerolab; print(sorted({'torch', 'numpy', 'IPython', 'plotly'} & set(sys.modules)))"
    assert subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout == "[]\n"


def test_in_a_notebook_importing_zerolab_brings_ranks_and_not_torch():
    code = (
        "import sys\nfrom IPython.core.interactiveshell import InteractiveShell\nshell = InteractiveShell.instance()\n"
        "shell.run_cell('import zerolab')\n"
        "print('ranks' in shell.magics_manager.magics['cell'], 'torch' in sys.modules)"
    )
    printed = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout
    assert printed == "True False\n"
