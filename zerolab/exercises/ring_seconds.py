"""Seconds of a ring.

Write the time that a collective takes in a ring of ranks. Your function gets

* `op`: `"reduce_scatter"`, `"all_gather"` or `"all_reduce"`;
* `nbytes`: the bytes of the whole buffer, `B`;
* `ranks`: how many ranks, `N`;
* `latency`: what a message takes before its first byte arrives, in seconds;
* `bandwidth`: bytes a second that a link carries.

In a reduce-scatter or an all-gather each rank sends `N - 1` messages, one after the other, each of `B / N` bytes. An
all-reduce is a reduce-scatter and then an all-gather. Nothing runs on ranks: `check` calls your function with numbers
that it draws.

Targets:

* the right seconds, to one part in a billion, for each of twelve drawn inputs;
* one rank alone takes no time.
"""

import random
from collections.abc import Callable
from typing import Any

from zerolab.exercises import FunctionTargets, Wrong


def ring_seconds(op: str, nbytes: int, ranks: int, latency: float, bandwidth: float) -> float:
    """Passes, times messages, times what one message takes."""
    passes = 2 if op == "all_reduce" else 1
    message = latency + nbytes / ranks / bandwidth
    return passes * (ranks - 1) * message


def draw(dice: random.Random) -> dict[str, Any]:
    """A kilobyte to a gigabyte on 1 to 64 ranks, links from Ethernet to NVLink."""
    return {
        "op": dice.choice(["reduce_scatter", "all_gather", "all_reduce"]),
        # From where latency is all of the time to where it is none, so that neither term can be left out.
        "nbytes": int(10 ** dice.uniform(3, 9)),
        "ranks": dice.choice([1, 2, 4, 8, 64]),
        "latency": dice.choice([1, 5, 20, 50]) / 1e6,
        "bandwidth": dice.choice([1, 10, 50, 400]) * 1e9,
    }


def around(wanted: str) -> Callable[..., bool]:
    """This collective, on so many ranks that its turns are not its passes."""
    return lambda op, ranks, **_: op == wanted and ranks > 2


edges: tuple[Callable[..., bool], ...] = (
    lambda ranks, **_: ranks == 1,
    lambda op, ranks, **_: ranks == 2 and op == "all_reduce",
    lambda op, ranks, **_: ranks == 2 and op != "all_reduce",
    *map(around, ("reduce_scatter", "all_gather", "all_reduce")),
)
solution = ring_seconds
hole = "add up the messages"
look_for = "Each row is one call. Find one where latency is most of the time, and one where it is nothing."
targets = FunctionTargets(draw=draw, edges=edges, forbids=("zerolab.theory.nccl:Group.seconds",))
hints = (
    "First what one message takes: its latency, and its bytes divided by the bandwidth.",
    "A message carries one part of the buffer, `B / N` bytes, and there are `N - 1` of them in a pass.",
    "An all-reduce is two passes; the other two are one pass each.",
)
wrong = (
    Wrong(says="sends the whole buffer in each message", replace="nbytes / ranks / bandwidth", by="nbytes / bandwidth"),
    Wrong(says="counts an all-reduce as one pass", replace='2 if op == "all_reduce" else 1', by="1"),
    Wrong(says="counts a message to itself", replace="(ranks - 1)", by="ranks"),
    Wrong(
        says="pays the latency once and not for every message",
        whole="""
def ring_seconds(op, nbytes, ranks, latency, bandwidth):
    passes = 2 if op == "all_reduce" else 1
    return passes * (latency * (ranks > 1) + (ranks - 1) / ranks * nbytes / bandwidth)
""",
    ),
    Wrong(says="forgets the latency", replace="latency + nbytes", by="nbytes"),
    Wrong(says="multiplies by the bandwidth", replace="ranks / bandwidth", by="ranks * bandwidth"),
)
