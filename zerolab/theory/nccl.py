"""How long NCCL's collectives take, by the model with which it chooses among its algorithms (NCCL 2.30.7).

Each way to do a collective has a latency and a rate for its bytes, and the fastest is chosen. For a gather or a
reduce-scatter there is usually just one: a ring through all ranks, in one of three protocols (LL, LL128, Simple) that
trade latency for bandwidth. The others have conditions:

* PAT (log N steps) only with one GPU per node;
* NVLS, where the switch within the node does the sums: on Hopper and later, in one node; over several nodes only if
  the network does them, too (CollNet, that is, SHARP), with a network card per GPU;
* trees, and NVLS within the nodes of a tree, only for an all-reduce.

An all-reduce by ring is two passes. What the ring of a node carries is NCCL's own figure for the link (topo.h), about
four fifths of the datasheet's; what goes over the network is bounded by all cards together of the node with the fewest
cards, or, where each message is for one rank alone, by each GPU's own card. Where NVLink joins the nodes, a step
between them takes as long as one within a node. Links that are not NCCL's (`catalog.Link`s of one's own) carry a plain
ring at their own rate.

Source: NVIDIA/nccl, src/graph/tuning.cc (ncclTopoTuneModel, ncclTopoGetAlgoTime), src/graph/topo.h; src/graph/paths.cc
(ncclTopoCheckP2p) of NVLink between nodes; src/init.cc (initTransportsRank) of the minimum over all ranks.
Left out: the rounding to whole channels in search.cc, and the table that corrects trees for medium sizes. We compiled
tuning.cc for comparison: it gives the same seconds for every gather and reduce-scatter that was tried, to a tenth of a
microsecond, and for all-reduces except for that table.
"""

from collections.abc import Iterator
from dataclasses import dataclass
from math import log2

from zerolab.catalog import GB, Link
from zerolab.names import check_count, check_known

PASSES = {"all_reduce": 2, "barrier": 2}  # every other collective is one
FROM_ONE = ("broadcast", "reduce", "send", "recv")  # of which one rank sends or receives the whole
ONE_TO_ONE = ("all_to_all", "gather", "scatter", "send", "recv")  # whose messages are each for one rank alone
OPS = (*PASSES, "all_gather", "reduce_scatter", *dict.fromkeys((*FROM_ONE, *ONE_TO_ONE)))
LINK_RATES = {"nvlink2": 120 * GB, "nvlink3": 240 * GB, "nvlink-a800": 160 * GB, "nvlink4": 370.8 * GB}
LINK_RATES["nvlink5"] = 721.8 * GB
"""Bytes a second of a node's ring: links a GPU times topo.h's 20, 20, 20, 20.6 and 40.1 GB/s."""

NVLS_EFFICIENCY = {"nvlink4": 0.85, "nvlink5": 0.74}  # links whose switch does the sums, Hopper's and Blackwell's
CHANNELS = 16  # of NVLS, of which one is lost to the model


@dataclass(frozen=True)
class Protocol:
    """Base latency, latency a step by NVLink and over the network, in seconds, and the part of the rate it reaches."""

    base: float
    link: float
    network: float
    part: float


RING = {
    "LL": Protocol(6.6e-6, 0.6e-6, 2.7e-6, 0.5),
    "LL128": Protocol(14.0e-6, 1.9e-6, 4.0e-6, 0.92),
    "Simple": Protocol(8.4e-6, 3.4e-6, 14.0e-6, 1.0),
}
TREE = {
    "LL": Protocol(6.8e-6, 0.6e-6, 5.0e-6, 0.92 / 3.8),
    "LL128": Protocol(14.0e-6, 1.25e-6, 8.5e-6, 0.92 * 120 / 128),
    "Simple": Protocol(8.4e-6, 4.0e-6, 14.0e-6, 0.92),
}
LL_RATES = {
    "nvlink2": 39 * GB,
    "nvlink3": 87.7 * GB,
    "nvlink-a800": 87.7 * GB,
    "nvlink4": 141 * GB,
    "nvlink5": 282 * GB,
}
"""What LL carries at most within a node; between two it is 39, and more of them 20.4 GB/s (llMaxBws, Intel's hosts)."""
OVERHEAD = 1e-6  # seconds of the host for a step over the network; Simple pays it three times
PAT, NVLS, NVLS_TREE = Protocol(8e-6, 4e-6, 14e-6, 0.75), Protocol(0, 25e-6, 18e-6, 1), Protocol(0, 25e-6, 20.9e-6, 1)
PLATEAU = 1.4  # latency of an all-reduce's ring beyond that of its steps, over nodes (1.9 before Ampere)


@dataclass(frozen=True)
class Way:
    """One way to do a collective: its name as in NCCL's log, seconds before the bytes, and bytes a second."""

    name: str
    latency: float
    bytes_per_second: float

    def seconds(self, nbytes: float) -> float:
        """How long the whole buffer takes."""
        return self.latency + nbytes / self.bytes_per_second


@dataclass(frozen=True)
class Group:
    """Ranks of a collective: how many, in how many nodes, joined by what; `sharp` if the network does the sums.

    `fewest`: how many ranks the node with the fewest has; None if the ranks are spread as evenly as possible.

    Raises ValueError for a count below 1, more nodes than ranks, or a `fewest` above the mean.
    """

    ranks: int
    nodes: int
    link: Link
    network: Link
    sharp: bool = False
    fewest: int | None = None

    def __post_init__(self) -> None:
        check_count("number of ranks", self.ranks)
        check_count("number of nodes", self.nodes)
        if self.nodes > self.ranks:
            raise ValueError(f"there are {self.nodes} nodes for {self.ranks} ranks: give each node at least one")
        if check_count("number of ranks in the smallest node", self.cards) > self.per_node:
            raise ValueError(f"{self.nodes} nodes of {self.cards} or more ranks are more than {self.ranks}: give fewer")

    @property
    def per_node(self) -> float:
        """Ranks a node; a fraction where nodes are not equally full."""
        return self.ranks / self.nodes

    @property
    def cards(self) -> int:
        """Cards, one for each rank, of the node with the fewest: NCCL counts with as many on all nodes."""
        return self.ranks // self.nodes if self.fewest is None else self.fewest

    @property
    def rate(self) -> float:
        """Bytes a second of one ring: the node's, or what all cards of a node carry together, whichever is less."""
        within, between = _carried(self.link), self.cards * _carried(self.network)
        if self.nodes == 1:
            return within
        return between if self.per_node == 1 else min(within, between)

    def seconds(self, op: str, nbytes: float) -> float:
        """How long `op`, one of `OPS`, over a whole buffer of `nbytes` takes; of an all-to-all that is each rank's.

        Raises ValueError for another, or bytes below 0.
        """
        check_known("collective", op, OPS)
        if not nbytes >= 0:
            raise ValueError(f"a collective over {nbytes!r} bytes: give 0 or more")
        return self.best(op, nbytes).seconds(nbytes) if self.ranks > 1 else 0.0

    def best(self, op: str, nbytes: float) -> Way:
        """The way that the tuner chooses. Raises ValueError as `ways`."""
        return min(self.ways(op), key=lambda way: way.seconds(nbytes))

    def ways(self, op: str) -> Iterator[Way]:
        """All that the tuner considers. Raises ValueError for an unknown collective, or one rank, which sends none."""
        check_known("collective", op, OPS)
        if self.ranks == 1:
            raise ValueError("one rank sends nothing, so there is no way to choose: ask for two or more ranks")
        yield from self._rings(op)
        if op in FROM_ONE or op in ONE_TO_ONE:  # neither trees nor the switch have them
            return
        if op in PASSES:
            yield from self._trees()
        elif self.per_node == 1 and self._is_nccl(self.network) and self._leaves_nvlink():
            steps = log2(self.nodes) * PAT.network / 3.5 + self.ranks * 2.8e-6
            yield Way("PAT Simple", PAT.base + steps, self.rate * PAT.part)
        yield from self._switched(op)

    def _rings(self, op: str) -> Iterator[Way]:
        passes = PASSES.get(op, 1)
        outer = passes * (self.nodes - 1)
        inner = passes * (self.ranks - 1) - outer
        share = 1.0 if op in FROM_ONE else self.ranks / (passes * (self.ranks - 1))
        rate = self._own_rate(op) if op in ONE_TO_ONE else self.rate
        if not self._is_nccl(self.network if self.nodes > 1 else self.link):
            latency = inner * self.link.latency_seconds + outer * self.network.latency_seconds
            yield Way("ring", latency, rate * share)
            return
        for name, protocol in self._protocols(RING).items():
            # With one GPU per node, nothing hides what a step over the network takes.
            between = self._step(TREE[name] if self.per_node == 1 else protocol)
            overhead = OVERHEAD * (3 if name == "Simple" else 1) if self._leaves_nvlink() else 0.0
            latency = protocol.base + inner * max(protocol.link, overhead) + outer * between
            if name == "Simple" and passes == 2 and self._leaves_nvlink():
                latency *= PLATEAU
            yield Way(f"ring {name}", latency, self._limited(name, rate * protocol.part) * share)

    def _own_rate(self, op: str) -> float:
        """Bytes a second of what a rank sends to others, where its own card carries all that leaves the node."""
        if self.nodes == 1:
            return self.rate
        away = 1.0 if op in FROM_ONE else (self.ranks - self.cards) / (self.ranks - 1)
        return min(_carried(self.link), _carried(self.network) / away)

    def _trees(self) -> Iterator[Way]:
        if self.nodes == 1 or not self._is_direct():
            return
        for name, protocol in self._protocols(TREE).items():
            steps = 2 * ((self.per_node - 1) * protocol.link + log2(self.nodes) * self._step(protocol))
            yield Way(f"tree {name}", protocol.base + steps, self._limited(name, self.rate * protocol.part) / 2)

    def _protocols(self, protocols: dict[str, Protocol]) -> dict[str, Protocol]:
        """Those that are worth considering: over TCP only Simple, whose steps cost what the link says."""
        return protocols if self._is_direct() else {"Simple": protocols["Simple"]}

    def _limited(self, name: str, rate: float) -> float:
        if name != "LL":
            return rate
        if self._leaves_nvlink():
            return min(rate, (39 if self.nodes == 2 else 20.4) * GB)
        links = (self.link, self.network) if self.nodes > 1 else (self.link,)
        return min([rate, *(LL_RATES.get(link.name, rate) for link in links)])

    def _switched(self, op: str) -> Iterator[Way]:
        efficiency = NVLS_EFFICIENCY.get(self.link.name)
        if efficiency is None or self.cards < 2:
            return
        inside = LINK_RATES[self.link.name] * efficiency * (CHANNELS - 1) / CHANNELS
        share = self.ranks / (2 * (self.ranks - 1)) if op in PASSES else 1.0  # gathers have it in `inside`
        inside *= 2 if op in PASSES else (self.per_node - 1) / self.per_node
        if self.nodes == 1:  # the model lets no more pass than a ring's rate, even where the switch halves the bytes
            yield Way("NVLS Simple", NVLS.link, min(inside, self.rate) * share)
            return
        if self.sharp and self._is_direct():
            yield Way("NVLS Simple", NVLS.link + NVLS.network, min(inside, self.rate) * share)
        if op in PASSES and self._is_direct():
            outside = self.cards * _carried(self.network) * (2 if self.nodes == 2 else 1)
            steps = NVLS_TREE.link + 2 * log2(self.nodes) * NVLS_TREE.network
            yield Way("NVLSTree Simple", steps, min(inside, outside) * share)

    def _is_nccl(self, link: Link) -> bool:
        """Whether NCCL would carry it: a link of the catalog, not one with measured rates."""
        return link.name in LINK_RATES or link.name.startswith(("infiniband", "ethernet"))

    def _is_direct(self) -> bool:
        """Whether no step goes through the kernel's TCP, where only the Simple protocol is worth its while."""
        return not self._leaves_nvlink() or self.network.name.startswith("infiniband")

    def _leaves_nvlink(self) -> bool:
        """Whether steps between nodes go over another network than NVLink."""
        return self.nodes > 1 and self.network.name not in LINK_RATES

    def _step(self, protocol: Protocol) -> float:
        """Seconds of a step between nodes."""
        if not self._leaves_nvlink():
            return protocol.link
        return protocol.network if self._is_direct() else self.network.latency_seconds


def _carried(link: Link) -> float:
    """Bytes a second of a ring over a link: NCCL's own figure, unless the link was made with less."""
    return min(LINK_RATES.get(link.name, link.bytes_per_second), link.bytes_per_second)


BUFFERS = {"Simple": 4 << 20, "LL": 8 * 512 * 8 * 16, "LL128": 120 * 640 * 8 * 8}
"""Bytes of a connection's buffer for each protocol: 4 MiB; lines, threads, steps and 16 bytes of a line; elements,
threads, steps and 8 bytes of an element (init.cc, DEFAULT_BUFFSIZE; device.h). NCCL_BUFFSIZE and others change them."""


def buffer_bytes(channels: int = 16, connections: int = 1) -> int:
    """Bytes that a communicator takes of a GPU to receive into, outside of torch's allocator.

    A ring has one connection for each channel, and a tree up to three more; how many channels there are NCCL decides by
    the links (16 are usual over NVLink). Each process group that communicates on GPUs is a communicator.

    Raises ValueError for a count below 1.
    """
    check_count("number of channels", channels)
    check_count("number of connections", connections)
    return channels * connections * sum(BUFFERS.values())
