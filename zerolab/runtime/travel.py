"""How functions and values travel between the kernel and its ranks: by value, tensors as copies in CPU memory.

Only the inherited pipes carry these bytes; nothing here is ever read from a network or a file.
"""

import io
import pickle
from collections.abc import Callable
from typing import Any

import cloudpickle
import torch


def pack_call(fn: Callable[..., Any], args: tuple[Any, ...], kwargs: dict[str, Any]) -> bytes:
    """A function and its arguments as bytes; TypeError in one sentence if something in them cannot leave the kernel."""
    try:
        return _pack((fn, args, kwargs), keep_grad=True)
    except Exception as error:
        name = getattr(fn, "__name__", repr(fn))
        raise TypeError(
            f"{name} cannot be sent to the ranks: {error}. Create that object inside the function instead."
        ) from error


def pack_result(result: object) -> bytes:
    """What a rank's function returned, as bytes; TypeError in one sentence if it cannot leave the rank."""
    try:
        return _pack(result, keep_grad=False)
    except Exception as error:
        raise TypeError(
            f"the result, a {type(result).__name__}, cannot be sent back: {error}. Return plain values or tensors."
        ) from error


def unpack(data: bytes) -> Any:
    """The inverse of `pack_call` and `pack_result`."""
    return pickle.loads(data)


def _pack(value: object, *, keep_grad: bool) -> bytes:
    buffer = io.BytesIO()
    _Pickler(buffer, keep_grad).dump(value)
    return buffer.getvalue()


class _Pickler(cloudpickle.Pickler):  # type: ignore[misc]  # cloudpickle carries no types
    """cloudpickle, but a tensor goes as its own elements and not as the whole storage it is a view of."""

    def __init__(self, file: io.BytesIO, keep_grad: bool) -> None:
        super().__init__(file, protocol=pickle.HIGHEST_PROTOCOL)
        self._keep_grad = keep_grad

    def reducer_override(self, obj: Any) -> Any:
        """See `pickle.Pickler.reducer_override`."""
        if type(obj) is torch.nn.Parameter:
            return _rebuild, (*_elements(obj), True, obj.requires_grad)
        if type(obj) is torch.Tensor and obj.layout is torch.strided and obj.device.type != "meta":
            return _rebuild, (*_elements(obj), False, self._keep_grad and obj.is_leaf and obj.requires_grad)
        return super().reducer_override(obj)


def _elements(tensor: torch.Tensor) -> tuple[pickle.PickleBuffer, torch.dtype, tuple[int, ...]]:
    flat = tensor.detach().cpu().contiguous().reshape(-1)
    return pickle.PickleBuffer(flat.view(torch.uint8).numpy().data), tensor.dtype, tuple(tensor.shape)


def _rebuild(
    data: bytes | bytearray, dtype: torch.dtype, shape: tuple[int, ...], parameter: bool, requires_grad: bool
) -> torch.Tensor:
    flat = torch.frombuffer(bytearray(data), dtype=dtype) if len(data) else torch.empty(0, dtype=dtype)
    tensor = flat.reshape(shape)
    if parameter:
        return torch.nn.Parameter(tensor, requires_grad=requires_grad)
    return tensor.requires_grad_(requires_grad) if requires_grad else tensor
