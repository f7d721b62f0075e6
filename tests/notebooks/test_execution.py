"""Each notebook, run from a clean kernel, prints exactly what is stored in it."""

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
NOTEBOOKS = sorted((ROOT / "notebooks").glob("*.ipynb"))
CONFIG = "[pytest]\n"  # so that nbval does not take the project's own


def nbval(notebook, folder, **environment):
    """Runs nbval strictly on a copy; returns its output, and fails the test if it finds a difference."""
    copy = shutil.copy(notebook, folder)
    (folder / "pytest.ini").write_text(CONFIG)
    command = [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", "-c", str(folder / "pytest.ini")]
    command += ["--nbval", "--nbval-current-env", "--nbval-cell-timeout", "60"]
    command += ["--nbval-sanitize-with", str(ROOT / "tests" / "nbval_sanitize.cfg"), str(copy)]
    done = subprocess.run(
        command,
        cwd=folder,
        env={**os.environ, "ZEROLAB_STATIC": "1", "PY_COLORS": "0", **environment},
        capture_output=True,
        text=True,
        timeout=180,
        check=False,
    )
    assert done.returncode == 0, done.stdout[-6000:] + done.stderr[-2000:]
    return done.stdout


@pytest.mark.parametrize("notebook", NOTEBOOKS, ids=lambda path: path.stem)
def test_a_notebook_prints_what_is_stored(notebook, tmp_path):
    nbval(notebook, tmp_path)


@pytest.mark.slow
def test_outputs_do_not_depend_on_the_processors_vector_width(tmp_path):
    nbval(ROOT / "notebooks" / "04-zero1.ipynb", tmp_path, ATEN_CPU_CAPABILITY="avx2")


@pytest.mark.slow
def test_an_edited_output_is_found(tmp_path):
    original = ROOT / "notebooks" / "00-start-here.ipynb"
    edited = tmp_path / "edited" / original.name
    edited.parent.mkdir()
    text = original.read_text(encoding="utf-8")
    assert "rank 2 of 4" in text
    edited.write_text(text.replace("rank 2 of 4", "rank 2 of 5"), encoding="utf-8")
    with pytest.raises(AssertionError, match="rank 2 of 5"):
        nbval(edited, tmp_path)
