"""`zerolab.` and Tab, `help(zerolab)`, and README's own sample: what a newcomer tries first."""

import pydoc
import re
import subprocess
import sys
from pathlib import Path

import pytest
from jupyter_client.manager import start_new_kernel

import zerolab

README = (Path(__file__).resolve().parents[1] / "README.md").read_text(encoding="utf-8")


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


def test_every_public_name_is_there():
    missing = [name for name in zerolab.__all__ if not hasattr(zerolab, name)]
    assert missing == []
    assert set(zerolab.__all__) <= set(dir(zerolab))


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
