"""An unpickler that can build only plain values: none of its operations imports, calls or executes anything.

Python's own unpickler imports and calls whatever a pickle names, and can be made to ask for any amount of memory. This
one knows only what torch's dumps and snapshots consist of: numbers, texts, lists, tuples, dictionaries, and references
to earlier values. Anything else is an error. Source: `pickletools.opcodes` of Python.
"""

import struct
from collections.abc import Callable
from typing import Any

from zerolab.opening.found import Foreign

MOST = 50_000_000  # operations: a snapshot of a million entries has some thirty million
LONGEST = 255  # bytes of a number
_NAMES = {  # of what is refused, for the sentence
    0x63: "GLOBAL", 0x93: "STACK_GLOBAL", 0x52: "REDUCE", 0x62: "BUILD", 0x69: "INST", 0x6F: "OBJ", 0x81: "NEWOBJ",
    0x92: "NEWOBJ_EX", 0x50: "PERSID", 0x51: "BINPERSID", 0x82: "EXT1", 0x83: "EXT2", 0x84: "EXT4",
    0x97: "NEXT_BUFFER", 0x98: "READONLY_BUFFER",
}  # fmt: skip
_STOP = 0x2E
Operation = Callable[[], object]


def loads(data: bytes, name: str) -> Any:
    """The value of a pickle. Raises Foreign for one that is damaged, or that names anything but plain values."""
    reader = _Reader(data)
    try:
        return reader.value()
    except _Refused as refused:
        raise Foreign(
            f"{name!r} is a pickle that asks for more than plain values ({refused}, which imports or calls something): "
            "nothing of it was executed; load it nowhere else unless you know who wrote it"
        ) from None
    # What damaged files lead to: an early end, an empty stack, a list as a key, text that cannot be decoded.
    except (LookupError, ValueError, TypeError, AttributeError, struct.error, OverflowError, MemoryError):
        raise Foreign(f"{name!r} is half a pickle, or damaged (at byte {reader.at:,}): fetch it again") from None


class _Refused(Exception):
    """The name of an operation that makes more than plain values."""


class _Reader:
    def __init__(self, data: bytes) -> None:
        self.at = 0
        self._data = data
        self._stack: list[Any] = []  # above the last mark
        self._below: list[list[Any]] = []  # what lay on the stack at each mark
        self._memo: dict[int, Any] = {}

    def value(self) -> Any:
        data, table = self._data, self._table()
        for _ in range(MOST):
            code = data[self.at]
            self.at += 1
            if code == _STOP:
                (value,) = self._stack
                return value
            if code in _NAMES:
                raise _Refused(_NAMES[code])
            table[code]()
        raise ValueError

    def _table(self) -> dict[int, Operation]:
        return _constants(self) | _sized(self) | {
            0x80: lambda: self.bytes(1),  # PROTO
            0x95: lambda: self.bytes(8),  # FRAME, a hint for those who read from a pipe
            0x28: self._begin,  # MARK
            0x61: self._append,
            0x65: lambda: self._extend(self._since_mark()),  # APPENDS
            0x73: lambda: self._set([self._stack.pop(-2), self._stack.pop()]),  # SETITEM
            0x75: lambda: self._set(self._since_mark()),  # SETITEMS
            0x74: lambda: self.push(tuple(self._since_mark())),  # TUPLE
            0x85: lambda: self._tuple(1),
            0x86: lambda: self._tuple(2),
            0x87: lambda: self._tuple(3),
            0x94: lambda: self.remember(len(self._memo)),  # MEMOIZE
        }  # fmt: skip

    def push(self, value: Any) -> None:
        self._stack.append(value)

    def bytes(self, count: int) -> bytes:
        start, self.at = self.at, self.at + count
        if not start <= self.at <= len(self._data):
            raise ValueError
        return self._data[start : self.at]

    def number(self, form: str, size: int) -> Any:
        return struct.unpack(form, self.bytes(size))[0]

    def long(self, size: int) -> None:
        if size > LONGEST:
            raise ValueError
        self.push(int.from_bytes(self.bytes(size), "little", signed=True))

    def remember(self, place: int) -> None:
        self._memo[place] = self._stack[-1]  # a dictionary: a place of four billion takes no room

    def recall(self, place: int) -> None:
        self._stack.append(self._memo[place])

    def _begin(self) -> None:
        self._below.append(self._stack)
        self._stack = []

    def _since_mark(self) -> list[Any]:
        values, self._stack = self._stack, self._below.pop()
        return values

    def _append(self) -> None:
        value = self._stack.pop()
        self._extend([value])

    def _extend(self, values: list[Any]) -> None:
        target = self._stack[-1]
        if type(target) is not list:
            raise TypeError
        target += values

    def _set(self, pairs: list[Any]) -> None:
        target = self._stack[-1]
        if type(target) is not dict:
            raise TypeError
        target.update(zip(pairs[::2], pairs[1::2], strict=True))

    def _tuple(self, count: int) -> None:
        if len(self._stack) < count:
            raise IndexError
        self._stack[-count:] = [tuple(self._stack[-count:])]


def _constants(reader: _Reader) -> dict[int, Operation]:
    push = reader.push
    return {
        0x4E: lambda: push(None),
        0x88: lambda: push(True),
        0x89: lambda: push(False),
        0x5D: lambda: push([]),
        0x7D: lambda: push({}),
        0x29: lambda: push(()),
    }


def _sized(reader: _Reader) -> dict[int, Operation]:
    """What says how many bytes it has, or is a number of so many."""
    push, number = reader.push, reader.number

    def read(size: int) -> str:
        return reader.bytes(size).decode("utf-8", "surrogatepass")

    return {
        0x4B: lambda: push(number("<B", 1)),  # BININT1, BININT2, BININT
        0x4D: lambda: push(number("<H", 2)),
        0x4A: lambda: push(number("<i", 4)),
        0x8A: lambda: reader.long(number("<B", 1)),  # LONG1, LONG4
        0x8B: lambda: reader.long(number("<I", 4)),
        0x47: lambda: push(number(">d", 8)),  # BINFLOAT
        0x8C: lambda: push(read(number("<B", 1))),  # SHORT_BINUNICODE, BINUNICODE, BINUNICODE8
        0x58: lambda: push(read(number("<I", 4))),
        0x8D: lambda: push(read(number("<Q", 8))),
        0x43: lambda: push(reader.bytes(number("<B", 1))),  # SHORT_BINBYTES, BINBYTES
        0x42: lambda: push(reader.bytes(number("<I", 4))),
        0x71: lambda: reader.remember(number("<B", 1)),  # BINPUT, LONG_BINPUT
        0x72: lambda: reader.remember(number("<I", 4)),
        0x68: lambda: reader.recall(number("<B", 1)),  # BINGET, LONG_BINGET
        0x6A: lambda: reader.recall(number("<I", 4)),
    }
