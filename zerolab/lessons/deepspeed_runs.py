"""DeepSpeed's recordings: made live where DeepSpeed is installed, else those that the package ships.

DeepSpeed is an optional extra of hundreds of megabytes, and a lesson about it should open everywhere. The recordings in
`data/deepspeed/` are real ones of the same training on the same batches; `about.json` says with which DeepSpeed and
torch they were made, and when, by tools/deepspeed_recordings.py. A test records again and compares bytes and
collectives.
"""

import json
from dataclasses import dataclass
from functools import partial
from importlib.metadata import version
from importlib.util import find_spec

from zerolab import comparison, models
from zerolab.lessons.workspace import PACKAGE
from zerolab.names import check_known
from zerolab.recording.recording import Recording
from zerolab.runtime.cluster import Cluster

STAGES = ("deepspeed-0", "deepspeed-1", "deepspeed-2", "deepspeed-3")
# Small, because the files lie in the package; two steps, because Adam has its state from the second on.
MODEL, RANKS, STEPS = "gpt-tiny", 4, 2
FOLDER = PACKAGE / "data" / "deepspeed"


@dataclass(frozen=True)
class Runs:
    """A recording of each stage, and one line on where they come from."""

    recordings: dict[str, Recording]
    origin: str

    def __getitem__(self, stage: str) -> Recording:
        """The recording of `deepspeed-0` to `deepspeed-3`. Raises ValueError for another name."""
        check_known("recording", stage, self.recordings)
        return self.recordings[stage]


def deepspeed_runs() -> Runs:
    """Two steps of `gpt-tiny` on four CPU ranks under each of DeepSpeed's stages: live, or else as shipped."""
    if find_spec("deepspeed") is not None:
        return Runs(record_all(), f"recorded just now with DeepSpeed {version('deepspeed')}")
    about = json.loads((FOLDER / "about.json").read_text(encoding="utf-8"))
    # Shown with them: a shipped recording must not pass for one that was made here.
    origin = f"DeepSpeed is not installed here: recorded on {about['date']} with DeepSpeed {about['deepspeed']}"
    return Runs(load_all(), f"{origin}, torch {about['torch']}")


def record_all() -> dict[str, Recording]:
    """Records every stage now. Raises RankError if DeepSpeed is not installed."""
    feed = partial(models.batches, MODEL)
    with Cluster(world_size=RANKS, device="cpu", timeout=120) as cluster:  # its first engine may compile for a minute
        return {stage: cluster.record(comparison.train, stage, MODEL, feed, STEPS, device="cpu") for stage in STAGES}


def load_all() -> dict[str, Recording]:
    """The recordings that the package ships."""
    return {stage: Recording.load(FOLDER / f"{stage}.json") for stage in STAGES}
