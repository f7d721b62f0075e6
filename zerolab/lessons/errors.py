"""Errors on purpose: a lesson shows an error's message as ordinary output."""

import re
from collections.abc import Iterator
from contextlib import contextmanager

# What differs from run to run or from box to box, and would change stored outputs.
_VOLATILE = (
    (re.compile(r"\x1b\[[0-9;]*m"), ""),
    (re.compile(r",? ?\(?\bpid:? ?\d+\)?"), ""),
    (re.compile(r"\b0x[0-9a-fA-F]{6,}"), "0x..."),  # and not the shape 10x4
    (re.compile(r"(?<![\w.])/(?:[^\s/:'\"]+/)+([^\s/:'\"]+)"), r"\1"),
    (re.compile(r"(127\.0\.0\.1|localhost|\[::1\]):\d+"), r"\1"),
)


@contextmanager
def expect_error(*kinds: type[BaseException]) -> Iterator[None]:
    """Runs the block, expects one of `kinds`, and prints its message as ordinary output, without pids and paths.

    Raises RuntimeError if the block ends without that error; any other error passes through.
    """
    expected = " or ".join(kind.__name__ for kind in kinds)
    try:
        yield
    except kinds as error:
        print(f"{type(error).__name__}: {without_volatile(str(error))}")
    else:
        raise RuntimeError(f"this cell was expected to raise {expected}, and nothing was raised")


def without_volatile(message: str) -> str:
    """The message without colours, process ids, addresses, ports and folders."""
    for pattern, replacement in _VOLATILE:
        message = pattern.sub(replacement, message)
    return message
