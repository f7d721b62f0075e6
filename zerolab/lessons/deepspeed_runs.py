"""DeepSpeed's recordings: made live where DeepSpeed is installed, else those that the package ships.

DeepSpeed is an optional extra of hundreds of megabytes, and a lesson about it should open everywhere. The recordings in
`data/deepspeed/` are real ones of the same training on the same batches; `about.json` says with which DeepSpeed and
torch they were made, and when, by tools/deepspeed_recordings.py. A test records again and compares bytes and
collectives.
"""

import json
from collections.abc import Iterable
from dataclasses import dataclass
from functools import partial
from importlib.metadata import version
from importlib.util import find_spec
from typing import Any

from zerolab import comparison, models
from zerolab.lessons.workspace import PACKAGE
from zerolab.names import check_known
from zerolab.recording.recording import Recording
from zerolab.runtime.cluster import Cluster

STAGES = ("deepspeed-0", "deepspeed-1", "deepspeed-2", "deepspeed-3")
TO_OWNERS = "deepspeed-2-to-owners"
# By the name of a recording its stage, and what of DeepSpeed's own settings is another one.
RUNS: dict[str, tuple[str, dict[str, Any]]] = {stage: (stage, {}) for stage in STAGES} | {
    TO_OWNERS: ("deepspeed-2", {"zero_optimization": {"use_multi_rank_bucket_allreduce": False}})
}
# Small, because the files lie in the package; two steps, because Adam has its state from the second on.
MODEL, RANKS, STEPS = "gpt-tiny", 4, 2
FOLDER = PACKAGE / "data" / "deepspeed"


@dataclass(frozen=True)
class Runs:
    """A recording of each stage, one of stage 2 with a switch off, and one line on where they come from."""

    recordings: dict[str, Recording]
    origin: str

    def __getitem__(self, stage: str) -> Recording:
        """The recording of that name in `RUNS`. Raises ValueError for another one."""
        check_known("recording", stage, self.recordings)
        return self.recordings[stage]


def deepspeed_runs() -> Runs:
    """Two steps of `gpt-tiny` on four CPU ranks under each of DeepSpeed's stages: live, or else as shipped."""
    if find_spec("deepspeed") is not None:
        # The one with a setting changed comes from the package: a lesson's first cell is slow enough.
        return Runs(load_all() | record_all(STAGES), f"recorded just now with DeepSpeed {version('deepspeed')}")
    about = json.loads((FOLDER / "about.json").read_text(encoding="utf-8"))
    # Shown with them: a shipped recording must not pass for one that was made here.
    origin = f"DeepSpeed is not installed here: recorded on {about['date']} with DeepSpeed {about['deepspeed']}"
    return Runs(load_all(), f"{origin}, torch {about['torch']}")


def record_all(names: Iterable[str] = tuple(RUNS)) -> dict[str, Recording]:
    """Records each of `RUNS` now, or those of the names given. Raises RankError if DeepSpeed is not installed."""
    feed = partial(models.batches, MODEL)
    with Cluster(world_size=RANKS, device="cpu", timeout=120) as cluster:  # its first engine may compile for a minute
        return {
            name: cluster.record(comparison.train, stage, MODEL, feed, STEPS, device="cpu", options=settings)
            for name, (stage, settings) in ((name, RUNS[name]) for name in names)
        }


def load_all() -> dict[str, Recording]:
    """The recordings that the package ships."""
    return {name: Recording.load(FOLDER / f"{name}.json") for name in RUNS}
