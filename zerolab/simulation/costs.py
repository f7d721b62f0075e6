"""What a step would cost: a clock with two streams, alpha-beta collectives, and a roofline for everything else.

A pass of B bytes over N ranks costs a seconds for each step of a ring and its share of B/b, b in bytes a second; an
all_reduce is two passes, every other collective one. Over several nodes there are two ways, and the faster counts, as
NCCL's tuner chooses (src/graph/tuning.cc):

* one ring through all GPUs, which enters and leaves a node over all of its network cards at once:
  (N - M) a + (M - 1) a' + (N - 1)/N B / min(b, G b') for M nodes of G GPUs, a' and b' of the network;
* first between the nodes, each GPU with its peers, then within the node:
  (M - 1) a' + (M - 1)/M B/(G b') + (G - 1) a + (G - 1)/G B/b
  (Thakur, Rabenseifner, Gropp 2005, "Optimization of Collective Communication Operations in MPICH", section 4).

Everything else takes as long as its operations at a stated utilisation, or as its bytes at the memory's bandwidth,
whichever is longer (Williams, Waterman, Patterson 2009, "Roofline"). What is left out: that a collective slows down the
computation beside it, the host's own time unless `operation_seconds` says it, and everything that a compiler fuses.
"""

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass

from zerolab import catalog
from zerolab.catalog import Gpu, Link

PASSES = {"all_reduce": 2, "barrier": 2}  # every other collective is one


@dataclass(frozen=True)
class Hardware:
    """What the ranks run on: one GPU a rank, `gpus_per_node` of them joined by the GPU's link, nodes by `network`.

    Args:
        gpu: each rank's own.
        network: between nodes, one card a GPU.
        gpus_per_node: how many the GPU's own link joins.
        utilisation: the part of the datasheet's rate that matrix multiplications reach.
        memory_utilisation: the part of the memory's bandwidth that everything else reaches.
        operation_seconds: what an operation takes besides; 0 for a GPU, which is kept busy while the host goes ahead.
        overlap: whether communication runs beside computation; False where the same cores do both.
        on_gpu: whether torch does what it does on GPUs: a norm in one kernel, Adam's update of all tensors at once.

    Raises ValueError for a count below 1, a part outside (0, 1], or negative seconds.
    """

    gpu: Gpu
    network: Link
    gpus_per_node: int = 8
    utilisation: float = 0.4
    memory_utilisation: float = 1.0
    operation_seconds: float = 0.0
    overlap: bool = True
    on_gpu: bool = True

    def __post_init__(self) -> None:
        if not self.gpus_per_node >= 1 or self.gpus_per_node % 1:
            raise ValueError(f"there are {self.gpus_per_node} GPUs in a node: it takes a whole number, at least 1")
        for name, part in (("utilisation", self.utilisation), ("memory utilisation", self.memory_utilisation)):
            if not 0 < part <= 1:
                raise ValueError(f"the {name} is {part}: it is a part, above 0 and at most 1")
        if not self.operation_seconds >= 0:
            raise ValueError(f"an operation takes {self.operation_seconds} seconds besides: give 0 or more")

    def describe(self) -> str:
        """The assumptions behind every second, in one sentence."""
        return (
            f"{self.gpu.name} at {self.utilisation:.0%} of its dense rate, {self.gpus_per_node} a node over "
            f"{self.gpu.link} ({catalog.link(self.gpu.link).bytes_per_second / 1e9:g} GB/s each way), "
            f"nodes over {self.network.name} ({self.network.bytes_per_second / 1e9:g} GB/s a GPU)"
        )

    def collective_seconds(self, op: str, nbytes: int, members: Sequence[int]) -> float:
        """How long a collective over a whole buffer of `nbytes` takes the ranks `members`."""
        link, ranks = catalog.link(self.gpu.link), len(members)
        # Where the members lie counts, not only how many: of hybrid sharding's two kinds of groups, one lies in a node
        # and the other has a rank in each.
        by_node = Counter(rank // self.gpus_per_node for rank in members)
        within, nodes = max(by_node.values()), len(by_node)
        if nodes == 1:  # both ways are the same ring then
            return PASSES.get(op, 1) * ring_seconds(link, nbytes, ranks)
        slowest = min(link.bytes_per_second, within * self.network.bytes_per_second)
        # Each of the N - 1 steps of the ring waits for its slowest hop; M - 1 of them are counted between nodes.
        latency = (ranks - nodes) * link.latency_seconds + (nodes - 1) * self.network.latency_seconds
        # A pass leaves a node once and enters it once, so all of its cards together carry one ring.
        ring = latency + (ranks - 1) / ranks * nbytes / slowest
        by_level = ring_seconds(self.network, nbytes / within, nodes) + ring_seconds(link, nbytes, within)
        return PASSES.get(op, 1) * min(ring, by_level)

    def compute_seconds(self, flops: float, nbytes: float, precision: str) -> float:
        """How long an operation takes that does `flops` operations and reads and writes `nbytes`."""
        arithmetic = flops / (self.gpu.flops[precision] * self.utilisation)
        memory = nbytes / (self.gpu.memory_bytes_per_second * self.memory_utilisation)
        return max(arithmetic, memory) + self.operation_seconds


def ring_seconds(link: Link, nbytes: float, ranks: int) -> float:
    """One pass of `nbytes` around a ring of `ranks`: (N - 1) a + (N - 1)/N B/b."""
    return (ranks - 1) * link.latency_seconds + (ranks - 1) / ranks * nbytes / link.bytes_per_second


class Clock:
    """Two streams of one rank: computation, and communication that runs beside it until somebody waits for it.

    Collectives of one group run one after the other, in the order in which they were started, as NCCL's do.
    """

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
        # It is the order of starting that counts, on every rank the same, or NCCL's collectives would never meet.
        self.communicated = max(self.communicated, self.computed) + seconds

    def wait(self, until: float) -> None:
        """Computation stands still until a collective is done."""
        self.waited += max(until - self.computed, 0.0)
        self.computed = max(self.computed, until)


@dataclass
class Work:
    """What a step consists of, counted while it is executed: the quantities that hardware turns into seconds."""

    flops: float = 0.0  # of matrix multiplications
    moved_bytes: float = 0.0  # read and written by all other operations
    operations: int = 0
    messages: int = 0  # steps of a ring, each of which costs a latency
    sent_bytes: float = 0.0


class Meter:
    """Counts the work of what is executed, and advances the clock by what it takes on `hardware`."""

    def __init__(self, clock: Clock, hardware: Hardware, precision: str) -> None:
        self.clock, self.work = clock, Work()
        self._hardware, self._precision = hardware, precision

    def compute(self, flops: float, nbytes: float) -> None:
        """An operation of `flops` arithmetic operations that reads and writes `nbytes`."""
        work = self.work
        work.operations += 1
        if flops:  # large multiplications are bound by arithmetic, so their bytes are not counted as moved
            work.flops += flops
        else:
            work.moved_bytes += nbytes
        self.clock.compute(self._hardware.compute_seconds(flops, nbytes, self._precision))

    def communicate(self, op: str, nbytes: int, members: Sequence[int]) -> None:
        """A collective over a whole buffer of `nbytes` is started among the ranks `members`."""
        passes, ranks = PASSES.get(op, 1), len(members)
        self.work.messages += passes * (ranks - 1)
        self.work.sent_bytes += passes * nbytes * (ranks - 1) / ranks
        seconds = self._hardware.collective_seconds(op, nbytes, members)
        self.clock.communicate(seconds)
        if not self._hardware.overlap:  # the cores that would compute meanwhile are the ones that send
            self.clock.wait(self.clock.communicated)
