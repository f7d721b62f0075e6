"""Sends functions and values between the kernel and its ranks: by value, tensors as copies in CPU memory.

Only the inherited pipes carry these bytes; nothing here is ever read from a network or a file. What cannot be sent, or
would not be the same on the other side, is refused before anything is sent, naming the variable that holds it.
"""

import functools
import io
import pickle
import sys
from collections.abc import Callable
from types import CodeType
from typing import Any

import cloudpickle
import numpy as np
import torch

from zerolab.runtime import byvalue, refusals, report, stack

LIMIT = 256_000_000  # bytes that a call may carry to each rank, and that a rank may send back


def pack_call(fn: Callable[..., Any], args: tuple[Any, ...], kwargs: dict[str, Any]) -> bytes:
    """A function and its arguments as bytes; TypeError or ValueError in one sentence if something in them cannot go."""
    refusals.check_function(fn)
    # In a process that multiprocessing has spawned, this is the script: no rank could import from it.
    script = sys.modules.get("__mp_main__")
    if script is not None and script.__name__ == "__mp_main__":
        cloudpickle.register_pickle_by_value(script)
    call = (fn, args, kwargs)
    try:
        return _dump(call, LIMIT, is_call=True).getvalue()
    except refusals.TooLargeError:
        raise ValueError(refusals.too_large(call, measure, LIMIT)) from None
    except Exception as error:
        # Finding the culprit means pickling every part again, so only after something has failed.
        raise TypeError(refusals.cannot_be_sent(call, error, measure)) from error


def pack_result(result: object, limit: int = LIMIT) -> bytes:
    """What a rank's function returned, as bytes; TypeError or ValueError in one sentence if it cannot leave the rank.

    Tensors come as copies in CPU memory. What has more than `limit` bytes is refused.
    """
    try:
        return _dump(result, limit, is_call=False).getvalue()
    except refusals.TooLargeError:
        raise ValueError(refusals.result_too_large(result, measure(result, is_call=False), limit)) from None
    except Exception as error:
        # A TypeError is how a class says that it cannot be pickled; any other error of a learner's `__reduce__`, or
        # memory that ran out, is itself the cause.
        theirs = not isinstance(error, TypeError) and stack.describe_error(error.__traceback__)[1]
        if theirs or isinstance(error, MemoryError):
            raise
        send = functools.partial(measure, is_call=False)
        raise TypeError(refusals.cannot_come_back(result, error, send)) from error


def unpack_result(data: bytes, rank: int) -> Any:
    """What a rank returned, in the kernel. TypeError in one sentence if it cannot be unpickled here."""
    try:
        return pickle.loads(data)
    # SystemExit, too: `sys.exit` in a learner's `__setstate__` must not end the notebook.
    except (Exception, SystemExit) as error:
        what = f"{report.name_of(error)}: {report.text_of(error)}".rstrip(": .")
        raise TypeError(
            f"what rank {rank} returned cannot be unpickled in this process: {what}. Return plain values or tensors."
        ) from error


def measure(value: object, *, is_call: bool = True) -> int:
    """How many bytes a value has when it is sent, without making them; a tensor's elements are not copied."""
    return _dump(value, None, is_call=is_call).size


def _dump(value: object, limit: int | None, *, is_call: bool) -> "_Buffer":
    buffer = _Buffer(limit)
    _Pickler(buffer, is_call=is_call).dump(value)
    return buffer


class _Buffer(io.BytesIO):
    """Memory for at most `limit` bytes; without a limit, a counter that keeps none of them.

    The limit holds while the bytes are made, not after: 100 GB must not be built first in order to be refused.
    """

    def __init__(self, limit: int | None) -> None:
        super().__init__()
        self._limit, self.size = limit, 0

    def wants(self, count: int) -> bool:
        """Whether `count` more bytes are to be written; if not, they are only counted. Raises TooLargeError."""
        if self._limit is None:
            self.size += count
        elif self.tell() + count > self._limit:
            raise refusals.TooLargeError
        return self._limit is not None

    def write(self, data: Any) -> int:
        size = memoryview(data).nbytes
        return super().write(data) if self.wants(size) else size


class _Pickler(cloudpickle.Pickler):  # type: ignore[misc]  # cloudpickle carries no types
    """cloudpickle, except that a tensor travels as its own elements and not as the whole storage it is a view of.

    And a function keeps the name of its file, by which its lines are found: from 3.1.3 on cloudpickle drops it.
    """

    def __init__(self, buffer: _Buffer, *, is_call: bool) -> None:
        super().__init__(buffer, protocol=pickle.HIGHEST_PROTOCOL)
        self._buffer, self._is_call = buffer, is_call

    def reducer_override(self, obj: Any) -> Any:
        # A result may hold what a call may not: a tensor on a GPU comes back as its copy.
        if self._is_call:
            refusals.check(obj)
        # Exactly these types: a subclass may define how it is pickled.
        if type(obj) in (torch.Tensor, torch.nn.Parameter) and _has_plain_elements(obj):
            return self._tensor(obj)
        # numpy copies an array before it is written, and one that is broadcast is far larger than the memory it takes.
        if type(obj) is np.ndarray and not obj.dtype.hasobject and not self._buffer.wants(obj.nbytes):
            return bytes, ()
        if type(obj) is CodeType:
            return _from_file, (obj.co_filename, *self.dispatch_table[CodeType](obj))
        way = byvalue.reduced(obj, pickle.HIGHEST_PROTOCOL, is_call=self._is_call)
        return byvalue.with_slots(obj, super().reducer_override(obj)) if way is NotImplemented else way

    def _tensor(self, tensor: torch.Tensor) -> Any:
        refusals.check_not_released(tensor)
        parameter = isinstance(tensor, torch.nn.Parameter)
        grad = tensor.requires_grad and (parameter or (self._is_call and tensor.is_leaf))
        # Elements that are only counted are left out, so measuring a model costs no copy of it.
        wanted = self._buffer.wants(tensor.numel() * tensor.element_size())
        elements = _elements(tensor) if wanted else (b"", tensor.dtype, (0,))
        # Its attributes are sent, too, such as a mark that an optimizer looks for.
        return _rebuild, (*elements, parameter, grad), tensor.__dict__ or None, None, None, _set_attributes


def _from_file(filename: str, make: Callable[..., CodeType], arguments: tuple[Any, ...]) -> CodeType:
    return make(*arguments).replace(co_filename=filename)


def _has_plain_elements(tensor: torch.Tensor) -> bool:
    """Whether it is so many numbers of one type and nothing else; torch pickles all others."""
    strided = tensor.layout is torch.strided and not tensor.is_nested
    return strided and not tensor.is_quantized and tensor.device.type != "meta"


def _elements(tensor: torch.Tensor) -> tuple[pickle.PickleBuffer, torch.dtype, tuple[int, ...]]:
    # A conjugate and a negative are lazy views of other numbers.
    whole = tensor.detach().cpu().resolve_conj().resolve_neg().contiguous()
    flat = whole.as_strided((whole.numel(),), (1,))  # a single element is contiguous whatever its stride
    # Of the array, not of its `data`: CPython crashes when it collects a memoryview that a buffer is of.
    buffer = pickle.PickleBuffer(flat.view(torch.uint8).numpy())  # type: ignore[arg-type]  # typed so from 3.12 on
    return buffer, tensor.dtype, tuple(tensor.shape)


def _rebuild(
    data: bytes | bytearray, dtype: torch.dtype, shape: tuple[int, ...], parameter: bool, requires_grad: bool
) -> torch.Tensor:
    # A bytearray, because a tensor over immutable bytes could not be written to.
    # The default device may be another one, which `frombuffer` does not heed.
    flat = torch.frombuffer(bytearray(data), dtype=dtype) if len(data) else torch.empty(0, dtype=dtype, device="cpu")
    tensor = flat.reshape(shape)
    return torch.nn.Parameter(tensor, requires_grad) if parameter else tensor.requires_grad_(requires_grad)


def _set_attributes(tensor: torch.Tensor, attributes: dict[str, Any]) -> None:
    tensor.__dict__.update(attributes)
