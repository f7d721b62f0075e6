"""zerolab: real ranks train with DDP, ZeRO and FSDP inside a notebook; what they did is recorded and replayed.

The public names, and nothing else. Each is imported when it is first used, so that `import zerolab` stays light.
"""

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from zerolab import theory
    from zerolab.engines import DDP, Zero1, Zero2, Zero3
    from zerolab.exercises import check, hint, hole, solution
    from zerolab.expecting import expect_error
    from zerolab.lab import compare
    from zerolab.panel import explore
    from zerolab.plan_panel import what_fits
    from zerolab.predictions import reveal
    from zerolab.recording.recording import Recording
    from zerolab.runtime.cluster import Cluster
    from zerolab.runtime.faults import CollectiveHang, RankError
    from zerolab.runtime.magics import load_ipython_extension
    from zerolab.simulation.run import simulate

_HOMES = {
    "Cluster": "zerolab.runtime.cluster",
    "CollectiveHang": "zerolab.runtime.faults",
    "DDP": "zerolab.engines",
    "RankError": "zerolab.runtime.faults",
    "Recording": "zerolab.recording.recording",
    "Zero1": "zerolab.engines",
    "Zero2": "zerolab.engines",
    "Zero3": "zerolab.engines",
    "check": "zerolab.exercises",
    "compare": "zerolab.lab",
    "expect_error": "zerolab.expecting",
    "explore": "zerolab.panel",
    "hint": "zerolab.exercises",
    "hole": "zerolab.exercises",
    "load_ipython_extension": "zerolab.runtime.magics",
    "reveal": "zerolab.predictions",
    "simulate": "zerolab.simulation.run",
    "solution": "zerolab.exercises",
    "what_fits": "zerolab.plan_panel",
}

__all__ = [
    "DDP",
    "Cluster",
    "CollectiveHang",
    "RankError",
    "Recording",
    "Zero1",
    "Zero2",
    "Zero3",
    "check",
    "compare",
    "expect_error",
    "explore",
    "hint",
    "hole",
    "load_ipython_extension",
    "reveal",
    "simulate",
    "solution",
    "theory",
    "what_fits",
]
__version__ = "0.1.0"


def __getattr__(name: str) -> Any:
    if name == "theory":
        return import_module("zerolab.theory")
    if name in _HOMES:
        return getattr(import_module(_HOMES[name]), name)
    raise AttributeError(f"zerolab has no {name!r}; it has {', '.join(__all__)}")
