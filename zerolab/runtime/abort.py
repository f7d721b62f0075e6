"""Why native code aborted a rank: an uncaught C++ exception, above all one of gloo's."""

import re

from zerolab.runtime.screen import printable

KEPT = 4_096  # bytes of a rank's last output that are searched for it
_LONGEST = 300  # characters of it that are shown
# As libstdc++ writes it, and as libc++ does.
_UNCAUGHT = re.compile(
    r"terminate called after throwing an instance of '(?P<type>[^'\n]+)'\s+what\(\):\s+(?P<what>[^\n]+)"
    r"|terminating (?:due to|with) uncaught exception of type (?P<kind>[\w:]+): (?P<why>[^\n]+)"
)
_SIZES = re.compile(r"op\.preamble\.length <= op\.nbytes\. (\d+) vs (\d+)")


def cause(output: bytes) -> str:
    """The uncaught exception in the last bytes that the rank wrote; empty if there is none.

    gloo notices in its own thread that a peer sends more than expected; nobody can catch an exception there.
    """
    found = list(_UNCAUGHT.finditer(output.decode(errors="replace")))
    if not found:
        return ""
    kind, what = found[-1]["type"] or found[-1]["kind"], found[-1]["what"] or found[-1]["why"]
    sizes = _SIZES.search(what)
    if sizes is not None:
        sent, expected = (int(size) for size in sizes.groups())
        return (
            f"gloo received {sent:,} bytes where it expected {expected:,}, so the ranks passed tensors of different "
            "sizes. Give the same shape on all ranks, and give recv a tensor of the shape that is sent"
        )
    return printable(f"{kind}: {what}")[:_LONGEST]
