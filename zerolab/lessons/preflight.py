"""Runs every lesson from top to bottom on this box, so that a workshop's host finds problems before people come."""

import os
import tempfile
import time
from pathlib import Path

from zerolab.lessons.workspace import fill
from zerolab.runtime.waiting import waiting

CELL_SECONDS = 300.0  # a cell that takes longer counts as failed


def run_lessons() -> bool:
    """Executes the lessons one after another in a temporary folder, prints a line for each, and says if all ran.

    Nothing is written to `work/` or to the progress file. Raises ImportError if JupyterLab is not installed.
    """
    try:
        import nbclient  # noqa: F401
    except ImportError as error:
        raise ImportError('lessons run in JupyterLab: pip install -c constraints.txt -e ".[lab]"') from error
    with tempfile.TemporaryDirectory() as folder:
        lessons = [path for path in fill(Path(folder)) if path.suffix == ".ipynb"]
        ran = [_run(lesson) for lesson in lessons]
    print(f"{sum(ran)} of {len(ran)} lessons ran")
    return all(ran)


def _run(lesson: Path) -> bool:
    import nbformat
    from nbclient import NotebookClient
    from nbclient.exceptions import CellExecutionError, CellTimeoutError

    book = nbformat.read(lesson, as_version=4)
    client = NotebookClient(
        book,
        timeout=CELL_SECONDS,
        resources={"metadata": {"path": str(lesson.parent)}},
        extra_arguments=["--IPKernelApp.log_level=ERROR"],  # every lesson would repeat its warnings about the network
    )
    started, problem = time.monotonic(), ""
    with waiting(lesson.stem):
        try:
            client.execute(env=os.environ | {"ZEROLAB_PROGRESS": "off"})
        except CellExecutionError as error:
            problem = f"{error.ename}: {error.evalue}".splitlines()[0]
        except CellTimeoutError:
            problem = f"a cell took more than {CELL_SECONDS:.0f} s"
        except RuntimeError as error:  # of a kernel that has died, or did not come up
            problem = f"{error}; main memory may be short"
    print(f"{lesson.stem:<36} {problem or 'well'}, {time.monotonic() - started:.0f} s", flush=True)
    return not problem
