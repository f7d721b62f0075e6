"""How functions and values travel between the kernel and its ranks: by value, tensors as copies in CPU memory.

Only the inherited pipes carry these bytes; nothing here is ever read from a network or a file. What cannot travel, or
would not be itself on the other side, is refused before anything is sent, with the name of the variable that holds it.
"""

import functools
import io
import pickle
from collections.abc import Callable
from typing import Any

import cloudpickle
import numpy as np
import torch

from zerolab.runtime import byvalue, refusals, report, stack

LIMIT = 256_000_000  # bytes that a call may carry to each rank, and that a rank may send back


def pack_call(fn: Callable[..., Any], args: tuple[Any, ...], kwargs: dict[str, Any]) -> bytes:
    """A function and its arguments as bytes; TypeError or ValueError in one sentence if something in them cannot go."""
    if not callable(fn):
        raise TypeError(refusals.not_a_function(fn))
    # These two would pickle, run, and only then fail, on all ranks at once and at their cost.
    refusals.check_plain(fn)
    try:
        return _pack((fn, args, kwargs), is_call=True, limit=LIMIT)
    except refusals.TooLargeError:
        raise ValueError(refusals.too_large(fn, args, kwargs, measure, LIMIT)) from None
    except Exception as error:
        # Looking for the culprit pickles every part again; it is done only once something has failed.
        raise TypeError(refusals.cannot_go(fn, args, kwargs, error, measure)) from error


def pack_result(result: object, limit: int = LIMIT) -> bytes:
    """What a rank's function returned, as bytes; TypeError or ValueError in one sentence if it cannot leave the rank.

    Args:
        result: any value; tensors come as copies in CPU memory.
        limit: bytes above which it is refused.
    """
    try:
        return _pack(result, is_call=False, limit=limit)
    except refusals.TooLargeError:
        raise ValueError(refusals.result_too_large(result, measure(result, is_call=False), limit)) from None
    except Exception as error:
        # With a TypeError a class says that it cannot be pickled; any other error of somebody's `__reduce__` is the
        # cause itself, as is memory that ran out.
        theirs = not isinstance(error, TypeError) and stack.describe_error(error.__traceback__)[1]
        if theirs or isinstance(error, MemoryError):
            raise
        send = functools.partial(measure, is_call=False)
        raise TypeError(refusals.cannot_come_back(result, error, send)) from error


def unpack(data: bytes) -> Any:
    """The inverse of `pack_call` and `pack_result`."""
    return pickle.loads(data)


def unpack_result(data: bytes, rank: int) -> Any:
    """What a rank returned, in the kernel. TypeError in one sentence if it cannot be made again here."""
    try:
        return unpack(data)
    # Not even a `sys.exit` in somebody's `__setstate__` may end the notebook; Stop is no Exception, and goes on.
    except (Exception, SystemExit) as error:
        what = f"{report.name_of(error)}: {report.text_of(error)}".rstrip(": .")
        raise TypeError(
            f"what rank {rank} returned cannot be made again in this process: {what}. Return plain values or tensors."
        ) from error


def measure(value: object, *, is_call: bool = True) -> int:
    """How many bytes a value has on its way, without making them; a tensor's elements are not copied."""
    counting = _Counting()
    _Pickler(counting, is_call=is_call).dump(value)
    return counting.size


def _pack(value: object, *, is_call: bool, limit: int) -> bytes:
    # The limit holds while the bytes are made, not after: 100 GB must not be built first in order to be refused.
    buffer = _Limited(limit)
    _Pickler(buffer, is_call=is_call).dump(value)
    return buffer.getvalue()


class _Limited(io.BytesIO):
    """Memory that takes no more than so many bytes."""

    def __init__(self, limit: int) -> None:
        super().__init__()
        self._limit = limit

    def wants(self, count: int) -> bool:
        """Whether so many bytes are to be made and written next: yes, or TooLargeError."""
        if self.tell() + count > self._limit:
            raise refusals.TooLargeError
        return True

    def write(self, data: Any) -> int:
        """See `io.BytesIO.write`."""
        self.wants(memoryview(data).nbytes)
        return super().write(data)


class _Counting(io.RawIOBase):
    """Takes bytes and keeps their number only."""

    size = 0

    def writable(self) -> bool:
        """See `io.RawIOBase.writable`."""
        return True

    def wants(self, count: int) -> bool:
        """Whether so many bytes are to be made and written next: no, they are counted herewith."""
        self.size += count
        return False

    def write(self, data: Any) -> int:
        """See `io.RawIOBase.write`."""
        self.size += memoryview(data).nbytes
        return memoryview(data).nbytes


class _Pickler(cloudpickle.Pickler):  # type: ignore[misc]  # cloudpickle carries no types
    """cloudpickle, but a tensor goes as its own elements and not as the whole storage it is a view of."""

    def __init__(self, file: _Limited | _Counting, *, is_call: bool) -> None:
        super().__init__(file, protocol=pickle.HIGHEST_PROTOCOL)
        self._file, self._is_call = file, is_call

    def reducer_override(self, obj: Any) -> Any:
        """See `pickle.Pickler.reducer_override`."""
        # A result may hold what a call may not: a tensor on a GPU comes back as its copy.
        if self._is_call:
            refusals.check(obj)
        # Exactly these types: a subclass has a way of its own to be pickled, and keeps it.
        if type(obj) in (torch.Tensor, torch.nn.Parameter) and _has_plain_elements(obj):
            return self._tensor(obj)
        # numpy copies an array before it is written, and one that is broadcast is far larger than the memory it takes.
        if type(obj) is np.ndarray and not obj.dtype.hasobject and not self._file.wants(obj.nbytes):
            return bytes, ()
        way = byvalue.reduced(obj, pickle.HIGHEST_PROTOCOL, is_call=self._is_call)
        return super().reducer_override(obj) if way is NotImplemented else way

    def _tensor(self, tensor: torch.Tensor) -> Any:
        refusals.check_not_released(tensor)
        parameter = isinstance(tensor, torch.nn.Parameter)
        grad = tensor.requires_grad and (parameter or (self._is_call and tensor.is_leaf))
        # Elements that are only counted are left out, so measuring a model costs no copy of it.
        wanted = self._file.wants(tensor.numel() * tensor.element_size())
        elements = _elements(tensor) if wanted else (b"", tensor.dtype, (0,))
        # What somebody has written on it goes along, such as a mark that an optimizer looks for.
        return _rebuild, (*elements, parameter, grad), tensor.__dict__ or None, None, None, _write_on


def _has_plain_elements(tensor: torch.Tensor) -> bool:
    """Whether it is so many numbers of one type and nothing else; all others know how to travel themselves."""
    strided = tensor.layout is torch.strided and not tensor.is_nested
    return strided and not tensor.is_quantized and tensor.device.type != "meta"


def _elements(tensor: torch.Tensor) -> tuple[pickle.PickleBuffer, torch.dtype, tuple[int, ...]]:
    # A conjugate and a negative are marks on a view of other numbers: those that one sees are wanted.
    whole = tensor.detach().cpu().resolve_conj().resolve_neg().contiguous()
    flat = whole.as_strided((whole.numel(),), (1,))  # a single element is contiguous whatever its stride
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


def _write_on(tensor: torch.Tensor, attributes: dict[str, Any]) -> None:
    tensor.__dict__.update(attributes)
