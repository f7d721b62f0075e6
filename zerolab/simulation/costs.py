"""What a step would cost: a clock with two streams, alpha-beta collectives, and a roofline for everything else.

A collective of B bytes over N ranks on a link of a seconds a message and b bytes a second takes, in one pass around a
ring, (N - 1) a + (N - 1)/N B/b; an all_reduce is two passes (Thakur, Rabenseifner, Gropp 2005, "Optimization of
Collective Communication Operations in MPICH", section 4). Over several nodes each GPU first exchanges with its peers
on the other nodes, over the network, and then within its node (the same, section 5, and NCCL's rings do the like).
Everything else takes as long as its operations at a stated utilisation, or as its bytes at the memory's bandwidth,
whichever is longer (Williams, Waterman, Patterson 2009, "Roofline").
"""

from dataclasses import dataclass

from zerolab import catalog
from zerolab.catalog import Gpu, Link

PASSES = {"all_reduce": 2, "all_gather": 1, "reduce_scatter": 1, "broadcast": 1}


@dataclass(frozen=True)
class Hardware:
    """What the ranks run on: one GPU a rank, `gpus_per_node` of them joined by the GPU's link, nodes by `network`.

    `utilisation` is the part of the datasheet's rate that matrix multiplications reach.
    """

    gpu: Gpu
    network: Link
    gpus_per_node: int = 8
    utilisation: float = 0.4

    def __post_init__(self) -> None:
        if self.gpus_per_node < 1:
            raise ValueError(f"there are {self.gpus_per_node} GPUs in a node: it takes at least 1")
        if not 0 < self.utilisation <= 1:
            raise ValueError(f"the utilisation is {self.utilisation}: it is a part, above 0 and at most 1")

    def describe(self) -> str:
        """The assumptions behind every second, in one sentence."""
        return (
            f"{self.gpu.name} at {self.utilisation:.0%} of its dense rate, {self.gpus_per_node} a node over "
            f"{self.gpu.link}, nodes over {self.network.name}"
        )

    def collective_seconds(self, op: str, nbytes: int, ranks: int) -> float:
        """How long a collective over a whole buffer of `nbytes` takes `ranks` ranks."""
        within, nodes = min(ranks, self.gpus_per_node), -(-ranks // self.gpus_per_node)
        inner = ring_seconds(catalog.link(self.gpu.link), nbytes, within)
        outer = ring_seconds(self.network, nbytes / within, nodes)
        return PASSES.get(op, 1) * (inner + outer)

    def compute_seconds(self, flops: float, nbytes: float, precision: str) -> float:
        """How long an operation takes that does `flops` operations and reads and writes `nbytes`."""
        return max(flops / (self.gpu.flops[precision] * self.utilisation), nbytes / self.gpu.memory_bytes_per_second)


def ring_seconds(link: Link, nbytes: float, ranks: int) -> float:
    """One pass of `nbytes` around a ring of `ranks`: the model above."""
    return (ranks - 1) * link.latency_seconds + (ranks - 1) / ranks * nbytes / link.bytes_per_second


class Clock:
    """Two streams of one rank: computation, and communication that runs beside it until somebody waits for it."""

    def __init__(self) -> None:
        self.computed = 0.0  # seconds until which the compute stream is busy
        self.communicated = 0.0
        self.waited = 0.0  # seconds that computation stood still for communication

    def now(self) -> int:
        """Nanoseconds since the start, as the code that runs would read them."""
        return round(self.computed * 1e9)

    def compute(self, seconds: float) -> None:
        """An operation runs."""
        self.computed += seconds

    def communicate(self, seconds: float) -> None:
        """A collective is started: it runs when those before it are done, and not before now."""
        self.communicated = max(self.communicated, self.computed) + seconds

    def wait(self, until: float) -> None:
        """Computation stands still until a collective is done."""
        self.waited += max(until - self.computed, 0.0)
        self.computed = max(self.computed, until)
