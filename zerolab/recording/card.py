"""What torch's allocator and the driver report about the memory on a rank's GPU, next to what the ledger counts there.

Each figure contains the one before it, and the differences have names: docs/gpus.md, "What a card holds".

Source: PyTorch's documentation, "CUDA semantics", memory management; `torch.cuda.memory_stats`.
"""

import os

import torch

from zerolab.recording.events import CardFigures
from zerolab.runtime import nvml


class CudaCard:
    """One of torch's CUDA devices, whose `torch.cuda.max_memory_allocated` begins anew with each `begin`."""

    def __init__(self, device: torch.device) -> None:
        self._device = device
        self._uuid = f"GPU-{torch.cuda.get_device_properties(device).uuid}"

    def begin(self) -> None:
        """Forgets the allocator's peaks so far."""
        torch.cuda.reset_peak_memory_stats(self._device)

    def read(self) -> CardFigures:
        """All of `CARD_FIGURES` but the ledger's two, in bytes: the peaks since `begin`, and what the driver reports.

        Nothing here waits for kernels: the allocator's figures are the host's.
        """
        stats = torch.cuda.memory_stats(self._device)
        free, total = torch.cuda.mem_get_info(self._device)
        reserved = stats["reserved_bytes.all.peak"]
        # What the allocator has given back since its peak was on the card then, and belonged to the process.
        returned = reserved - stats["reserved_bytes.all.current"]
        process = nvml.process_bytes(self._uuid, os.getpid())
        return {
            "requested": stats.get("requested_bytes.all.peak"),
            "allocated": stats["allocated_bytes.all.peak"],
            "reserved": reserved,
            "process": None if process is None else process + returned,
            "used": total - free + returned,
            "total": total,
        }


def card_of(device: torch.device) -> CudaCard | None:
    """The card on which a rank computes; None for the CPU."""
    return CudaCard(device) if device.type == "cuda" else None
