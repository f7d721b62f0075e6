"""What a step would cost: a clock with two streams, NCCL's collectives, and a roofline for everything else.

A collective takes what `zerolab.theory.nccl` says. An operation takes as long as its arithmetic at the part of the
card's rate that matrix multiplications reach, or as its bytes at a part of the memory's bandwidth, whichever is longer
(Williams, Waterman, Patterson 2009, "Roofline"). Computing that overlaps a collective loses part of the collective's
time, since both want the same memory and cores. The model leaves out compiler fusion, and the host's own time unless
`operation_seconds` gives it. The parts were fitted to published runs (`zerolab.theory.seconds.FITTED`, `MEMORY_PART`).

`theory.plan`'s seconds are another model's. The two differ most under ddp, where each rank lays out, casts and divides
whole flats: here such operations run at `MEMORY_PART`, too, which was fitted with them.
"""

from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from inspect import signature
from typing import Any

from zerolab import catalog
from zerolab.catalog import Gpu, Link
from zerolab.names import check_count, check_fraction, check_type
from zerolab.theory.nccl import PASSES, Group
from zerolab.theory.seconds import matrix_part

MEMORY_PART = 0.2
"""Part of the memory's bandwidth that torch's separate operations reach: it reproduces MosaicML's 7B and 13B without
checkpointing on H100 and A100, in the fitting half of tests/published_runs.csv."""


@dataclass(frozen=True)
class Hardware:
    """What the ranks run on: one GPU per rank, `gpus_per_node` of them connected by the GPU's link, nodes by `network`.

    Raises TypeError for a GPU or network that is not the catalog's or like it, ValueError for a count below 1, a part
    outside (0, 1], or negative seconds.
    """

    gpu: Gpu  # each rank's own
    network: Link  # between nodes, one network card per GPU
    gpus_per_node: int = 8
    utilisation: float | None = None  # the part of the dense rate that matrix multiplications reach; None: as fitted
    memory_utilisation: float = MEMORY_PART  # the part of the memory's bandwidth that all else reaches, gaps included
    operation_seconds: float = 0.0  # what each operation takes on top; 0 for a GPU, as its host runs ahead
    sharp: bool = False  # whether the network does the sums, as NVIDIA's SHARP does
    overlap: bool = True  # whether communication overlaps computation; False where the same cores do both
    on_gpu: bool = True  # whether torch and the engines act as on GPUs: norms in one kernel, late waits as over NCCL

    def __post_init__(self) -> None:
        check_type("gpu", self.gpu, Gpu, "one of the catalog, such as zerolab.catalog.gpu('h100')")
        check_type("network", self.network, Link, "one of the catalog, such as zerolab.catalog.link('infiniband-ndr')")
        count = check_count("number of GPUs in a node", self.gpus_per_node)
        object.__setattr__(self, "gpus_per_node", count)
        check_fraction("utilisation", self.matrix_part)
        check_fraction("memory utilisation", self.memory_utilisation)
        if not self.operation_seconds >= 0:
            raise ValueError(
                f"operation_seconds is {self.operation_seconds}: give what an operation takes besides, 0 or more"
            )

    @property
    def matrix_part(self) -> float:
        """The part of the datasheet's rate that matrix multiplications reach."""
        return matrix_part(self.gpu) if self.utilisation is None else self.utilisation

    def describe(self) -> str:
        """The assumptions behind every second, in one sentence."""
        return (
            f"{self.gpu.name} at {self.matrix_part:.0%} of its dense rate, {self.gpus_per_node} a node over "
            f"{self.gpu.link} ({catalog.link(self.gpu.link).bytes_per_second / 1e9:g} GB/s each way), "
            f"nodes over {self.network.name} ({self.network.bytes_per_second / 1e9:g} GB/s a GPU)"
        )

    def collective_seconds(self, op: str, nbytes: int, members: Sequence[int]) -> float:
        """How long a collective over a whole buffer of `nbytes` takes the ranks `members`."""
        # Where the members are matters, not only how many there are: hybrid sharding has groups within a node, and
        # groups with one rank in each node.
        nodes = Counter(rank // self.gpus_per_node for rank in members)
        links = catalog.link(self.gpu.link), self.network
        return Group(len(members), len(nodes), *links, self.sharp, min(nodes.values())).seconds(op, nbytes)

    def compute_seconds(self, flops: float, nbytes: float, precision: str, *, at_once: bool = False) -> float:
        """How long an operation takes if it does `flops` operations and reads and writes `nbytes`.

        `at_once`: one kernel works on many tensors without gaps between them, at the memory's whole bandwidth.
        """
        arithmetic = flops / (self.gpu.rate(precision) * self.matrix_part)
        part = 1.0 if at_once else self.memory_utilisation
        memory = nbytes / (self.gpu.memory_bytes_per_second * part)
        return max(arithmetic, memory) + self.operation_seconds


def check_alone(hardware: Hardware, function: Callable[..., object], **named: Any) -> None:
    """Refuses arguments of `function` that `hardware` would override unnoticed.

    Raises TypeError for another type, ValueError for arguments that are not the function's defaults.
    """
    check_type("hardware", hardware, Hardware, f"a Hardware, or {', '.join(named)} by themselves")
    usual = signature(function).parameters
    if besides := [name for name, value in named.items() if value != usual[name].default]:
        raise ValueError(f"hardware= says what {' and '.join(besides)} would: leave it out, or give it to Hardware")


class Clock:
    """Two streams of one rank: computation, and communication that overlaps it until it is waited for.

    Collectives run one after the other, in the order in which they were started: those of one group do over NCCL, and
    those of two groups share the links. While one runs, computing loses the part `contention` of the time.
    """

    def __init__(self, contention: float = 0.0) -> None:
        self._contention = contention
        self.computed = 0.0  # until when, in seconds, the compute stream is busy
        self.communicated = 0.0
        self.waited = 0.0  # seconds that computation stood still for communication

    def now(self) -> int:
        """Nanoseconds since the start, as the running code would read them."""
        return round(self.computed * 1e9)

    def compute(self, seconds: float) -> None:
        """An operation runs that takes so long where nothing is sent beside it."""
        beside = min(max(self.communicated - self.computed, 0.0), seconds / (1 - self._contention))
        self.computed += seconds + self._contention * beside

    def communicate(self, seconds: float) -> None:
        """A collective starts: it runs once those before it are done, and not before now."""
        # The order of starting decides; it is the same on every rank, or NCCL's collectives would never match up.
        self.communicated = max(self.communicated, self.computed) + seconds

    def wait(self, until: float) -> None:
        """Computation stands still until a collective is done."""
        self.waited += max(until - self.computed, 0.0)
        self.computed = max(self.computed, until)


@dataclass
class Work:
    """The work of a step, counted while it is executed: the quantities that hardware turns into seconds."""

    flops: float = 0.0  # of matrix multiplications
    moved_bytes: float = 0.0  # read and written by all other operations
    operations: int = 0
    messages: int = 0  # steps of a ring, each of which costs a latency
    sent_bytes: float = 0.0


class Meter:
    """Counts the work that is executed, and advances the clock by the time it takes on `hardware`."""

    def __init__(self, clock: Clock, hardware: Hardware, precision: str) -> None:
        self.clock, self.work = clock, Work()
        self._hardware, self._precision = hardware, precision

    def compute(self, flops: float, nbytes: float, *, at_once: bool = False) -> None:
        """An operation of `flops` that reads and writes `nbytes`; `at_once` if it is one kernel on many tensors."""
        work = self.work
        work.operations += 1
        if flops:  # large multiplications are bound by arithmetic, so their bytes are not counted as moved
            work.flops += flops
        else:
            work.moved_bytes += nbytes
        self.clock.compute(self._hardware.compute_seconds(flops, nbytes, self._precision, at_once=at_once))

    def communicate(self, op: str, nbytes: int, members: Sequence[int]) -> None:
        """A collective over a whole buffer of `nbytes` starts among the ranks `members`."""
        passes, ranks = PASSES.get(op, 1), len(members)
        self.work.messages += passes * (ranks - 1)
        self.work.sent_bytes += passes * nbytes * (ranks - 1) / ranks
        seconds = self._hardware.collective_seconds(op, nbytes, members)
        self.clock.communicate(seconds)
        if not self._hardware.overlap:  # the cores that would compute in the meantime are busy sending
            self.clock.wait(self.clock.communicated)
