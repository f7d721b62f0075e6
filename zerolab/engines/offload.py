"""Offload: the way of a mean gradient from a GPU to main memory, on a stream of its own, while the GPU computes on.

The link between the two has an engine of its own. So a unit's mean leaves as soon as it is there, under the backward of
the units that come after it. The way back is not hidden: it begins when the update is over, and nothing else is left.
"""

from typing import Any

import torch

_streams: dict[torch.device, torch.cuda.Stream] = {}  # by the GPU


class Departure:
    """A tensor's copy in pinned main memory, under way. Before `wait` the tensor may be neither written nor freed."""

    _end: Any = None  # an event

    def __init__(self, tensor: torch.Tensor, dtype: torch.dtype) -> None:
        self.writes = tensor._version  # noqa: SLF001  (it has no other name)
        self.copy = torch.empty_like(tensor, dtype=dtype, device="cpu", pin_memory=tensor.is_cuda)
        self._end = start(tensor, self.copy)

    def wait(self) -> None:
        """Has the compute stream wait; the host goes on."""
        if self._end is not None:
            self._end.wait()

    def arrived(self) -> torch.Tensor:
        """The copy, once the host may read it."""
        if self._end is not None:
            self._end.synchronize()
        return self.copy

    def __del__(self) -> None:
        """Waits: its tensor may go, too, and that memory may be used for something else only behind this."""
        self.wait()


class Way:
    """From a mean gradient to what the optimizer updates, which may be elsewhere; in one place there is no way."""

    leaving: Departure | None = None

    def send(self, mean: torch.Tensor, owned: torch.Tensor) -> None:
        """The mean may leave: no other backward will add to it."""
        if lies_elsewhere(mean, owned):
            self.leaving = Departure(mean, owned.dtype)

    def wait(self) -> None:
        """From here on the mean may be written."""
        if self.leaving is not None:
            self.leaving.wait()

    def end(self, mean: torch.Tensor, owned: torch.Tensor) -> torch.Tensor:
        """The mean in the place and precision of what the optimizer updates."""
        if not lies_elsewhere(mean, owned):
            return mean.to(owned)  # in fp32 the mean itself: nothing is copied, and nothing counted twice
        left, self.leaving = self.leaving, None
        if left is None or left.writes != mean._version:  # noqa: SLF001  (it was clipped since, say)
            left = Departure(mean, owned.dtype)
        return left.arrived()


def lies_elsewhere(mean: torch.Tensor, owned: torch.Tensor) -> bool:
    """Whether a mean gradient, or what lies where it does, has to travel to what the optimizer updates."""
    return mean.device != owned.device


def start(tensor: torch.Tensor, copy: torch.Tensor) -> Any:
    """Starts copying; the event behind it, None if it is done."""
    if not tensor.is_cuda:
        with torch.no_grad():
            copy.copy_(tensor)
        return None
    if tensor.device not in _streams:
        _streams[tensor.device] = torch.cuda.Stream(tensor.device)
    stream = _streams[tensor.device]
    stream.wait_stream(torch.cuda.current_stream(tensor.device))  # on which the tensor is computed
    with torch.cuda.stream(stream), torch.no_grad():
        copy.copy_(tensor, non_blocking=True)
        return stream.record_event()


def finish(device: torch.device) -> None:
    """Has the host wait for what the current stream was handed."""
    if device.type == "cuda":
        torch.cuda.current_stream(device).synchronize()
