"""An unpickler that can build only plain values: none of its operations imports, calls or executes anything.

Python's own knows operations that import and call whatever a pickle names. Of these this one has none, only what
torch's dumps and snapshots consist of: numbers, texts, lists, tuples, dictionaries, and references to earlier values.
It is made of Python's in Python: the one in C reserves the memory that a pickle claims to need.
"""

import io
import pickle
import pickletools
import struct
from functools import partial
from typing import Any, ClassVar

from zerolab.opening.found import Foreign

MOST = 50_000_000  # of a byte each, which may make fifty of it: a snapshot of a million entries has some thirty million
_CODES = {operation.name: ord(operation.code) for operation in pickletools.opcodes}
_PLAIN = (
    "APPEND", "APPENDS", "BINBYTES", "BINFLOAT", "BINGET", "BININT", "BININT1", "BININT2", "BINPUT", "BINUNICODE",
    "BINUNICODE8", "EMPTY_DICT", "EMPTY_LIST", "EMPTY_TUPLE", "FRAME", "LONG1", "LONG_BINGET", "LONG_BINPUT", "MARK",
    "MEMOIZE", "NEWFALSE", "NEWTRUE", "NONE", "PROTO", "SETITEM", "SETITEMS", "SHORT_BINBYTES", "SHORT_BINUNICODE",
    "STOP", "TUPLE", "TUPLE1", "TUPLE2", "TUPLE3",
)  # fmt: skip
_SHORT = [_CODES[operation.name] for operation in pickletools.opcodes if operation.name in _PLAIN and not operation.arg]
_REFUSED = (
    "BINPERSID", "BUILD", "EXT1", "EXT2", "EXT4", "GLOBAL", "INST", "NEWOBJ", "NEWOBJ_EX", "NEXT_BUFFER", "OBJ",
    "PERSID", "READONLY_BUFFER", "REDUCE", "STACK_GLOBAL",
)  # fmt: skip
# What damaged files lead to: an early end, an empty stack, a list as a key, text that cannot be decoded.
_DAMAGED = (
    LookupError, ValueError, TypeError, AttributeError, OverflowError, MemoryError, EOFError, struct.error,
    pickle.UnpicklingError,
)  # fmt: skip


def loads(data: bytes, name: str) -> Any:
    """The value of a pickle. Raises Foreign for one that is damaged, or that names anything but plain values."""
    if sum(data.count(code) for code in _SHORT) > MOST:
        raise Foreign(f"{name!r} may make more values than there is memory for: record fewer entries")
    file = io.BytesIO(data)
    try:
        return _Reader(file).load()
    except _Refused as refused:
        raise Foreign(
            f"{name!r} is a pickle that asks for more than plain values ({refused}, which imports or calls something): "
            "nothing of it was executed; load it nowhere else unless you know who wrote it"
        ) from None
    except _DAMAGED:
        raise Foreign(f"{name!r} is half a pickle, or damaged (before byte {file.tell():,}): fetch it again") from None


class _Refused(Exception):
    """The name of an operation that makes more than plain values."""


def _refuse(name: str, _: object) -> None:
    raise _Refused(name)


def _set(items: Any, keys: slice, reader: Any) -> None:
    # A tuple's hash may take for ever, or the whole stack of C: tuples share parts, and are nested without end.
    if any(isinstance(key, tuple) for key in reader.stack[keys]):
        raise TypeError
    items(reader)


_KNOWN: dict[int, Any] = pickle._Unpickler.dispatch  # noqa: SLF001  (it has no other name)


class _Reader(pickle._Unpickler):  # noqa: SLF001
    dispatch: ClassVar[dict[int, Any]] = {_CODES[name]: _KNOWN[_CODES[name]] for name in _PLAIN}
    dispatch |= {_CODES[name]: partial(_refuse, name) for name in _REFUSED}
    for name, keys in (("SETITEM", slice(-2, -1)), ("SETITEMS", slice(0, None, 2))):
        dispatch[_CODES[name]] = partial(_set, _KNOWN[_CODES[name]], keys)
