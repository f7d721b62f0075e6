"""How functions and values travel between the kernel and its ranks: by value, tensors as copies in CPU memory.

Only the inherited pipes carry these bytes; nothing here is ever read from a network or a file. What cannot travel, or
would not be itself on the other side, is refused before anything is sent, with the name of the variable that holds it.
"""

import io
import pickle
from collections.abc import Callable
from typing import Any

import cloudpickle
import torch

from zerolab.runtime import refusals, stack

LIMIT = 256_000_000  # bytes that a call may carry to each rank, and that a rank may send back


def pack_call(fn: Callable[..., Any], args: tuple[Any, ...], kwargs: dict[str, Any]) -> bytes:
    """A function and its arguments as bytes; TypeError or ValueError in one sentence if something in them cannot go."""
    if not callable(fn):
        raise TypeError(refusals.not_a_function(fn))
    # These two would pickle, run, and only then fail, on all ranks at once and at their cost.
    refusals.check_plain(fn)
    try:
        return _pack((fn, args, kwargs), keep_grad=True, limit=LIMIT)
    except refusals.TooLargeError:
        raise ValueError(refusals.too_large(fn, args, kwargs, measure, LIMIT)) from None
    except Exception as error:
        # Looking for the culprit pickles every part again; it is done only once something has failed.
        raise TypeError(refusals.cannot_go(fn, args, kwargs, error, _try)) from error


def pack_result(result: object, limit: int = LIMIT) -> bytes:
    """What a rank's function returned, as bytes; TypeError or ValueError in one sentence if it cannot leave the rank.

    Args:
        result: any value; tensors come as copies in CPU memory.
        limit: bytes above which it is refused.
    """
    name = f"the result, {refusals.a(type(result).__name__)},"
    try:
        return _pack(result, keep_grad=False, limit=limit)
    except refusals.TooLargeError:
        size = refusals.megabytes(measure(result))
        raise ValueError(
            f"{name} has {size}, more than the {refusals.megabytes(limit)} that a rank may send back: return a part of "
            "it, or write it to a file and return the path."
        ) from None
    except Exception as error:
        # With a TypeError a class says that it cannot be pickled; any other error of somebody's `__reduce__` is the
        # cause itself, as is memory that ran out.
        theirs = not isinstance(error, TypeError) and stack.describe_error(error.__traceback__)[1]
        if theirs or isinstance(error, MemoryError):
            raise
        raise TypeError(f"{name} cannot be sent back: {error}. Return plain values or tensors.") from error


def unpack(data: bytes) -> Any:
    """The inverse of `pack_call` and `pack_result`."""
    return pickle.loads(data)


def measure(value: object) -> int:
    """How many bytes a value has on its way, without making them; a tensor's elements are not copied."""
    counting = _Counting()
    _Pickler(counting, keep_grad=True, measuring=True).dump(value)
    return counting.size


def _try(value: object) -> None:
    """Raises what sending this value would raise, and makes no copies."""
    _Pickler(_Counting(), keep_grad=True, measuring=True).dump(value)


def _pack(value: object, *, keep_grad: bool, limit: int) -> bytes:
    # The limit holds while the bytes are made, not after: 100 GB must not be built first in order to be refused.
    buffer = _Limited(limit)
    _Pickler(buffer, keep_grad=keep_grad, carries_to_rank=keep_grad).dump(value)
    return buffer.getvalue()


class _Limited(io.BytesIO):
    """Memory that takes no more than so many bytes."""

    def __init__(self, limit: int) -> None:
        super().__init__()
        self._limit = limit

    def write(self, data: Any) -> int:
        """See `io.BytesIO.write`."""
        if self.tell() + memoryview(data).nbytes > self._limit:
            raise refusals.TooLargeError
        return super().write(data)


class _Counting(io.RawIOBase):
    """Takes bytes and keeps their number only."""

    size = 0

    def writable(self) -> bool:
        """See `io.RawIOBase.writable`."""
        return True

    def write(self, data: Any) -> int:
        """See `io.RawIOBase.write`."""
        self.size += memoryview(data).nbytes
        return memoryview(data).nbytes


class _Pickler(cloudpickle.Pickler):  # type: ignore[misc]  # cloudpickle carries no types
    """cloudpickle, but a tensor goes as its own elements and not as the whole storage it is a view of."""

    def __init__(
        self, file: io.IOBase, *, keep_grad: bool, carries_to_rank: bool = True, measuring: bool = False
    ) -> None:
        super().__init__(file, protocol=pickle.HIGHEST_PROTOCOL)
        self._keep_grad, self._carries_to_rank, self._measuring = keep_grad, carries_to_rank, measuring
        self._file = file

    def reducer_override(self, obj: Any) -> Any:
        """See `pickle.Pickler.reducer_override`."""
        # A result may hold what a call may not: a tensor on a GPU comes back as its copy.
        if self._carries_to_rank:
            refusals.check(obj)
        # Exactly these types: a subclass has a way of its own to be pickled, and keeps it.
        if type(obj) is torch.nn.Parameter:
            return self._tensor(obj, parameter=True, grad=obj.requires_grad)
        if type(obj) is torch.Tensor and obj.layout is torch.strided and obj.device.type != "meta":
            return self._tensor(obj, parameter=False, grad=self._keep_grad and obj.is_leaf and obj.requires_grad)
        return super().reducer_override(obj)

    def _tensor(self, tensor: torch.Tensor, *, parameter: bool, grad: bool) -> Any:
        # Elements are counted and left out, so measuring a model costs no copy of it.
        if self._measuring and isinstance(self._file, _Counting):
            self._file.size += tensor.numel() * tensor.element_size()
            return _rebuild, (b"", tensor.dtype, (0,), parameter, grad)
        return _rebuild, (*_elements(tensor), parameter, grad)


def _elements(tensor: torch.Tensor) -> tuple[pickle.PickleBuffer, torch.dtype, tuple[int, ...]]:
    flat = tensor.detach().cpu().contiguous().reshape(-1)
    return pickle.PickleBuffer(flat.view(torch.uint8).numpy().data), tensor.dtype, tuple(tensor.shape)


def _rebuild(
    data: bytes | bytearray, dtype: torch.dtype, shape: tuple[int, ...], parameter: bool, requires_grad: bool
) -> torch.Tensor:
    # A bytearray, because a tensor over immutable bytes could not be written to.
    flat = torch.frombuffer(bytearray(data), dtype=dtype) if len(data) else torch.empty(0, dtype=dtype)
    tensor = flat.reshape(shape)
    if parameter:
        return torch.nn.Parameter(tensor, requires_grad=requires_grad)
    return tensor.requires_grad_(requires_grad) if requires_grad else tensor
