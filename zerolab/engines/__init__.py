"""The lesson: one stage a file, read top to bottom."""

from zerolab.engines.ddp import DDP
from zerolab.engines.engine import Engine
from zerolab.engines.zero1 import Zero1
from zerolab.engines.zero2 import Zero2
from zerolab.engines.zero3 import Zero3

ENGINES: dict[str, type[Engine]] = {engine.stage: engine for engine in (DDP, Zero1, Zero2, Zero3)}

__all__ = ["DDP", "ENGINES", "Engine", "Zero1", "Zero2", "Zero3"]
