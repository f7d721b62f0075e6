"""What this process takes of the machine's main memory, as the kernel counts it: more than what torch allocates.

Pages of a mapped file count apart. Ranks that map the same file share them, and the kernel takes them back when it
needs room; what is allocated has to stay. The kernel counts pages in batches on each CPU, so sizes are right to a
megabyte or so.
"""

import threading
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from zerolab.runtime import malloc

_PROCESS = Path("/proc/self")
SECONDS = 0.001  # between two looks


@dataclass
class HostMemory:
    """Bytes above those at the beginning.

    Attributes:
        allocated: the most that looks a millisecond apart have found, of memory that is this process's own.
        mapped: the same of pages of files.
        peak: both together at their highest moment, by the kernel's own mark, which misses no moment between looks.
    """

    allocated: int = 0
    mapped: int = 0
    peak: int = 0


@contextmanager
def host_memory() -> Iterator[HostMemory]:
    """Within the block this process is watched; the result is filled in while it runs, and complete after it.

    Raises:
        OSError: this is no Linux that tells a process of its own pages.
    """
    with malloc.giving_back():
        (_PROCESS / "clear_refs").write_text("5")  # the kernel's mark falls to what is there now
        before, found, ended = _status(), HostMemory(), threading.Event()

        def look() -> None:
            now = _status()
            found.allocated = max(found.allocated, now["RssAnon"] - before["RssAnon"])
            found.mapped = max(found.mapped, now["RssFile"] - before["RssFile"])

        def watch() -> None:
            while not ended.wait(SECONDS):
                look()

        watcher = threading.Thread(target=watch, daemon=True)
        watcher.start()
        try:
            yield found
        finally:
            ended.set()
            watcher.join()
            look()
            found.peak = _status()["VmHWM"] - before["VmRSS"]


def _status() -> dict[str, int]:
    """This process's sizes in bytes, by the kernel's names."""
    lines = (line.partition(":") for line in (_PROCESS / "status").read_text().splitlines())
    return {name: int(rest.split()[0]) * 1024 for name, _, rest in lines if "kB" in rest}
