"""While a learner's code runs, the finished answers are out of reach.

This guards against short cuts and honest mistakes: `from zerolab import Zero1`, `DistributedDataParallel(model)`.
Somebody who wants to get around it will; tampering on purpose is out of scope.
"""

import builtins
import sys
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from typing import Any
from unittest.mock import patch

FORBIDDEN_MODULES = (
    "zerolab.engines.ddp",
    "zerolab.engines.zero1",
    "zerolab.engines.zero2",
    "zerolab.engines.zero3",
    "zerolab.engines.native",
    "zerolab.engines.fsdp1",
    "zerolab.engines.fsdp2",
    "zerolab.engines.deepspeed",
    "torch.nn.parallel.distributed",
    "torch.distributed.fsdp",
    "torch.distributed.optim.zero_redundancy_optimizer",
    "deepspeed",
)
FORBIDDEN_NAMES = (
    "DDP",
    "Zero1",
    "Zero2",
    "Zero3",
    "ENGINES",
    "DistributedDataParallel",
    "FullyShardedDataParallel",
    "fully_shard",
    "ZeroRedundancyOptimizer",
)
FORBIDDEN_CALLS = (
    ("zerolab.engines.engine", "Engine.__init__"),
    ("zerolab.engines.native", "Native.__init__"),
    ("torch.nn.parallel.distributed", "DistributedDataParallel.__init__"),
    ("torch.distributed.fsdp", "FullyShardedDataParallel.__init__"),
    ("torch.distributed.fsdp._fully_shard._fsdp_state", "FSDPState.__init__"),
    ("torch.distributed.optim.zero_redundancy_optimizer", "ZeroRedundancyOptimizer.__init__"),
    ("deepspeed", "initialize"),
)


class NotAllowedHere(RuntimeError):
    """An exercise's answer reached for a finished engine; the exercise is to write it."""


@contextmanager
def finished_engines_out_of_reach(answer: Callable[..., Any]) -> Iterator[None]:
    """Within it, to import a finished engine in the answer's code, or to call one anywhere, raises NotAllowedHere."""
    own_globals = getattr(answer, "__globals__", {})
    with ExitStack() as patches:
        for module_name, path in FORBIDDEN_CALLS:
            owner_path, _, attribute = path.rpartition(".")
            module = sys.modules.get(module_name)
            if module is not None:  # what is not imported yet cannot be called; importing it is caught below
                owner = getattr(module, owner_path) if owner_path else module
                patches.enter_context(patch.object(owner, attribute, _refuse(owner_path or path)))
        patches.enter_context(patch.object(builtins, "__import__", _watched_import(own_globals)))
        yield


def _refuse(what: str) -> Callable[..., Any]:
    def refused(*_: Any, **__: Any) -> Any:
        raise NotAllowedHere(f"{what} is a finished answer: write the step yourself, with collectives and an optimizer")

    return refused


def _watched_import(own_globals: dict[str, Any]) -> Callable[..., Any]:
    really_import = builtins.__import__

    def watched(
        name: str,
        globals: Any = None,  # noqa: A002  the import statement passes these by position, under these names
        locals: Any = None,  # noqa: A002
        fromlist: Any = (),
        level: int = 0,
    ) -> Any:
        if globals is own_globals:
            asked = [name, *(f"{name}.{item}" for item in fromlist or ())]
            for module in (path for path in asked if path.startswith(FORBIDDEN_MODULES)):
                raise NotAllowedHere(f"importing {module} is not allowed in an exercise: write the step yourself")
            if name.partition(".")[0] in ("zerolab", "torch", "deepspeed"):
                for item in (item for item in fromlist or () if item in FORBIDDEN_NAMES):
                    raise NotAllowedHere(f"importing {item} is not allowed in an exercise: write the step yourself")
        return really_import(name, globals, locals, fromlist, level)

    return watched
