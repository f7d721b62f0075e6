"""The lesson: one stage a file, read top to bottom; and other systems behind the same step, to measure it against."""

from collections.abc import Iterator, Mapping
from importlib import import_module
from typing import Any

from zerolab.engines.collectives import Exchange, all_gather, all_reduce, reduce_scatter
from zerolab.engines.ddp import DDP
from zerolab.engines.engine import Engine
from zerolab.engines.flat import Flat
from zerolab.engines.holdings import Holding
from zerolab.engines.zero1 import Zero1
from zerolab.engines.zero2 import Zero2
from zerolab.engines.zero3 import Zero3


class _Engines(Mapping[str, type[Any]]):
    """Names to classes; other systems, and what goes beyond the four stages, are imported when asked for."""

    def __init__(self, places: dict[str, str]) -> None:
        self._places = places

    def __iter__(self) -> Iterator[str]:
        return iter(self._places)

    def __len__(self) -> int:
        return len(self._places)

    def __contains__(self, stage: object) -> bool:
        return stage in self._places  # without importing anything

    def __getitem__(self, stage: str) -> type[Any]:
        module, _, name = self._places[stage].partition(".")
        found: type[Any] = getattr(import_module(f"{__name__}.{module}"), name)
        return found

    def modules(self) -> list[str]:
        """The files in which they are written, by their names in Python; nothing is imported."""
        return list(dict.fromkeys(f"{__name__}.{place.partition('.')[0]}" for place in self._places.values()))


ENGINES = _Engines(
    {
        "ddp": "ddp.DDP",
        "zero1": "zero1.Zero1",
        "zero2": "zero2.Zero2",
        "zero3": "zero3.Zero3",
        "zero3-8bit": "zero3_8bit.Zero3In8Bits",
        "torch-ddp": "torch_ddp.TorchDDP",
        "torch-zero1": "torch_ddp.TorchZero1",
        "fsdp1": "fsdp1.FSDP1",
        "fsdp2": "fsdp2.FSDP2",
        "hsdp": "fsdp2.HSDP",
        **{f"deepspeed-{stage}": f"deepspeed.DeepSpeed{stage}" for stage in range(4)},
        "muon-replicated": "muon_replicated.MuonReplicated",
        "muon-owners": "muon_owners.MuonOwners",
        "muon-rows": "muon_rows.MuonRows",
    }
)
"""Every engine by the name of its stage, this project's first."""

__all__ = [
    "DDP",
    "ENGINES",
    "Engine",
    "Exchange",
    "Flat",
    "Holding",
    "Zero1",
    "Zero2",
    "Zero3",
    "all_gather",
    "all_reduce",
    "reduce_scatter",
]
